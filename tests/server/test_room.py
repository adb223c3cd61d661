"""What a room decides, without a store, a clock or a socket."""

import itertools

import pytest
from livetree.core import protocol as p
from livetree.core.errors import Conflict, LivetreeError, NotFound, StaleStream, Validation
from livetree.core.plan import Content, ExpireLease, ExpireOffer
from livetree.core.tree import Tree
from livetree_server.topics import room as room_module
from livetree_server.topics.room import Room, Waiting


class Topic:
    """A room that commits at once, as if the store always agreed."""

    def __init__(self) -> None:
        self.numbers = itertools.count()
        self.now = 1000
        self.room = Room.unborn("T", "R", self.now)
        self.published: list[bytes] = []
        self.offers: list[str] = []
        self.run(p.TopicCreate(topic="T", name="topic"))

    def new_id(self) -> str:
        return f"id{next(self.numbers)}"

    def waiting(self, *commands, subject="ann") -> list[Waiting]:
        return [Waiting(command, subject, lambda _: None) for command in commands]

    def decide(self, waiting):
        return self.room.decide(waiting, now=self.now, new_id=self.new_id)

    def run(self, *commands):
        decided, refused, taken = self.decide(self.waiting(*commands))
        assert taken == len(commands)
        if decided is not None:
            applied = self.room.apply(decided)
            self.published += applied.frames
            self.offers += [offer.message_id for offer in applied.offers]
        if refused:
            raise refused[0][1]
        return [planned.result for _, planned in decided.planned]

    def say(self, text="hi", **fields):
        command = p.MessageCreate(topic="T", role="user", text=text, status="success", **fields)
        return self.run(command)[0]["messageId"]

    def live_reply(self):
        turn = p.TurnSubmit(
            topic="T", user=p.Fresh(text="q"), placeholders=[p.Placeholder(model="m")]
        )
        reply = self.run(turn)[0]["placeholderIds"][0]
        epoch = self.run(p.StreamClaim(topic="T", message_id=reply))[0]["epoch"]
        return reply, epoch

    def append(self, reply, epoch, first, *texts):
        ops = [p.TextOp(0, text) for text in texts]
        command = p.StreamAppend(topic="T", message_id=reply, epoch=epoch, first=first, ops=ops)
        return self.room.append(command, self.now, 1000)


def test_a_run_is_planned_each_on_the_one_before_and_applied_in_order():
    topic = Topic()
    first, second = topic.run(
        p.MessageCreate(topic="T", role="user", text="a", message_id="a"),
        p.MessageCreate(topic="T", role="assistant", text="b", message_id="b"),
    )
    assert (first["seq"], second["seq"]) == (2, 3)
    assert topic.room.tree.node("b").parent_id == "a"
    assert topic.room.tree.active_node_id == "b"


def test_R5_deciding_changes_nothing():
    topic = Topic()
    before = (topic.room.tree.digest, topic.room.tree.seq, len(topic.room.tree))
    topic.decide(topic.waiting(p.MessageCreate(topic="T", role="user", text="a")))
    assert (topic.room.tree.digest, topic.room.tree.seq, len(topic.room.tree)) == before


def test_R5_a_refusal_leaves_the_others_of_its_run_alone():
    topic = Topic()
    decided, refused, taken = topic.decide(
        topic.waiting(
            p.MessageCreate(topic="T", role="user", text="a"),
            p.TopicSetActive(topic="T", node_id="nope"),
            p.MessageCreate(topic="T", role="user", text="b"),
        )
    )
    assert taken == 3
    assert [type(error) for _, error in refused] == [NotFound]
    assert [planned.result["seq"] for _, planned in decided.planned] == [2, 3]


def test_X1_a_repeated_key_waits_for_the_first_to_be_stored():
    topic = Topic()
    command = p.MessageCreate(topic="T", role="user", text="a", mutation="m1")
    _, _, taken = topic.decide(topic.waiting(command, command))
    assert taken == 1


def test_X4_a_command_that_changes_nothing_has_no_delta():
    topic = Topic()
    decided, _, _ = topic.decide(
        topic.waiting(p.TopicUpdate(topic="T", name="topic", mutation="m"))
    )
    assert decided.run.entries[0].delta is None
    assert decided.run.entries[0].mutation is not None
    assert decided.run.seq == topic.room.tree.seq


def test_nothing_is_planned_after_the_topics_deletion():
    topic = Topic()
    _, _, taken = topic.decide(
        topic.waiting(
            p.TopicDelete(topic="T"), p.MessageCreate(topic="T", role="user", text="late")
        )
    )
    assert taken == 1


