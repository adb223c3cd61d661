"""Whole groups of replies deleted: `message.deleteGroup`."""

from itertools import count

import pytest
from livetree.core import protocol as p
from livetree.core.errors import Conflict, InvalidOperation, LivetreeError, NotFound, TopicLive
from msgspec import Raw

from tests.tree.topic import ROOT, topic_of

CONTEXT = Raw(b'{"contextTokens":1}')


def delete_group(message_id: str) -> p.MessageDeleteGroup:
    return p.MessageDeleteGroup(message_id=message_id)


def test_T15_a_group_goes_whole_and_its_children_move_to_the_shared_parent():
    topic = topic_of(
        "u > a1:1 > v1:3 > x1", "a1 > v2:3", "u > a2:1 > w1:3", "u > b1:2", "a2 > w2", active="b1"
    )

    result = topic.do(delete_group("a2"))

    assert (result["deleted"], result["newActive"]) == (["a1", "a2"], "UNCHANGED")
    assert result["reparented"] == ["v1", "v2", "w1", "w2"]
    assert topic.children("u") == ["v1", "v2", "w1", "b1", "w2"]
    groups = [topic.group(each) for each in ("v1", "v2", "w1", "b1", "w2")]
    assert groups == [3, 3, 4, 2, 0], "what were two groups are two"
    assert topic.parent("x1") == "v1"
    assert topic.active == "b1"


def test_T15_an_ungrouped_reply_goes_alone():
    topic = topic_of("u > a1 > v1", "u > a2", "u > b1:2", active=None)
    for each in ("a1", "v1"):
        topic.do(p.MessageUpdate(message_id=each, context=CONTEXT))

    assert topic.do(delete_group("a1"))["deleted"] == ["a1"]
    assert topic.ids() == {"u", "a2", "b1", "v1"}
    assert topic.node("v1").context == CONTEXT


def test_T15_others_with_the_number_are_no_replies_of_the_group():
    topic = topic_of("u > a1:1", "u > a2:1", "v > b1:1", active=None)
    for role in ("user", "system", "tool"):
        topic.do(p.MessageCreate(message_id=role, role=role, parent="u", group=1))  # type: ignore[arg-type]

    topic.do(delete_group("a1"))

    assert topic.children("u") == ["user", "system", "tool"]
    assert "b1" in topic.ids()


@pytest.mark.parametrize(
    ("active", "becomes"),
    [("a1", "u"), ("a2", "u"), ("v1", "v1"), ("u", "u"), (None, None)],
)
def test_T15_the_pointer_on_a_deleted_reply_falls_back_to_the_parent(
    active: str | None, becomes: str | None
):
    topic = topic_of("u > a1:1 > v1", "u > a2:1", active=active)

    result = topic.do(delete_group("a1"))

    assert topic.active == becomes
    assert result["newActive"] == ("UNCHANGED" if active == becomes else becomes)


def test_T15_a_group_of_first_turns_leaves_nothing_active():
    topic = topic_of("u", active=None)
    for each in ("a", "b"):
        topic.do(
            p.MessageCreate(
                message_id=each, role="assistant", parent="ROOT", group=1, status="success"
            )
        )

    assert topic.do(delete_group("a"))["newActive"] is None
    assert topic.active is None


def test_T15_what_was_derived_from_the_reply_on_the_active_path_is_cleared():
    topic = topic_of("u > a1:1 > v1 > x1", "u > a2:1 > w1", active="x1")
    for each in ("v1", "x1", "w1", "u"):
        topic.do(p.MessageUpdate(message_id=each, context=CONTEXT))

    topic.do(delete_group("a2"))

    assert [topic.node(each).context for each in ("v1", "x1")] == [None, None]
    assert [topic.node(each).context for each in ("w1", "u")] == [CONTEXT, CONTEXT]


@pytest.mark.parametrize(
    ("message_id", "kind"),
    [
        ("u", InvalidOperation),
        ("nope", NotFound),
        (ROOT, InvalidOperation),
        ("p1", InvalidOperation),
        ("p2", InvalidOperation),
        ("s1", TopicLive),
        ("t1", TopicLive),
    ],
)
def test_T15_a_group_with_a_pending_reply_stays_and_so_does_what_is_none(
    message_id: str, kind: type[LivetreeError]
):
    topic = topic_of(
        "u > p1:1", "u > p2:1?", "v > s1:1", "v > s2:1 > w > x*", "y > t1:1", "y > t2:1+"
    )

    topic.refuse(delete_group(message_id), kind)


def test_T15_a_live_reply_beside_the_group_is_no_obstacle():
    topic = topic_of("u > a1:1", "u > a2:1", "u > b*", "v > c+")
    live = topic.tree.live

    topic.do(delete_group("a1"))

    assert topic.tree.live == live


@pytest.mark.parametrize(
    ("changed", "conflict"),
    [("a1", True), ("a2", True), ("v1", True), ("w1", True), ("x1", False), ("b1", False)],
)
def test_T8_deleting_a_group_conflicts_when_what_it_drops_or_moves_has_changed(
    changed: str, conflict: bool
):
    topic = topic_of("u > a1:1 > v1 > x1", "u > a2:1 > w1", "u > b1:2")
    seen = topic.tree.seq
    topic.do(p.MessageUpdate(message_id=changed, stats=CONTEXT))
    command = p.MessageDeleteGroup(message_id="a1", base=seen)

    if conflict:
        assert topic.refuse(command, Conflict).details["changed"] == [changed]
    else:
        topic.do(command)


def test_T8_with_base_too_what_is_not_there_is_not_found():
    topic_of("u").refuse(p.MessageDeleteGroup(message_id="nope", base=0), NotFound)


@pytest.mark.parametrize("message_id", ["a1", "a2"], ids=count())
def test_T9_a_group_is_deleted_within_a_batch_too(message_id: str):
    topic = topic_of("u > a1:1 > v1", "u > a2:1")

    topic.do(
        p.Batch(
            commands=[
                p.MessageCreate(
                    message_id="a3", role="assistant", parent="u", group=1, status="error"
                ),
                delete_group(message_id),
            ]
        )
    )

    assert topic.children("u") == ["v1"]
    assert {*topic.trash.entries[topic.tree.seq][1]} == {"a1", "a2"}, "a3 was never there"
