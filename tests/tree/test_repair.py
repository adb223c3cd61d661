"""Topics that were written past the rules: what is found, and what one commit makes of them."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.plan import Context, Planned, RepairTopic, plan
from livetree.core.repair import Fault, faults
from livetree.core.tree import Tree
from msgspec.structs import replace

from tests.helpers import check_folds, check_invariants, over_the_wire
from tests.tree.topic import ROOT, START, message, topic_of

SEQ = 7


def loaded(
    nodes: Sequence[p.Node], active: str | None = None, *, live: dict[str, int] | None = None
) -> Tree:
    """Return a topic as a store has it, whatever it has."""
    return Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=SEQ,
        commit="commit",
        active_node_id=active,
        state={"live": live or {}},
        nodes=[node if node.version else replace(node, version=1) for node in nodes],
    )


def row(message_id: str, parent_id: str, at: int = 1, **fields: Any) -> p.Node:
    fields.setdefault("role", "user")
    return message(message_id, parent_id, created_at=at, **fields)


def planned_repair(tree: Tree, found: list[Fault]) -> Planned:
    context = Context(now=START, commit="repair", new_id=lambda: "none is made")
    return plan(tree, RepairTopic(topic="topic", seq=tree.seq, faults=found), context)


def repaired(tree: Tree, digest: str | None = None) -> tuple[list[Fault], p.Delta]:
    """Repair a topic in place, and prove it sound then; returns what was found and the commit."""
    found = faults(tree, digest)
    planned = planned_repair(tree, found)
    assert planned.result["repaired"] == found
    assert planned.delta is not None
    assert tree.apply(planned.delta)
    check_invariants(tree)
    assert faults(tree, planned.delta.digest) == []
    return found, planned.delta


def places(tree: Tree) -> dict[str, str]:
    return {node.id: node.parent_id for node in tree.nodes()}


@pytest.mark.parametrize("active", ["c", "a", None])
def test_a_sound_topic_has_no_faults(active: str | None):
    tree = topic_of("a > b:1 > c", "a > d:1*", active=active).tree

    assert faults(tree, tree.digest) == []


@pytest.mark.parametrize("active", ["unknown", ROOT, "b2", ""])
def test_b10_a_dangling_pointer_goes_to_the_newest_leaf(active: str):
    tree = loaded([row("a", ROOT, 1), row("b", "a", 2), row("c", "a", 9), row("d", "c", 3)], active)

    found, delta = repaired(tree)

    assert found == [Fault(kind="pointer", old=active, new="d")]
    assert repr(active) in str(found[0])
    assert tree.active_node_id == delta.active_node_id == "d"
    assert (delta.seq, delta.put, delta.cause.op, delta.cause.by) == (8, [], "topic.repair", None)


def test_of_leaves_of_one_time_the_newest_is_the_last_by_id():
    tree = loaded([row("a", ROOT, 5), row("B", ROOT, 5), row("b", ROOT, 5)], "gone")

    repaired(tree)

    assert tree.active_node_id == "b"


def test_a_dangling_pointer_of_an_empty_topic_becomes_null():
    tree = loaded([], ROOT)

    found, _ = repaired(tree)

    assert found == [Fault(kind="pointer", old=ROOT)]
    assert tree.active_node_id is None


def test_b10_null_is_sound_and_stays():
    tree = loaded([row("a", ROOT)], None)

    found, delta = repaired(tree, "0123456789abcdef")

    assert [fault.kind for fault in found] == ["digest"]
    assert tree.active_node_id is delta.active_node_id is None


def test_orphans_hang_below_the_root_and_keep_what_is_below_them():
    tree = loaded([row("a", ROOT), row("b", "gone", 2), row("c", "b", 3), row("d", "", 4)], "c")

    found, _ = repaired(tree)

    assert found == [
        Fault(kind="orphan", id="b", old="gone", new=ROOT),
        Fault(kind="orphan", id="d", old="", new=ROOT),
    ]
    assert places(tree) == {"a": ROOT, "b": ROOT, "c": "b", "d": ROOT}
    assert tree.active_node_id == "c"
    assert {node.id: node.version for node in tree.nodes()} == {"a": 1, "b": 8, "c": 1, "d": 8}


def test_groups_of_orphans_are_rebased_as_those_of_moves_are():
    tree = loaded(
        [
            row("a", ROOT, 1, siblings_group_id=2),
            row("b", "gone", 2, siblings_group_id=2),
            row("c", "gone", 3, siblings_group_id=2),
            row("d", "gone", 4),
            row("e", "lost", 5, siblings_group_id=2),
        ]
    )

    repaired(tree)

    groups = {node.id: node.siblings_group_id for node in tree.nodes()}
    assert groups == {"a": 2, "b": 3, "c": 3, "d": 0, "e": 4}


def test_of_a_cycle_the_oldest_goes_below_the_root():
    tree = loaded(
        [
            *(row("a", "c", 5), row("b", "a", 2), row("c", "b", 2)),
            *(row("tail", "a", 1), row("itself", "itself", 9), row("below", "itself", 8)),
        ],
        "tail",
    )

    found, _ = repaired(tree)

    assert found == [
        Fault(kind="cycle", id="b", old="a", new=ROOT),
        Fault(kind="cycle", id="itself", old="itself", new=ROOT),
    ]
    expected = {"b": ROOT, "c": "b", "a": "c", "tail": "a", "itself": ROOT, "below": "itself"}
    assert places(tree) == expected


def test_rows_of_the_future_are_put_again():
    tree = loaded(
        [
            replace(row("a", ROOT), version=7),
            replace(row("b", "a", START + 5), version=8),
            replace(row("c", "gone"), version=99),
        ]
    )

    found, delta = repaired(tree)

    assert found[1:] == [
        Fault(kind="version", id="c", old=99, new=8),
        Fault(kind="version", id="b", old=8, new=8),
    ]
    assert {node.id: node.version for node in tree.nodes()} == {"a": 7, "b": 8, "c": 8}
    assert sorted(put.id for put in delta.put) == ["b", "c"]


def test_what_is_noted_as_live_is_a_pending_reply():
    nodes = [row("a", ROOT), row("b", "a", 2, role="assistant", status="pending"), row("c", "a", 3)]
    tree = loaded(nodes, live={"b": 3, "c": 4, "gone": 0})

    found, delta = repaired(tree)

    assert found == [
        Fault(kind="live", id="c", old=4),
        Fault(kind="live", id="gone", old=0),
    ]
    assert tree.live == {"b": 3}
    assert delta.set == {"live": {"b": 3}}


def test_a_digest_alone_is_a_commit_without_rows():
    tree = loaded([row("a", ROOT)], "a")
    old = over_the_wire(tree)

    found, delta = repaired(tree, "wrong")

    assert found == [Fault(kind="digest", old="wrong", new=old.digest)]
    assert (delta.put, delta.drop, delta.set, delta.digest) == ([], [], {}, old.digest)
    assert old.apply(delta)


def test_a_mirror_that_was_right_follows_a_repair():
    mirror = loaded([row("a", ROOT), row("b", "a", 2)], "b")
    tree = loaded([row("a", ROOT), row("b", "gone", 2)], "nobody")
    found = faults(tree)
    planned = planned_repair(tree, found)
    assert planned.delta is not None
    old = over_the_wire(mirror)

    assert mirror.apply(planned.delta)

    check_folds(old, [planned.delta], mirror)


def test_a_topic_that_has_moved_on_is_left_alone():
    tree = loaded([row("a", ROOT)], "a")
    found = [Fault(kind="digest", old="x", new=tree.digest)]
    command = RepairTopic(topic="topic", seq=SEQ - 1, faults=found)

    planned = plan(tree, command, Context(now=START, commit="x", new_id=lambda: ""))

    assert planned.delta is None
    assert planned.result["repaired"] == []


def test_what_follows_in_the_same_run_is_planned_on_the_repaired_topic():
    tree = loaded([row("a", "b", 1), row("b", "a", 2)], "nobody")
    private = Draft(tree, START)
    context = Context(now=START, commit="next", new_id=lambda: "new")
    repair = planned_repair(tree, faults(tree))
    assert repair.delta is not None
    private.absorb(repair.draft, repair.delta)

    said = plan(private, p.MessageCreate(role="user", text="hi"), context)

    assert said.delta is not None
    assert said.delta.put[0].parent_id == "b"
    assert [node.id for node in said.draft.path("new")] == ["a", "b", "new"]


# Any rows at all --------------------------------------------------------------------------

IDS = [f"m{number}" for number in range(8)]
STRANGE = [ROOT, "gone", "lost", ""]


@st.composite
def wild(draw: st.DrawFn) -> Tree:
    """Return a tree of rows that anybody may have written."""
    ids = draw(st.lists(st.sampled_from(IDS), unique=True))
    nodes = [
        p.Node(
            id=each,
            parent_id=draw(st.sampled_from([*ids, *STRANGE])),
            role=draw(st.sampled_from(["user", "assistant"])),
            status=draw(st.sampled_from(["success", "pending"])),
            siblings_group_id=draw(st.integers(0, 2)),
            version=draw(st.integers(1, SEQ + 2)),
            created_at=draw(st.integers(1, 4)),
            updated_at=draw(st.sampled_from([1, START, START + 1])),
        )
        for each in ids
    ]
    active = draw(st.sampled_from([None, *ids, *STRANGE]))
    live = draw(st.dictionaries(st.sampled_from([*IDS, *STRANGE]), st.integers(0, SEQ), max_size=3))
    return loaded(nodes, active, live=live)


@given(wild(), st.booleans())
def test_whatever_is_stored_is_sound_after_one_repair(tree: Tree, digest_is_right: bool):
    digest = tree.digest if digest_is_right else "another"
    before = {node.id: node for node in tree.nodes()}
    active = tree.active_node_id
    found = faults(tree, digest)
    if not found:
        check_invariants(tree)
        return

    _, delta = repaired(tree, digest)

    # What was in order is as it was.
    named = {fault.id for fault in found}
    for node in tree.nodes():
        assert node.id in named or node == before.pop(node.id)
    assert before.keys() <= named
    assert tree.active_node_id == active or "pointer" in [fault.kind for fault in found]
    assert delta.drop == []
    # A second look finds nothing, and repairing nothing changes nothing.
    assert planned_repair(tree, faults(tree, delta.digest)).delta is None


@pytest.mark.parametrize(
    "shape",
    [
        lambda place: f"m{place - 1}" if place else ROOT,  # a chain
        lambda place: f"m{place - 1}" if place else "m99999",  # one great cycle
        lambda place: f"m{place ^ 1}",  # many small ones
        lambda place: f"gone{place}",
    ],
    ids=["chain", "cycle", "cycles", "orphans"],
)
def test_a_hundred_thousand_messages_take_no_recursion_and_linear_time(shape: Any):
    tree = loaded([row(f"m{place}", shape(place), place + 1) for place in range(100_000)], "gone")

    start = perf_counter()
    found = faults(tree)
    planned = planned_repair(tree, found)
    took = perf_counter() - start

    assert planned.delta is not None
    assert tree.apply(planned.delta)
    assert faults(tree) == []
    # Quadratic, it would take a thousand times as long.
    assert took < 20
