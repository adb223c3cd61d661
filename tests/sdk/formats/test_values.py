from typing import Any

import pytest
from livetree.core.canonical import MAX_DEPTH, MAX_INTEGER
from livetree.formats import FormatError
from livetree.formats.values import check_value


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 1.5, True, "é😀\0", {}], "é": -MAX_INTEGER},
        MAX_INTEGER,
        1e300,
        nested(MAX_DEPTH - 1),
    ],
    ids=["null", "object", "integer", "float", "deep"],
)
def test_json_passes(value: Any):
    check_value(value, "it")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (MAX_INTEGER + 1, "an integer beyond"),
        ([-MAX_INTEGER - 1], "an integer beyond"),
        (10**400, "an integer beyond"),
        ({"a": float("nan")}, "'nan', which is no JSON number"),
        (float("-inf"), "'-inf', which is no JSON number"),
        ("a\ud800", "half of a surrogate pair"),
        ({"a": {"\udc00": 1}}, "half of a surrogate pair"),
        ({1: "a"}, "a number as a key"),
        ({"a": b""}, "a Python bytes, which JSON has not"),
        ((1,), "a Python tuple, which JSON has not"),
        (nested(MAX_DEPTH), "nests deeper than 100 levels"),
        (nested(1_000_000), "nests deeper than 100 levels"),
    ],
    ids=[
        *("too large", "too small", "huge", "NaN", "infinite", "half a pair", "half a pair as key"),
        *("number as key", "bytes", "tuple", "deep", "very deep"),
    ],
)
def test_what_not_every_client_can_read_is_refused(value: Any, reason: str):
    with pytest.raises(FormatError) as refused:
        check_value(value, "it")

    assert reason in refused.value.reason


def test_a_value_that_holds_itself_is_too_deep():
    value: list[Any] = []
    value.append(value)

    with pytest.raises(FormatError):
        check_value(value, "it")
