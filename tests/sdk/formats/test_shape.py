from __future__ import annotations

from typing import Any

import pytest
from livetree.formats import FormatError
from livetree.formats.shape import Layout, SourceNode, lay_out


def node(line: str, **fields: Any) -> SourceNode:
    """Write a node as `key < parent: role @time`; without a role it has no message."""
    place, _, what = line.partition(":")
    key, _, parent = (word.strip() for word in place.partition("<"))
    role, _, time = (word.strip() for word in what.partition("@"))
    return SourceNode(key, parent or None, role or None, int(time) if time else None, **fields)


def laid(*lines: str, start: int | None = None) -> Layout:
    return lay_out([node(line) for line in lines], start=start)


def links(layout: Layout) -> list[str]:
    return [f"{place.id} < {place.parent_id or '-'}" for place in layout.places]


def groups(layout: Layout) -> dict[str, int]:
    return {place.id: place.siblings_group_id for place in layout.places}


def times(layout: Layout) -> dict[str, int]:
    return {place.id: place.created_at for place in layout.places}


def test_no_nodes_give_no_places():
    assert laid() == ([], {})
    assert laid().newest_leaf() is None


def test_F1_a_message_whose_parent_is_missing_or_unknown_is_a_first_turn():
    layout = laid("a: user", "b < gone: user", "c < b: assistant", "d < : user")

    assert links(layout) == ["a < -", "b < -", "c < b", "d < -"]


def test_F1_a_child_may_stand_before_its_parent_in_the_file():
    assert links(laid("b < a: assistant", "a: user")) == ["a < -", "b < a"]


def test_F2_children_of_a_node_without_a_message_go_to_the_nearest_ancestor_that_has_one():
    layout = laid("a: user", "x < a:", "y < x:", "b < y: assistant")

    assert links(layout) == ["a < -", "b < a"]
    assert layout.ids == {"a": "a", "x": "a", "y": "a", "b": "b"}


def test_F2_children_of_a_root_without_a_message_are_first_turns():
    layout = laid("root:", "a < root: user", "b < root: user")

    assert links(layout) == ["a < -", "b < -"]
    assert layout.ids["root"] is None


def test_F2_they_stand_where_the_vanished_node_stood():
    layout = laid("a: user", "b < a: assistant", "x < a:", "c < a: assistant", "d < x: assistant")

    assert links(layout) == ["a < -", "b < a", "d < a", "c < a"]
    assert groups(layout) == {"a": 0, "b": 1, "c": 1, "d": 1}


def test_F3_siblings_stand_as_the_file_has_them():
    assert links(laid("a: user", "c < a: user", "b < a: user")) == ["a < -", "c < a", "b < a"]


def test_F3_a_parents_list_comes_first_and_what_it_leaves_out_last():
    layout = lay_out(
        [
            node("a: user", children=["d", "gone", "b", "d", "elsewhere"]),
            node("e < a: user"),
            node("b < a: user"),
            node("c < a: user"),
            node("d < a: user"),
            node("elsewhere: user"),
        ]
    )

    assert links(layout) == ["a < -", "d < a", "b < a", "e < a", "c < a", "elsewhere < -"]


def test_F3_siblings_sort_by_time_as_they_stand_in_the_file():
    layout = laid("a: user @9", "d < a: user @8", "c < a: user @8", "b < a: user @3", "e < a: user")
    siblings = [place for place in layout.places if place.parent_id == "a"]

    assert [place.id for place in siblings] == ["d", "c", "b", "e"]
    assert sorted(siblings, key=lambda place: (place.created_at, place.id)) == siblings


def test_F4_two_children_of_one_role_are_a_group_and_one_alone_is_none():
    layout = laid("a: user", "b < a: assistant", "c < a: assistant", "d < a: user", "e < b: user")

    assert groups(layout) == {"a": 0, "b": 1, "c": 1, "d": 0, "e": 0}


def test_F4_each_role_has_a_group_of_its_own_numbered_from_one_at_each_parent():
    layout = laid(
        *("a: user", "b < a: assistant", "c < a: user", "d < a: assistant", "e < a: user"),
        *("f < b: tool", "g < b: tool"),
    )

    assert groups(layout) == {"a": 0, "b": 1, "d": 1, "c": 2, "e": 2, "f": 1, "g": 1}


def test_F4_first_turns_of_one_role_are_a_group_too():
    assert groups(laid("a: user", "b: system", "c: user")) == {"a": 1, "b": 0, "c": 1}


