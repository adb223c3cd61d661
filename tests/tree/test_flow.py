from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.errors import Validation
from livetree.core.flow import FlowGraph, LiveRow, flow_graph, merge
from livetree.core.reads import TreeGroup, TreeNode, TreePage, tree_page
from livetree.core.tree import Tree
from livetree.core.view import View

from tests.helpers import assert_equal_everywhere, canonical_form, walk
from tests.tree.costs import shallow, steps
from tests.tree.topic import ROOT, chain, message, text, topic_of, tree_with


def graph(*lines: str, **fields: Any) -> FlowGraph:
    return flow_graph(topic_of(*lines, **fields).tree)


def ids(found: FlowGraph, mark: str) -> set[str]:
    """Return the nodes that carry a mark."""
    return {node.row.id for node in found.nodes if getattr(node, mark)}


def ends(found: FlowGraph, mark: str = "to_id") -> set[tuple[str, str]]:
    """Return the edges that carry a mark; by default all."""
    return {(edge.from_id, edge.to_id) for edge in found.edges if getattr(edge, mark)}


def counts(found: FlowGraph) -> tuple[int, int, int]:
    return found.stats.nodes, found.stats.branches, found.stats.active_path_length


def live(message_id: str, parent_id: str | None, content: str = "", **fields: Any) -> LiveRow:
    usual: dict[str, Any] = {"role": "assistant", "status": "pending", "created_at": 10_000}
    return LiveRow(id=message_id, parent_id=parent_id, text=content, **{**usual, **fields})


def rows(page: TreePage) -> dict[str, TreeNode]:
    found = [*page.nodes, *(node for group in page.groups for node in group.nodes)]
    assert len({node.id for node in found}) == len(found), "a message is shown twice"
    return {node.id: node for node in found}


def groups(page: TreePage) -> list[tuple[str, int, list[str]]]:
    return [(each.parent_id, each.group, [node.id for node in each.nodes]) for each in page.groups]


# The graph -------------------------------------------------------------------------------


def test_an_empty_topic_is_an_empty_graph():
    found = graph()

    assert (found.root_id, found.active_node_id) == (ROOT, None)
    assert (found.nodes, found.edges, counts(found)) == ([], [], (0, 0, 0))


def test_T1_the_root_is_neither_a_node_nor_the_end_of_an_edge():
    found = graph("u1 > a1 > u2", "v1 > b1")

    assert [node.row.id for node in found.nodes] == ["u1", "a1", "u2", "v1", "b1"]
    assert ends(found) == {("u1", "a1"), ("a1", "u2"), ("v1", "b1")}
    assert (found.root_id, found.active_node_id) == (ROOT, "b1")


def test_nodes_are_the_rows_of_the_whole_tree():
    view = topic_of("u1 > a1:1 > u2~", "u1 > b1:1*", active="b1").tree

    page = tree_page(view, p.TreeGet(topic="topic", depth=-1))

    assert {node.row.id: node.row for node in flow_graph(view).nodes} == rows(page)
    assert merge(view, []) == page


def test_what_is_beside_the_active_path_is_inactive():
    found = graph("u1 > a1 > u2", "u1 > b1 > w1", active="a1")

    assert ids(found, "active") == {"a1"}
    assert ids(found, "on_active_path") == {"u1", "a1"}
    assert ids(found, "inactive_branch") == {"u2", "b1", "w1"}
    assert ends(found, "on_active_path") == {("u1", "a1")}
    assert ends(found, "inactive_branch") == {("a1", "u2"), ("u1", "b1"), ("b1", "w1")}


def test_with_nothing_active_nothing_is_beside_the_path():
    found = graph("u1 > a1", "u1 > b1", active=None)

    assert ids(found, "active") | ids(found, "on_active_path") == set()
    assert ids(found, "inactive_branch") == set()
    assert ends(found, "inactive_branch") | ends(found, "on_active_path") == set()
    assert counts(found) == (3, 2, 0)


def test_an_active_node_that_is_not_there_makes_no_path():
    page = merge(topic_of("u1 > a1").tree, [], "gone")

    found = flow_graph(page)

    assert found.active_node_id == "gone"
    assert ids(found, "active") | ids(found, "on_active_path") == set()
    assert ids(found, "inactive_branch") == set()
    assert counts(found) == (2, 0, 0)


def test_edges_to_replies_with_others_beside_them_are_sibling_branches_grouped_or_not():
    found = graph("u1 > a1:1", "u1 > b1:1", "a1 > u2 > c1", "u2 > d1", "a1 > v2", "v2 > e1")

    assert ends(found, "sibling_branch") == {("u1", "a1"), ("u1", "b1"), ("u2", "c1"), ("u2", "d1")}


