"""The blocks of code in a page of documentation, as they are printed."""

from __future__ import annotations

import shlex
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


class Block(Struct, frozen=True):
    """A fenced block: the language that it names, and its text."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    found: list[Block] = []
    inside: list[str] | None = None
    language = ""
    for line in page.read_text("utf-8").splitlines():
        if line.startswith("```"):
            if inside is None:
                inside, language = [], line.removeprefix("```").strip()
            else:
                found.append(Block(language, "\n".join(inside) + "\n"))
                inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"a block of {page.name} has no end"
    return found


def commands(page: Path) -> list[list[str]]:
    """Return the calls of livetree in a page's blocks of shell, without the program's name."""
    return [
        shlex.split(line)[1:]
        for block in blocks(page)
        if block.language == "sh"
        for line in block.text.splitlines()
        if line.startswith("livetree ")
    ]
