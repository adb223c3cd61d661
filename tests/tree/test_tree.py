import copy
from typing import Any

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.draft import Draft, whole_put
from livetree.core.tree import EMPTY_STATE, Gap, Tree
from livetree.core.view import Place, View, off_the_wire, on_the_wire
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.helpers import (
    assert_equal_everywhere,
    canonical_form,
    check_folds,
    check_invariants,
    over_the_wire,
)
from tests.tree.topic import ROOT, chain, message, text, topic_of, tree_with

CAUSE = p.Cause("test")


def a_tree() -> Tree:
    """Return a tree with branches, a group and something active."""
    return topic_of("u1 > a1:1 > u2 > a2", "u1 > b1:1", "v1", active="a2").tree


def sealed(draft: Draft, commit: str = "next") -> p.Delta:
    delta = draft.seal(commit, CAUSE)
    assert delta is not None
    return delta


def commit(tree: Tree, draft: Draft) -> p.Delta:
    """Apply what a draft over the tree decided, and prove that it was what the draft showed."""
    delta = sealed(draft)
    old, decided = over_the_wire(tree), canonical_form(draft)
    written = {each: draft.node(each).data for each in delta.ended}
    assert tree.apply(delta, written)
    assert_equal_everywhere(
        decided=decided | {"seq": delta.seq, "commit": delta.commit}, applied=tree
    )
    check_invariants(tree)
    check_folds(old, [delta], tree, written)
    return delta


def seen(view: View) -> dict[str, Any]:
    """Return all that a view tells, digest included."""
    return canonical_form(view)


# A new tree ------------------------------------------------------------------------------


def test_T1_a_new_tree_is_empty_and_has_a_root_that_is_no_message():
    tree = Tree("topic", ROOT)

    assert (tree.seq, tree.commit, tree.active_node_id) == (0, None, None)
    assert len(tree) == 0
    assert tree.nodes() == []
    assert ROOT not in tree
    assert tree.get(ROOT) is None
    assert [*tree.children(ROOT)] == []
    assert tree.path(None) == []
    assert tree.state == EMPTY_STATE
    check_invariants(tree)


def test_trees_share_nothing_that_changes():
    one, other = Tree("topic", ROOT), Tree("topic", ROOT)
    draft = Draft(one)
    draft.set_state("metadata", {"a": 1})
    draft.set_state("live", {"a1": 0})

    one.apply(sealed(draft))

    assert other.state == Tree("x", "y").state == EMPTY_STATE
    assert EMPTY_STATE == {"name": "", "metadata": {}, "lastActivityAt": 0, "live": {}}


def test_loading_gives_what_was_saved_in_whatever_order_the_rows_come():
    tree = a_tree()
    nodes = tree.nodes()

    for rows in (nodes, nodes[::-1], sorted(nodes, key=lambda node: node.id)):
        loaded = Tree.load(
            topic_id=tree.topic_id,
            root_id=tree.root_id,
            seq=tree.seq,
            commit=str(tree.commit),
            active_node_id=tree.active_node_id,
            state=copy.deepcopy(tree.state),
            nodes=rows,
        )
        assert_equal_everywhere(saved=tree, loaded=loaded)
        assert loaded.last_created_at == tree.last_created_at
        check_invariants(loaded)


def test_T3_the_last_time_given_out_is_remembered_beyond_the_messages_that_are_left():
    loaded = Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=3,
        commit="c",
        active_node_id=None,
        state={},
        nodes=[message("u1", ROOT, role="user", created_at=5)],
        last_created_at=9,
    )

    assert Draft(loaded, 7).next_created_at() == 10
    assert Draft(loaded, 70).next_created_at() == 70
    assert loaded.state == EMPTY_STATE


# Reading ---------------------------------------------------------------------------------


def test_T2_a_first_turn_is_what_hangs_off_the_root_and_nothing_else():
    tree = topic_of("u1 > a1 > u2", "v1").tree

    assert {each: tree.is_first_turn(each) for each in ("u1", "v1", "a1", "u2", ROOT, "nope")} == {
        "u1": True,
        "v1": True,
        "a1": False,
        "u2": False,
        ROOT: False,
        "nope": False,
    }


