"""One websocket against everything a peer may do to it, over sockets cranked by hand."""

import asyncio
import json

import pytest
import pytest_asyncio
from livetree_server import auth
from livetree_server.app import Application, now_ms
from livetree_server.gateway import endpoint as endpoint_module
from livetree_server.gateway import requests as requests_module
from livetree_server.hub import connection as connection_module
from livetree_server.storage.memory import MemoryStore
from livetree_server.topics import reading as reading_module
from livetree_server.topics.ports import StoreError
from websockets.frames import Opcode

from tests.simulation.wire import Wire, masked

SECRET = "a secret of more than thirty-two bytes"
HELLO = '{"type":"hello","protocol":"livetree.v1"}'


class Peer(Wire):
    """A client that speaks JSON and waits for answers."""

    def say(self, **frame):
        self.send(json.dumps(frame))

    async def hear(self) -> list[dict]:
        """Return all frames once the server has nothing more to do."""
        heard: list[dict] = []
        quiet = 0
        while quiet < 30:
            texts = self.texts()
            heard += [json.loads(text) for text in texts]
            quiet = 0 if texts else quiet + 1
            await asyncio.sleep(0)
        return heard

    async def ask(self, **request) -> dict:
        """Send a request and return what answers it."""
        request.setdefault("id", 1)
        self.say(**request)
        (answer,) = [frame for frame in await self.hear() if frame.get("re") == request["id"]]
        return answer


@pytest_asyncio.fixture
async def application():
    async with Application(MemoryStore()) as application:
        yield application


def connect(application, **hello) -> Peer:
    peer = Peer(application.gateway)
    peer.say(type="hello", protocol="livetree.v1", **hello)
    return peer


async def topic_with(peer: Peer, *texts: str) -> str:
    answer = await peer.ask(op="topic.create", name="topic")
    topic = answer["result"]["topic"]
    for text in texts:
        await peer.ask(op="message.create", topic=topic, role="user", text=text)
    return topic


async def test_H1_hello_is_answered_by_welcome(application):
    peer = connect(application)
    (welcome,) = await peer.hear()
    assert welcome["type"] == "welcome"
    assert welcome["subject"] == "local"
    assert welcome["done"] == {}
    assert b"Sec-WebSocket-Protocol: livetree.v1" in peer.response


async def test_another_path_is_not_found(application):
    assert Wire(application.gateway, path=b"/elsewhere").status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Origin: http://127.0.0.1:8400\r\n", 101),
        (b"Origin: http://localhost:5173\r\n", 101),
        (b"Origin: https://evil.example\r\n", 403),
        (b"Origin: null\r\n", 403),
    ],
)
async def test_pages_of_other_sites_may_not_connect(application, headers, status):
    assert Wire(application.gateway, headers=headers).status == status


async def test_H2_a_command_before_hello_ends_the_connection(application):
    peer = Peer(application.gateway)
    peer.say(id=1, op="topic.list")
    assert peer.close_code() == 4400


async def test_H2_no_hello_in_time_ends_the_connection(application, monkeypatch):
    monkeypatch.setattr(endpoint_module, "HELLO_SECONDS", 0.01)
    peer = Peer(application.gateway)
    while (code := peer.close_code()) is None:
        peer.say(type="ping")  # whatever else it sends
        await asyncio.sleep(0.001)
    assert code == 4408


@pytest.mark.parametrize("token", [None, "nonsense"])
async def test_H3_a_bad_token_ends_the_connection(token):
    async with Application(MemoryStore(), secret=SECRET) as application:
        peer = connect(application, token=token)
        assert peer.close_code() == 4401


async def test_H3_a_token_opens_what_it_names_and_nothing_else():
    async with Application(MemoryStore(), secret=SECRET) as application:
        token = auth.issue(SECRET, "ann", [("a-*", "write"), ("r", "read")], seconds=60)
        peer = connect(application, token=token)
        made = await peer.ask(op="topic.create", topic="a-1", name="mine")
        assert made["type"] == "result"
        refused = [
            await peer.ask(op="topic.create", topic="b-1"),
            await peer.ask(op="message.create", topic="r", role="user", text="x"),
            await peer.ask(op="topic.open", topic="b-1"),
            await peer.ask(op="topic.delete", topic="a-1"),
        ]
        assert [answer["code"] for answer in refused] == ["FORBIDDEN"] * 4
        listed = await peer.ask(op="topic.list")
        assert [topic["id"] for topic in listed["result"]["topics"]] == ["a-1"]


