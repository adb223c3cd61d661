import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError
from livetree.core.plan import ExpireLease
from livetree.core.reads import messages
from livetree.core.tree import on_the_wire
from livetree.mirror import (
    AHEAD,
    REFUSED_SECONDS,
    REOPEN_SECONDS,
    SNAPSHOT_SECONDS,
    FetchContent,
    FetchDeltas,
    Mirror,
    Reopen,
    Step,
)
from livetree.results import Deltas, Messages
from livetree.testing import MemoryTopic
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.sdk.kit import check_mirror


class Feed:
    """A topic of a server, and a mirror that the test feeds from it."""

    def __init__(self, *, content_bytes: int = 2**26, chunk: int = 1000) -> None:
        self.topic = MemoryTopic("topic", "root", 1)
        self.mirror = Mirror("topic", content_bytes=content_bytes)
        self.now = 100.0
        self.changes: list[c.Change] = []
        self.needs: list[Any] = []
        self.chunk = chunk
        self._ids = 0
        self.do(p.TopicCreate(topic="topic"))

    def new_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def do(self, command: p.Mutation) -> list[p.ServerFrame]:
        """Carry out a command on the server; returns what subscribers are told."""
        self.result, frames = self.topic.run(
            command, subject="me", now=1000 + self._ids, new_id=self.new_id
        )
        return frames

    def create(self, message_id: str, parent: str = "AUTO", **fields: Any) -> list[p.ServerFrame]:
        fields.setdefault("text", message_id)
        fields.setdefault("role", "user")
        fields.setdefault("status", "success")
        return self.do(p.MessageCreate(message_id=message_id, parent=parent, **fields))

    def ask(self, *replies: str) -> list[p.ServerFrame]:
        """Submit a turn with these replies."""
        return self.do(
            p.TurnSubmit(
                user=p.Fresh(message_id=self.new_id(), text="ask"),
                placeholders=[p.Placeholder(message_id=each, model="m") for each in replies],
                group=1 if len(replies) > 1 else None,
            )
        )

    def claim(self, message_id: str) -> list[p.ServerFrame]:
        return self.do(p.StreamClaim(message_id=message_id))

    def write(self, message_id: str, *texts: str) -> list[p.ServerFrame]:
        """Append a text op each."""
        live = self.topic.reply(message_id)
        command = p.StreamAppend(
            topic="topic",
            message_id=message_id,
            epoch=live.epoch,
            first=live.n + 1,
            ops=[p.TextOp(0, text) for text in texts],
        )
        frame, _ = self.topic.append(command, durable=True)
        return [frame] if frame is not None else []

    def finish(self, message_id: str, status: p.Ended = "success") -> list[p.ServerFrame]:
        live = self.topic.reply(message_id)
        return self.do(
            p.StreamFinish(message_id=message_id, epoch=live.epoch, n=live.n, status=status)
        )

    def tell(self, frames: Iterable[p.ServerFrame]) -> Step:
        """Give the mirror frames; returns what came of all of them."""
        changes: list[c.Change] = []
        needs: list[Any] = []
        for each in frames:
            step = self.mirror.receive(p.decode_frame(p.encode(each)), self.now)
            changes += step.changes
            needs += step.needs
        return self.take(Step(changes, needs))

    def take(self, step: Step) -> Step:
        self.changes += step.changes
        self.needs += step.needs
        return step

    def open(self) -> Step:
        """Answer the mirror's `topic.open`."""
        resume = self.mirror.resume(self.now)
        return self.tell(self.topic.catch_up(resume, self.chunk))

    def deltas(self, need: FetchDeltas, limit: int = 200) -> Step:
        """Answer a `topic.deltas`."""
        missed = self.topic.since(need.seq, need.commit)
        answer = Deltas(
            seq=self.topic.tree.seq,
            commit=self.topic.tree.commit,
            deltas=[] if missed is None else missed[:limit],
            reset=missed is None,
        )
        return self.take(self.mirror.deltas_came(need, over_the_wire(answer), self.now))

    def content(self, *message_ids: str) -> Messages:
        """Return the answer to a `message.get`."""
        nodes = messages(self.topic.tree, p.MessageGet(topic="topic", message_ids=[*message_ids]))
        return over_the_wire(
            Messages(
                seq=self.topic.tree.seq,
                commit=self.topic.tree.commit,
                nodes=[on_the_wire(node) for node in nodes],
            )
        )

    def check(self) -> None:
        check_mirror(self.mirror, self.topic)


