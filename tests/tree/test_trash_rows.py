"""Rows of the trash that hang below another."""

from livetree.core.trash import below


def test_below_a_row_is_all_that_hangs_off_it():
    rows = [("a", "root"), ("c", "b"), ("b", "a"), ("x", "root"), ("d", "a")]

    assert below(rows, "a") == ["a", "b", "d", "c"]
    assert below(rows, "c") == ["c"]
    assert below(rows, "gone") == ["gone"]


def test_rows_that_are_each_above_the_other_end_it_too():
    assert below([("a", "a")], "a") == ["a"]
    assert below([("a", "c"), ("b", "a"), ("c", "b")], "b") == ["b", "c", "a"]
