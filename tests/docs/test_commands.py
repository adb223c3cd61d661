"""Every command in the documentation is one that the program takes."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from livetree_server.cli.program import program

from tests.docs.blocks import PAGES, ROOT, commands

CALLS = [(page.name, call) for page in PAGES for call in commands(page)]


def parse(call: list[str]) -> None:
    """Read a call as the program would, down to its last option, and do nothing."""
    command: click.Command = program
    arguments = call
    while True:
        context = command.make_context("livetree", [*arguments])
        if not isinstance(command, click.Group):
            return
        name, inner, arguments = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert inner is not None, name
        command = inner


@pytest.mark.parametrize(("page", "call"), CALLS, ids=[" ".join(call) for _, call in CALLS])
def test_the_program_takes_it(page: str, call: list[str]):
    parse(call)


@pytest.mark.parametrize("call", [["fly"], ["serve", "--wings"], ["say", "a", "b"]], ids=" ".join)
def test_what_it_does_not_take_is_seen(call: list[str]):
    with pytest.raises(click.UsageError):
        parse(call)


def test_there_are_commands_to_see():
    assert len(CALLS) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text("utf-8"))
    missing = [each for each in targets if not (page.parent / each).exists()]

    assert missing == []
    assert (ROOT / "LICENSE").exists()