def test_T3_children_are_in_order_of_time_then_id_by_code_point():
    rows = [("b", 2), ("B", 2), ("_", 2), ("-", 2), ("1", 2), ("a", 3), ("z", 1)]
    tree = tree_with([message(name, ROOT, role="user", created_at=at) for name, at in rows])

    assert [*tree.children(ROOT)] == ["z", "-", "1", "B", "_", "b", "a"]


def test_paths_ancestors_and_subtrees():
    tree = a_tree()

    assert [node.id for node in tree.path("a2")] == ["u1", "a1", "u2", "a2"]
    assert [node.id for node in tree.ancestors("a2")] == ["a2", "u2", "a1", "u1"]
    assert tree.path("nope") == tree.path(ROOT) == []
    assert [node.id for node in tree.subtree("u1")] == ["u1", "a1", "u2", "a2", "b1"]
    assert [node.id for node in tree.subtree("a2")] == ["a2"]
    assert tree.is_within("a2", "a2")
    assert tree.is_within("a2", "u1")
    assert not tree.is_within("u1", "a2")
    assert not tree.is_within("b1", "a1")
    assert not tree.is_within("nope", "u1")


def test_T4_siblings_share_parent_and_a_group_that_is_not_zero():
    tree = topic_of("u > a:1", "u > b:1", "u > c:2", "u > d", "u > e", "v > f:1").tree

    assert tree.siblings(tree.node("a")) == ["b"]
    assert tree.siblings(tree.node("c")) == []
    assert tree.siblings(tree.node("d")) == []
    assert tree.siblings(tree.node("f")) == []


def test_awaiting_input_needs_an_empty_successful_user_leaf():
    tree = topic_of("u > a > yes~", "u > empty~", "a > kid~ > x", "a > full", "a > waits?").tree

    assert {node.id for node in tree.nodes() if tree.awaits_input(node.id)} == {"yes"}
    assert not tree.awaits_input("nope")


def test_a_message_that_must_be_there_and_is_not_is_a_fault():
    with pytest.raises(KeyError, match="nope"):
        a_tree().node("nope")


def test_its_repr_has_no_content():
    tree = topic_of("secret").tree

    assert repr(tree) == f"<Tree topic seq={tree.seq} messages=1>"
    assert repr(Draft(tree)) == f"<Draft over {tree!r} touched=0>"


# Drafts ----------------------------------------------------------------------------------


def test_a_draft_without_changes_is_what_lies_below():
    tree = a_tree()
    draft = Draft(tree, 9)

    assert_equal_everywhere(below=tree, draft=draft)
    check_invariants(draft)
    assert draft.seal("next", CAUSE) is None


def test_a_draft_leaves_what_lies_below_alone():
    tree = a_tree()
    before = seen(tree)
    draft = Draft(tree, 999)

    draft.insert(message("new", "a2", role="user", created_at=draft.next_created_at()))
    draft.change("u2", parent_id="b1", status="error", siblings_group_id=4)
    draft.set_active("new")
    draft.set_state("name", "other")
    draft.set_state("metadata", {"a": 1})
    draft.remove("v1")
    sealed(draft)

    assert_equal_everywhere(before=before, after=tree)


def test_a_draft_shows_what_it_changed():
    draft = Draft(a_tree(), 999)

    draft.insert(message("new", "v1", role="assistant", created_at=draft.next_created_at()))
    draft.change("u2", parent_id=ROOT)
    draft.remove("b1")
    draft.set_active("new")

    assert [*draft.children(ROOT)] == ["u1", "u2", "v1"]
    assert [*draft.children("u1")] == ["a1"]
    assert [*draft.children("v1")] == ["new"]
    assert not draft.has_children("a1")
    assert draft.get("b1") is None
    assert "b1" not in draft
    assert len(draft) == 6
    assert [node.id for node in draft.path("new")] == ["v1", "new"]
    assert draft.active_node_id == "new"
    assert draft.node("new").version == draft.node("u2").version == draft.seq + 1
    check = {node.id for node in draft.subtree("u2")}
    assert check == {"u2", "a2"}