def over_the_wire(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


def kinds(step: Step) -> list[type[c.Change]]:
    return [type(change) for change in step.changes]


def opened(**options: Any) -> Feed:
    feed = Feed(**options)
    feed.open()
    feed.check()
    return feed


# Deltas


def test_D1_a_delta_makes_the_mirror_equal():
    feed = opened()

    step = feed.tell(feed.create("a"))

    assert kinds(step) == [c.Committed]
    assert step.needs == []
    assert feed.mirror.text("a") == "a"
    feed.check()


def test_D3_an_older_delta_is_dropped():
    feed = opened()
    frames = feed.create("a")
    feed.tell(frames)

    step = feed.tell([*frames, *feed.topic.log])

    assert step == Step([], [])
    feed.check()


def test_D3_a_hole_is_asked_for():
    feed = opened()
    before = feed.mirror.tree
    feed.create("a")
    third = feed.create("b")

    step = feed.tell(third)

    (need,) = step.needs
    assert isinstance(need, FetchDeltas)
    assert before is not None
    assert (need.seq, need.commit) == (1, before.commit)
    assert not feed.mirror.synced
    assert kinds(feed.deltas(need)) == [c.Committed, c.Committed]
    feed.check()


def test_D3_while_a_hole_is_asked_for_it_is_asked_for_once():
    feed = opened()
    feed.create("a")
    needs = []
    for name in ("b", "d", "e"):
        needs += feed.tell(feed.create(name)).needs

    assert len(needs) == 1
    assert kinds(feed.deltas(needs[0], limit=1)) == [c.Committed] * 4
    feed.check()


def test_D3_deltas_in_another_order_come_right_by_themselves():
    feed = opened()
    frames = [*feed.create("a"), *feed.create("b"), *feed.create("d")]

    step = feed.tell([frames[2], frames[0], frames[1]])

    assert kinds(step) == [c.Committed] * 3
    feed.deltas(step.needs[0])
    feed.check()


def test_D3_a_long_hole_is_fetched_in_pages():
    feed = opened()
    for number in range(7):
        last = feed.create(f"m{number}")
    (need,) = feed.tell(last).needs

    pages = 0
    while need is not None:
        step = feed.deltas(need, limit=2)
        need = next(iter(step.needs), None)
        pages += 1

    assert pages == 3
    feed.check()


def test_D3_more_deltas_than_are_kept_are_fetched_too():
    feed = opened()
    feed.create("a")
    for number in range(AHEAD + 50):
        feed.tell(feed.create(f"m{number}"))

    assert feed.mirror.statistics()["ahead"] == AHEAD
    while feed.needs:
        feed.deltas(feed.needs.pop(0))
    feed.check()


def test_D3_a_delta_of_another_history_opens_the_topic_anew():
    feed = opened()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)

    step = feed.tell([replace(delta, prev="another")])

    assert [type(need) for need in step.needs] == [Reopen]
    assert kinds(feed.open()) == [c.Committed, c.Synced]
    feed.check()


def test_D3_the_same_seq_with_another_commit_opens_the_topic_anew():
    feed = opened()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)
    feed.tell([delta])

    step = feed.tell([replace(delta, commit="another")])

    assert [type(need) for need in step.needs] == [Reopen]


def test_D3_when_the_log_reaches_no_further_back_a_snapshot_comes():
    feed = opened()
    feed.create("a")
    last = feed.create("b")
    feed.topic.log_from = 3
    (need,) = feed.tell(last).needs

    (again,) = feed.deltas(need).needs

    assert isinstance(again, Reopen)
    assert kinds(feed.open()) == [c.Reset, c.Synced]
    feed.check()


def test_D3_a_refused_fetch_opens_the_topic_anew():
    feed = opened()
    feed.create("a")
    (need,) = feed.tell(feed.create("b")).needs

    step = feed.mirror.deltas_failed(need, feed.now)

    assert [type(each) for each in step.needs] == [Reopen]
    feed.open()
    feed.check()


def test_D3_an_answer_without_the_missing_deltas_opens_the_topic_anew():
    feed = opened()
    feed.create("a")
    (need,) = feed.tell(feed.create("b")).needs
    empty = Deltas(seq=3, commit="c", deltas=[])

    step = feed.mirror.deltas_came(need, empty, feed.now)

    assert [type(each) for each in step.needs] == [Reopen]


def test_D3_a_late_answer_to_an_older_question_means_nothing():
    feed = opened()
    feed.create("a")
    (need,) = feed.tell(feed.create("b")).needs
    feed.mirror.disconnected()
    feed.open()

    assert feed.deltas(need) == Step([], [])
    feed.check()