def test_F5_a_valid_key_is_the_id():
    key = "Aa0_-" + "x" * 59

    assert links(laid(f"{key}: user")) == [f"{key} < -"]


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 65, "a/b"])
def test_F5_for_any_other_key_the_next_free_id_is_made(key: str):
    layout = lay_out(
        [
            SourceNode("m1", None, "user"),
            SourceNode(key, "m1", "assistant"),
            SourceNode("m3", key, "user"),
            SourceNode("b b", "m3", "assistant"),
        ]
    )

    assert links(layout) == ["m1 < -", "m2 < m1", "m3 < m2", "m4 < m3"]
    assert layout.ids == {"m1": "m1", key: "m2", "m3": "m3", "b b": "m4"}
    assert [place.key for place in layout.places] == ["m1", key, "m3", "b b"]


def test_F6_a_rising_time_is_kept():
    layout = laid("a: user @10", "b < a: assistant @20", "c < b: user @30", "d < a: assistant @25")

    assert times(layout) == {"a": 10, "b": 20, "c": 30, "d": 25}


def test_F6_an_answer_dated_before_its_prompt_comes_a_millisecond_after():
    assert times(laid("a: user @10", "b < a: assistant @7")) == {"a": 10, "b": 11}


def test_F6_siblings_with_equal_falling_or_no_times_follow_each_other():
    layout = laid(
        *("a: user @10", "b < a: user @15", "c < a: user @15", "d < a: user @2", "e < a: user"),
    )

    assert times(layout) == {"a": 10, "b": 15, "c": 16, "d": 17, "e": 18}


def test_F6_a_first_turn_without_a_time_gets_the_earliest_that_is_known():
    assert times(laid("a: system", "b < a: user @20", "c < b: user @10")) == {
        **{"a": 10, "b": 20, "c": 21}
    }
    assert times(laid("a: system", "b < a: user @20", start=19)) == {"a": 19, "b": 20}
    assert times(laid("a: system", "b < a: user @20", start=50)) == {"a": 20, "b": 21}
    assert times(laid("a: system", "b < a: user", start=50)) == {"a": 50, "b": 51}
    assert times(laid("a: system", "b < a: user", "c: user")) == {"a": 0, "b": 1, "c": 1}


def test_F6_the_sources_time_is_told_beside():
    (_, second) = laid("a: user @10", "b < a: assistant @7").places

    assert second.time == 7


@pytest.mark.parametrize(
    "lines",
    [
        ["a < a: user"],
        ["a < b: user", "b < a: assistant"],
        ["x < y:", "y < x:"],
        ["ok: user", "a < b: user", "b < c: user", "c < a: user", "d < a: user"],
    ],
    ids=["itself", "two", "without messages", "with a tail"],
)
def test_F7_links_that_run_in_a_circle_are_refused(lines: list[str]):
    with pytest.raises(FormatError, match="run in a circle"):
        laid(*lines)


def test_F7_two_nodes_of_one_key_are_refused():
    with pytest.raises(FormatError, match="two nodes have the key 'b'"):
        laid("a: user", "b < a: user", "b < a: user")


def test_the_newest_leaf_is_by_the_sources_time_and_of_equal_ones_the_last():
    assert laid("a: user @99", "b < a: user @10", "c < a: user @5").newest_leaf() == "b"
    assert laid("a: user", "b < a: user @10", "c < a: user @10").newest_leaf() == "c"
    assert laid("a: user", "b < a: user", "c < a: user").newest_leaf() == "c"
    assert laid("a: user", "b < a: user @0", "c < a: user").newest_leaf() == "b"


@pytest.mark.parametrize("step", [1, -1], ids=["down", "up"])
def test_a_line_of_many_nodes_takes_no_recursion_and_linear_time(step: int):
    size = 50_000
    nodes = [SourceNode(f"n{at}", f"n{at - 1}", "user") for at in range(size)][::step]

    layout = lay_out(nodes)

    assert [place.id for place in layout.places] == [f"n{at}" for at in range(size)]


def test_many_siblings_take_linear_time():
    size = 50_000
    names = [f"n{at}" for at in range(size)]
    parent = SourceNode("a", None, "user", None, names[::-1])

    layout = lay_out([parent, *(SourceNode(name, "a", "user") for name in names)])

    assert [place.id for place in layout.places[1:]] == names[::-1]


def test_many_vanished_nodes_take_linear_time():
    size = 50_000
    nodes = [SourceNode(f"n{at}", f"n{at - 1}", None) for at in range(size)]

    layout = lay_out([*nodes, SourceNode("a", f"n{size - 1}", "user")])

    assert links(layout) == ["a < -"]