def test_T3_a_draft_keeps_children_in_order_wherever_they_come_from():
    tree = tree_with(
        [
            message("x", ROOT, role="user", created_at=1),
            message("y", ROOT, role="user", created_at=2),
            message("k1", "x", role="assistant", created_at=10),
            message("k3", "x", role="assistant", created_at=30),
            message("k2", "y", role="assistant", created_at=20),
            message("k4", "y", role="assistant", created_at=40),
        ]
    )
    draft = Draft(tree, 5)

    draft.change("k2", parent_id="x")
    draft.insert(message("k5", "x", role="assistant", created_at=50))
    assert [*draft.children("x")] == ["k1", "k2", "k3", "k5"]
    draft.change("k1", parent_id="y")
    assert [*draft.children("x")] == ["k2", "k3", "k5"]
    assert [*draft.children("y")] == ["k1", "k4"]
    draft.change("k1", parent_id="x")
    draft.change("k2", parent_id="y")
    assert [*draft.children("x")] == ["k1", "k3", "k5"]
    assert [*draft.children("y")] == ["k2", "k4"]

    commit(tree, draft)
    assert [*tree.children("x")] == ["k1", "k3", "k5"]


def test_what_is_equal_already_is_no_change():
    tree = a_tree()
    draft = Draft(tree, 999)

    assert not draft.change("u2", status="success", parent_id="a1", stats=None)
    assert not draft.change("u2", data=text("u2"))
    draft.set_active("a2")
    draft.set_state("name", "")
    draft.set_state("metadata", {})

    assert draft.seal("next", CAUSE) is None
    assert draft.node("u2") is tree.node("u2")


@pytest.mark.parametrize(
    ("old", "new"), [(1, True), (0, False), ({"x": [1]}, {"x": [True]}), (None, 0), ("1", 1)]
)
def test_D5_other_state_changes_when_its_json_does(old: Any, new: Any):
    tree = a_tree()
    draft = Draft(tree)
    draft.set_state("metadata", {"a": old})
    commit(tree, draft)

    draft = Draft(tree)
    draft.set_state("metadata", {"a": new})

    assert commit(tree, draft).set == {"metadata": {"a": new}}


def test_D5_other_state_that_is_the_same_json_has_not_changed():
    tree = a_tree()
    draft = Draft(tree)
    draft.set_state("metadata", {"a": 1, "b": {"c": 2.0}})
    commit(tree, draft)

    draft = Draft(tree)
    draft.set_state("metadata", {"b": {"c": 2}, "a": 1.0})

    assert draft.digest == tree.digest
    assert draft.seal("next", CAUSE) is None


def test_D5_set_has_the_keys_that_changed_each_whole():
    tree = a_tree()
    draft = Draft(tree)
    draft.set_state("metadata", {"a": 1, "b": 2})
    draft.set_state("name", "n")
    commit(tree, draft)

    draft = Draft(tree)
    draft.set_state("metadata", {"a": 1, "b": 3})

    assert commit(tree, draft).set == {"metadata": {"a": 1, "b": 3}}
    assert tree.state["name"] == "n"


def test_a_change_is_dated_unless_it_is_silent():
    draft = Draft(a_tree(), 777)

    draft.change("u1", context=Raw(b'{"contextTokens":1}'), silent=True)
    draft.change("v1", stats=Raw(b"{}"))

    assert draft.node("u1").updated_at == 100
    assert draft.node("v1").updated_at == 777
    assert draft.node("u1").version == draft.node("v1").version == draft.seq + 1


def test_new_content_brings_its_preview():
    draft = Draft(a_tree(), 777)

    draft.change("u1", data=text("  other "))
    draft.change("v1", data=text(""))

    assert (draft.node("u1").preview, draft.node("u1").empty) == ("other", False)
    assert (draft.node("v1").preview, draft.node("v1").empty) == ("", True)


def test_an_id_of_this_draft_is_taken_even_when_its_message_is_gone():
    draft = Draft(a_tree(), 777)
    draft.insert(message("new", ROOT, role="user", created_at=900))
    draft.remove("new")
    draft.remove("v1")

    assert draft.is_taken("new")
    assert draft.is_taken("v1")
    assert draft.is_taken("u1")
    assert not draft.is_taken("nope")