def test_D6_a_mirror_that_differs_takes_a_snapshot():
    feed = opened()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)

    step = feed.tell([replace(delta, digest="0" * 16)])

    assert step.needs == [Reopen(0.0, "the mirror has drifted")]
    assert not feed.mirror.synced
    assert feed.mirror.resume(feed.now) == p.Resume(topic="topic")
    assert kinds(feed.tell(feed.topic.catch_up(p.Resume(topic="topic"), 10))) == [c.Reset, c.Synced]
    assert feed.mirror.drifts == 1
    feed.check()


def test_D6_snapshots_are_asked_for_once_a_minute_at_most():
    feed = opened()

    def drift() -> Step:
        (delta,) = feed.create(feed.new_id())
        assert isinstance(delta, p.Delta)
        return feed.tell([replace(delta, digest="0" * 16)])

    drift()
    feed.open()
    feed.now += 15

    (need,) = drift().needs
    assert isinstance(need, Reopen)
    assert need.delay == SNAPSHOT_SECONDS - 15
    assert drift().needs == []  # it is asked for already
    feed.now += need.delay
    feed.open()
    feed.now += SNAPSHOT_SECONDS
    assert [each.delay for each in drift().needs] == [0.0]


def test_D6_a_mirror_that_differs_still_follows():
    feed = opened()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)
    feed.tell([replace(delta, digest="0" * 16)])

    assert c.Committed in kinds(feed.tell(feed.create("b")))
    assert feed.mirror.tree is not None
    assert "b" in feed.mirror.tree
    feed.open()
    feed.check()


def test_D6_a_synced_with_another_digest_is_drift():
    feed = opened()
    synced = feed.topic.catch_up(feed.mirror.resume(feed.now), 10)[-1]
    assert isinstance(synced, p.Synced)

    step = feed.tell([replace(synced, digest="0" * 16)])

    assert [type(need) for need in step.needs] == [Reopen]
    assert step.changes == []


def test_D7_a_large_delta_is_fetched():
    feed = opened()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)
    slim = replace(delta, put=[], drop=[], set={}, ended={}, large=True)

    step = feed.tell([slim, *feed.create("b")])

    (need,) = step.needs
    assert isinstance(need, FetchDeltas)
    feed.deltas(need)
    feed.check()


def test_D7_a_large_delta_while_catching_up_holds_synced_back():
    feed = opened()
    feed.mirror.disconnected()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)
    slim = replace(delta, put=[], drop=[], set={}, ended={}, large=True)
    *_, synced = feed.topic.catch_up(feed.mirror.resume(feed.now), 10)

    step = feed.tell([slim, synced])

    assert step.changes == []
    assert kinds(feed.deltas(step.needs[0])) == [c.Committed, c.Synced]
    feed.check()


def test_a_frame_that_cannot_be_followed_voids_the_tree_and_nothing_else():
    feed = opened()
    feed.tell(feed.create("a"))
    (delta,) = feed.create("b")
    assert isinstance(delta, p.Delta)
    broken = replace(delta, drop=["nobody"])

    step = feed.tell([broken])

    assert [type(need) for need in step.needs] == [Reopen]
    assert feed.tell(feed.create("d")).changes == []  # a broken tree follows nothing
    assert kinds(feed.open()) == [c.Reset, c.Synced]
    feed.check()


def test_a_frame_that_cannot_be_read_voids_the_tree():
    feed = opened()

    step = feed.mirror.unreadable("garbage", feed.now)

    assert step.needs == [Reopen(0.0, "garbage")]
    feed.open()
    feed.check()


# Subscribing


def test_S1_a_resume_brings_what_was_missed():
    feed = opened()
    assert kinds(feed.take(feed.mirror.disconnected())) == [c.Offline]
    assert not feed.mirror.synced
    feed.create("a")
    feed.create("b")

    assert kinds(feed.open()) == [c.Committed, c.Committed, c.Synced]
    feed.check()


def test_S3_another_history_is_a_reset():
    feed = opened()
    feed.tell(feed.create("a"))
    feed.mirror.disconnected()
    feed.topic = MemoryTopic("topic", "root2", 1)
    feed.do(p.TopicCreate(topic="topic"))
    feed.create("other")

    step = feed.open()

    assert step.changes[0] == c.Reset(history=True)
    assert kinds(step) == [c.Reset, c.Synced]
    feed.check()