async def test_H3_a_token_that_expires_ends_the_connection(monkeypatch):
    monkeypatch.setattr(endpoint_module, "EXPIRY_SECONDS", 0.001)
    now = [1_700_000_000_000]
    async with Application(MemoryStore(), secret=SECRET, clock=lambda: now[0]) as application:
        token = auth.issue(SECRET, "ann", [("*", "read")], seconds=10**12)
        peer = connect(application, token=token)
        assert [frame["type"] for frame in await peer.hear()] == ["welcome"]
        now[0] += 10**16
        while (code := peer.close_code()) is None:
            await asyncio.sleep(0.001)
        assert code == 4401


@pytest.mark.parametrize("data", ["{", "[]", "null", '{"op":"topic.list"}'])
async def test_R4_what_is_no_request_ends_the_connection(application, data):
    peer = connect(application)
    await peer.hear()
    peer.send(data)
    assert peer.close_code() == 4400


async def test_R4_a_binary_frame_ends_the_connection(application):
    peer = connect(application)
    await peer.hear()
    peer.send(b'{"id":1,"op":"topic.list"}', Opcode.BINARY)
    assert peer.close_code() == 4400


async def test_R4_a_frame_over_the_limit_ends_the_connection(application):
    peer = connect(application)
    await peer.hear()
    text = "x" * endpoint_module.MAX_FRAME_BYTES
    peer.say(id=1, op="message.create", topic="T", role="user", text=text)
    assert peer.close_code() == 4413


async def test_H2_before_hello_a_large_frame_ends_the_connection(application):
    peer = Peer(application.gateway)
    peer.say(type="hello", protocol="livetree.v1", client="x" * 70_000)
    assert peer.close_code() == 4413


async def test_R3_what_is_wrong_with_a_request_is_its_own_affair(application):
    peer = connect(application)
    topic = await topic_with(peer)
    wrong = [
        await peer.ask(op="topic.fly", topic=topic),
        await peer.ask(op="message.create", topic=topic, role="wizard", text="x"),
        await peer.ask(op="message.create", topic=topic, role="user", data={"parts": 5}),
        await peer.ask(op="message.create", topic=topic, role="user", messageId="no spaces"),
    ]
    assert [answer["code"] for answer in wrong] == ["VALIDATION"] * 4
    assert (await peer.ask(op="topic.get", topic=topic))["result"]["topic"]["seq"] == 1


async def test_R7_a_fault_of_one_is_not_noticed_by_another(application):
    good, bad = connect(application), connect(application)
    topic = await topic_with(good)
    await good.ask(op="topic.open", topic=topic)
    await bad.hear()
    bad.send("not JSON")
    assert bad.close_code() == 4400
    answer = await good.ask(op="message.create", topic=topic, role="user", text="on we go")
    assert answer["type"] == "result"


