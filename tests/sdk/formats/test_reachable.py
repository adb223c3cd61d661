from livetree.formats.reachable import check_reachable

Rows = list[tuple[str, str | None]]
LINE: Rows = [("r", None), ("a", "r"), ("b", "a")]


def faults(rows: Rows) -> list[str]:
    return [*check_reachable({"T": rows}).errors]


def test_trees_are_sound_whatever_the_order_of_their_rows():
    for rows in (LINE, LINE[::-1], [("r", None)]):
        found = check_reachable({"T": rows, "T2": LINE})
        assert (found.ok, found.errors, found.topics) == (True, [], {})
    assert check_reachable({}).ok


def test_a_topic_must_have_a_root():
    assert faults([]) == ["missing_root"]
    assert faults([("a", "r")]) == ["missing_root", "unreachable_messages"]


def test_a_topic_has_one_root():
    assert faults([*LINE, ("s", None), ("c", "s")]) == ["multi_root_topics"]


def test_a_row_whose_parent_is_not_there_is_out_of_reach():
    assert faults([*LINE, ("c", "gone"), ("d", "c")]) == ["unreachable_messages"]


def test_rows_in_a_circle_are_out_of_reach_and_the_check_ends():
    assert faults([("r", None), ("x", "y"), ("y", "x"), ("z", "y")]) == ["unreachable_messages"]
    assert faults([("r", None), ("x", "x")]) == ["unreachable_messages"]


def test_a_parent_of_another_topic_is_not_there():
    assert check_reachable({"T": LINE, "T2": [("s", None), ("c", "a")]}).topics == {
        "unreachable_messages": ["T2"]
    }


def test_each_fault_names_its_topics():
    circle: Rows = [("r", None), ("x", "x")]
    found = check_reachable({"A": circle, "B": [], "C": LINE, "D": [*circle, ("s", None)]})

    assert found.topics == {
        "missing_root": ["B"],
        "multi_root_topics": ["D"],
        "unreachable_messages": ["A", "D"],
    }
    assert found.errors == ["missing_root", "multi_root_topics", "unreachable_messages"]
    assert not found.ok


def test_a_long_line_is_checked_without_recursion():
    rows: Rows = [("m0", None), *((f"m{place}", f"m{place - 1}") for place in range(1, 100_000))]

    assert check_reachable({"T": rows[::-1]}).ok
    assert faults([*rows[:5], *rows[6:]]) == ["unreachable_messages"]