def test_S4_a_snapshot_in_chunks_is_taken_when_it_is_whole():
    feed = Feed(chunk=2)
    for number in range(7):
        feed.create(f"m{number}")
    frames = feed.topic.catch_up(feed.mirror.resume(feed.now), 2)

    feed.tell(frames[:3])
    assert feed.mirror.tree is None
    assert kinds(feed.tell(frames[3:])) == [c.Synced]
    feed.check()


def test_S2_deltas_between_chunks_follow_the_snapshot():
    feed = Feed(chunk=2)
    for number in range(7):
        feed.create(f"m{number}")
    *chunks, synced = feed.topic.catch_up(feed.mirror.resume(feed.now), 2)
    after = [*feed.create("a"), *feed.create("b")]

    step = feed.tell([*chunks[:2], *after, *chunks[2:], synced])

    assert kinds(step) == [c.Committed, c.Committed, c.Synced]
    feed.check()


def test_S4_a_snapshot_whose_pieces_are_lost_is_asked_for_again():
    feed = Feed(chunk=2)
    for number in range(7):
        feed.create(f"m{number}")
    frames = feed.topic.catch_up(feed.mirror.resume(feed.now), 2)

    step = feed.tell([frames[0], *frames[2:]])

    assert [type(need) for need in step.needs] == [Reopen]
    feed.open()
    feed.check()


def test_S4_the_rest_of_a_snapshot_that_was_given_up_means_nothing():
    feed = opened(chunk=2)
    for number in range(7):
        feed.tell(feed.create(f"m{number}"))
    chunks = feed.topic.snapshot(2)
    feed.tell(chunks[:1])
    resume = feed.mirror.resume(feed.now)

    step = feed.tell([*chunks[1:], *feed.topic.catch_up(resume, 2)])

    assert kinds(step) == [c.Synced]
    feed.check()


def test_S4_a_snapshot_that_contradicts_its_digest_is_reported_and_not_asked_for_in_a_loop():
    feed = Feed()

    def lie(frames: list[p.ServerFrame]) -> list[p.ServerFrame]:
        return [
            replace(each, digest="0" * 16) if isinstance(each, p.Snapshot) else each
            for each in frames
        ]

    delays = []
    for _ in range(4):
        step = feed.tell(lie(feed.topic.catch_up(feed.mirror.resume(feed.now), 10)))
        delays += [need.delay for need in step.needs]
        feed.now += delays[-1]

    assert delays == [0.0, SNAPSHOT_SECONDS, SNAPSHOT_SECONDS, SNAPSHOT_SECONDS]


def test_S5_a_resume_with_nothing_new_is_one_change():
    feed = opened()
    feed.mirror.disconnected()

    assert kinds(feed.open()) == [c.Synced]


def test_S8_gone_is_the_last_change():
    feed = opened()

    step = feed.tell([p.Gone(topic="topic", reason="deleted"), *feed.create("a")])

    assert step.changes == [c.Gone("deleted")]
    assert feed.mirror.gone == "deleted"
    assert not feed.mirror.synced
    assert feed.mirror.disconnected() == Step([], [])


def test_a_topic_that_cannot_be_opened_now_is_opened_later():
    feed = opened()
    feed.mirror.resume(feed.now)

    step = feed.mirror.open_failed()

    assert [need.delay for need in step.needs] == [REFUSED_SECONDS]
    assert feed.mirror.reopen_due


def test_catching_up_is_not_asked_for_in_a_tight_loop():
    feed = opened()
    (delta,) = feed.create("a")
    assert isinstance(delta, p.Delta)
    delays = []
    for _ in range(3):
        step = feed.tell([replace(delta, prev="another")])
        delays += [need.delay for need in step.needs]
        resume = feed.mirror.resume(feed.now)
        synced = feed.topic.catch_up(resume, 10)[-1]
        assert isinstance(synced, p.Synced)
        tree = feed.mirror.tree
        assert tree is not None
        feed.tell([replace(synced, seq=1, commit=tree.commit or "", digest=tree.digest)])

    assert delays == [0.0, REOPEN_SECONDS, REOPEN_SECONDS]


# Content


def test_S4_what_is_not_on_the_last_page_is_cold():
    feed = Feed()
    feed.create("old")
    feed.create("shown", parent="ROOT")
    feed.open()

    assert feed.mirror.text("shown") == "shown"
    assert feed.mirror.text("old") is None
    assert feed.mirror.parts("old") is None
    assert feed.mirror.cold(["shown", "old", "nobody"]) == ["old"]
    with pytest.raises(KeyError):
        feed.mirror.text("nobody")
    with pytest.raises(KeyError):
        feed.mirror.text("root")