def test_top_group_is_at_least_that_of_every_child():
    tree = topic_of("u > a:3", "u > b:1", "v > c:2").tree
    draft = Draft(tree, 5)

    assert (tree.top_group("u"), tree.top_group("v"), tree.top_group(ROOT)) == (3, 2, 0)
    draft.change("c", parent_id="u", siblings_group_id=7)
    draft.change("b", siblings_group_id=8)
    draft.insert(message("d", "v", role="assistant", siblings_group_id=9, created_at=900))

    assert (draft.top_group("u"), draft.top_group("v")) == (8, 9)
    commit(tree, draft)
    assert (tree.top_group("u"), tree.top_group("v")) == (8, 9)


def test_T11_a_groups_number_stays_taken_when_all_of_it_is_gone():
    tree = topic_of("u > a:3", "u > b:3").tree
    draft = Draft(tree, 5)
    draft.set_active(None)
    draft.remove("b")
    draft.remove("a")
    assert draft.top_group("u") == 3
    commit(tree, draft)

    assert tree.top_group("u") == 3
    draft = Draft(tree, 6)
    draft.remove("u")
    commit(tree, draft)
    assert tree.top_group("u") == 3, "it may come back, and they below it"


def test_a_change_lowers_no_groups_number_that_another_has_raised():
    draft = Draft(topic_of("u > a:1", "u > b:2").tree, 5)

    draft.change("a", siblings_group_id=9)
    draft.change("b", siblings_group_id=4)

    assert draft.top_group("u") == 9


def test_a_change_tells_whether_anything_differed():
    draft = Draft(a_tree(), 5)

    assert draft.change("u1", status="error")
    assert not draft.change("u1", status="error")


def test_a_draft_knows_who_has_children():
    draft = Draft(topic_of("u > a > v", "u > b", "w", active=None).tree, 5)
    assert [draft.has_children(each) for each in ("u", "a", "v", "w")] == [True, True, False, False]

    draft.insert(message("n", "w", role="assistant", created_at=900))
    draft.change("v", parent_id="b")
    assert [draft.has_children(each) for each in ("w", "a", "b")] == [True, False, True]
    draft.remove("a")
    assert draft.has_children("u"), "one of two is left"
    draft.change("b", parent_id="w")
    assert not draft.has_children("u")


def test_a_new_tree_begins_before_all_time():
    tree = Tree("topic", ROOT)
    loaded = Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=1,
        commit="c",
        active_node_id=None,
        state={},
        nodes=[],
    )

    assert tree.last_created_at == loaded.last_created_at == 0
    assert Draft(tree).now == 0
    assert Draft(tree).next_created_at() == 1


def test_D5_a_key_that_is_not_there_can_be_taken_out():
    tree = a_tree()
    draft = Draft(tree)

    draft.set_state("temporary", None)

    assert draft.seal("next", CAUSE) is None
    assert_equal_everywhere(below=tree, draft=draft)


def test_T11_a_store_whose_graves_hang_below_each_other_keeps_nobody_waiting():
    tree = Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=1,
        commit="c",
        active_node_id=None,
        state={},
        nodes=[],
        graves={"a": Place("b", 0), "b": Place("a", 0)},
    )

    assert tree.nearest_living("a") == ROOT


# Deltas ----------------------------------------------------------------------------------


def test_D2_a_delta_carries_the_position_whatever_changed():
    tree = a_tree()
    draft = Draft(tree)
    draft.set_state("name", "n")

    delta = sealed(draft, "abc")

    assert (delta.topic, delta.root_id, delta.active_node_id) == ("topic", ROOT, "a2")
    assert (delta.seq, delta.commit, delta.prev) == (tree.seq + 1, "abc", tree.commit)
    assert (delta.put, delta.drop, delta.ended) == ([], [], {})
    assert delta.digest == draft.digest != tree.digest
    assert delta.cause == CAUSE


def test_D2_the_active_node_alone_is_a_change():
    tree = a_tree()
    draft = Draft(tree)
    draft.set_active(None)

    assert commit(tree, draft).active_node_id is None


