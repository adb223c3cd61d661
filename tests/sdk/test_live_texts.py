import msgspec
from livetree import changes as c
from livetree.core import protocol as p
from livetree.core.plan import ExpireLease
from livetree.mirror import FetchContent, Reopen, Step
from msgspec import UNSET, Raw

from tests.sdk.feed import Feed, kinds, opened


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