def cold_feed() -> Feed:
    """Return a mirror where `old` is cold."""
    feed = Feed()
    feed.create("old")
    feed.create("shown", parent="ROOT")
    feed.open()
    return feed


def edit(feed: Feed, content: str) -> list[p.ServerFrame]:
    return feed.do(p.MessageUpdate(message_id="old", text=content))


def test_S6_fetched_content_is_kept_for_its_version():
    feed = cold_feed()

    step = feed.mirror.content_came(feed.content("old"))

    assert step.changes == [c.Loaded(["old"])]
    assert feed.mirror.text("old") == "old"


def test_S6_content_of_an_older_version_is_fetched_again():
    feed = cold_feed()
    answer = feed.content("old")
    (delta,) = feed.do(p.MessageUpdate(message_id="old", status="paused"))
    feed.tell([delta])

    assert feed.mirror.content_came(answer).changes == []
    assert feed.mirror.cold(["old"]) == ["old"]
    feed.mirror.content_came(feed.content("old"))
    assert feed.mirror.cold(["old"]) == []


def test_S6_content_of_a_newer_version_waits_for_its_delta():
    feed = cold_feed()
    delta = feed.do(p.MessageUpdate(message_id="old", status="paused"))

    assert feed.mirror.content_came(feed.content("old")).changes == []
    assert feed.mirror.is_early("old")
    assert feed.mirror.text("old") is None
    step = feed.tell(delta)

    assert kinds(step) == [c.Committed, c.Loaded]
    assert feed.mirror.text("old") == "old"
    assert not feed.mirror.is_early("old")
    feed.check()


def test_S6_content_of_a_newer_version_is_dropped_when_a_still_newer_one_comes():
    feed = cold_feed()
    first = edit(feed, "one")
    answer = feed.content("old")
    second = edit(feed, "two")
    feed.mirror.content_came(answer)

    feed.tell([*first, *second])

    assert feed.mirror.text("old") == "two"
    assert not feed.mirror.is_early("old")
    feed.check()


def test_S6_content_of_a_message_that_is_gone_is_dropped():
    feed = cold_feed()
    answer = feed.content("old")
    feed.tell(feed.do(p.MessageDelete(message_id="old")))

    assert feed.mirror.content_came(answer) == Step([], [])


def test_content_beyond_the_bound_becomes_cold_the_longest_unused_first():
    feed = opened(content_bytes=1000)
    for number in range(5):
        feed.tell(feed.create(f"m{number}", text=str(number) * 300))
        feed.mirror.cold(["m0"])  # it is used

    assert feed.mirror.text("m4") is not None
    assert feed.mirror.cold([f"m{number}" for number in range(5)]) == ["m1", "m2", "m3"]
    assert feed.mirror.statistics()["contentBytes"] <= 1000
    assert feed.mirror.tree is not None
    assert feed.mirror.tree.node("m1").preview == "1" * 100
    feed.check()


def test_a_live_reply_keeps_its_content_whatever_the_bound():
    feed = opened(content_bytes=10)
    feed.tell(feed.ask("r"))
    feed.tell(feed.claim("r"))
    feed.tell(feed.create("other", parent="ROOT"))
    feed.tell(feed.write("r", "text"))

    step = feed.tell(feed.finish("r"))

    assert step.needs == []
    feed.check()


def test_fetched_content_can_be_read_whatever_the_bound():
    feed = Feed(content_bytes=10)
    feed.create("old")
    feed.create("shown", parent="ROOT")
    feed.open()

    feed.mirror.content_came(feed.content("old"))

    assert feed.mirror.text("old") == "old"
    feed.mirror.content_came(feed.content("shown"))
    assert feed.mirror.text("old") is None


def test_a_snapshot_of_the_same_history_keeps_content_of_equal_versions():
    feed = cold_feed()
    feed.mirror.content_came(feed.content("old"))
    feed.mirror.disconnected()
    feed.create("new", parent="ROOT")

    feed.tell([*feed.topic.snapshot(10), *feed.topic.catch_up(feed.mirror.resume(0), 10)])

    assert feed.mirror.text("old") == "old"
    feed.check()


# Live replies


def live_feed() -> Feed:
    """Return a mirror where reply `r` is being written."""
    feed = opened()
    feed.tell(feed.ask("r"))
    feed.tell(feed.claim("r"))
    return feed


