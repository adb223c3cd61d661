from typing import Any

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.errors import InvalidOperation, LivetreeError, NotFound, StaleCursor
from livetree.core.reads import branch_page, messages, path_page, topic_info, tree_page
from livetree.core.view import View

from tests.helpers import assert_equal_everywhere, canonical_form
from tests.tree.topic import ROOT, chain, message, topic_of, tree_with


def branch(view: View, **asked: Any) -> Any:
    """Read a page as it crosses the wire."""
    page = branch_page(view, p.BranchGet(topic="topic", **asked))
    return msgspec.json.decode(p.encode(page))


def tree(view: View, **asked: Any) -> Any:
    page = tree_page(view, p.TreeGet(topic="topic", **asked))
    return msgspec.json.decode(p.encode(page))


def ids(page: Any) -> list[str]:
    """Return the ids of a page's items or nodes."""
    return [item["node"]["id"] for item in page["items"]] if "items" in page else names(page)


def names(page: Any) -> list[str]:
    return [node["id"] for node in page["nodes"]]


def shown(page: Any) -> set[str]:
    return {*names(page), *(node["id"] for group in page["groups"] for node in group["nodes"])}


FORK = topic_of("u1 > a1 > u2 > a2", "u1 > s1 > s2 > s3", active="a2").tree


# branch.get ------------------------------------------------------------------------------


def test_a_page_is_the_newest_part_in_reading_order():
    view = topic_of("u1 > a1 > u2 > a2 > u3").tree

    newest = branch(view, limit=2)
    older = branch(view, limit=2, cursor=newest["next"])
    oldest = branch(view, limit=2, cursor=older["next"])

    assert [ids(page) for page in (newest, older, oldest)] == [["a2", "u3"], ["a1", "u2"], ["u1"]]
    assert [page["next"] for page in (newest, older, oldest)] == ["a2", "a1", None]
    assert [item["index"] for item in newest["items"] + oldest["items"]] == [3, 4, 0]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5, 50])
def test_pages_are_the_path_without_gap_or_overlap(limit: int):
    view = topic_of("u1 > a1 > u2 > a2").tree
    found: list[str] = []
    cursor = None
    for _ in range(9):
        page = branch(view, limit=limit, cursor=cursor)
        assert len(page["items"]) <= limit
        found = ids(page) + found
        cursor = page["next"]
        if cursor is None:
            break

    assert found == ["u1", "a1", "u2", "a2"]


def test_every_page_names_root_pointer_and_position():
    view = FORK

    for page in (branch(view), branch(view, node_id="s3"), branch(view, cursor="u1")):
        assert page["rootId"] == ROOT
        assert page["activeNodeId"] == "a2"
        assert (page["seq"], page["commit"]) == (view.seq, view.commit)
    assert [page["nodeId"] for page in (branch(view), branch(view, node_id="s3"))] == ["a2", "s3"]
    assert ids(branch(view, node_id="s3")) == ["u1", "s1", "s2", "s3"]
    assert branch(view, cursor="u1")["items"] == []


def test_T2_the_first_message_names_the_root_as_its_parent():
    first, second = branch(topic_of("u1 > a1").tree)["items"]

    assert first["node"]["parentId"] == ROOT
    assert second["node"]["parentId"] == "u1"
    assert first["node"]["version"] == 1


def test_an_empty_topic_has_an_empty_page():
    page = branch(topic_of().tree)

    assert (page["items"], page["next"], page["nodeId"], page["rootId"]) == ([], None, None, ROOT)


def test_T4_siblings_come_with_the_path_unless_they_are_switched_off():
    group = [
        message(name, "u1", role="assistant", siblings_group_id=1, created_at=at)
        for name, at in (("a1", 300), ("a2", 200), ("a0", 300))
    ]
    w = message("w", "a2", role="user", created_at=400)
    view = tree_with([message("u1", ROOT, role="user"), *group, w], "w")

    assert [item["siblings"] for item in branch(view)["items"]] == [[], ["a0", "a1"], []]
    bare = branch(view, include_siblings=False)
    assert [item["siblings"] for item in bare["items"]] == [[], [], []]


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"node_id": "nope"}, NotFound),
        ({"node_id": ROOT}, NotFound),
        ({"cursor": "nope"}, NotFound),
        ({"cursor": ROOT}, NotFound),
        ({"cursor": "s1"}, StaleCursor),
        ({"node_id": "s1", "cursor": "s2"}, StaleCursor),
        ({"node_id": "u1", "cursor": "a2"}, StaleCursor),
    ],
    ids=str,
)
def test_a_page_that_is_not_there_is_refused(asked: dict[str, Any], kind: type[LivetreeError]):
    with pytest.raises(kind) as refusal:
        branch(FORK, **asked)
    assert refusal.type is kind


