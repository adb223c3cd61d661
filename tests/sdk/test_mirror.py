import random

import pytest
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError
from livetree.core.plan import ExpireLease
from livetree.mirror import (
    AHEAD,
    REFUSED_SECONDS,
    REOPEN_SECONDS,
    SNAPSHOT_SECONDS,
    FetchContent,
    FetchDeltas,
    Reopen,
    Step,
)
from livetree.results import Deltas
from livetree.testing import MemoryTopic
from msgspec.structs import replace

from tests.sdk.feed import Feed, kinds, opened

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