async def test_a_socket_cut_in_the_middle_of_a_frame_leaves_nothing(application):
    good, cut = connect(application), connect(application)
    topic = await topic_with(good)
    await cut.hear()
    frame = masked(
        json.dumps(
            {"id": 1, "op": "message.create", "topic": topic, "role": "user", "text": "half"}
        ).encode()
    )
    cut.send_bytes(frame[: len(frame) // 2])
    cut.cut()
    await good.hear()
    assert (await good.ask(op="topic.get", topic=topic))["result"]["topic"]["seq"] == 1
    assert application.hub.statistics()["connections"] == 1


async def test_a_message_may_come_in_fragments(application):
    peer = connect(application)
    await peer.hear()
    data = b'{"id":4,"op":"topic.list"}'
    peer.send_bytes(masked(data[:9], fin=False))
    peer.send_bytes(masked(b"", Opcode.PING))
    peer.send_bytes(masked(data[9:], Opcode.CONT))
    (answer,) = await peer.hear()
    assert answer["re"] == 4


async def test_R6_a_burst_of_10_000_requests_is_answered_one_by_one(application):
    peer = connect(application)
    topic = await topic_with(peer)
    frames = [
        masked(json.dumps({"id": number, "op": "topic.get", "topic": topic}).encode())
        for number in range(10_000)
    ]
    peer.send_bytes(b"".join(frames))
    most = 0
    answers: list[dict] = []
    while len(answers) < 10_000:
        most = max(most, peer.endpoint._unanswered)
        answers += [json.loads(text) for text in peer.texts()]
        await asyncio.sleep(0)
    assert [answer["re"] for answer in answers] == list(range(10_000))
    assert {answer["type"] for answer in answers} == {"result"}
    assert most <= endpoint_module.MAX_UNANSWERED


async def test_R6_a_full_topic_is_busy(application):
    application.rooms.settings = type(application.rooms.settings)(queue_length=5)
    peer = connect(application)
    topic = await topic_with(peer)
    for number in range(20):
        peer.say(id=number, op="topic.update", topic=topic, name=str(number))
    answers = await peer.hear()
    assert [answer.get("code") for answer in answers] == ["BUSY"] * 15 + [None] * 5


async def test_S7_who_does_not_read_is_not_read_and_its_answers_wait(application):
    peer = connect(application)
    topic = await topic_with(peer, "x" * 20_000)
    for number in range(200):
        peer.say(id=number, op="branch.get", topic=topic)
        for _ in range(5):
            await asyncio.sleep(0)
    bound = endpoint_module.HIGH_WATER
    assert bound < len(peer.transport.written) < 2 * bound + 60_000
    assert not peer.transport.reading
    answers = [frame["re"] for frame in await peer.hear()]
    assert answers == list(range(200))


async def test_S2_a_subscriber_gets_the_snapshot_and_all_that_follows(application):
    peer = connect(application)
    topic = await topic_with(peer, "one", "two")
    await peer.hear()
    peer.say(id=9, op="topic.open", topic=topic)
    frames = await peer.hear()
    assert [frame["type"] for frame in frames] == ["result", "snapshot", "synced"]
    assert frames[1]["seq"] == 3
    assert [node["preview"] if "preview" in node else node["data"] for node in frames[1]["nodes"]]

    await peer.ask(id=10, op="message.create", topic=topic, role="user", text="three")
    peer.say(id=11, op="topic.close", topic=topic)
    await peer.hear()
    assert (await peer.ask(id=12, op="topic.update", topic=topic, name="n"))["type"] == "result"


async def test_D1_the_sender_hears_its_delta_before_its_result(application):
    peer = connect(application)
    topic = await topic_with(peer)
    peer.say(id=1, op="topic.open", topic=topic)
    await peer.hear()
    peer.say(id=2, op="message.create", topic=topic, role="user", text="x", mutation="m")
    delta, result = await peer.hear()
    assert (delta["type"], result["type"]) == ("delta", "result")
    assert delta["cause"] == {"op": "message.create", "by": "local", "mutation": "m"}
    for name in ("rootId", "activeNodeId", "seq", "commit", "prev", "digest"):
        assert delta[name] is not None


async def test_S5_a_resume_with_nothing_new_costs_one_frame(application):
    peer = connect(application)
    topic = await topic_with(peer, "one")
    peer.say(id=1, op="topic.open", topic=topic)
    snapshot = next(frame for frame in await peer.hear() if frame["type"] == "snapshot")
    peer.cut()

    at = {"topic": topic, "seq": snapshot["seq"], "commit": snapshot["commit"]}
    back = connect(application, resume=[at])
    assert [frame["type"] for frame in await back.hear()] == ["welcome", "synced"]


async def test_S1_a_resume_gets_the_deltas_it_missed_from_the_store_too(application):
    peer = connect(application)
    topic = await topic_with(peer)
    first = await peer.ask(op="topic.get", topic=topic)
    for number in range(5):
        await peer.ask(op="message.create", topic=topic, role="user", text=str(number))
    application.rooms.unload(topic)  # nothing is at hand any more

    at = {"topic": topic, "seq": 1, "commit": first["result"]["topic"]["commit"]}
    back = connect(application, resume=[at])
    frames = await back.hear()
    assert [frame["type"] for frame in frames] == ["welcome"] + ["delta"] * 5 + ["synced"]
    assert [frame["seq"] for frame in frames[1:6]] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "at", [{"seq": 2, "commit": "another"}, {"seq": 99, "commit": "x"}, {"seq": 0, "commit": "x"}]
)
async def test_S3_another_history_gets_a_snapshot_marked_reset(application, at):
    peer = connect(application)
    topic = await topic_with(peer, "one")
    back = connect(application, resume=[{"topic": topic, **at}])
    frames = await back.hear()
    assert [frame["type"] for frame in frames] == ["welcome", "snapshot", "synced"]
    assert frames[1]["reset"] is True


async def test_S8_a_resume_of_a_topic_that_is_gone_says_so(application):
    back = connect(application, resume=[{"topic": "nope", "seq": 1, "commit": "x"}])
    frames = await back.hear()
    assert [frame["type"] for frame in frames] == ["welcome", "gone"]
    assert "NOT_FOUND" in frames[1]["reason"]


async def test_S8_deleting_a_topic_ends_its_subscriptions(application):
    peer, other = connect(application), connect(application)
    topic = await topic_with(peer)
    other.say(id=1, op="topic.open", topic=topic)
    await other.hear()
    await peer.ask(op="topic.delete", topic=topic)
    assert [frame["type"] for frame in await other.hear()] == ["delta", "gone"]
    assert (await other.ask(op="topic.open", topic=topic))["code"] == "NOT_FOUND"
    assert (await peer.ask(op="topic.create", topic=topic))["code"] == "CONFLICT"


async def test_S7_a_slow_subscriber_is_caught_up_when_it_reads_again(application):
    slow, writer = connect(application), connect(application)
    topic = await topic_with(writer)
    slow.say(id=1, op="topic.open", topic=topic)
    await slow.hear()
    text = "x" * 20_000
    for number in range(100):
        await writer.ask(id=number, op="message.create", topic=topic, role="user", text=text)
    assert len(slow.transport.written) < endpoint_module.HIGH_WATER + 50_000

    frames = await slow.hear()
    assert frames[-1]["type"] == "synced"
    seqs = [frame["seq"] for frame in frames if frame["type"] == "delta"]
    assert seqs == list(range(2, 102))
    await writer.ask(id=500, op="topic.update", topic=topic, name="after")
    assert [frame["type"] for frame in await slow.hear()] == ["delta"]


async def test_S4_a_large_snapshot_comes_in_chunks_at_the_readers_pace(application):
    writer = connect(application)
    topic = await topic_with(writer)
    for start in range(0, 5000, 200):
        commands = [
            {"op": "message.create", "role": "user", "text": f"message {start + number}"}
            for number in range(200)
        ]
        await writer.ask(op="batch", topic=topic, commands=commands)
    reader = connect(application)
    await reader.hear()
    reader.say(id=1, op="topic.open", topic=topic)
    for _ in range(200):
        await asyncio.sleep(0)
    held = len(reader.transport.written)
    # Meanwhile the topic goes on.
    await writer.ask(op="message.create", topic=topic, role="user", text="meanwhile")
    frames = await reader.hear()

    assert held < endpoint_module.HIGH_WATER + 400_000
    chunks = [frame for frame in frames if frame["type"] == "snapshot"]
    assert [chunk["chunk"] for chunk in chunks] == [0, 1, 2, 3, 4]
    assert sum(len(chunk["nodes"]) for chunk in chunks) == 5000
    assert [frame["type"] for frame in frames[-2:]] == ["delta", "synced"]


async def test_X1_a_repeated_mutation_gets_the_first_result(application):
    peer = connect(application)
    topic = await topic_with(peer)
    request = {
        "op": "message.create", "topic": topic, "role": "user", "text": "once",
        "messageId": "m1", "mutation": "mut",
    }  # fmt: skip
    first = await peer.ask(id=1, **request)
    again = await peer.ask(id=2, **request)
    assert first["result"] == again["result"]
    other = await peer.ask(id=3, **{**request, "text": "other"})
    assert other["code"] == "CONFLICT"
    back = connect(application, unacknowledged=["mut", "never"])
    (welcome,) = await back.hear()
    assert welcome["done"] == {"mut": first["result"]}


async def test_X1_two_copies_at_the_same_moment_happen_once(application):
    one, two = connect(application), connect(application)
    topic = await topic_with(one)
    await two.hear()
    request = {"op": "message.create", "topic": topic, "role": "user", "mutation": "m"}
    one.say(id=1, **request)
    two.say(id=1, **request)
    first, second = await one.hear(), await two.hear()
    assert first[0]["result"] == second[0]["result"]
    assert (await one.ask(op="topic.get", topic=topic))["result"]["topic"]["seq"] == 2


async def test_X1_a_repeated_claim_tells_what_to_go_on_from(application):
    peer = connect(application)
    topic = await topic_with(peer)
    turn = await peer.ask(
        op="turn.submit", topic=topic, user={"mode": "create", "text": "q"}, placeholders=[{}]
    )
    (reply,) = turn["result"]["placeholderIds"]
    claim = {"op": "stream.claim", "topic": topic, "messageId": reply, "mutation": "claim"}
    first = (await peer.ask(id=1, **claim))["result"]
    again = (await peer.ask(id=2, **claim))["result"]
    assert again == first
    assert (first["n"], first["parts"]) == (0, [])


async def test_X3_a_refusal_is_not_kept(application):
    peer = connect(application)
    topic = await topic_with(peer)
    request = {"op": "topic.setActive", "topic": topic, "nodeId": "m1", "mutation": "mut"}
    assert (await peer.ask(**request))["code"] == "NOT_FOUND"
    await peer.ask(op="message.create", topic=topic, role="user", messageId="m1", setActive=False)
    assert (await peer.ask(**request))["type"] == "result"


async def test_C1_on_shutdown_what_is_queued_is_done_and_the_close_is_1012(application):
    peer = connect(application)
    topic = await topic_with(peer)
    peer.say(id=5, op="topic.update", topic=topic, name="last words")
    peer.endpoint.shutdown()
    frames = []
    while peer.transport.eof is False and not frames:
        await asyncio.sleep(0)
        frames = peer.frames()
    assert json.loads(bytes(frames[0].data))["type"] == "result"
    assert frames[1].opcode is Opcode.CLOSE
    assert int.from_bytes(bytes(frames[1].data)[:2], "big") == 1012


async def test_C2_a_ping_is_answered(application):
    peer = connect(application)
    await peer.hear()
    peer.say(type="ping")
    assert await peer.hear() == [{"type": "pong"}]


async def test_L1_to_L9_a_reply_is_offered_claimed_written_and_ended(application):
    bot, user = connect(application), connect(application)
    topic = await topic_with(user)
    await bot.ask(op="bot.serve", models=["ec*"])
    user.say(id=1, op="topic.open", topic=topic)
    await user.hear()
    turn = await user.ask(
        id=2, op="turn.submit", topic=topic, user={"mode": "create", "text": "hi"},
        placeholders=[{"model": "echo"}, {"model": "other"}],
    )  # fmt: skip
    reply, other = turn["result"]["placeholderIds"]
    assert [frame["messageId"] for frame in await bot.hear()] == [reply]

    claim = await bot.ask(op="stream.claim", topic=topic, messageId=reply)
    epoch = claim["result"]["epoch"]
    assert claim["result"]["n"] == 0
    refused = await user.ask(id=3, op="topic.clear", topic=topic)
    assert refused["code"] == "TOPIC_LIVE"
    bot.say(
        id=7, op="stream.append", topic=topic, messageId=reply, epoch=epoch,
        **{"from": 1, "ops": [["t", 0, "you said "], ["t", 0, "hi"]]},
    )  # fmt: skip
    (ack,) = await bot.hear()
    assert (ack["type"], ack["received"], ack["durable"]) == ("streamAck", 2, 0)
    done = await bot.ask(op="stream.finish", topic=topic, messageId=reply, epoch=epoch, n=2)
    assert done["result"]["status"] == "success"
    frames = await user.hear()
    assert [frame["type"] for frame in frames] == ["stream", "delta"]
    got = await user.ask(id=4, op="message.get", topic=topic, messageIds=[reply])
    text = got["result"]["nodes"][0]["data"]["parts"]
    assert text == [{"type": "text", "text": "you said hi"}]
    stopped = await user.ask(id=5, op="stream.abort", topic=topic, messageId=other)
    assert stopped["result"]["status"] == "paused"


async def test_X1_a_repeated_deletion_gets_the_first_result(application):
    peer = connect(application)
    topic = await topic_with(peer)
    first = await peer.ask(id=1, op="topic.delete", topic=topic, mutation="bye")
    again = await peer.ask(id=2, op="topic.delete", topic=topic, mutation="bye")
    assert again["result"] == first["result"]
    assert (await peer.ask(id=3, op="topic.delete", topic=topic))["code"] == "NOT_FOUND"


async def test_R2_a_close_sent_after_an_open_closes_it(application):
    peer = connect(application)
    topic = await topic_with(peer)
    peer.say(id=1, op="topic.open", topic=topic)
    peer.say(id=2, op="topic.close", topic=topic)
    frames = await peer.hear()
    assert [frame["type"] for frame in frames] == ["result", "snapshot", "synced", "result"]
    await peer.ask(id=3, op="topic.update", topic=topic, name="x")
    assert application.hub.statistics()["subscriptions"] == 0


async def test_X5_a_commit_whose_outcome_is_unknown_is_looked_up(application):
    peer, viewer = connect(application), connect(application)
    topic = await topic_with(peer)
    viewer.say(id=1, op="topic.open", topic=topic)
    await viewer.hear()
    request = {"op": "message.create", "topic": topic, "role": "user", "text": "once"}

    application.store.fail_next(after_commit=True)
    kept = await peer.ask(id=1, **request, mutation="kept")
    assert kept["type"] == "result"
    assert [frame["seq"] for frame in await viewer.hear()] == [2]

    application.store.fail_next(after_commit=False)
    lost = await peer.ask(id=2, **request, mutation="lost")
    assert lost["code"] == "UNAVAILABLE"
    assert (await peer.ask(id=3, **request, mutation="lost"))["result"]["seq"] == 3
    assert [frame["seq"] for frame in await viewer.hear()] == [3]


async def test_L11_a_reply_goes_on_when_everyone_who_watched_has_left(application):
    bot, user = connect(application), connect(application)
    topic = await topic_with(user)
    user.say(id=1, op="topic.open", topic=topic)
    turn = await user.ask(
        id=2,
        op="turn.submit",
        topic=topic,
        user={"mode": "create", "text": "hi"},
        placeholders=[{}],
    )
    reply = turn["result"]["placeholderIds"][0]
    epoch = (await bot.ask(op="stream.claim", topic=topic, messageId=reply))["result"]["epoch"]
    writing = {"op": "stream.append", "topic": topic, "messageId": reply, "epoch": epoch}
    bot.say(id=3, **writing, **{"from": 1, "ops": [["t", 0, "begun, "]]})
    await bot.hear()

    user.cut()
    application.rooms.unload(topic)  # nobody watches, but there is live text
    bot.say(id=4, **writing, **{"from": 2, "ops": [["t", 0, "and ended"]]})
    await bot.hear()
    await bot.ask(op="stream.finish", topic=topic, messageId=reply, epoch=epoch, n=2)

    back = connect(application)
    read = await back.ask(id=5, op="message.get", topic=topic, messageIds=[reply])
    (node,) = read["result"]["nodes"]
    assert node["data"]["parts"] == [{"type": "text", "text": "begun, and ended"}]
    assert node.get("status", "success") == "success"


async def test_X1_a_repeated_creation_without_an_id_makes_one_topic(application):
    peer = connect(application)
    first = await peer.ask(id=1, op="topic.create", name="one", mutation="make")
    again = await peer.ask(id=2, op="topic.create", name="one", mutation="make")
    assert again["result"] == first["result"]
    other = await peer.ask(id=3, op="topic.create", name="other", mutation="make")
    assert other["code"] == "CONFLICT"
    assert len((await peer.ask(id=4, op="topic.list"))["result"]["topics"]) == 1


@pytest.mark.parametrize("forgotten", [False, True])
async def test_L2_a_writer_goes_on_from_what_is_stored(application, forgotten):
    bot, user = connect(application), connect(application)
    topic = await topic_with(user)
    made = await user.ask(
        op="message.create", topic=topic, role="assistant", text="begun, ", messageId="m"
    )
    assert made["type"] == "result"
    if forgotten:
        application.rooms.unload(topic)
    user.say(id=1, op="topic.open", topic=topic)
    await user.hear()
    claim = (await bot.ask(op="stream.claim", topic=topic, messageId="m"))["result"]
    assert (claim["n"], claim["parts"]) == (0, [{"type": "text", "text": "begun, "}])
    bot.say(
        id=2, op="stream.append", topic=topic, messageId="m", epoch=claim["epoch"],
        **{"from": 1, "ops": [["t", 0, "ended"]]},
    )  # fmt: skip
    await bot.hear()
    await bot.ask(id=3, op="stream.finish", topic=topic, messageId="m", epoch=claim["epoch"], n=1)
    frames = await user.hear()
    assert [frame["type"] for frame in frames] == ["delta", "stream", "stream", "delta"]
    assert frames[1]["reset"] is True
    read = await user.ask(id=4, op="message.get", topic=topic, messageIds=["m"])
    parts = read["result"]["nodes"][0]["data"]["parts"]
    assert parts == [{"type": "text", "text": "begun, ended"}]


async def test_T4_several_replies_of_one_turn_are_one_group(application):
    peer = connect(application)
    topic = await topic_with(peer)
    turn = {"op": "turn.submit", "topic": topic, "user": {"mode": "create", "text": "q"}}
    two = await peer.ask(id=1, **turn, placeholders=[{"model": "a"}, {"model": "b"}])
    ids = two["result"]["placeholderIds"]
    read = await peer.ask(id=2, op="message.get", topic=topic, messageIds=ids)
    groups = [node["siblingsGroupId"] for node in read["result"]["nodes"]]
    assert groups[0] == groups[1] > 0


async def test_L9_a_claim_and_an_abort_in_one_run_disturb_nobody(application):
    peer, bot = connect(application), connect(application)
    topic = await topic_with(peer)
    await bot.ask(op="bot.serve", models=["q"])
    turn = {"op": "turn.submit", "topic": topic, "user": {"mode": "create", "text": "x"}}
    first = await peer.ask(id=1, **turn, placeholders=[{"model": "p"}])
    (reply,) = first["result"]["placeholderIds"]
    peer.say(id=2, op="topic.update", topic=topic, name="other")
    peer.say(id=3, op="stream.claim", topic=topic, messageId=reply)
    peer.say(id=4, op="stream.abort", topic=topic, messageId=reply)
    peer.say(id=5, **turn, placeholders=[{"model": "q"}])
    answers = {frame["re"]: frame for frame in await peer.hear()}
    assert {frame["type"] for frame in answers.values()} == {"result"}
    assert answers[3]["result"]["n"] == 0
    offered = [frame["messageId"] for frame in await bot.hear()]
    assert offered == answers[5]["result"]["placeholderIds"]


async def test_R6_a_connection_has_so_many_topics_open_and_no_more(application, monkeypatch):
    monkeypatch.setattr(requests_module, "MAX_SUBSCRIPTIONS", 5)
    peer = connect(application)
    await peer.hear()
    topics = [
        (await peer.ask(op="topic.create", name=str(number)))["result"]["topic"]
        for number in range(8)
    ]
    for number, topic in enumerate(topics):
        peer.say(id=number, op="topic.open", topic=topic)
    answers = [frame for frame in await peer.hear() if "re" in frame]
    assert [answer.get("code") for answer in answers].count("TOO_LARGE") == 3
    assert application.hub.statistics()["subscriptions"] == 5

    back = connect(application, resume=[{"topic": topic} for topic in topics])
    frames = await back.hear()
    assert [frame["type"] for frame in frames].count("gone") == 3
    # What was refused, or closed, doesn't count.
    assert (await peer.ask(id=50, op="topic.open", topic="nope"))["code"] == "TOO_LARGE"
    await peer.ask(id=51, op="topic.close", topic=topics[0])
    assert (await peer.ask(id=52, op="topic.open", topic="nope"))["code"] == "NOT_FOUND"
    peer.say(id=53, op="topic.open", topic=topics[7])
    assert "snapshot" in [frame["type"] for frame in await peer.hear()]


@pytest.mark.parametrize("topic", ["nope", "no id", "x" * 100_000, "AUTO"])
async def test_what_is_no_topic_leaves_nothing_in_memory(application, topic):
    peer = connect(application)
    await peer.hear()
    answer = await peer.ask(op="topic.get", topic=topic)
    assert answer["code"] == "NOT_FOUND"
    assert len(answer["message"]) < 200
    assert application.rooms.statistics()["rooms"] == 0


async def test_S6_an_answer_carries_so_much_and_the_rest_is_asked_for_again(
    application, monkeypatch
):
    monkeypatch.setattr(reading_module, "ANSWER_BYTES", 5000)
    peer = connect(application)
    topic = await topic_with(peer, *["x" * 2000] * 5, "y" * 9000)
    ids: list[str] = []
    cursor = None
    pages = 0
    while True:
        page = await peer.ask(
            op="branch.get", topic=topic, **({"cursor": cursor} if cursor else {})
        )
        ids = [item["node"]["id"] for item in page["result"]["items"]] + ids
        pages += 1
        if (cursor := page["result"]["next"]) is None:
            break
    assert pages == 4  # the long one alone, then two by two
    assert len(ids) == len(set(ids)) == 6
    got = await peer.ask(op="message.get", topic=topic, messageIds=ids)
    assert [node["id"] for node in got["result"]["nodes"]] == ids[:2]


async def test_S7_who_asks_for_floods_and_reads_nothing_is_cut(application, monkeypatch):
    monkeypatch.setattr(connection_module, "FLOOD", 400_000)
    peer, other = connect(application), connect(application)
    topic = await topic_with(peer, "x" * 100_000)
    for number in range(20):
        peer.say(id=number, op="branch.get", topic=topic)
    for _ in range(200):
        await asyncio.sleep(0)
    assert peer.transport.closed
    assert (await other.ask(op="topic.get", topic=topic))["type"] == "result"


async def test_H3_a_reader_is_offered_no_work_and_sees_its_topics_in_a_long_list():
    async with Application(MemoryStore(), secret=SECRET) as application:
        admin = connect(application, token=auth.issue(SECRET, "a", [("*", "admin")], seconds=60))
        for number in range(120):
            await admin.ask(op="topic.create", topic=f"t-{number}")
        await admin.ask(op="topic.create", topic="mine")
        for number in range(120, 240):
            await admin.ask(op="topic.create", topic=f"t-{number}")
        peer = connect(application, token=auth.issue(SECRET, "b", [("mine", "read")], seconds=60))
        assert (await peer.ask(op="bot.serve", models=["*"]))["code"] == "FORBIDDEN"
        listed = await peer.ask(op="topic.list", limit=10)
        assert [topic["id"] for topic in listed["result"]["topics"]] == ["mine"]


async def test_the_sweep_removes_what_has_outlived_its_time(application):
    peer = connect(application)
    topic = await topic_with(peer, *map(str, range(5)))
    application.rooms.clock = lambda: now_ms() + 8 * 24 * 60 * 60 * 1000
    await application.rooms.sweep()
    assert await application.store.deltas(topic, 1, 10) == []


async def test_T9_a_batch_may_edit_many_messages_whose_content_is_not_at_hand(application):
    peer = connect(application)
    topic = await topic_with(peer, *map(str, range(30)))
    page = await peer.ask(op="branch.get", topic=topic)
    ids = [item["node"]["id"] for item in page["result"]["items"]]
    application.rooms.unload(topic)
    commands = [{"op": "message.update", "messageId": each, "data": {"mark": 1}} for each in ids]

    answer = await peer.ask(id=2, op="batch", topic=topic, commands=commands)

    assert answer["type"] == "result", answer
    read = await peer.ask(id=3, op="message.get", topic=topic, messageIds=ids)
    marks = [node["data"]["mark"] for node in read["result"]["nodes"]]
    texts = [node["data"]["parts"][0]["text"] for node in read["result"]["nodes"]]
    assert marks == [1] * 30
    assert texts == [*map(str, range(30))]


async def test_content_that_the_database_does_not_have_ends_in_an_error(application, monkeypatch):
    peer = connect(application)
    topic = await topic_with(peer, "one")
    node = (await peer.ask(op="topic.get", topic=topic))["result"]["topic"]["activeNodeId"]
    application.rooms.unload(topic)

    async def nothing(_topic, _ids):
        return {}

    monkeypatch.setattr(application.store, "contents", nothing)
    update = {"op": "message.update", "topic": topic, "messageId": node, "data": {"mark": 1}}
    assert (await peer.ask(id=2, **update))["code"] == "INTERNAL"
    assert (await peer.ask(id=3, op="topic.update", topic=topic, name="on"))["type"] == "result"


async def test_L2_a_kept_lease_outlives_the_server_also_when_it_could_not_be_stored_at_first(
    application, monkeypatch, caplog
):
    peer = connect(application)
    topic = await topic_with(peer)
    turn = await peer.ask(
        op="turn.submit", topic=topic, user={"mode": "create", "text": "q"}, placeholders=[{}]
    )
    (reply,) = turn["result"]["placeholderIds"]
    claim = {"op": "stream.claim", "topic": topic, "messageId": reply, "leaseMs": 1000}
    epoch = (await peer.ask(id=2, **claim))["result"]["epoch"]
    await peer.ask(
        id=3, op="stream.renew", topic=topic, messageId=reply, epoch=epoch, leaseMs=60_000
    )
    renew = application.store.renew

    async def unreachable(*_):
        raise StoreError("the disk is away")

    monkeypatch.setattr(application.store, "renew", unreachable)
    await application.rooms.sweep()
    assert "the disk is away" in caplog.text
    monkeypatch.setattr(application.store, "renew", renew)
    await application.rooms.sweep()

    in_half_a_minute = now_ms() + 30_000
    due = await application.store.due(lease_before=in_half_a_minute, offered_before=0)
    assert due == []
