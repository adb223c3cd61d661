"""Deletions taken back: `topic.undo`, `message.restore`, and what they never break."""

from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from livetree.core import protocol as p
from livetree.core.errors import Conflict, InvalidOperation, LivetreeError, NotFound, TopicLive
from livetree.core.plan import Content, Context, plan
from livetree.core.trash import Revival, Wanted
from livetree.core.tree import Tree
from msgspec import Raw
from msgspec.structs import replace

from tests.helpers import canonical_form
from tests.tree.topic import ROOT, START, Topic, run_of, topic_of

CONTEXT = Raw(b'{"contextTokens":1}')


def shape(topic: Topic) -> dict[str, Any]:
    """Return all that an undo brings back: not versions, times of change, and contexts."""
    form = canonical_form(topic.tree)
    for each in form["messages"]:
        for name in ("version", "updated_at", "context"):
            del each[name]
    for name in ("seq", "commit", "digest"):
        del form[name]
    return form


def delete(topic: Topic, message_id: str, **fields: Any) -> dict[str, Any]:
    return topic.do(p.MessageDelete(message_id=message_id, **fields))


def undo(topic: Topic, seq: int | None = None) -> dict[str, Any]:
    return topic.do(p.TopicUndo(seq=seq))


def restore(topic: Topic, message_id: str, **fields: Any) -> dict[str, Any]:
    return topic.do(p.MessageRestore(message_id=message_id, **fields))


def move(topic: Topic, message_id: str, parent: str) -> None:
    topic.do(p.MessageUpdate(message_id=message_id, parent=parent))


# What a deletion keeps ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "gone"),
    [
        (p.MessageDelete(message_id="a1"), {"a1"}),
        (p.MessageDelete(message_id="a1", cascade=True), {"a1", "w"}),
        (p.MessageDeleteGroup(message_id="a2"), {"a1", "a2"}),
        (p.TopicClear(), {"u1", "a1", "w", "a2", "v1"}),
        (
            p.Batch(
                commands=[p.MessageDelete(message_id="a1"), p.MessageDelete(message_id="v1")],
            ),
            {"a1", "v1"},
        ),
    ],
    ids=count(),
)
def test_T11_every_deletion_makes_one_entry_under_its_seq(command: p.Mutation, gone: set[str]):
    topic = topic_of("u1 > a1:1 > w", "u1 > a2:1", "v1", active="w")

    result = topic.do(command)

    assert [*topic.trash.entries] == [result["seq"]]
    burial, rows = topic.trash.entries[result["seq"]]
    assert {*rows} == gone
    assert (burial.by, burial.at, burial.active_before) == ("ann", topic.now, "w")
    assert burial.op == topic.deltas[-1].cause.op
    assert burial.active_after == topic.active


def test_T11_what_deletes_nothing_makes_no_entry():
    topic = topic_of("u1 > a1", "v1")

    topic.do(p.MessageUpdate(message_id="a1", parent="v1"))
    topic.do(p.TopicSetActive(node_id=None))
    topic.do(
        p.Batch(
            commands=[
                p.MessageCreate(message_id="n", role="user"),
                p.MessageDelete(message_id="n"),
                p.TopicUpdate(name="n"),
            ]
        )
    )

    assert topic.trash.entries == {}


def test_T11_the_id_of_a_deleted_message_stays_taken():
    topic = topic_of("u1 > a1 > w")
    delete(topic, "w")
    delete(topic, "a1")
    topic.do(p.TopicClear())

    for message_id in ("u1", "a1", "w"):
        topic.refuse(p.MessageCreate(message_id=message_id, role="user"), Conflict)
        turn = p.TurnSubmit(
            user=p.Fresh(text="x"), placeholders=[p.Placeholder(message_id=message_id)]
        )
        topic.refuse(turn, Conflict)


def test_T11_the_number_of_a_deleted_group_is_not_given_again():
    topic = topic_of("u1 > a1:1", "u1 > a2:1", "u1 > a3", active=None)
    topic.do(p.MessageDeleteGroup(message_id="a1"))

    made = topic.do(p.MessageCreateSibling(source_id="a3", message_id="a4"))

    assert made["group"] == 2


def test_T11_what_came_and_went_in_one_commit_leaves_its_id_to_others():
    topic = topic_of("u1")
    batch = p.Batch(
        commands=[
            p.MessageCreate(message_id="n", role="user"),
            p.MessageDelete(message_id="n"),
            p.TopicUpdate(name="n"),
        ]
    )
    again = p.MessageCreate(message_id="n", role="user")
    contexts = [Context(now=START, commit=f"c{each}", new_id=str) for each in range(2)]

    _, decided = run_of(topic.tree, [batch, again], contexts)
    topic.do(batch)
    topic.do(again)

    # One by one and in a run alike.
    assert not any(isinstance(each, LivetreeError) for each in decided)
    assert topic.parent("n") == "u1"


