"""Patterns with ``*``, also those that are made to hang."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from livetree_server.globs import matches


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*", "", True),
        ("*", "anything", True),
        ("gpt-*", "gpt-5", True),
        ("gpt-*", "xgpt-5", False),
        ("*-mini", "gpt-mini", True),
        ("a*a", "a", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a.c", "abc", False),
        ("", "", True),
        ("", "x", False),
        ("line*", "line\nline", True),
    ],
)
def test_a_star_is_any_run_of_characters_and_nothing_else_is_special(pattern, text, expected):
    assert matches(pattern, text) is expected


@given(st.text("ab*", max_size=12), st.text("ab", max_size=12))
def test_it_is_what_a_regular_expression_would_say(pattern, text):
    expression = re.escape(pattern).replace(r"\*", ".*")
    assert matches(pattern, text) == (re.fullmatch(expression, text) is not None)


def test_a_pattern_of_stars_is_no_work():
    assert not matches("*a" * 1000 + "!", "a" * 10_000)
