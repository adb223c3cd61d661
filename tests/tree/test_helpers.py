"""What proves everything else must itself be able to fail."""

from typing import Any

import pytest
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.tree import Tree
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.helpers import (
    assert_equal_everywhere,
    canonical_form,
    check_folds,
    check_invariants,
    differences,
    over_the_wire,
    recomputed_digest,
    tree_of_snapshot,
    walk,
)
from tests.tree.topic import ROOT, message, text, topic_of, tree_with

CAUSE = p.Cause("test")


def a_tree() -> Tree:
    return topic_of("u1 > a1:1 > u2", "u1 > b1:1", "v1", active="u2").tree


def changed(tree: Tree, **changes: Any) -> tuple[Tree, p.Delta]:
    """Return a copy in which a message was changed, and the delta that tells it."""
    draft = Draft(tree, 900)
    draft.change("u2", **changes)
    delta = draft.seal("next", CAUSE)
    assert delta is not None
    fresh = over_the_wire(tree)
    assert fresh.apply(delta)
    return fresh, delta


def twisted(tree: Tree, message_id: str, **changes: Any) -> Tree:
    """Return a copy with a message that is otherwise, as no command would make it."""
    copy = over_the_wire(tree)
    copy._nodes[message_id] = replace(copy.node(message_id), **changes)
    return copy


# Equality ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "error"},
        {"role": "tool"},
        {"siblings_group_id": 5},
        {"data": text("other")},
        {"data": UNSET},
        {"version": 9},
        {"created_at": 9},
        {"updated_at": 9},
        {"model_id": "m"},
        {"author": "bob"},
        {"stats": Raw(b"{}")},
        {"timing": Raw(b"{}")},
        {"context": Raw(b"{}")},
        {"decisions": Raw(b"{}")},
    ],
    ids=range(14),
)
def test_a_message_that_differs_in_any_field_is_told(changes: dict[str, Any]):
    tree = a_tree()

    with pytest.raises(AssertionError, match=f"one and two differ:\n  .*{next(iter(changes))}"):
        assert_equal_everywhere(one=tree, two=twisted(tree, "u2", **changes))


@pytest.mark.parametrize(
    ("name", "value"),
    [("seq", 99), ("commit", "other"), ("active_node_id", "u1"), ("topic_id", "x")],
)
def test_a_topic_that_differs_is_told(name: str, value: Any):
    tree, other = a_tree(), a_tree()
    setattr(other, name, value)

    with pytest.raises(AssertionError, match="differ"):
        assert_equal_everywhere(one=tree, two=other)


@pytest.mark.parametrize(
    ("one", "other"), [({"a": 1}, {"a": True}), ({"a": 1}, {"a": "1"}), ({"a": 1}, {})]
)
def test_other_state_that_differs_is_told(one: Any, other: Any):
    first, second = a_tree(), a_tree()
    first.state["metadata"], second.state["metadata"] = one, other

    with pytest.raises(AssertionError, match="metadata"):
        assert_equal_everywhere(one=first, two=second)


def test_order_counts_and_how_json_was_written_does_not():
    tree, other = a_tree(), a_tree()
    other._nodes["u2"] = replace(
        other.node("u2"), data=Raw(b'{ "parts": [{"text": "u2", "type": "text"}] }')
    )
    assert_equal_everywhere(one=tree, two=other)
    other._children[ROOT].reverse()

    with pytest.raises(AssertionError, match=r"messages\[0\].id: 'u1', 'v1'"):
        assert_equal_everywhere(one=tree, two=other)


def test_a_missing_message_is_told():
    tree, other = a_tree(), a_tree()
    other._children[ROOT].pop()

    with pytest.raises(AssertionError, match="5 items, not 4"):
        assert_equal_everywhere(one=tree, two=other)


def test_cold_is_not_equal_to_known_unless_its_content_is_brought():
    tree, mirror = a_tree(), over_the_wire(a_tree())
    mirror.release("u2")

    with pytest.raises(AssertionError, match="cold"):
        assert_equal_everywhere(tree=tree, mirror=mirror)
    assert_equal_everywhere(tree=tree, mirror=canonical_form(mirror, {"u2": text("u2")}))
    with pytest.raises(AssertionError, match="data"):
        assert_equal_everywhere(tree=tree, mirror=canonical_form(mirror, {"u2": text("x")}))


def test_one_copy_proves_nothing():
    with pytest.raises(AssertionError):
        assert_equal_everywhere(one=a_tree())


def test_every_copy_is_looked_at():
    tree = a_tree()

    with pytest.raises(AssertionError, match="one and three differ"):
        assert_equal_everywhere(one=tree, two=a_tree(), three=twisted(tree, "v1", status="error"))


def test_differences_are_short():
    assert differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a[1].b: 2, 3"]
    assert differences({"a": 1}, {"a": 1}) == []
    assert differences(True, 1) == [": True, 1"]


# Folding -----------------------------------------------------------------------------------


def test_an_old_snapshot_and_the_deltas_make_the_fresh_one():
    tree = a_tree()
    fresh, delta = changed(tree, status="error")

    check_folds(tree, [delta], fresh)
    assert tree.node("u2").status == "success", "the old one is not touched"


def test_nothing_told_proves_nothing():
    tree = a_tree()

    with pytest.raises(AssertionError, match="nothing was told"):
        check_folds(tree, [], tree)


