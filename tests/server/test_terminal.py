"""What is shown on a terminal."""

from __future__ import annotations

import pytest
from livetree_server.cli.terminal import clipped, harmless, local_time, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ☀ text\n\twith lines", "plain ☀ text\n\twith lines"),
        ("\x1b[2Jgone", "[2Jgone"),
        ("a\x07\x00\x7f\x9b31mb\rc", "a31mbc"),
        ("left\u202eright\u2066", "leftright"),
        ("a\u2028b", "a\u2028b"),
    ],
)
def test_a_text_commands_no_terminal(text: str, shown: str):
    assert harmless(text) == shown


def test_a_line_is_one():
    assert one_line("  a\n\nb\u2028c\x1b ") == "a b c"
    assert clipped("a\nb c", 4) == "a b…"
    assert clipped("a\nbc", 4) == "a bc"


@pytest.mark.parametrize("ms", [0, 1_764_530_000_000, 2**53 - 1, -1])
def test_any_time_can_be_shown(ms: int):
    assert local_time(ms)