def test_T4_only_replies_that_share_a_group_show_it():
    found = graph("u1:9 > a1:3", "u1 > b1:3", "u1 > lone:4", "u1 > c1", "u2:9")

    assert {node.row.id: node.group for node in found.nodes} == {
        **{"u1": 0, "u2": 0, "lone": 0, "c1": 0},
        **{"a1": 3, "b1": 3},
    }


def test_a_group_with_one_reply_is_no_group_of_replies():
    mixed = [
        message("a", ROOT, role="assistant", siblings_group_id=1),
        message("u", ROOT, role="user", siblings_group_id=1, created_at=2),
    ]

    assert [node.group for node in flow_graph(tree_with(mixed)).nodes] == [0, 0]


@pytest.mark.parametrize(
    ("lines", "branches"),
    [(["u1"], 0), (["u1 > a1"], 0), (["u1", "v1"], 2), (["u1 > a1", "u1 > b1", "u1 > c1"], 3)],
    ids=str,
)
def test_branches_are_the_leaves_if_there_are_two(lines: list[str], branches: int):
    assert graph(*lines).stats.branches == branches


def test_awaiting_input_is_told_of_empty_prompts_alone():
    found = graph("u1 > a1 > wait~", "a1 > kid~ > a2", "u1 > b1~")

    assert {node.row.id for node in found.nodes if node.row.awaiting_input} == {"wait"}


def test_a_page_without_some_parents_has_more_graph_roots():
    view = topic_of("u1 > a1 > u2 > a2", "u1 > b1").tree
    page = tree_page(view, p.TreeGet(topic="topic", depth=-1, root_id="a1"))

    found = flow_graph(page)

    assert ends(found) == {("a1", "u2"), ("u2", "a2")}
    assert counts(found) == (3, 0, 0)  # the active b1 is not on the page


def test_a_graph_crosses_the_wire_in_camel_case():
    told = msgspec.json.decode(p.encode(graph("u1 > a1")))

    assert {*told} == {"rootId", "activeNodeId", "nodes", "edges", "stats"}
    assert told["edges"] == [
        {
            **{"fromId": "u1", "toId": "a1", "onActivePath": True},
            **{"siblingBranch": False, "inactiveBranch": False},
        }
    ]
    assert {*told["nodes"][0]} == {"row", "group", "active", "onActivePath", "inactiveBranch"}


# Live rows -------------------------------------------------------------------------------


def test_T3_a_live_row_joins_its_group_in_order_of_time_and_id():
    view = topic_of("u > a:3", "u > c:3").tree  # a at 200, c at 300

    page = merge(view, [live("b", "u", "typing", group=3, created_at=300)])

    assert groups(page) == [("u", 3, ["a", "b", "c"])]
    assert rows(page)["b"] == TreeNode(
        **{"id": "b", "parent_id": "u", "role": "assistant", "status": "pending"},
        **{"has_children": False, "awaiting_input": False, "preview": "typing"},
        **{"created_at": 300, "version": 0},
    )


def test_a_live_row_makes_a_group_of_one_that_was_alone():
    view = topic_of("u > a:3").tree

    assert groups(merge(view, [])) == []
    assert groups(merge(view, [live("b", "u", group=3)])) == [("u", 3, ["a", "b"])]
    assert groups(merge(view, [live("b", "u", group=4)])) == []


def test_a_stored_row_takes_the_live_status_and_keeps_its_place():
    view = topic_of("u > a:3", "u > b:3").tree

    page = merge(view, [live("a", ROOT, " news ", group=9, role="user", created_at=1)])

    stored = rows(merge(view, []))
    expected = msgspec.structs.replace(stored["a"], status="pending", preview="news")
    assert rows(page) == {**stored, "a": expected}
    assert groups(page) == [("u", 3, ["a", "b"])]


@pytest.mark.parametrize("blank", ["", " ", "\n\t\u3000"], ids=ascii)
def test_a_stored_preview_stays_while_the_live_text_is_blank(blank: str):
    page = merge(topic_of("u > a").tree, [live("a", "u", blank)])

    assert (rows(page)["a"].preview, rows(page)["a"].status) == ("a", "pending")


def test_the_parent_of_a_live_row_has_children_and_awaits_nothing():
    view = topic_of("u > a > wait~").tree

    page = merge(view, [live("b", "wait")])

    assert rows(merge(view, []))["wait"].awaiting_input
    assert (rows(page)["wait"].has_children, rows(page)["wait"].awaiting_input) == (True, False)


@pytest.mark.parametrize(
    ("row", "awaits"),
    [
        (live("w", "a", role="user", status="success"), True),
        (live("w", "a", role="user", status="pending"), False),
        (live("w", "a", "typed", role="user", status="success"), False),
        (live("new", "a", role="user", status="success"), True),
        (live("new", "a", "typed", role="user", status="success"), False),
        (live("new", "a", status="success"), False),
    ],
    ids=range(6),
)
def test_a_live_row_awaits_input_as_a_stored_one_would(row: LiveRow, awaits: bool):
    page = merge(topic_of("u > a > w~").tree, [row])

    assert rows(page)[row.id].awaiting_input == awaits