def test_nothing_changed_proves_nothing():
    tree = a_tree()
    _, delta = changed(tree, status="error")
    same = replace(delta, put=[], digest=tree.digest)
    mirror = over_the_wire(tree)
    mirror.apply(same)

    with pytest.raises(AssertionError, match="2 was told and changed nothing"):
        check_folds(tree, [same], mirror)


def test_a_delta_that_leaves_something_out_is_seen():
    tree = a_tree()
    fresh, delta = changed(tree, status="error", stats=Raw(b'{"a":1}'))
    (put,) = delta.put

    with pytest.raises(AssertionError, match="differ"):
        check_folds(tree, [replace(delta, put=[replace(put, stats=UNSET)])], fresh)
    with pytest.raises(AssertionError, match="digest"):
        check_folds(tree, [replace(delta, put=[replace(put, status=UNSET)])], fresh)
    with pytest.raises(AssertionError, match="digest"):
        check_folds(tree, [replace(delta, put=[])], fresh)


def test_a_fresh_tree_that_has_more_is_seen():
    tree = a_tree()
    fresh, delta = changed(tree, status="error")

    with pytest.raises(AssertionError, match="differ"):
        check_folds(tree, [delta], twisted(fresh, "v1", author="bob"))


def test_an_ended_reply_needs_its_text():
    tree = topic_of("u > a?").tree
    draft = Draft(tree, 900)
    draft.change("a", status="success")
    draft.end("a", (4, 1, 7), text("told"))
    delta = draft.seal("next", CAUSE)
    assert delta is not None
    fresh = over_the_wire(tree)
    fresh.apply(delta, {"a": text("told")})

    check_folds(tree, [delta], fresh, {"a": text("told")})
    with pytest.raises(AssertionError, match="cold"):
        check_folds(tree, [delta], fresh)


# Invariants ----------------------------------------------------------------------------------


def test_a_sound_tree_holds():
    check_invariants(a_tree())
    check_invariants(Tree("topic", ROOT))
    check_invariants(topic_of("u > a*", "u > b+").tree)


@pytest.mark.parametrize(
    ("twist", "why"),
    [
        ({"parent_id": "nope"}, "u2"),
        ({"role": "root"}, "role"),
        ({"status": "done"}, "status"),
        ({"siblings_group_id": -1}, "group"),
        ({"version": 99}, "version"),
        ({"created_at": 10**9}, "future"),
        ({"preview": "old"}, "preview"),
        ({"empty": True}, "empty"),
        ({"siblings_group_id": 9}, "higher|digest"),
    ],
    ids=str,
)
def test_a_message_that_is_not_sound_is_told(twist: dict[str, Any], why: str):
    with pytest.raises(AssertionError, match=why):
        check_invariants(twisted(a_tree(), "u2", **twist))


def test_a_dangling_pointer_is_told():
    tree = a_tree()
    tree.active_node_id = "nope"

    with pytest.raises(AssertionError, match="dangles"):
        check_invariants(tree)


def test_the_root_as_active_node_is_told():
    tree = a_tree()
    tree.active_node_id = ROOT

    with pytest.raises(AssertionError, match="dangles"):
        check_invariants(tree)


def test_an_orphan_is_told():
    nodes = [message("u1", ROOT, role="user"), message("a1", "gone", role="assistant")]

    with pytest.raises(AssertionError, match="2 messages, 1 reached"):
        check_invariants(tree_with(nodes))


def test_a_circle_is_told():
    nodes = [message("x", "y", role="user"), message("y", "x", role="assistant")]

    with pytest.raises(AssertionError, match="2 messages, 0 reached"):
        check_invariants(tree_with(nodes))


def test_a_wrong_digest_is_told():
    tree = a_tree()
    tree._digest.add("more")

    with pytest.raises(AssertionError, match="digest"):
        check_invariants(tree)
    assert recomputed_digest(tree) == a_tree().digest


def test_children_out_of_order_are_told():
    tree = a_tree()
    tree._children["u1"].reverse()

    with pytest.raises(AssertionError, match="out of order"):
        check_invariants(tree)


@pytest.mark.parametrize("live", [{"u1": 0}, {"a1": 0}])
def test_a_live_reply_that_is_none_is_told(live: dict[str, int]):
    tree = a_tree()
    tree._set_state("live", live)

    with pytest.raises(AssertionError, match="can't be live"):
        check_invariants(tree)


# Snapshots -------------------------------------------------------------------------------------


def chunks_of(tree: Tree) -> list[p.Snapshot]:
    nodes = [*walk(tree)]
    return [
        p.Snapshot(
            topic=tree.topic_id,
            root_id=tree.root_id,
            seq=tree.seq,
            commit=str(tree.commit),
            active_node_id=tree.active_node_id,
            digest=tree.digest,
            state=tree.state if chunk == 0 else {},
            nodes=nodes[chunk::2],
            live=[],
            chunk=chunk,
            chunks=2,
        )
        for chunk in range(2)
    ]


def test_a_snapshots_chunks_make_the_tree():
    tree = a_tree()

    assert_equal_everywhere(tree=tree, made=tree_of_snapshot(chunks_of(tree)))
    with pytest.raises(AssertionError, match="chunks"):
        tree_of_snapshot(chunks_of(tree)[:1])
    with pytest.raises(AssertionError, match="chunks"):
        tree_of_snapshot([chunks_of(tree)[0]] * 2)