def test_D4_new_messages_are_put_parents_first():
    tree = a_tree()
    draft = Draft(tree, 900)
    for name, parent_id in (("n3", "n2"), ("n2", "n1"), ("n1", "v1"), ("other", "n2")):
        draft.insert(message(name, parent_id, role="user", created_at=900))

    delta = commit(tree, draft)

    assert [put.id for put in delta.put] == ["n1", "n2", "n3", "other"]
    assert all(put.data is not UNSET for put in delta.put)


def test_D4_of_old_messages_only_the_changed_fields_are_put():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.change("u2", status="paused")
    draft.change("a2", context=Raw(b'{"contextTokens":1}'), silent=True)

    delta = commit(tree, draft)

    assert msgspec.json.decode(p.encode(delta.put)) == [
        {"id": "u2", "status": "paused", "updatedAt": 900},
        {"id": "a2", "context": {"contextTokens": 1}},
    ]


def test_D4_new_rows_come_before_changed_ones_that_hang_below_them():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.insert(message("new", ROOT, role="user", created_at=900))
    draft.change("u2", parent_id="new")
    draft.insert(message("newer", "new", role="user", created_at=901))

    assert [put.id for put in commit(tree, draft).put] == ["new", "newer", "u2"]


def test_D4_a_field_that_is_cleared_is_put_as_null():
    tree = topic_of("u1").tree
    draft = Draft(tree, 900)
    draft.change("u1", stats=Raw(b'{"a":1}'), model_id="m", context=Raw(b"{}"))
    commit(tree, draft)
    draft = Draft(tree, 901)
    draft.change("u1", stats=None, model_id=None, context=None)

    delta = commit(tree, draft)

    told = {"id": "u1", "stats": None, "modelId": None, "context": None, "updatedAt": 901}
    assert msgspec.json.decode(p.encode(delta.put)) == [told]
    assert (tree.node("u1").stats, tree.node("u1").model_id) == (None, None)


def test_D4_drops_have_children_before_their_parents():
    tree = a_tree()
    draft = Draft(tree)
    draft.set_active(None)
    for message_id in ("u1", "a1", "u2", "a2", "b1"):
        draft.remove(message_id)

    order = commit(tree, draft).drop

    assert {*order} == {"u1", "a1", "u2", "a2", "b1"}
    for child, parent in (("a1", "u1"), ("u2", "a1"), ("a2", "u2"), ("b1", "u1")):
        assert order.index(child) < order.index(parent)


def test_D4_what_came_and_went_in_one_commit_is_not_told():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.insert(message("new", "v1", role="user", created_at=900))
    draft.insert(message("child", "new", role="user", created_at=901))
    draft.change("child", parent_id="v1")
    draft.remove("new")

    delta = commit(tree, draft)

    assert [put.id for put in delta.put] == ["child"]
    assert delta.drop == []


def test_D4_what_moved_before_it_went_is_dropped_and_not_put():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.set_active(None)
    draft.change("u2", parent_id="v1")
    for message_id in ("a2", "u2", "v1"):
        draft.remove(message_id)

    delta = commit(tree, draft)

    assert delta.put == []
    assert delta.drop.index("a2") < delta.drop.index("u2")


def test_T11_what_moved_before_it_went_goes_back_to_where_everyone_knew_it():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.change("b1", parent_id="v1", siblings_group_id=0)
    draft.remove("b1")

    assert draft.grave("b1") == Place("u1", 1)
    commit(tree, draft)
    assert tree.grave("b1") == Place("u1", 1)


def test_a_draft_that_comes_and_goes_changes_nothing_that_can_be_seen():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.insert(message("new", "v1", role="user", created_at=900))
    draft.remove("new")

    assert draft.seal("next", CAUSE) is None
    assert_equal_everywhere(below=tree, draft=draft)