def test_L7_live_text_grows_and_ends_as_content():
    feed = live_feed()

    step = feed.tell(feed.write("r", "Hello", " "))
    assert step.changes == [
        c.Streamed("r", 3, 2, [p.TextOp(0, "Hello"), p.TextOp(0, " ")], reset=False)
    ]
    feed.tell(feed.write("r", "world"))
    assert feed.mirror.text("r") == "Hello world"
    assert feed.mirror.parts("r") == [{"type": "text", "text": "Hello world"}]

    step = feed.tell(feed.finish("r"))

    assert step.needs == []
    assert feed.mirror.replies == {}
    assert feed.mirror.text("r") == "Hello world"
    feed.check()


def test_L8_a_viewer_that_missed_text_fetches_the_reply():
    feed = live_feed()
    feed.tell(feed.write("r", "Hello"))
    feed.write("r", " world")

    step = feed.tell(feed.finish("r"))

    assert step.needs == [FetchContent(["r"])]
    assert feed.mirror.text("r") is None
    feed.take(feed.mirror.content_came(feed.content("r")))
    assert feed.mirror.text("r") == "Hello world"
    feed.check()


def test_L8_a_viewer_that_got_nothing_of_a_reply_fetches_it():
    feed = live_feed()
    feed.write("r", "Hello")

    assert feed.tell(feed.finish("r")).needs == [FetchContent(["r"])]


def test_L8_a_reply_without_ops_is_not_fetched():
    feed = live_feed()

    assert feed.tell(feed.finish("r")).needs == []
    assert feed.mirror.text("r") == ""
    feed.check()


def test_L8_replies_that_ended_unseen_stay_cold():
    feed = opened()
    feed.mirror.disconnected()
    feed.ask("r")
    feed.claim("r")
    feed.write("r", "Hello")
    feed.finish("r")

    step = feed.open()

    assert FetchContent(["r"]) in step.needs or feed.mirror.cold(["r"]) == ["r"]
    feed.take(feed.mirror.content_came(feed.content("r")))
    assert feed.mirror.text("r") == "Hello"
    feed.check()


def test_L8_other_keys_of_the_data_survive_the_end():
    feed = opened()
    data = Raw(b'{"parts":[],"source":{"id":1}}')
    feed.tell(feed.create("r", role="assistant", status="pending", text=None, data=data))
    feed.tell(feed.claim("r"))
    feed.tell(feed.write("r", "text"))
    feed.tell(feed.finish("r"))

    assert feed.mirror.tree is not None
    held = feed.mirror.tree.node("r").data
    assert held is not UNSET
    assert msgspec.json.decode(held)["source"] == {"id": 1}
    feed.check()


def test_L9_a_stopped_reply_keeps_its_text():
    feed = live_feed()
    feed.tell(feed.write("r", "Hel"))

    feed.tell(feed.do(p.StreamAbort(message_id="r")))

    assert feed.mirror.tree is not None
    assert feed.mirror.tree.node("r").status == "paused"
    assert feed.mirror.text("r") == "Hel"
    feed.check()


def test_L7_live_text_that_comes_before_its_claim_is_held():
    feed = opened()
    feed.tell(feed.ask("r"))
    claim = feed.claim("r")
    text = [*feed.write("r", "Hello"), *feed.write("r", " world")]

    assert feed.tell(text) == Step([], [])
    assert feed.mirror.statistics()["held"] == 2
    step = feed.tell(claim)

    assert kinds(step) == [c.Committed, c.Streamed, c.Streamed]
    assert feed.mirror.text("r") == "Hello world"
    feed.check()


def test_L7_more_held_text_than_is_kept_is_asked_for():
    feed = opened()
    feed.tell(feed.ask("r"))
    claim = feed.claim("r")
    for _ in range(50):
        feed.tell(feed.write("r", "x" * 1000))
        feed.tell(feed.write("r", "y"))
    huge = p.Stream(
        topic="topic", message_id="r", epoch=99, first=1, to=1, ops=[p.TextOp(0, "x" * 5_000_000)]
    )
    feed.tell([huge])
    lost = feed.write("r", "end")
    feed.tell(lost)
    assert feed.mirror.statistics()["held"] == 101

    feed.tell(claim)

    assert [type(need) for need in feed.needs] == [Reopen]
    feed.open()
    feed.check()


def test_L4_repeated_live_text_is_dropped():
    feed = live_feed()
    text = feed.write("r", "Hello")
    feed.tell(text)

    assert feed.tell(text) == Step([], [])
    assert feed.mirror.text("r") == "Hello"