@pytest.mark.parametrize("turn", [1, -1])
def test_a_live_row_may_hang_off_a_live_one_whatever_their_order(turn: int):
    came = [live("b", "a"), live("w", "b", role="user"), live("x", "w")][::turn]

    page = merge(topic_of("u > a").tree, came, "x")

    assert [node.has_children for node in map(rows(page).get, "uabwx") if node] == [True] * 4 + [
        False
    ]
    assert counts(flow_graph(page)) == (5, 0, 5)


def test_a_live_first_turn_hangs_off_the_root():
    page = merge(topic_of().tree, [live("u", ROOT, "hi", role="user")])

    assert rows(page)["u"].parent_id == ROOT
    assert flow_graph(page).edges == []


@pytest.mark.parametrize(
    "came",
    [
        [live("x", None)],
        [live("a", None, "news")],
        [live("x", "nobody"), live("y", "x")],
        [live("x", "y"), live("y", "x"), live("z", "y")],
        [live("x", "x")],
        [live(ROOT, "a")],
    ],
    ids=["no parent", "known, no parent", "unknown parent", "circle", "itself", "the root"],
)
def test_a_live_row_that_hangs_off_nothing_is_left_out(came: list[LiveRow]):
    view = topic_of("u > a").tree

    assert merge(view, came) == merge(view, [])


def test_of_live_rows_with_one_id_the_later_counts():
    view = topic_of("u > a").tree

    page = merge(view, [live("b", "u", "old"), live("b", "a", "new"), live("b", None, "none")])

    assert (rows(page)["b"].parent_id, rows(page)["b"].preview) == ("a", "new")


def test_the_live_active_node_counts_if_there_is_one():
    view = topic_of("u > a").tree

    assert merge(view, []).active_node_id == "a"
    assert merge(view, [], "u").active_node_id == "u"
    assert merge(view, [], "u").root_id == ROOT
    assert (merge(view, []).seq, merge(view, []).commit) == (view.seq, view.commit)


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(Validation, match="surrogate"):
        merge(topic_of("u > a").tree, [live("a", "u", "\ud83d")])


def test_reading_changes_nothing_and_is_the_same_on_a_draft():
    view = topic_of("u1 > a1:1 > u2~", "u1 > b1:1*", active="b1").tree
    before = canonical_form(view)
    came = [live("c1", "u1", group=1)]

    assert flow_graph(Draft(view)) == flow_graph(view)
    assert merge(Draft(view), came) == merge(view, came)

    assert_equal_everywhere(before=before, after=view)


# As slowly as can be ---------------------------------------------------------------------


@st.composite
def topics(draw: st.DrawFn) -> Tree:
    """Draw a tree of up to 12 messages; times and groups often meet."""
    nodes: list[p.Node] = []
    for place in range(draw(st.integers(0, 12))):
        above = draw(st.sampled_from([ROOT, *(node.id for node in nodes)]))
        node = message(
            f"m{place}",
            above,
            role=draw(st.sampled_from(["user", "assistant", "tool"])),
            status=draw(st.sampled_from(["success", "pending"])),
            siblings_group_id=draw(st.sampled_from([0, 1, 1, 2])),
            data=text(draw(st.sampled_from(["", " ", "said"]))),
            created_at=draw(st.integers(1, 5)),
        )
        nodes.append(node)
    return tree_with(nodes, draw(st.sampled_from([None, *(node.id for node in nodes)])))


def live_rows() -> st.SearchStrategy[list[LiveRow]]:
    names = [f"m{place}" for place in range(0, 12, 2)] + ["x", "y", "z"]
    row = st.builds(
        LiveRow,
        id=st.sampled_from(names),
        parent_id=st.sampled_from([None, ROOT, "nobody", *names]),
        role=st.sampled_from(["user", "assistant"]),
        status=st.sampled_from(["success", "pending", "error"]),
        text=st.sampled_from(["", " ", "typing"]),
        group=st.sampled_from([0, 1, 2]),
        created_at=st.integers(1, 5),
    )
    return st.lists(row, max_size=5)