def test_a_whole_put_leaves_out_what_is_the_default():
    plain = message("m", "p", role="user", created_at=5)
    full = message(
        "m",
        "p",
        role="assistant",
        status="error",
        siblings_group_id=2,
        model_id="x",
        author="ann",
        stats=Raw(b'{"a":1}'),
        timing=Raw(b"{}"),
        context=Raw(b"{}"),
        decisions=Raw(b"{}"),
        created_at=5,
        updated_at=6,
    )

    assert msgspec.json.decode(p.encode(whole_put(plain))) == {
        "id": "m",
        "parentId": "p",
        "role": "user",
        "data": {"parts": [{"type": "text", "text": "m"}]},
        "createdAt": 5,
    }
    for node in (plain, full):
        tree = Tree("topic", "p")
        draft = Draft(tree)
        draft.insert(off_the_wire(node))
        tree.apply(sealed(draft))
        assert tree.node("m") == replace(off_the_wire(node), version=1)


@pytest.mark.parametrize("missing", ["parent_id", "role", "created_at"])
def test_a_new_row_that_is_not_whole_is_a_fault(missing: str):
    tree = a_tree()
    whole = p.Put(id="new", parent_id="u1", role="user", created_at=900)
    delta = replace(sealed(changed(tree)), put=[replace(whole, **{missing: UNSET})])

    with pytest.raises(ValueError, match="new is not whole"):
        tree.apply(delta)


def changed(tree: Tree) -> Draft:
    draft = Draft(tree, 900)
    draft.change("u1", status="error")
    return draft


# Applying --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"seq": 1},
        {"seq": 99},
        {"prev": "another"},
        {"prev": None},
    ],
    ids=str,
)
def test_D3_a_delta_that_does_not_follow_changes_nothing(other: dict[str, Any]):
    tree = a_tree()
    delta = replace(sealed(changed(tree)), **other)
    before = seen(tree)

    with pytest.raises(Gap, match=f"have {tree.seq}, got {delta.seq}"):
        tree.apply(delta)

    assert_equal_everywhere(before=before, after=tree)


def test_D3_a_delta_is_applied_once():
    tree = a_tree()
    delta = sealed(changed(tree))
    assert tree.apply(delta)
    after = seen(tree)

    with pytest.raises(Gap):
        tree.apply(delta)

    assert_equal_everywhere(once=after, twice=tree)


def test_D6_a_tree_that_has_drifted_says_so():
    tree = a_tree()
    delta = sealed(changed(tree))
    drifted = Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=tree.seq,
        commit=str(tree.commit),
        active_node_id="a2",
        state=tree.state,
        nodes=[replace(node, siblings_group_id=0) for node in tree.nodes()],
    )

    assert not drifted.apply(delta)
    assert tree.apply(delta)


def test_D4_the_version_of_what_was_put_is_the_deltas_seq():
    tree = a_tree()
    draft = changed(tree)
    draft.insert(message("new", "v1", role="user", created_at=900))
    versions = {node.id: node.version for node in tree.nodes()}

    delta = commit(tree, draft)

    assert {node.id: node.version for node in tree.nodes()} == versions | {
        "u1": delta.seq,
        "new": delta.seq,
    }


def test_T3_the_last_time_given_out_is_the_highest_not_the_latest():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.insert(message("newer", ROOT, role="user", created_at=9_000))
    draft.insert(message("older", "newer", role="assistant", created_at=8_000))

    assert draft.next_created_at() == 9_001
    commit(tree, draft)
    assert Draft(tree, 900).next_created_at() == 9_001


def test_T3_the_last_time_given_out_never_falls():
    tree = a_tree()
    draft = Draft(tree, 900)
    draft.insert(message("new", "v1", role="user", created_at=5_000))
    commit(tree, draft)
    draft = Draft(tree, 901)
    draft.remove("new")
    commit(tree, draft)

    assert tree.last_created_at == 5_000
    assert Draft(tree, 902).next_created_at() == 5_001


# Cold content ----------------------------------------------------------------------------


def cold(tree: Tree) -> Tree:
    for node in tree.nodes():
        tree.release(node.id)
    return tree


def test_S4_a_skeleton_keeps_preview_and_emptiness():
    tree = topic_of("full > void~").tree
    before = tree.digest

    cold(tree)

    assert tree.node("full").data is UNSET
    assert (tree.node("full").preview, tree.node("full").empty) == ("full", False)
    assert (tree.node("void").preview, tree.node("void").empty) == ("", True)
    assert tree.digest == before
    tree.release("full")
    tree.release("nope")


