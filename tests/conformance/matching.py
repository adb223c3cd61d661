"""Does a value have what a case demands of it? Objects match in part, arrays exactly."""

from collections.abc import Sequence
from typing import Any

MATCHERS = {"$set", "$has", "$len", "$first", "$last", "$gt", "$not"}


class CaseFault(Exception):
    """A case can't be understood, so nothing can be said about what it is run through."""


def mismatch(expected: Any, actual: Any, where: str) -> str | None:
    """Return in a sentence what `actual` lacks, or None if it matches."""
    if isinstance(expected, dict):
        if asked := MATCHERS & {*expected}:
            return _special(expected, asked, actual, where)
        return _object(expected, actual, where)
    if isinstance(expected, list):
        return _array(expected, actual, where)
    # True and 1 are equal to Python alone.
    if type(expected) is not type(actual) or expected != actual:
        return f"{where} is {_short(actual)}, not {_short(expected)}"
    return None


def matches(expected: Any, actual: Any) -> bool:
    """Tell whether `actual` has all that is demanded."""
    return mismatch(expected, actual, "") is None


def _object(expected: dict[str, Any], actual: Any, where: str) -> str | None:
    if unknown := [key for key in expected if key.startswith("$")]:
        raise CaseFault(f"{where} has the unknown matcher {unknown[0]}")
    if not isinstance(actual, dict):
        return f"{where} is {_short(actual)}, not an object"
    for key, value in expected.items():
        if key not in actual:
            return f"{where}.{key} is missing"
        if found := mismatch(value, actual[key], f"{where}.{key}"):
            return found
    return None


def _array(expected: list[Any], actual: Any, where: str) -> str | None:
    if not isinstance(actual, list):
        return f"{where} is {_short(actual)}, not an array"
    if len(actual) != len(expected):
        return f"{where} has {len(actual)} items, not {len(expected)}: {_short(actual)}"
    for place, (wanted, value) in enumerate(zip(expected, actual, strict=True)):
        if found := mismatch(wanted, value, f"{where}[{place}]"):
            return found
    return None


def _special(expected: dict[str, Any], asked: set[str], actual: Any, where: str) -> str | None:
    if extra := {*expected} - MATCHERS:
        raise CaseFault(f"{where} mixes matchers with {sorted(extra)}")
    for name in sorted(asked):
        if not _holds(name, expected[name], actual):
            return f"{where} is {_short(actual)}, and not {name} {_short(expected[name])}"
    return None


def _holds(name: str, value: Any, actual: Any) -> bool:
    match name:
        case "$not":
            return not matches(value, actual)
        case "$gt":
            return type(actual) in (int, float) and actual > value
    if not isinstance(actual, list):
        return False
    match name:
        case "$len":
            return len(actual) == value
        case "$first":
            return bool(actual) and matches(value, actual[0])
        case "$last":
            return bool(actual) and matches(value, actual[-1])
        case "$has":
            return _assigned(value, actual)
        case _:
            return len(value) == len(actual) and _assigned(value, actual)


def _assigned(wanted: Sequence[Any], items: Sequence[Any]) -> bool:
    """Tell whether each of `wanted` has an item of its own (bipartite matching by paths)."""
    taken: dict[int, int] = {}

    def place(want: int, tried: set[int]) -> bool:
        for index, item in enumerate(items):
            if index in tried or not matches(wanted[want], item):
                continue
            tried.add(index)
            if index not in taken or place(taken[index], tried):
                taken[index] = want
                return True
        return False

    return all(place(want, set()) for want in range(len(wanted)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
