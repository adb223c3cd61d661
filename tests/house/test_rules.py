"""The protocol's numbered rules and the tests that quote them name the same numbers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RULE = re.compile(r"^- \*\*([A-Z]\d+)\*\* ", re.MULTILINE)
NUMBER = re.compile(r"_([A-Z]\d+)(?=_|$)")


def rules(text: str) -> list[str]:
    """Return the numbers of the rules that a page states, in order."""
    return RULE.findall(text)


def quoted(source: str) -> Iterator[str]:
    """Yield the numbers in the names of a module's tests; ``L1_to_L9`` quotes them all."""
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "name", "")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and name.startswith("test_"):
            if span := re.search(r"_([A-Z])(\d+)_to_\1(\d+)_", name):
                yield from (f"{span[1]}{n}" for n in range(int(span[2]), int(span[3]) + 1))
            yield from NUMBER.findall(name)


def in_the_tests() -> set[str]:
    # The formats have rules of their own, which are stated beside their code.
    paths = [path for path in (ROOT / "tests").rglob("test_*.py") if "formats" not in path.parts]
    return {number for path in paths for number in quoted(path.read_text(encoding="utf-8"))}


STATED = rules((ROOT / "docs/protocol.md").read_text(encoding="utf-8"))


def test_each_rule_is_stated_once():
    assert len(STATED) > 40
    assert len(set(STATED)) == len(STATED)


def test_each_rule_has_a_test_that_quotes_it():
    assert sorted(set(STATED) - in_the_tests()) == []


def test_no_test_quotes_a_rule_that_is_not_stated():
    assert sorted(in_the_tests() - set(STATED)) == []


def test_the_reader_finds_numbers_in_names():
    source = "async def test_A1_to_A3_and_B7_hold(): ...\ndef test_none(): ...\ndef A9(): ..."
    assert set(quoted(source)) == {"A1", "A2", "A3", "B7"}
    assert rules("- **A1** one\n- **B2** two, see **C3**\n") == ["A1", "B2"]