def test_S6_content_is_held_only_for_the_version_that_it_is_of():
    tree = cold(a_tree())
    version = tree.node("u1").version

    assert not tree.hold("u1", version - 1, text("old"))
    assert not tree.hold("u1", version + 1, text("new"))
    assert not tree.hold("nope", version, text("x"))
    assert tree.node("u1").data is UNSET
    assert tree.hold("u1", version, text("u1"))
    assert bytes(tree.node("u1").data) == bytes(text("u1"))  # type: ignore[arg-type]
    check_invariants(tree)


def test_a_cold_message_stays_cold_and_known_when_other_fields_change():
    tree = cold(a_tree())

    tree.apply(sealed(changed(tree)))

    node = tree.node("u1")
    assert (node.data, node.preview, node.status) == (UNSET, "u1", "error")


def test_a_draft_over_cold_messages_tells_no_content_that_it_does_not_have():
    tree, warm = cold(a_tree()), a_tree()
    draft = Draft(tree, 900)
    draft.change("u2", parent_id="v1")
    draft.change("a2", data=text("other"))

    delta = sealed(draft)

    assert [put.data is UNSET for put in delta.put] == [True, False]
    assert warm.apply(delta)
    assert tree.apply(delta)
    assert_equal_everywhere(
        warm=warm, cold=canonical_form(tree, {each: text(each) for each in warm._nodes})
    )


def test_L8_an_ended_reply_whose_text_was_not_seen_becomes_cold():
    tree, viewer = topic_of("u > a?").tree, topic_of("u > a?").tree
    draft = Draft(tree, 900)
    draft.change("a", status="success")
    draft.end("a", (4, 2, 77), text("told"))
    delta = sealed(draft)

    assert delta.ended == {"a": (4, 2, 77)}
    assert all(put.data is UNSET for put in delta.put)
    assert viewer.apply(delta)
    node = viewer.node("a")
    assert (node.data, node.preview, node.empty, node.status) == (UNSET, "", False, "success")
    assert viewer.hold("a", delta.seq, text("told"))
    assert tree.apply(delta, {"a": text("told")})
    assert_equal_everywhere(host=tree, viewer=viewer)
    assert tree.node("a").preview == "told"


def test_L8_what_an_ended_reply_had_before_is_not_shown_as_its_text():
    tree = topic_of("u > a?").tree
    draft = Draft(tree, 900)
    draft.change("a", data=text("before"))
    commit(tree, draft)
    draft = Draft(tree, 901)
    draft.end("a", (4, 2, 77), text("after"))

    assert tree.apply(sealed(draft))

    assert (tree.node("a").data, tree.node("a").preview) == (UNSET, "")


def test_a_new_row_without_content_is_cold():
    tree = a_tree()
    draft = Draft(tree, 900)
    new = replace(message("new", "v1", role="user", created_at=900), data=UNSET)
    draft.insert(new)

    commit(tree, draft)

    assert tree.node("new").data is UNSET


def test_what_follows_from_data_does_not_travel_beside_it():
    void = off_the_wire(message("v", "p", role="user", data=text("")))
    assert (void.empty, on_the_wire(void).empty) == (True, False)
    node = off_the_wire(message("m", "p", role="user"))

    assert (node.preview, node.empty) == ("m", False)
    assert (on_the_wire(node).preview, on_the_wire(node).empty) == ("", False)
    assert off_the_wire(on_the_wire(node)) == node
    skeleton = replace(node, data=UNSET)
    assert on_the_wire(skeleton) is skeleton
    assert off_the_wire(skeleton) is skeleton


# Runs: drafts over drafts ----------------------------------------------------------------


def absorbed(run: Draft, upper: Draft, commit: str) -> p.Delta:
    """Let a run take over what a draft over it decided, and prove them alike."""
    delta = sealed(upper, commit)
    decided = canonical_form(upper) | {"seq": delta.seq, "commit": commit}
    run.absorb(upper, delta)
    assert_equal_everywhere(decided=decided, run=run)
    return delta


