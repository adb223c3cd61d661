"""What the README shows, done as it is printed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, commands
from tests.server.program import SECONDS, Program, Running

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Running]]:
    program = Program(tmp_path_factory.mktemp("readme"))
    with program.serving("--demo") as server:
        ready = ("say", "--new-topic", "Ready?", "Ready", "--model", "echo")
        assert program.run(*ready, "--url", server.url).returncode == 0
        yield program, server


def script(folder: Path, needle: str) -> Path:
    """Save the example that holds some words."""
    [text] = [block.text for block in blocks(README) if needle in block.text]
    path = folder / "example.py"
    path.write_text(text, "utf-8")
    return path


def calls(command: str, needle: str = "") -> list[list[str]]:
    """Return the calls of a command that hold some words."""
    return [call for call in commands(README) if call[0] == command and needle in " ".join(call)]


def test_the_bot_answers(demo: tuple[Program, Running], tmp_path: Path):
    program, server = demo
    bot = subprocess.Popen(
        [sys.executable, script(tmp_path, "livetree.Bot(")],
        env=program.environment({"LIVETREE_URL": server.url}),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        [call] = calls("say", "shout")
        done = program.run(*call, LIVETREE_URL=server.url)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "assistant shout: HELLO FROM THE README \n"
    finally:
        bot.terminate()
        _, complaints = bot.communicate(timeout=SECONDS)
    assert (bot.returncode, complaints) == (0, "")


def test_the_client_shows_what_it_says(demo: tuple[Program, Running], tmp_path: Path):
    program, server = demo
    done = subprocess.run(
        [sys.executable, script(tmp_path, "livetree.connect(")],
        env=program.environment({"LIVETREE_URL": server.url}),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["user Where to?", "assistant Where to?", "2 first turns"]


def test_the_tour_goes_as_it_is_printed(demo: tuple[Program, Running]):
    program, server = demo
    tour = [
        call for call in commands(README) if call[0] != "bot" and not set(call) & {"llama", "shout"}
    ]
    assert [call[0] for call in tour] == ["topics", "tail", "say", "say"]
    for call in tour:
        done = program.run(*call, LIVETREE_URL=server.url)
        assert done.returncode == 0, f"livetree {' '.join(call)}: {done.stderr}"
        assert done.stdout
