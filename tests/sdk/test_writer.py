import asyncio
import contextlib

import pytest
from livetree.bots import Prompt, Writer
from livetree.core import protocol as p
from livetree.core.errors import (
    Busy,
    InvalidOperation,
    LivetreeError,
    StaleStream,
    TooLarge,
    Unavailable,
    Validation,
)
from livetree.oplog import FULL_BYTES
from livetree.testing import MemoryConnection

from tests.sdk.kit import settle
from tests.sdk.stage import Held, echo, stage

# Keeping up


async def test_R6_a_writer_waits_for_the_server():
    written = 0

    async def answer(_: Prompt, writer: Writer) -> None:
        nonlocal written
        for _ in range(100):
            await writer.write("x" * 4096)
            written += 1

    async with stage() as it, it.bot(answer):
        acks: list[tuple[MemoryConnection, p.ServerFrame]] = []

        def hold(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            if isinstance(frame, p.StreamAck):
                acks.append((connection, frame))
                return []
            return [frame]

        it.world.server.on_send = hold
        reply = await it.ask()
        await settle()
        assert written * 4096 <= FULL_BYTES + 4096
        while acks:
            connection, frame = acks.pop(0)
            connection.push(p.encode(frame).decode())
            await settle()
        await it.live.wait_idle()
        assert it.live.text(reply) == "x" * 409_600
        appends = it.requests(p.StreamAppend)
        assert len(appends) < 50  # what waits is merged


async def test_L4_ops_come_in_order_and_each_once():
    async with stage() as it, it.bot(echo):
        await it.ask("a b c d e f g h i j k l m n o p q r s t u v w x y z")
        await it.live.wait_idle()
        expected = 1
        for append in it.requests(p.StreamAppend):
            assert append.first == expected
            expected += len(append.ops)
        (finish,) = it.requests(p.StreamFinish)
        assert finish.n == expected - 1


async def test_L2_a_lease_is_kept_while_the_handler_thinks():
    held = Held()
    async with stage() as it, it.bot(held, lease_seconds=15):
        await it.ask()
        await it.world.clock.elapse(61)
        renewals = it.requests(p.StreamRenew)
        assert len(renewals) == 12
        assert {each.epoch for each in renewals} == {it.writers[0].epoch}
        held.go.set()
        await it.live.wait_idle()
        await it.world.clock.elapse(60)
        assert len(it.requests(p.StreamRenew)) == 12


async def test_L2_appends_keep_the_lease_as_well():
    step = asyncio.Event()

    async def answer(_: Prompt, writer: Writer) -> None:
        for _ in range(20):
            await writer.write("x")
            step.clear()
            await step.wait()

    async with stage() as it, it.bot(answer, lease_seconds=15):
        await it.ask()
        for _ in range(30):
            await it.world.clock.elapse(2)
            step.set()
        await it.live.wait_idle()
        assert len(it.requests(p.StreamRenew)) < 4


# Losing the connection


async def test_L6_what_is_not_durable_is_sent_again():
    held = Held("Hel", "lo ")
    async with stage() as it, it.bot(held):
        it.world.server.durable = False
        reply = await it.ask()
        await settle()
        it.world.server.restart()
        await it.world.clock.elapse(2)
        await it.live.wait_for(lambda live: live.text(reply) == "Hello ")
        it.world.check(it.live)
        held.go.set()
        await it.live.wait_idle()
        assert it.live.text(reply) == "Hello end"
        assert it.status(reply) == "success"
        assert len(it.prompts) == 1


async def test_L6_what_is_durable_is_not():
    held = Held("Hel", "lo ")
    async with stage() as it, it.bot(held):
        await it.ask()
        await settle()
        sent = len(it.requests(p.StreamAppend))
        it.world.server.drop()
        await it.world.clock.elapse(1)
        assert len(it.requests(p.StreamAppend)) == sent
        assert len(it.requests(p.StreamRenew)) == 1  # to say that it is there
        held.go.set()
        await it.live.wait_idle()


@pytest.mark.parametrize("cut", range(2, 40))
@pytest.mark.parametrize("durable", [True, False])
async def test_L6_wherever_the_connection_is_cut_the_text_is_whole(cut: int, durable: bool):
    words = [f"word{number} " for number in range(20)]

    async def answer(_: Prompt, writer: Writer) -> None:
        for word in words:
            await writer.write(word)
            await asyncio.sleep(0)

    async with stage() as it, it.bot(answer):
        it.world.server.durable = durable
        sends = 0

        def send(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            nonlocal sends
            if connection.hello is None or connection.hello.client != "livetree-bot":
                return [frame]
            sends += 1
            if sends % cut == 0:
                connection.drop()
                connection.models = []
                if not durable:
                    for topic in it.world.server.topics.values():
                        topic.crash()
                return []
            return [frame]

        it.world.server.on_send = send
        reply = await it.ask()
        for _ in range(25):
            await it.world.clock.elapse(11)
        it.world.server.on_send = lambda _, frame: [frame]
        it.world.server.drop()
        await it.world.clock.elapse(30)
        await it.live.wait_idle()
        assert it.live.text(reply) is None or it.live.text(reply) == "".join(words)
        (node,) = await it.live.content([reply])
        assert it.live.text(reply) == "".join(words)
        assert node.status == "success"
        it.world.check(it.live)


async def test_L5_a_bot_that_was_replaced_stops_and_the_next_one_answers():
    held = Held("first ")
    async with stage() as it, it.bot(held) as bot:
        reply = await it.ask()
        await settle()
        it.world.server.expire_lease(it.live.id, reply)
        await it.world.clock.elapse(6)  # its renewal tells it

        assert isinstance(it.ended[0], asyncio.CancelledError)
        assert bot.statistics()["lost"] == 1
        assert len(it.prompts) == 2
        assert it.prompts[1].partial == [{"type": "text", "text": "first "}]
        held.go.set()
        await it.live.wait_idle()
        assert it.live.text(reply) == "first end"  # begun anew: nothing stands twice
        it.world.check(it.live)


async def test_L10_a_handler_may_go_on_where_another_ended():
    held = Held("first ")
    async with stage() as it:
        async with it.bot(held, grace_seconds=0):
            reply = await it.ask()
            await settle()
        it.world.server.expire_lease(it.live.id, reply)

        async def go_on(prompt: Prompt, writer: Writer) -> None:
            assert prompt.partial == [{"type": "text", "text": "first "}]
            await writer.write("and second")

        async with it.bot(go_on, resume=True):
            await it.live.wait_idle()
        assert it.live.text(reply) == "first and second"
        it.world.check(it.live)


async def test_L9_a_reply_that_is_stopped_stops_its_handler():
    held = Held("Hel")
    async with stage() as it, it.bot(held) as bot:
        reply = await it.ask()
        await it.live.wait_for(lambda live: live.text(reply) == "Hel")
        await it.live.abort(reply)
        await it.world.clock.elapse(6)

        assert isinstance(it.ended[0], asyncio.CancelledError)
        assert (it.status(reply), it.live.text(reply)) == ("paused", "Hel")
        assert bot.statistics()["lost"] == 1
        assert it.requests(p.StreamFinish) == []


async def test_L9_a_write_to_a_stopped_reply_raises():
    go = asyncio.Event()

    async def answer(_: Prompt, writer: Writer) -> None:
        await go.wait()
        await writer.write("a")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        with pytest.raises(StaleStream):
            await writer.write("b")
        with pytest.raises(StaleStream):
            await writer.put_part({"type": "x"})

    async with stage() as it, it.bot(answer):
        reply = await it.ask()
        await settle()
        await it.live.abort(reply)
        go.set()
        await settle()
        assert it.ended == [None]
        assert it.requests(p.StreamFinish) == []


async def test_L6_a_finish_whose_ops_the_server_lost_is_sent_again_after_them():
    async with stage() as it, it.bot(echo):
        it.world.server.durable = False

        def crash(connection: MemoryConnection, command: p.Command) -> LivetreeError | None:
            if isinstance(command, p.StreamFinish):
                it.world.server.refuse = lambda _, __: None
                for topic in it.world.server.topics.values():
                    topic.crash()
            return None

        it.world.server.refuse = crash
        reply = await it.ask("a b c d")
        await it.live.wait_idle()
        (node,) = await it.live.content([reply])
        assert (it.live.text(reply), node.status) == ("abcd", "success")
        finishes = it.requests(p.StreamFinish)
        assert len({each.mutation for each in finishes}) == 1
        assert len(finishes) == 2


async def test_L4_a_hole_is_filled():
    async with stage() as it, it.bot(echo):
        lost = False

        def lose(connection: MemoryConnection, command: p.Command) -> LivetreeError | None:
            nonlocal lost
            if isinstance(command, p.StreamAppend) and command.first == 2 and not lost:
                lost = True
                return InvalidOperation("op 2 is missing", received=1)
            return None

        it.world.server.refuse = lose
        reply = await it.ask("a b c d")
        await it.live.wait_idle()
        assert it.live.text(reply) == "abcd"


@pytest.mark.parametrize("error", [Busy("later"), Unavailable("later")])
async def test_X5_a_server_without_time_gets_the_ops_again(error: LivetreeError):
    async with stage() as it, it.bot(echo):
        refusals = iter([error] * 3)
        it.world.server.refuse = lambda _, each: (
            next(refusals, None) if isinstance(each, p.StreamAppend) else None
        )
        reply = await it.ask("a b c d e f g h")
        await it.world.clock.elapse(2)
        await it.live.wait_idle()
        assert (it.live.text(reply), it.status(reply)) == ("abcdefgh", "success")


@pytest.mark.parametrize("error", [TooLarge("too much"), Validation("bad part")])
async def test_ops_that_the_server_will_not_take_end_the_reply_as_an_error(error: LivetreeError):
    async def answer(_: Prompt, writer: Writer) -> None:
        await writer.write("a")
        await settle()
        await writer.write("b")
        await settle()
        with pytest.raises(type(error)):
            await writer.write("c")

    async with stage() as it, it.bot(answer) as bot:
        it.world.server.refuse = lambda _, each: (
            error if isinstance(each, p.StreamAppend) and each.first == 2 else None
        )
        reply = await it.ask()
        await it.live.wait_idle()
        assert (it.live.text(reply), it.status(reply)) == ("a", "error")
        await settle()
        assert bot.statistics()["failed"] == 1


async def test_X1_a_claim_whose_answer_is_lost_is_kept():
    async with stage() as it:
        reply = await it.ask()
        # Somebody wrote before, so that there is something to begin from.
        claim = it.world.server.run(p.StreamClaim(topic=it.live.id, message_id=reply))
        topic = it.world.server.topics[it.live.id]
        topic.append(
            p.StreamAppend(
                topic=it.live.id,
                message_id=reply,
                epoch=claim["epoch"],
                first=1,
                ops=[p.TextOp(0, "old")],
            ),
            durable=True,
        )
        it.world.server.expire_lease(it.live.id, reply)

        def cut(connection: MemoryConnection, frame: p.ServerFrame) -> list[p.ServerFrame]:
            request = connection.requests[-1] if connection.requests else None
            if isinstance(request, p.StreamClaim) and isinstance(frame, p.ResultFrame):
                it.world.server.on_send = lambda _, frame: [frame]
                connection.drop()
                return []
            return [frame]

        it.world.server.on_send = cut
        async with it.bot(echo):
            await it.world.clock.elapse(2)
            await it.live.wait_idle()
        assert (it.live.text(reply), it.status(reply)) == ("Whereto?", "success")
        assert it.prompts[0].partial == [{"type": "text", "text": "old"}]
        it.world.check(it.live)


async def test_acks_of_another_writers_ops_stop_the_handler():
    held = Held("a")
    async with stage() as it, it.bot(held) as bot:
        reply = await it.ask()
        await settle()
        it.bot_connection.push(
            p.StreamAck(
                topic=it.live.id,
                message_id=reply,
                epoch=it.writers[0].epoch,
                received=99,
                durable=0,
            )
        )
        await settle()
        assert bot.statistics()["lost"] == 1