def test_a_run_shows_each_command_what_those_before_it_did():
    tree = a_tree()
    old, before = over_the_wire(tree), seen(tree)
    run = Draft(tree, 900)

    one = Draft(run, 901)
    one.insert(message("n1", "v1", role="assistant", siblings_group_id=3, created_at=901))
    one.change("u2", parent_id="n1")
    one.set_active("n1")
    one.set_state("metadata", {"a": 1})
    deltas = [absorbed(run, one, "c1")]
    two = Draft(run, 902)
    two.insert(message("n2", "n1", role="user", created_at=902))
    two.remove("b1")
    two.change("u2", parent_id="a1", status="error")
    two.set_state("name", "n")
    deltas.append(absorbed(run, two, "c2"))
    three = Draft(run, 903)
    three.change("n1", siblings_group_id=5)
    three.remove("n2")
    three.set_state("metadata", {})
    deltas.append(absorbed(run, three, "c3"))

    assert_equal_everywhere(before=before, after_planning=tree)
    assert (run.top_group("v1"), run.last_created_at) == (5, 902)
    shown = seen(run)
    for delta in deltas:
        assert tree.apply(delta)
    assert_equal_everywhere(run=shown, tree=tree)
    check_invariants(tree)
    check_folds(old, deltas, tree)
    assert [delta.prev for delta in deltas] == [old.commit, "c1", "c2"]


@pytest.mark.parametrize("created_at", [1, 150, 250, 901])
def test_T3_an_id_that_a_run_used_again_stands_where_its_new_time_puts_it(created_at: int):
    tree = topic_of("x", "y", "z", active=None).tree
    mirror, run = over_the_wire(tree), Draft(tree, 900)
    one = Draft(run, 901)
    one.remove("y")
    assert mirror.apply(absorbed(run, one, "c1"))
    two = Draft(run, 902)
    two.insert(message("y", ROOT, role="assistant", created_at=created_at))

    assert mirror.apply(absorbed(run, two, "c2"))
    assert_equal_everywhere(run=run, mirror=mirror)

    three = Draft(run, 903)
    three.remove("y")
    assert mirror.apply(absorbed(run, three, "c3"))
    assert_equal_everywhere(run=run, mirror=mirror)
    assert [*run.children(ROOT)] == ["x", "z"]


def test_what_a_draft_decides_after_it_was_absorbed_is_its_own():
    run = Draft(a_tree(), 900)
    upper = Draft(run, 901)
    upper.set_state("metadata", {"a": 1})
    absorbed(run, upper, "c1")
    before = seen(run)

    Draft(run, 902).set_state("metadata", {"a": 2})
    upper.set_state("metadata", {"a": 3})

    assert_equal_everywhere(before=before, after=run)


def test_T11_a_run_knows_every_id_that_its_commits_have_buried():
    run = Draft(topic_of("x", "y", active=None).tree, 900)
    for place, each in enumerate(("x", "y")):
        upper = Draft(run, 901)
        upper.remove(each)
        absorbed(run, upper, f"c{place}")

    assert run.is_taken("x")
    assert run.is_taken("y")
    assert (run.grave("x"), run.nearest_living("x")) == ((ROOT, 0), ROOT)


def test_a_run_takes_over_a_move_of_the_active_node_alone():
    tree = a_tree()
    run = Draft(tree, 900)
    upper = Draft(run, 901)
    upper.set_active("v1")

    delta = absorbed(run, upper, "c1")

    shown = seen(run)
    assert tree.apply(delta)
    assert_equal_everywhere(run=shown, tree=tree)


# Depth -----------------------------------------------------------------------------------


def test_a_chain_of_5000_is_loaded_put_dropped_and_walked():
    nodes = chain(5_000)
    tree = Tree("topic", ROOT)
    draft = Draft(tree, 1)
    for node in reversed(nodes):
        draft.insert(off_the_wire(node))
    draft.set_active("c4999")

    delta = commit(tree, draft)

    assert [put.id for put in delta.put] == [node.id for node in nodes]
    assert len(tree.path("c4999")) == len(tree.subtree("c0")) == 5_000
    draft = Draft(tree, 2)
    draft.set_active(None)
    for node in nodes:
        draft.remove(node.id)
    assert commit(tree, draft).drop == [node.id for node in reversed(nodes)]
    assert len(tree) == 0
