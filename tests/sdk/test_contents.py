import pytest
from livetree import changes as c
from livetree.core import protocol as p
from livetree.mirror import Step

from tests.sdk.feed import Feed, kinds, opened


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