def test_T11_a_tree_that_is_loaded_knows_what_is_in_the_trash():
    topic = topic_of("u1 > a1:4 > w:2", "v1")
    topic.do(p.MessageDelete(message_id="a1", cascade=True))
    graves = topic.tree._graves

    tree = Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=topic.tree.seq,
        commit=str(topic.tree.commit),
        active_node_id=topic.active,
        state=topic.tree.state,
        nodes=topic.tree.nodes(),
        graves=graves,
    )

    assert {*graves} == {"a1", "w"}
    assert (tree.grave("w"), tree.grave("u1"), tree.grave("nope")) == (("a1", 2), None, None)
    assert tree.is_taken("w")
    assert (tree.top_group("u1"), tree.top_group("a1")) == (4, 2)
    assert tree.nearest_living("w") == "u1"
    assert tree.nearest_living("v1") == "v1"
    assert tree.nearest_living("nope") == ROOT


# Undo ------------------------------------------------------------------------------------

UNDONE: dict[str, tuple[tuple[str, ...], str | None, p.Mutation]] = {
    "a splice": (("u1 > a1 > w1 > b1", "a1 > w2"), "b1", p.MessageDelete(message_id="a1")),
    "a splice of the active": (("u1 > a1 > w1",), "a1", p.MessageDelete(message_id="a1")),
    "a splice that clears the pointer": (
        ("u1 > a1 > w1",),
        "a1",
        p.MessageDelete(message_id="a1", strategy="clear"),
    ),
    "a splice of a first turn": (
        ("u1:1 > a1:3", "u1 > a2:3", "u2:1"),
        "a2",
        p.MessageDelete(message_id="u1"),
    ),
    "groups that were handed over": (
        ("u > a1 > v1:1 > x", "a1 > v2:1", "a1 > v3:2", "a1 > v4", "u > b:1"),
        "x",
        p.MessageDelete(message_id="a1"),
    ),
    "a hand-over to the next reply": (
        ("u > a1:1 > v1:2", "a1 > v2:2", "u > a2:1 > w1:2", "a1 > v3"),
        "v1",
        p.MessageDelete(message_id="a1"),
    ),
    "a hand-over to the reply before": (
        ("u > a1:1 > v1", "u > a2:1 > w1:2", "a2 > w2:2"),
        "w1",
        p.MessageDelete(message_id="a2"),
    ),
    "a hand-over of the active reply": (
        ("u > a1:1 > v1", "u > a2:1"),
        "a1",
        p.MessageDelete(message_id="a1"),
    ),
    "a cascade": (
        ("u1 > a1:1 > w1:5 > x~", "a1 > w2:5", "u1 > a2:1"),
        "x",
        p.MessageDelete(message_id="a1", cascade=True),
    ),
    "a clear": (
        ("u1 > a1:1 > w1:5 > x~", "a1 > w2:5", "u1 > a2:1", "z > y"),
        "y",
        p.TopicClear(),
    ),
    "a group": (
        ("u1 > a1:1 > w1:5", "a1 > w2:5", "u1 > a2:1 > x1:5", "u1 > a3", "a2 > x2"),
        "a2",
        p.MessageDeleteGroup(message_id="a1"),
    ),
    "an ungrouped one by its group": (
        ("u1 > a1 > w1:5", "a1 > w2:5"),
        "w2",
        p.MessageDeleteGroup(message_id="a1"),
    ),
    "a batch of deletes": (
        ("u1 > a1 > u2 > a2 > u3", "u1 > b1:1 > c1", "u1 > b2:1"),
        "u3",
        p.Batch(
            commands=[
                p.MessageDelete(message_id="a2"),
                p.MessageDelete(message_id="u2"),
                p.MessageDelete(message_id="b1", cascade=True),
                p.MessageDelete(message_id="a1"),
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", UNDONE)
def test_T12_undo_gives_the_tree_as_it_was(name: str):
    lines, active, command = UNDONE[name]
    topic = topic_of(*lines, active=active)
    before = shape(topic)
    deleted = topic.do(command)

    result = undo(topic)

    assert shape(topic) == before
    assert result["undone"] == deleted["seq"]
    assert {*result["restored"]} == {*topic.deltas[-2].drop}
    assert topic.trash.entries == {}
    moved = [*topic.deltas[-1].put]
    assert {*result["reparented"]} == {each.id for each in moved} - {*result["restored"]}
    assert result["newActive"] in (topic.active, "UNCHANGED")


def test_T12_undo_keeps_text_author_and_times_of_what_comes_back():
    topic = topic_of("u1 > a1")
    topic.do(p.MessageUpdate(message_id="a1", stats=CONTEXT, model="m"))
    before = topic.node("a1")
    delete(topic, "a1")
    topic.now += 50

    undo(topic)

    assert topic.node("a1") == replace(before, version=topic.tree.seq)


def test_T12_undo_takes_the_last_of_ones_own_and_goes_on_from_there():
    topic = topic_of("u1 > a1", "v1", "w1", "x1")
    delete(topic, "v1")
    delete(topic, "w1")
    topic.subject = "bob"
    delete(topic, "x1")
    topic.subject = "ann"

    assert undo(topic)["restored"] == ["w1"]
    assert undo(topic)["restored"] == ["v1"]
    refusal = topic.refuse(p.TopicUndo(), InvalidOperation)
    assert "nothing to undo" in str(refusal)
    assert topic.ids() == {"u1", "a1", "v1", "w1"}


def test_T12_somebody_elses_deletion_is_undone_by_its_seq():
    topic = topic_of("u1", "v1", "w1")
    seq = delete(topic, "v1")["seq"]
    delete(topic, "w1")
    topic.subject = "bob"

    topic.refuse(p.TopicUndo(), InvalidOperation)
    assert undo(topic, seq)["restored"] == ["v1"]
    refusal = topic.refuse(p.TopicUndo(seq=seq), NotFound)
    assert refusal.details == {"seq": seq}
    assert topic.deltas[-1].cause == p.Cause("topic.undo", "bob", None)


@pytest.mark.parametrize("seq", [0, 1, 99])
def test_T12_a_commit_that_deleted_nothing_has_nothing_to_undo(seq: int):
    topic_of("u1").refuse(p.TopicUndo(seq=seq), NotFound)


def test_T12_an_undo_is_no_deletion_and_has_none_to_undo():
    topic = topic_of("u1 > a1")
    delete(topic, "a1")
    undone = undo(topic)

    topic.refuse(p.TopicUndo(), InvalidOperation)
    topic.refuse(p.TopicUndo(seq=undone["seq"]), NotFound)
    delete(topic, "a1")
    assert undo(topic)["restored"] == ["a1"]


def test_T12_the_server_itself_has_no_deletion_of_its_own_to_undo():
    topic = topic_of("u1", "v1")
    delete(topic, "v1")
    topic.subject = None  # type: ignore[assignment]

    topic.refuse(p.TopicUndo(), InvalidOperation)


def test_T12_a_child_that_was_moved_on_stays_where_it_is():
    topic = topic_of("u1 > a1 > w1", "a1 > w2", "a1 > w3", "v1", active=None)
    delete(topic, "a1")
    move(topic, "w2", "v1")
    delete(topic, "w3")

    assert undo(topic, topic.deltas[0].seq)["reparented"] == ["w1"]
    assert (topic.parent("w1"), topic.parent("w2")) == ("a1", "v1")
    assert undo(topic)["restored"] == ["w3"]
    assert topic.parent("w3") == "u1", "where it hung when it was deleted"


def test_T12_a_child_that_went_and_came_back_to_where_it_was_put_moves_back():
    topic = topic_of("u1 > a1 > w1", "v1", active=None)
    seq = delete(topic, "a1")["seq"]
    move(topic, "w1", "v1")
    move(topic, "w1", "u1")

    assert undo(topic, seq)["reparented"] == ["w1"]


def test_T12_what_the_same_batch_moved_on_is_not_taken_back():
    topic = topic_of("u1 > a1 > w1", "v1", active=None)
    topic.do(
        p.Batch(
            commands=[
                p.MessageDelete(message_id="a1"),
                p.MessageUpdate(message_id="w1", parent="v1"),
            ]
        )
    )

    move(topic, "w1", "u1")  # by hand to where the deletion had put it for a moment

    assert undo(topic)["reparented"] == []
    assert topic.parent("w1") == "u1"


def test_T12_what_a_batch_made_below_what_it_deleted_stays():
    topic = topic_of("u1 > a1", active=None)
    topic.do(
        p.Batch(
            commands=[
                p.MessageCreate(message_id="n", role="user", parent="a1"),
                p.MessageDelete(message_id="a1"),
            ]
        )
    )

    assert undo(topic)["reparented"] == []
    assert topic.parent("n") == "u1"


def test_T12_a_batch_that_moved_before_it_deleted_is_reversed_too():
    topic = topic_of("u1 > a1", "v1 > b1", active=None)
    before = shape(topic)
    topic.do(
        p.Batch(
            commands=[
                p.MessageUpdate(message_id="v1", parent="a1"),
                p.MessageDelete(message_id="a1"),
            ]
        )
    )

    assert undo(topic)["reparented"] == ["v1"]
    assert shape(topic) == before, "a first turn is one again"


def test_T12_children_handed_over_twice_in_a_batch_come_back_to_the_first():
    topic = topic_of("u1 > a1 > w1:2", "a1 > w2:2", "u1 > x:1", active=None)
    before = shape(topic)
    topic.do(p.Batch(commands=[p.MessageDelete(message_id="a1"), p.MessageDelete(message_id="u1")]))
    assert topic.group("w1") == topic.group("w2") != topic.group("x")

    undo(topic)

    assert shape(topic) == before


def test_T12_with_the_parent_gone_too_it_comes_back_to_the_nearest_that_lives():
    topic = topic_of("u1 > a1 > u2 > a2 > w1", active=None)
    topic.do(p.MessageUpdate(message_id="a2", context=CONTEXT))
    topic.do(p.MessageUpdate(message_id="w1", context=CONTEXT))
    first = delete(topic, "a2")["seq"]
    delete(topic, "u2")
    last = delete(topic, "a1")["seq"]

    result = undo(topic, first)

    # Its child was moved on by the later deletions, so it isn't where this one put it.
    assert (result["restored"], result["reparented"]) == (["a2"], [])
    assert (topic.parent("a2"), topic.parent("w1")) == ("u1", "u1")
    assert topic.node("a2").context is None, "it was derived from others"
    assert topic.node("w1").context == CONTEXT
    assert undo(topic, last)["reparented"] == ["w1"], "which this one has put there"
    assert (topic.parent("a1"), topic.parent("w1")) == ("u1", "a1")


def test_T12_with_all_above_gone_it_comes_back_as_a_first_turn():
    topic = topic_of("u1:3 > a1:2 > w1:4", active=None)
    seq = delete(topic, "w1")["seq"]
    topic.do(p.TopicClear())

    undo(topic, seq)

    assert topic.tree.is_first_turn("w1")
    assert topic.group("w1") == 4, "above all that the root's children had"


def test_T12_below_a_parent_that_was_moved_it_comes_back_with_it():
    topic = topic_of("u1 > a1 > w1 > b1", "v1", active=None)
    delete(topic, "w1")
    move(topic, "a1", "v1")

    assert undo(topic)["reparented"] == ["b1"]
    assert [node.id for node in topic.tree.path("b1")] == ["v1", "a1", "w1", "b1"]


def test_T12_context_is_cleared_below_whatever_comes_back_elsewhere_and_kept_else():
    topic = topic_of("u1 > a1 > w1 > b1 > x1", "v1 > c1", active=None)
    for each in ("w1", "b1", "x1", "c1"):
        topic.do(p.MessageUpdate(message_id=each, context=CONTEXT))
    seq = topic.do(
        p.Batch(
            commands=[
                p.MessageDelete(message_id="w1", cascade=True),
                p.MessageDelete(message_id="c1"),
            ]
        )
    )["seq"]
    delete(topic, "a1")

    undo(topic, seq)

    assert [topic.node(each).context for each in ("w1", "b1", "x1")] == [None] * 3
    assert topic.node("c1").context == CONTEXT


def test_T12_a_pending_message_comes_back_as_an_error():
    topic = topic_of("u1 > a1?", "v1?", "w1", active=None)
    topic.now = 50  # a clock that was put back
    topic.do(p.TopicClear())
    topic.now = START + 7

    undo(topic)

    assert [topic.node(each).status for each in ("u1", "a1", "v1", "w1")] == [
        *("success", "error", "error", "success"),
    ]
    assert topic.node("a1").updated_at == START + 7
    assert topic.node("w1").updated_at < START
    assert topic.tree.live == {}


def test_T12_a_pending_message_is_not_changed_before_it_was_made():
    topic = topic_of("u1 > a1?", active=None)
    made = topic.node("a1").created_at
    delete(topic, "a1")
    topic.now = 50  # a clock that was put back

    undo(topic)

    assert topic.node("a1").updated_at == made


# Groups ----------------------------------------------------------------------------------


def test_T13_a_reply_rejoins_the_fellows_that_still_live_there():
    topic = topic_of("u > a1:1", "u > a2:1", "u > b1:2", active=None)
    delete(topic, "a1")
    # Another of the same group, made since, makes it no other group.
    topic.do(p.MessageCreateSibling(source_id="a2", message_id="a3"))

    undo(topic)

    assert [topic.group(each) for each in ("a1", "a2", "a3", "b1")] == [1, 1, 1, 2]


def test_T13_it_does_not_join_strangers_with_its_number():
    topic = topic_of("u > a1:1", "u > a2:1", active=None)
    seq = topic.do(p.MessageDeleteGroup(message_id="a1"))["seq"]
    topic.do(p.MessageCreate(message_id="s", role="assistant", parent="u", group=1))

    undo(topic, seq)

    assert topic.group("s") == 1
    assert topic.group("a1") == topic.group("a2") == 2


def test_T13_who_came_in_the_commit_that_deleted_is_a_stranger_too():
    topic = topic_of("u > a1:1", "u > a2:1", active=None)
    stranger = p.MessageCreate(message_id="s", role="assistant", parent="u", group=1)
    topic.do(p.Batch(commands=[p.MessageDeleteGroup(message_id="a1"), stranger]))

    undo(topic)

    assert (topic.group("s"), topic.group("a1"), topic.group("a2")) == (1, 2, 2)


def test_T13_nobody_has_the_number_so_it_is_the_same_again():
    topic = topic_of("u > a1:4", "u > b1:9", active=None)
    delete(topic, "a1")
    delete(topic, "b1")

    undo(topic)
    undo(topic)

    assert (topic.group("a1"), topic.group("b1")) == (4, 9)


def test_T13_below_another_parent_a_group_gets_a_fresh_number_and_stays_together():
    topic = topic_of("u > p1 > a1:1", "p1 > a2:1", "p1 > b1:3", "u > x1:1", active=None)
    seq = topic.do(
        p.Batch(
            commands=[p.MessageDelete(message_id=each, cascade=True) for each in ("a1", "a2", "b1")]
        )
    )["seq"]
    delete(topic, "p1")

    undo(topic, seq)

    assert [topic.parent(each) for each in ("a1", "a2", "b1")] == ["u"] * 3
    assert [topic.group(each) for each in ("a1", "a2", "b1", "x1")] == [2, 2, 3, 1]


def test_T13_children_that_were_regrouped_since_come_back_in_their_new_groups():
    topic = topic_of("u > p1 > a1:1", "p1 > a2:1", "p1 > b1", "p1 > b2", "p1 > c1:5", active=None)
    delete(topic, "p1")
    for each in ("b1", "b2"):
        topic.do(p.MessageUpdate(message_id=each, group=70))
    topic.do(p.MessageUpdate(message_id="a1", group=80))
    topic.do(p.MessageUpdate(message_id="c1", group=0))

    assert len(undo(topic)["reparented"]) == 5

    numbers = {each: topic.group(each) for each in ("a1", "a2", "b1", "b2", "c1")}
    assert numbers["b1"] == numbers["b2"] != 0
    assert numbers["a2"] == 1
    assert len({numbers[each] for each in ("a1", "a2", "b1", "c1")}) == 4
    assert numbers["c1"] == 0


# What moved meanwhile ----------------------------------------------------------------------


def test_T12_no_child_comes_back_above_itself():
    topic = topic_of("g > p > c > d", active=None)
    seq = delete(topic, "p")["seq"]
    move(topic, "c", "ROOT")
    move(topic, "g", "d")

    result = undo(topic, seq)

    assert result["reparented"] == []
    assert [node.id for node in topic.tree.path("p")] == ["c", "d", "g", "p"]


def test_T12_a_cycle_that_moves_made_in_between_is_not_closed():
    # c was handed from p to h, the next reply; then g, above p, moved below c.
    topic = topic_of("g > x1 > g2 > p:1 > c", "g2 > h:1", active="c")
    seq = delete(topic, "p")["seq"]
    assert topic.parent("c") == "h"
    move(topic, "h", "ROOT")
    move(topic, "g2", "c")

    assert undo(topic, seq)["reparented"] == []
    assert [node.id for node in topic.tree.path("p")] == ["h", "c", "g2", "p"]


def test_T5_the_pointer_comes_back_if_nobody_moved_it():
    topic = topic_of("u1 > a1 > w1", active="w1")
    delete(topic, "w1")
    assert topic.active == "a1"
    assert undo(topic)["newActive"] == "w1" == topic.active

    delete(topic, "w1")
    topic.do(p.TopicSetActive(node_id="u1"))
    assert undo(topic)["newActive"] == "UNCHANGED"
    assert topic.active == "u1"

    topic.do(p.TopicSetActive(node_id="w1"))
    topic.do(p.TopicClear())
    assert undo(topic)["newActive"] == "w1" == topic.active


def test_T5_the_pointer_does_not_come_back_to_what_did_not():
    topic = topic_of("u1 > a1 > w1", "v1", active="w1")
    batch = p.Batch(
        commands=[p.MessageDelete(message_id=each, strategy="clear") for each in ("w1", "v1")]
    )
    seq = topic.do(batch)["seq"]
    restore(topic, "w1")
    delete(topic, "w1")

    assert undo(topic, seq)["newActive"] == "UNCHANGED"
    assert (topic.active, topic.ids()) == (None, {"u1", "a1", "v1"})


def test_T5_the_pointer_comes_back_to_nothing_too():
    topic = topic_of("u1 > a1", active=None)
    topic.do(
        p.Batch(
            commands=[p.MessageDelete(message_id="a1"), p.TopicSetActive(node_id="u1")],
        )
    )

    result = undo(topic)

    assert (result["newActive"], topic.active) == (None, None)


@pytest.mark.parametrize("mark", ["*", "+"])
def test_L3_a_child_with_a_live_reply_at_or_below_it_is_not_moved_back(mark: str):
    topic = topic_of("u1 > a1 > u2", "v1", active="v1")
    seq = delete(topic, "a1")["seq"]
    reply = p.Placeholder(message_id="r")
    topic.do(p.TurnSubmit(user=p.Existing(message_id="u2"), placeholders=[reply]))
    if mark == "*":
        topic.do(p.StreamClaim(message_id="r"))

    refusal = topic.refuse(p.TopicUndo(seq=seq), TopicLive)

    assert refusal.details["messageId"] == "r"
    topic.do(p.StreamAbort(message_id="r"))
    assert undo(topic, seq)["reparented"] == ["u2"]


def test_L3_an_undo_beside_or_above_a_live_reply_is_free():
    topic = topic_of("u1 > a1", "u1 > b1 > c1", "v1", active="a1")
    delete(topic, "a1")
    delete(topic, "b1")
    reply = p.Placeholder(message_id="r")
    topic.do(p.TurnSubmit(user=p.Existing(message_id="u1"), placeholders=[reply]))

    undo(topic)
    undo(topic)

    assert topic.parent("c1") == "b1"
    assert topic.tree.live == {"r": 0}


# Restore ---------------------------------------------------------------------------------


def test_T12_a_deleted_message_comes_back_alone():
    topic = topic_of("u1 > a1 > w1 > x1", "a1 > w2", active="x1")
    seq = topic.do(p.MessageDelete(message_id="a1", cascade=True))["seq"]

    result = restore(topic, "a1")

    assert result | {"seq": 0, "commit": ""} == {
        "messageId": "a1",
        "parentId": "u1",
        "restored": ["a1"],
        "seq": 0,
        "commit": "",
    }
    assert (topic.children("a1"), topic.active) == ([], "u1")
    assert {*topic.trash.entries[seq][1]} == {"w1", "w2", "x1"}
    restore(topic, "x1")
    assert topic.parent("x1") == "a1", "the nearest that lives"
    assert undo(topic)["restored"] == ["w1", "w2"]
    assert topic.parent("x1") == "a1", "only what a deletion moved is moved back"
    assert topic.trash.entries == {}


def test_T12_with_cascade_all_of_its_deletion_that_hung_below_comes_too():
    topic = topic_of("u1 > a1 > w1 > x1", "a1 > w2 > y1", "u1 > b1", active=None)
    delete(topic, "y1")
    topic.do(p.TopicClear())

    result = restore(topic, "a1", cascade=True)

    assert {*result["restored"]} == {"a1", "w1", "w2", "x1"} == topic.ids()
    assert (topic.parent("a1"), topic.parent("x1"), result["parentId"]) == (ROOT, "w1", ROOT)
    undo(topic)
    assert topic.parent("a1") == ROOT
    assert topic.parent("b1") == "u1"
    undo(topic)
    assert topic.parent("y1") == "w2"


def test_T12_a_splice_undone_by_restore_alone_leaves_the_children():
    topic = topic_of("u1 > a1 > w1", active=None)
    seq = delete(topic, "a1")["seq"]

    restore(topic, "a1")

    assert topic.parent("w1") == "u1"
    topic.refuse(p.TopicUndo(seq=seq), NotFound)


def test_T12_an_undo_brings_what_a_restore_has_left():
    topic = topic_of("u1 > a1 > w1", "u1 > b1:1 > x1", "u1 > b2:1", active=None)
    before = shape(topic)
    topic.do(p.Batch(commands=[p.MessageDelete(message_id="a1"), p.MessageDelete(message_id="b1")]))

    restore(topic, "a1")
    result = undo(topic)

    assert (result["restored"], {*result["reparented"]}) == (["b1"], {"w1", "x1"})
    assert shape(topic) == before


def test_T13_fellows_that_come_back_one_by_one_are_fellows_again():
    topic = topic_of("u > a1:1", "u > a2:1", active=None)
    topic.do(p.MessageDeleteGroup(message_id="a1"))

    restore(topic, "a2")
    restore(topic, "a1")

    assert topic.group("a1") == topic.group("a2") == 1
    assert topic.children("u") == ["a1", "a2"]


@pytest.mark.parametrize("cascade", [False, True])
@pytest.mark.parametrize(
    ("message_id", "kind"),
    [("nope", NotFound), ("u1", InvalidOperation), (ROOT, InvalidOperation), ("", NotFound)],
)
def test_T12_what_was_never_deleted_is_not_restored(
    message_id: str, kind: type[LivetreeError], cascade: bool
):
    topic = topic_of("u1 > a1")
    delete(topic, "a1")

    topic.refuse(p.MessageRestore(message_id=message_id, cascade=cascade), kind)


def test_T12_what_is_no_longer_in_the_trash_is_not_found():
    topic = topic_of("u1 > a1", active=None)
    delete(topic, "a1")
    topic.trash.entries.clear()

    for command in (p.MessageRestore(message_id="a1"), p.TopicUndo(seq=topic.tree.seq)):
        with pytest.raises(NotFound):
            topic.plan(command)
    with pytest.raises(InvalidOperation):
        topic.plan(p.TopicUndo())


def test_T12_an_entry_that_has_lost_the_message_does_not_bring_another():
    topic = topic_of("u1 > a1", "u1 > b1", active=None)
    topic.do(p.Batch(commands=[p.MessageDelete(message_id="a1"), p.MessageDelete(message_id="b1")]))
    wanted = Wanted(message_id="a1", whole=True)
    entry = topic.trash.find(wanted)
    assert entry is not None
    lost = replace(entry, nodes=[node for node in entry.nodes if node.id != "a1"])
    context = replace(topic.context(), trash={wanted: lost})

    with pytest.raises(NotFound):
        plan(topic.tree, p.MessageRestore(message_id="a1", cascade=True), context)


def test_T12_a_store_that_has_a_message_twice_is_told():
    topic = topic_of("u1 > a1", active=None)
    delete(topic, "a1")
    entry = topic.trash.find(Wanted(by="ann"))
    assert entry is not None
    undo(topic)
    context = replace(topic.context(), trash={Wanted(seq=entry.seq): entry})

    with pytest.raises(Conflict, match="in the tree and in the trash"):
        plan(topic.tree, p.TopicUndo(seq=entry.seq), context)


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        (p.TopicUndo(), Wanted(by="ann")),
        (p.TopicUndo(seq=5), Wanted(seq=5)),
        (p.MessageRestore(message_id="a1"), Wanted(message_id="a1")),
        (p.MessageRestore(message_id="a1", cascade=True), Wanted(message_id="a1", whole=True)),
    ],
    ids=count(),
)
def test_a_plan_asks_for_the_entry_that_it_needs(command: p.Mutation, wanted: Wanted):
    topic = topic_of("u1 > a1", active=None)
    delete(topic, "a1")

    with pytest.raises(Content) as need:
        plan(topic.tree, command, topic.context())

    assert (need.value.message_ids, need.value.trash) == ([], [wanted])


# Batches ---------------------------------------------------------------------------------


def test_T9_a_batch_restores_several_in_one_commit_and_asks_for_all_at_once():
    topic = topic_of("u1 > a1", "v1", "w1", active=None)
    topic.do(p.TopicClear())
    restores = [p.MessageRestore(message_id=each) for each in ("w1", "a1", "w1")]

    with pytest.raises(Content) as need:
        plan(topic.tree, p.Batch(commands=[*restores]), topic.context())
    assert need.value.trash == [Wanted(message_id="w1"), Wanted(message_id="a1")]
    topic.refuse(p.Batch(commands=[*restores]), InvalidOperation)
    topic.do(p.Batch(commands=[*restores[:2]]))

    assert topic.ids() == {"w1", "a1"}
    assert len(topic.deltas) == 2


def test_T9_what_a_batch_brought_back_and_deleted_again_is_still_in_the_trash():
    topic = topic_of("u1 > a1", "v1", active=None)
    seq = delete(topic, "a1")["seq"]
    back, away = p.MessageRestore(message_id="a1"), p.MessageDelete(message_id="a1")

    topic.do(p.Batch(commands=[back, away, p.TopicUpdate(name="n")]))

    assert [*topic.trash.entries] == [seq]
    topic.do(p.Batch(commands=[back, away, back]))
    assert topic.parent("a1") == "u1"
    assert topic.trash.entries == {}


def test_T9_one_that_is_back_already_is_no_obstacle_to_those_above_it():
    topic = topic_of("u1 > a1 > w1 > x1", active=None)
    delete(topic, "u1", cascade=True)

    topic.do(
        p.Batch(
            commands=[
                p.MessageRestore(message_id="w1"),
                p.MessageRestore(message_id="u1", cascade=True),
            ]
        )
    )

    assert (topic.parent("w1"), topic.parent("a1"), topic.parent("x1")) == (ROOT, "u1", "w1")
    assert topic.trash.entries == {}


def test_T9_what_a_batch_deletes_itself_it_can_not_bring_back():
    topic = topic_of("u1 > a1", active=None)

    topic.refuse(
        p.Batch(commands=[p.MessageDelete(message_id="a1"), p.MessageRestore(message_id="a1")]),
        NotFound,
    )


def test_T9_revivals_are_told_once_for_each_entry():
    topic = topic_of("u1", "v1", "w1", active=None)
    one = topic.do(p.Batch(commands=[p.MessageDelete(message_id=each) for each in ("u1", "v1")]))
    two = delete(topic, "w1")
    batch = p.Batch(commands=[p.MessageRestore(message_id=each) for each in ("v1", "w1", "u1")])

    planned = topic.plan(batch)

    assert planned.revivals == [Revival(one["seq"], ["v1", "u1"]), Revival(two["seq"], ["w1"])]


# Whatever the order ------------------------------------------------------------------------

FORESTS = [
    ("u1 > a1:1 > u2 > a2 > u3", "u1 > a3:1 > u4", "a1 > u5:2", "a1 > u6:2", "u7:4", "u8:4"),
    ("u > a:1 > c1:6 > d1", "a > c2:6", "u > b:1 > e1:6", "u > c:1", "b > e2:6 > f1"),
]


def a_deletion(data: st.DataObject, topic: Topic) -> p.Mutation:
    ids = sorted(topic.ids())
    message_id = data.draw(st.sampled_from(ids), label="deleted")
    commands: list[p.Mutation] = [
        p.MessageDelete(message_id=message_id),
        p.MessageDelete(message_id=message_id, cascade=True),
        p.MessageDelete(message_id=message_id, strategy="clear"),
        p.TopicClear(),
    ]
    if topic.node(message_id).role == "assistant":
        commands.append(p.MessageDeleteGroup(message_id=message_id))
    commands.append(
        p.Batch(
            commands=[
                p.MessageDelete(message_id=each)
                for each in data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
            ]
        )
    )
    return data.draw(st.sampled_from(commands), label="how")


@settings(max_examples=60)
@given(data=st.data(), lines=st.sampled_from(FORESTS))
def test_T12_deletions_undone_in_reverse_give_each_tree_as_it_was(
    data: st.DataObject, lines: tuple[str, ...]
):
    topic = topic_of(*lines)
    active = data.draw(st.sampled_from([None, *sorted(topic.ids())]), label="active")
    topic.do(p.TopicSetActive(node_id=active))
    shapes = []
    for _ in range(data.draw(st.integers(1, 4), label="deletions")):
        if topic.ids():
            shapes.append(shape(topic))
            topic.do(a_deletion(data, topic))

    for before in reversed(shapes):
        undo(topic)
        assert shape(topic) == before

    topic.refuse(p.TopicUndo(), InvalidOperation)


@settings(max_examples=60)
@given(data=st.data(), lines=st.sampled_from(FORESTS))
def test_T12_in_whatever_order_nothing_is_lost_and_nothing_comes_twice(
    data: st.DataObject, lines: tuple[str, ...]
):
    topic = topic_of(*lines)
    everything = topic.ids()
    for _ in range(data.draw(st.integers(3, 12), label="steps")):
        ids, seqs = sorted(topic.ids()), sorted(topic.trash.entries)
        gone = sorted(everything - topic.ids())
        kinds = (
            ["delete"] * 2 * bool(ids) + ["move"] * (len(ids) > 1) + ["undo", "back"] * bool(gone)
        )
        kind = data.draw(st.sampled_from(kinds), label="kind")
        if kind == "delete":
            topic.do(a_deletion(data, topic))
        elif kind == "undo":
            undo(topic, data.draw(st.sampled_from(seqs), label="seq"))
        elif kind == "back":
            message_id = data.draw(st.sampled_from(gone), label="restored")
            restore(topic, message_id, cascade=data.draw(st.booleans(), label="cascade"))
        else:
            child, parent = data.draw(st.sampled_from(ids)), data.draw(st.sampled_from(ids))
            if not topic.tree.is_within(parent, child):
                move(topic, child, parent)
        # `Topic` has proved the invariants, and that trash and tree have no message both.
        held = {row.node.id for row in topic.trash.rows()}
        assert held | topic.ids() == everything
    while topic.trash.entries:
        undo(topic, max(topic.trash.entries))
    assert topic.ids() == everything
