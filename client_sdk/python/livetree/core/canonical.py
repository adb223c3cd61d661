"""JSON as livetree allows it (I-JSON, RFC 7493), and its one canonical text (RFC 8785)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from .errors import TooLarge, Validation

__all__ = ["MAX_DEPTH", "MAX_INTEGER", "canonical", "check_json"]

MAX_INTEGER: Final = 2**53 - 1
"""Integers beyond this lose digits in JavaScript (RFC 7493 §2.2)."""

MAX_DEPTH: Final = 100
"""How deep values may nest: far below what any client's parser refuses."""

_ESCAPES = {
    **{code: f"\\u{code:04x}" for code in range(0x20)},
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def check_json(raw: bytes | msgspec.Raw, what: str, *, max_bytes: int) -> Any:
    """
    Decode one JSON value and prove that every client can read it.

    Args:
        raw: The value's text, UTF-8.
        what: The field's name, for the error's sentence.
        max_bytes: The largest size allowed.

    Raises:
        TooLarge: If the text is longer than `max_bytes`.
        Validation: If it isn't JSON, holds a lone surrogate or an integer beyond
            ±(2^53−1), or nests deeper than `MAX_DEPTH`.

    """
    if (size := len(memoryview(raw))) > max_bytes:
        raise TooLarge(
            f"{what} has {size} bytes; the limit is {max_bytes}: send less", limit=max_bytes
        )
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Validation(f"{what} is not JSON that every client can read: {error}") from None
    # Level by level instead of recursively: the depth is what is being checked.
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise Validation(f"{what} nests deeper than {MAX_DEPTH} levels: flatten it")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif type(item) is int and not -MAX_INTEGER <= item <= MAX_INTEGER:
                raise Validation(f"{what} holds {item}; integers end at ±(2^53-1): send text")
        level = below
    return value


def canonical(value: Any) -> str:
    """
    Write a JSON value as RFC 8785 text, the same in every language.

    Object keys are sorted by UTF-16 code units and numbers are written as
    ECMAScript writes them. The value must have passed `check_json`.

    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in keys) + "}"
    return "[" + ",".join(canonical(item) for item in value) + "]"


def _number(value: float) -> str:
    """Write a float as ECMAScript's Number::toString does (ECMA-262 §6.1.6.1.20)."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # Python's shortest digits are ECMAScript's; only their layout differs.
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    point = int(exponent or 0) + len(whole) - (len(whole + fraction) - len(digits))
    stripped = digits.rstrip("0")
    if len(stripped) <= point <= 21:
        text = stripped + "0" * (point - len(stripped))
    elif 0 < point <= 21:
        text = f"{stripped[:point]}.{stripped[point:]}"
    elif -6 < point <= 0:
        text = f"0.{'0' * -point}{stripped}"
    else:
        power = point - 1
        tail = f".{stripped[1:]}" if len(stripped) > 1 else ""
        text = f"{stripped[0]}{tail}e{'+' if power >= 0 else '-'}{abs(power)}"
    return sign + text