def test_L7_a_hole_in_live_text_is_asked_for_and_what_is_shown_stays():
    feed = live_feed()
    feed.tell(feed.write("r", "Hello"))
    feed.write("r", " wor")

    step = feed.tell(feed.write("r", "ld"))

    assert step == Step([], [Reopen(0.0, "live text is missing")])
    assert not feed.mirror.synced
    assert feed.mirror.text("r") == "Hello"
    assert feed.tell(feed.write("r", "!")) == Step([], [])
    step = feed.open()
    assert [change.reset for change in step.changes if isinstance(change, c.Streamed)] == [True]
    assert feed.mirror.text("r") == "Hello world!"
    feed.check()


def test_L7_a_hole_that_shows_while_the_topic_is_being_opened_is_asked_for_after():
    feed = live_feed()
    feed.tell(feed.write("r", "Hello"))
    resume = feed.mirror.resume(feed.now)
    answer = feed.topic.catch_up(resume, 10)
    feed.write("r", " wor")

    step = feed.tell([*feed.write("r", "ld"), *answer])

    assert [type(need) for need in step.needs] == [Reopen]
    feed.open()
    assert feed.mirror.text("r") == "Hello world"
    feed.check()


def test_L7_a_hole_before_any_text_is_asked_for():
    feed = live_feed()
    feed.write("r", "Hello")
    feed.tell(feed.write("r", " world"))

    assert feed.mirror.resume(feed.now).streams == {"r": (0, 0)}

    feed.open()
    assert feed.mirror.text("r") == "Hello world"
    feed.check()


def test_L7_a_resume_gets_exactly_what_was_missed():
    feed = live_feed()
    feed.tell(feed.write("r", "Hello"))
    feed.mirror.disconnected()
    feed.write("r", " ")
    feed.write("r", "world")
    assert feed.mirror.resume(feed.now).streams == {"r": (3, 1)}

    step = feed.open()

    assert [change for change in step.changes if isinstance(change, c.Streamed)] == [
        c.Streamed("r", 3, 3, [p.TextOp(0, " world")], reset=False)
    ]
    feed.check()


def test_L7_live_text_of_an_older_epoch_is_dropped():
    feed = live_feed()
    old = feed.write("r", "old")
    feed.tell(feed.do(ExpireLease(message_id="r", epoch=3)))
    feed.tell(feed.claim("r"))

    assert feed.tell(old) == Step([], [])


def test_L10_another_writer_goes_on_where_the_first_ended():
    feed = live_feed()
    feed.tell(feed.write("r", "Hello"))
    feed.tell(feed.do(ExpireLease(message_id="r", epoch=3)))
    assert feed.mirror.text("r") == "Hello"

    feed.tell(feed.claim("r"))
    assert feed.mirror.text("r") == "Hello"
    feed.tell(feed.write("r", " again"))

    assert feed.mirror.text("r") == "Hello again"
    feed.check()
    feed.tell(feed.finish("r"))
    feed.check()


def test_L10_a_viewer_that_had_less_than_the_next_writer_asks():
    feed = live_feed()
    feed.write("r", "Hello")
    feed.tell(feed.do(ExpireLease(message_id="r", epoch=3)))
    delta, _whole = feed.claim("r")
    feed.tell([delta])

    step = feed.tell(feed.write("r", " again"))

    assert [type(need) for need in step.needs] == [Reopen]
    feed.open()
    assert feed.mirror.text("r") == "Hello again"
    feed.check()


def test_L7_resuming_under_another_epoch_brings_the_whole_reply():
    feed = live_feed()
    feed.tell(feed.write("r", "Hello"))
    feed.mirror.disconnected()
    feed.do(ExpireLease(message_id="r", epoch=3))
    feed.claim("r")
    feed.write("r", " again")
    assert feed.mirror.resume(feed.now).streams == {"r": (3, 1)}

    step = feed.open()

    assert [change.reset for change in step.changes if isinstance(change, c.Streamed)] == [True]
    feed.check()


def test_a_snapshot_has_the_live_replies():
    feed = Feed()
    feed.ask("r", "s")
    feed.claim("r")
    feed.write("r", "Hello")
    feed.open()

    assert feed.mirror.text("r") == "Hello"
    assert feed.mirror.text("s") == ""
    assert feed.tell(feed.write("r", " world")).needs == []
    feed.check()