def test_a_command_that_needs_cold_content_ends_the_run_before_it():
    topic = Topic()
    message = topic.say("long")
    topic.room.tree.release(message)
    update = p.MessageUpdate(topic="T", message_id=message, text="new")

    _, _, taken = topic.decide(
        topic.waiting(p.MessageCreate(topic="T", role="user", text="x"), update)
    )
    assert taken == 1
    with pytest.raises(Content):
        topic.decide(topic.waiting(update))

    topic.room.hold({message: (topic.room.tree.node(message).version, b'{"parts":[],"k":1}')})
    topic.run(update)
    assert b'"k":1' in bytes(topic.room.tree.node(message).data)


def test_content_is_kept_only_for_the_version_held():
    topic = Topic()
    message = topic.say("text")
    topic.room.tree.release(message)
    topic.room.hold({message: (1, b'{"parts":[]}')})
    assert topic.room.tree.node(message).data is p.UNSET


def test_warm_content_has_a_bound(monkeypatch):
    monkeypatch.setattr(room_module, "WARM_BYTES", 1000)
    topic = Topic()
    for _ in range(20):
        topic.say("x" * 100)
        topic.room.cool()
    assert topic.room.statistics()["warmBytes"] <= 1000
    assert len(topic.room.tree) == 20


def test_S1_missed_deltas_are_told_from_a_position_in_the_history():
    topic = Topic()
    tree = topic.room.tree
    at = (tree.seq, tree.commit)
    topic.say("one")
    topic.say("two")

    mirror = Tree("T", "R")
    mirror.seq, mirror.commit = at
    missed = [p.decode_frame(frame) for frame in topic.room.since(*at)]
    assert [delta.seq for delta in missed] == [2, 3]
    assert topic.room.since(tree.seq, tree.commit) == []


def test_S3_a_position_of_another_history_is_not_resumed():
    topic = Topic()
    topic.say("one")
    assert topic.room.since(1, "another") is None
    assert topic.room.since(topic.room.tree.seq, "another") is None
    assert topic.room.since(99, topic.room.tree.commit) is None
    assert topic.room.since(0, None) is None


def test_what_a_room_remembers_of_the_log_has_a_bound(monkeypatch):
    monkeypatch.setattr(room_module, "RECENT_BYTES", 2000)
    topic = Topic()
    for _ in range(30):
        topic.say("x" * 50)
    assert topic.room.statistics()["recentBytes"] <= 2000
    assert topic.room.since(1, "whatever") is None


def test_S4_a_snapshot_is_whole_at_the_end_of_the_path_and_chunked(monkeypatch):
    monkeypatch.setattr(room_module, "SNAPSHOT_CHUNK", 40)
    topic = Topic()
    for number in range(100):
        topic.say(f"m{number}")
    chunks = topic.room.snapshot(reset=False)

    assert [chunk.chunk for chunk in chunks] == [0, 1, 2]
    assert {chunk.chunks for chunk in chunks} == {3}
    nodes = [node for chunk in chunks for node in chunk.nodes]
    whole = [node for node in nodes if node.data is not p.UNSET]
    assert len(nodes) == 100
    assert {node.id for node in whole} == {
        node.id for node in topic.room.tree.path(topic.room.tree.active_node_id)[-50:]
    }
    skeleton = next(node for node in nodes if node.data is p.UNSET)
    assert skeleton.preview == "m0"
    rebuilt = Tree.load(
        topic_id="T",
        root_id="R",
        seq=chunks[0].seq,
        commit=chunks[0].commit,
        active_node_id=chunks[0].active_node_id,
        state=chunks[0].state,
        nodes=nodes,
    )
    assert rebuilt.digest == chunks[0].digest == topic.room.tree.digest


def test_D7_a_large_delta_is_published_slim_and_remembered_whole():
    topic = Topic()
    topic.say("x" * (p.LARGE_DELTA_BYTES + 1))
    slim = p.decode_frame(topic.published[-1])
    assert slim.large is True
    assert slim.put == []
    assert slim.digest == topic.room.tree.digest


def test_L1_new_replies_are_offered_once():
    topic = Topic()
    reply, _ = topic.live_reply()
    assert topic.offers == [reply]


def test_L4_ops_are_told_once_and_acknowledged():
    topic = Topic()
    reply, epoch = topic.live_reply()
    frame, ack = topic.append(reply, epoch, 1, "a", "b")
    assert p.decode_frame(frame).to == 2
    assert p.decode_frame(ack).received == 2

    again, ack = topic.append(reply, epoch, 1, "a", "b")
    assert again is None
    assert p.decode_frame(ack).received == 2

    overlap, _ = topic.append(reply, epoch, 2, "b", "c")
    assert [op.text for op in p.decode_frame(overlap).ops] == ["c"]

    with pytest.raises(LivetreeError) as refusal:
        topic.append(reply, epoch, 9, "z")
    assert refusal.value.details["received"] == 3