# tree.get --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (0, {"u1", "a1", "u2", "a2", "s1"}),
        (1, {"u1", "a1", "u2", "a2", "s1"}),
        (2, {"u1", "a1", "u2", "a2", "s1", "s2"}),
        (3, {"u1", "a1", "u2", "a2", "s1", "s2", "s3"}),
        (-1, {"u1", "a1", "u2", "a2", "s1", "s2", "s3"}),
        (2**53 - 1, {"u1", "a1", "u2", "a2", "s1", "s2", "s3"}),
    ],
)
def test_a_tree_is_shown_to_its_depth_and_along_the_active_path(depth: int, expected: set[str]):
    assert shown(tree(FORK, depth=depth)) == expected


def test_another_nodes_path_is_shown_instead_when_it_is_named():
    page = tree(FORK, depth=0, node_id="s3")

    assert shown(page) == {"u1", "a1", "s1", "s2", "s3"}
    assert page["activeNodeId"] == "a2"


def test_without_anything_active_only_the_depth_counts():
    view = topic_of("u1 > a1", "v1", active=None).tree

    assert shown(tree(view, depth=0)) == {"u1", "v1"}


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(-1, {"a1", "u2", "a2"}), (0, {"a1", "u2", "a2"}), (1, {"a1", "u2", "a2"})],
)
def test_a_named_start_limits_the_answer_to_what_is_below_it(depth: int, expected: set[str]):
    page = tree(FORK, depth=depth, root_id="a1")

    assert shown(page) == expected
    assert page["rootId"] == ROOT


def test_a_start_off_the_path_shows_its_own_depth():
    assert shown(tree(FORK, depth=0, root_id="s1")) == {"s1"}
    assert shown(tree(FORK, depth=1, root_id="s1")) == {"s1", "s2"}


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"root_id": ROOT}, InvalidOperation),
        ({"root_id": "nope"}, NotFound),
        ({"node_id": "nope"}, NotFound),
        ({"node_id": ROOT}, NotFound),
    ],
    ids=str,
)
def test_a_tree_that_is_not_there_is_refused(asked: dict[str, Any], kind: type[LivetreeError]):
    with pytest.raises(kind) as refusal:
        tree(FORK, **asked)
    assert refusal.type is kind


def test_T1_the_root_is_never_among_the_nodes():
    for asked in ({}, {"depth": -1}, {"root_id": "u1"}):
        page = tree(FORK, **asked)
        assert ROOT not in shown(page)
        assert page["rootId"] == ROOT


def test_T4_two_or_more_of_a_group_are_shown_together_and_one_alone_plainly():
    view = topic_of("u > a:1", "u > b:1 > w", "u > lone:2", "u > c", "v:3", "w2:3").tree

    page = tree(view, depth=-1)

    assert names(page) == ["u", "w", "lone", "c"]
    assert [(group["parentId"], group["group"], names(group)) for group in page["groups"]] == [
        ("u", 1, ["a", "b"]),
        (ROOT, 3, ["v", "w2"]),
    ]


def test_T3_nodes_and_members_are_in_order_of_time_then_id():
    rows = [("z", 100), ("m", 50), ("c", 100), ("B", 100)]
    flat = tree_with([message(name, ROOT, role="user", created_at=at) for name, at in rows])
    grouped = tree_with(
        [message(name, ROOT, role="user", created_at=at, siblings_group_id=1) for name, at in rows]
    )

    assert names(tree(flat)) == ["m", "B", "c", "z"]
    assert names(tree(grouped)["groups"][0]) == ["m", "B", "c", "z"]


def test_has_children_and_awaiting_input_are_about_all_that_there_is():
    view = topic_of("u1 > a1 > yes~", "a1 > kid~ > k2", "u1 > waits?", active=None).tree

    page = tree(view, depth=0)
    assert [(node["id"], node["hasChildren"]) for node in page["nodes"]] == [("u1", True)]
    page = tree(view, depth=-1)
    found = {node["id"]: (node["hasChildren"], node["awaitingInput"]) for node in page["nodes"]}
    assert found == {
        "u1": (True, False),
        "a1": (True, False),
        "yes": (False, True),
        "kid": (True, False),
        "k2": (False, False),
        "waits": (False, False),
    }