def test_a_reply_of_several_parts_shows_its_text_only():
    feed = live_feed()
    command = p.StreamAppend(
        topic="topic",
        message_id="r",
        epoch=3,
        first=1,
        ops=[
            p.PutOp(0, Raw(b'{"type":"reasoning","text":"hm"}')),
            p.TextOp(1, "Hello"),
            p.PutOp(2, Raw(b'{"type":"file","url":"x"}')),
        ],
    )
    frame, _ = feed.topic.append(command, durable=True)
    assert frame is not None
    feed.tell([frame])

    assert feed.mirror.text("r") == "Hello"
    assert [part["type"] for part in feed.mirror.parts("r") or []] == ["reasoning", "text", "file"]


def test_live_text_that_cannot_be_applied_voids_the_tree():
    feed = live_feed()
    bad = p.Stream(topic="topic", message_id="r", epoch=3, first=1, to=1, ops=[p.TextOp(7, "x")])

    step = feed.tell([bad])

    assert [type(need) for need in step.needs] == [Reopen]
    feed.open()
    feed.check()


# Everything at once


# 2872: of a reply that was doubted before any of it was here, only the end was asked for.
@pytest.mark.parametrize("seed", [*range(50), 2872])
def test_whatever_happens_to_the_frames_the_mirror_becomes_equal(seed: int):
    """Frames are lost, doubled and moved; then the connection is made anew, or not."""
    chance = random.Random(seed)
    feed = Feed(chunk=chance.choice([2, 1000]), content_bytes=chance.choice([50, 2**20]))
    feed.open()
    for _ in range(120):
        frames = act(feed, chance)
        lossy = []
        for each in frames:
            if chance.random() < 0.15:
                continue
            lossy.append(each)
            if chance.random() < 0.15:
                lossy.append(each)
        if chance.random() < 0.2:
            chance.shuffle(lossy)
        feed.tell(lossy)
        if chance.random() < 0.1:
            feed.needs.clear()
            feed.mirror.disconnected()
            feed.open()
        elif chance.random() < 0.5:
            serve(feed, chance)
    feed.needs.clear()
    feed.mirror.disconnected()
    feed.now += 1000
    feed.open()
    while feed.needs:
        serve(feed, chance)
    feed.check()


def act(feed: Feed, chance: random.Random) -> list[p.ServerFrame]:
    """Do something on the server, if the rules let it happen."""
    tree = feed.topic.tree
    ids = [node.id for node in tree.nodes()]
    live = [each for each, epoch in tree.live.items() if epoch]
    offers = [each for each, epoch in tree.live.items() if not epoch]
    some = chance.choice(ids) if ids else "root"
    try:
        match chance.randrange(11):
            case 0 | 1:
                return feed.create(feed.new_id(), parent=some, text="x" * chance.randrange(40))
            case 2:
                return feed.ask(*[feed.new_id() for _ in range(chance.randrange(1, 3))])
            case 3 if offers:
                return feed.claim(chance.choice(offers))
            case 4 | 5 if live:
                return feed.write(chance.choice(live), *"ab"[: chance.randrange(1, 3)])
            case 6 if live:
                return feed.finish(chance.choice(live), chance.choice(["success", "error"]))
            case 7 if live:
                reply = chance.choice(live)
                return feed.do(ExpireLease(message_id=reply, epoch=tree.live[reply]))
            case 8 if ids:
                return feed.do(p.MessageUpdate(message_id=some, text=f"edit {chance.random()}"))
            case 9 if ids:
                return feed.do(p.MessageDelete(message_id=some, cascade=chance.random() < 0.3))
            case 10 if ids:
                return feed.do(p.TopicSetActive(node_id=some))
    except LivetreeError:
        pass
    return []


def serve(feed: Feed, chance: random.Random) -> None:
    """Carry out what the mirror needs."""
    needs, feed.needs = feed.needs, []
    for need in needs:
        match need:
            case Reopen():
                feed.now += need.delay
                if feed.mirror.reopen_due:
                    feed.open()
            case FetchDeltas():
                feed.deltas(need, limit=chance.choice([1, 200]))
            case FetchContent():
                here = [each for each in need.message_ids if each in feed.topic.tree]
                if here:
                    feed.take(feed.mirror.content_came(feed.content(*here)))


def test_it_says_how_it_is():
    feed = Feed()
    assert repr(feed.mirror) == "<Mirror topic behind None>"
    feed.open()
    assert repr(feed.mirror) == "<Mirror topic synced <Tree topic seq=1 messages=0>>"
    assert feed.mirror.statistics()["seq"] == 1
    feed.tell([p.Gone(topic="topic", reason="x")])
    assert "gone" in repr(feed.mirror)