def test_L5_another_epoch_is_stale():
    topic = Topic()
    reply, epoch = topic.live_reply()
    for stale in (epoch - 1, epoch + 1):
        with pytest.raises(StaleStream):
            topic.append(reply, stale, 1, "x")
    with pytest.raises(StaleStream):
        topic.room.renew(p.StreamRenew(topic="T", message_id=reply, epoch=0), 0)


def test_L2_a_reply_is_claimed_by_one():
    topic = Topic()
    reply, _ = topic.live_reply()
    with pytest.raises(Conflict):
        topic.run(p.StreamClaim(topic="T", message_id=reply))


def test_L7_a_viewer_gets_exactly_what_it_missed():
    topic = Topic()
    reply, epoch = topic.live_reply()
    topic.append(reply, epoch, 1, "one ", "two ", "three")
    (tail,) = topic.room.streams_since({reply: (epoch, 1)})
    assert p.decode_frame(tail).ops == [p.TextOp(0, "two three")]
    assert topic.room.streams_since({reply: (epoch, 3)}) == []
    (whole,) = topic.room.streams_since({reply: (epoch + 7, 1)})
    assert p.decode_frame(whole).reset
    (ahead,) = topic.room.streams_since({reply: (epoch, 4)})
    assert p.decode_frame(ahead).reset


def test_L8_the_end_names_the_last_op_and_carries_no_parts():
    topic = Topic()
    reply, epoch = topic.live_reply()
    topic.append(reply, epoch, 1, "streamed text")
    with pytest.raises(LivetreeError) as refusal:
        topic.run(p.StreamFinish(topic="T", message_id=reply, epoch=epoch, n=2))
    assert refusal.value.details["received"] == 1

    topic.run(p.StreamFinish(topic="T", message_id=reply, epoch=epoch, n=1))
    delta = p.decode_frame(topic.published[-1])
    assert list(delta.ended) == [reply]
    assert b"streamed text" not in topic.published[-1]
    assert topic.room.tree.node(reply).preview == "streamed text"
    assert topic.room.tree.node(reply).status == "success"
    assert topic.room.replies == {}


def test_L9_an_aborted_reply_keeps_what_it_has():
    topic = Topic()
    reply, epoch = topic.live_reply()
    topic.append(reply, epoch, 1, "half")
    topic.run(p.StreamAbort(topic="T", message_id=reply))
    assert topic.room.tree.node(reply).status == "paused"
    assert topic.room.tree.node(reply).preview == "half"
    with pytest.raises(StaleStream):
        topic.append(reply, epoch, 2, "late")


def test_L10_a_lost_lease_is_offered_again_and_the_next_writer_goes_on():
    topic = Topic()
    reply, epoch = topic.live_reply()
    topic.append(reply, epoch, 1, "begun ")
    topic.run(ExpireLease(topic="T", message_id=reply, epoch=epoch))
    assert topic.offers == [reply, reply]
    (result,) = topic.run(p.StreamClaim(topic="T", message_id=reply))
    assert topic.room.left_parts(reply) == {"n": 1, "parts": [{"type": "text", "text": "begun "}]}
    assert p.decode_frame(topic.published[-1]).reset  # viewers start over from the whole
    topic.append(reply, result["epoch"], 2, "ended")
    topic.run(ExpireLease(topic="T", message_id=reply, epoch=result["epoch"]))
    topic.run(ExpireOffer(topic="T", message_id=reply))
    assert topic.room.tree.node(reply).status == "error"
    assert topic.room.tree.node(reply).preview == "begun ended"


def test_a_lease_that_was_taken_over_is_not_expired_by_its_old_epoch():
    topic = Topic()
    reply, epoch = topic.live_reply()
    decided, _, _ = topic.decide(
        topic.waiting(ExpireLease(topic="T", message_id=reply, epoch=epoch - 1))
    )
    assert decided.run.entries[0].delta is None


def test_an_unknown_part_is_refused_and_nothing_of_the_append_is_kept():
    topic = Topic()
    reply, epoch = topic.live_reply()
    command = p.StreamAppend(
        topic="T", message_id=reply, epoch=epoch, first=1, ops=[p.TextOp(0, "a"), p.TextOp(5, "b")]
    )
    with pytest.raises(Validation):
        topic.room.append(command, 0, 1000)
    assert topic.room.replies[reply].n == 0