def test_a_node_has_what_a_canvas_needs():
    view = topic_of("hello > there").tree

    assert tree(view)["nodes"][1] == {
        "id": "there",
        "parentId": "hello",
        "role": "assistant",
        "status": "success",
        "hasChildren": False,
        "awaitingInput": False,
        "preview": "there",
        "createdAt": 200,
        "version": 1,
    }


def test_previews_are_there_for_cold_messages_too():
    view = topic_of("hello > void~").tree
    for message_id in ("hello", "void"):
        view.release(message_id)

    assert [node["preview"] for node in tree(view)["nodes"]] == ["hello", ""]
    assert branch(view)["items"][0]["node"].get("data") is None
    assert branch(view)["items"][0]["node"]["preview"] == "hello"


# message.get, topic.get --------------------------------------------------------------------


def test_messages_come_in_the_asked_order():
    command = p.MessageGet(topic="topic", message_ids=["a2", "u1", "a2"])

    assert [node.id for node in messages(FORK, command)] == ["a2", "u1", "a2"]


@pytest.mark.parametrize("message_id", ["nope", ROOT, ""])
def test_a_missing_message_is_not_found(message_id: str):
    with pytest.raises(NotFound) as refusal:
        messages(FORK, p.MessageGet(topic="topic", message_ids=["u1", message_id]))
    assert refusal.value.details == {"id": message_id}


def test_a_topic_tells_its_own_fields():
    topic = topic_of("u1")
    topic.do(p.TopicUpdate(name="n"))

    info = msgspec.convert(topic_info(topic.tree, 77), p.TopicInfo)

    assert info == p.TopicInfo(
        id="topic",
        root_id=ROOT,
        name="n",
        seq=2,
        commit="commit-2",
        active_node_id="u1",
        metadata={},
        created_at=77,
        last_activity_at=0,
    )


# Everywhere --------------------------------------------------------------------------------


def test_reads_change_nothing_and_are_the_same_on_a_draft():
    before = canonical_form(FORK)

    assert tree(Draft(FORK), depth=-1) == tree(FORK, depth=-1)
    assert branch(Draft(FORK)) == branch(FORK)

    assert_equal_everywhere(before=before, after=FORK)


def test_a_chain_of_5000_is_read_whole():
    view = tree_with(chain(5_000), "c4999")

    assert len(tree(view, depth=-1)["nodes"]) == 5_000
    page = branch(view, limit=50)
    assert (ids(page)[0], page["next"], page["items"][0]["index"]) == ("c4950", "c4950", 4950)
    assert ids(branch(view, limit=50, cursor="c50"))[0] == "c0"


# Paths -----------------------------------------------------------------------------------


def path(view: View, node_id: str) -> list[str]:
    return path_page(view, p.PathGet(topic="topic", node_id=node_id)).ids


def through(view: View, node_id: str) -> list[str]:
    return path_page(view, p.PathThrough(topic="topic", node_id=node_id)).ids


def test_T2_a_path_is_whole_and_without_the_root():
    topic = topic_of("u1 > a1 > u2", "u1 > b1", active="b1")

    page = path_page(topic.tree, p.PathGet(topic="topic", node_id="u2"))

    assert page.ids == [node.id for node in page.nodes] == ["u1", "a1", "u2"]
    assert (page.root_id, page.active_node_id) == (ROOT, "b1")
    assert (page.seq, page.commit) == (topic.tree.seq, topic.tree.commit)
    assert path(topic.tree, "u1") == ["u1"]


def test_a_path_through_a_message_goes_on_to_the_newest_leaf_below_it():
    # The newest message of all is no leaf, and the newest leaf is no child of the newest child.
    tree = tree_with(
        [
            message("u", ROOT, role="user", created_at=1),
            message("a", "u", role="assistant", created_at=2),
            message("b", "u", role="assistant", created_at=3),
            message("c", "a", role="user", created_at=9),
            message("d", "b", role="user", created_at=8),
            message("e", "b", role="user", created_at=8),
            message("top", ROOT, role="user", created_at=20),
            message("low", "top", role="assistant", created_at=10),
        ]
    )

    assert through(tree, "u") == ["u", "a", "c"]
    assert through(tree, "b") == ["u", "b", "e"], "of one time the greater id"
    assert through(tree, "d") == ["u", "b", "d"]
    assert through(tree, "top") == ["top", "low"]


@pytest.mark.parametrize("node_id", ["nope", ROOT, ""])
def test_a_path_to_nothing_is_not_found(node_id: str):
    tree = topic_of("u").tree

    with pytest.raises(NotFound):
        path(tree, node_id)
    with pytest.raises(NotFound):
        through(tree, node_id)