def naive_graph(view: View) -> dict[str, Any]:
    nodes = sorted(walk(view), key=lambda node: (node.created_at, node.id))
    path = [node.id for node in view.path(view.active_node_id)]

    def replies(node: p.Node) -> list[p.Node]:
        return [
            other
            for other in nodes
            if (other.parent_id, other.role) == (node.parent_id, "assistant")
        ]

    def marks(node: p.Node) -> tuple[bool, bool]:
        return node.id in path, len(path) > 0 and node.id not in path

    def group(node: p.Node) -> int:
        number = node.siblings_group_id
        fellows = [other for other in replies(node) if other.siblings_group_id == number]
        return number if node.role == "assistant" and len(fellows) > 1 else 0

    leaves = [node for node in nodes if not view.has_children(node.id)]
    return {
        "nodes": [
            (node.id, group(node), node.id == view.active_node_id, *marks(node)) for node in nodes
        ],
        "edges": [
            (
                *(node.parent_id, node.id),
                node.role == "assistant" and len(replies(node)) >= 2,
                *marks(node),
            )
            for node in nodes
            if not view.is_first_turn(node.id)
        ],
        "stats": (len(nodes), len(leaves) if len(leaves) >= 2 else 0, len(path)),
    }


def in_short(found: FlowGraph) -> dict[str, Any]:
    return {
        "nodes": [
            (node.row.id, node.group, node.active, node.on_active_path, node.inactive_branch)
            for node in found.nodes
        ],
        "edges": [
            (
                *(edge.from_id, edge.to_id, edge.sibling_branch),
                *(edge.on_active_path, edge.inactive_branch),
            )
            for edge in found.edges
        ],
        "stats": counts(found),
    }


@given(topics())
def test_the_graph_is_what_its_words_say(view: Tree):
    assert in_short(flow_graph(view)) == naive_graph(view)


def naive_tree(view: Tree, came: Sequence[LiveRow]) -> Tree:
    """Store the live rows, and read the tree that they make."""
    stored = {node.id: node for node in walk(view)}
    last = {row.id: row for row in came if row.parent_id is not None}
    for row in last.values():
        if node := stored.get(row.id):
            content = text(row.text) if row.text.strip() else node.data
            stored[row.id] = msgspec.structs.replace(node, status=row.status, data=content)
            if node.empty and row.text:
                stored[row.id] = msgspec.structs.replace(stored[row.id], data=text(row.text))
    for _ in last:  # often enough for the longest line
        for row in last.values():
            if row.id not in stored and (row.parent_id == ROOT or row.parent_id in stored):
                stored[row.id] = message(
                    row.id,
                    str(row.parent_id),
                    role=row.role,
                    status=row.status,
                    siblings_group_id=row.group,
                    data=text(row.text),
                    created_at=row.created_at,
                )
    return tree_with([*stored.values()], view.active_node_id)


def without_versions(page: TreePage) -> TreePage:
    def bare(nodes: list[TreeNode]) -> list[TreeNode]:
        return [msgspec.structs.replace(node, version=0) for node in nodes]

    return msgspec.structs.replace(
        page,
        nodes=bare(page.nodes),
        groups=[
            TreeGroup(parent_id=each.parent_id, group=each.group, nodes=bare(each.nodes))
            for each in page.groups
        ],
    )


@given(topics(), live_rows())
def test_live_rows_show_the_tree_that_they_would_make(view: Tree, came: list[LiveRow]):
    whole = p.TreeGet(topic="topic", depth=-1)
    expected = tree_page(naive_tree(view, came), whole)

    assert without_versions(merge(view, came)) == without_versions(expected)


# Large topics ----------------------------------------------------------------------------


def test_a_chain_of_20000_needs_no_recursion():
    view = tree_with(chain(20_000), "c19999")
    came = [live(f"l{place}", f"l{place - 1}" if place else "c19999") for place in range(20_000)]

    with shallow(60):
        alone = flow_graph(view)
        merged = flow_graph(merge(view, reversed(came), "l19999"))

    assert counts(alone) == (20_000, 0, 20_000)
    assert counts(merged) == (40_000, 0, 40_000)


def test_100000_messages_side_by_side_are_drawn():
    wide = [message("u", ROOT, role="user")]
    wide += [
        message(f"a{place}", "u", role="assistant", siblings_group_id=1, created_at=place + 2)
        for place in range(100_000)
    ]
    view = tree_with(wide, "a7")

    found = flow_graph(view)

    assert counts(found) == (100_001, 100_000, 2)
    assert len(ends(found, "sibling_branch")) == 100_000


@pytest.mark.parametrize("shape", ["chain", "fan"])
def test_twice_the_messages_cost_twice_the_work(shape: str):
    def work(size: int) -> int:
        nodes = chain(size)
        if shape == "fan":
            nodes = [msgspec.structs.replace(node, parent_id=ROOT) for node in nodes]
        view = tree_with(nodes, nodes[-1].id)
        came = [live(f"l{place}", nodes[place].id, group=1) for place in range(size)]
        return steps(lambda: flow_graph(merge(view, came)))

    assert work(2_000) < 2.2 * work(1_000)
