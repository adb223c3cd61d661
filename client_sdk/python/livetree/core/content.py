"""What livetree itself reads of a message's ``data``: its text, nothing else."""

from __future__ import annotations

from typing import Any, Final
from zlib import crc32

import msgspec

from .canonical import canonical, check_json
from .errors import TooLarge, Validation

__all__ = [
    "EMPTY_DATA",
    "MAX_DATA_BYTES",
    "PREVIEW_LENGTH",
    "check_data",
    "data_of_text",
    "emptied",
    "is_empty",
    "merge_data",
    "parts_checksum",
    "preview_of",
    "text_of",
]

MAX_DATA_BYTES: Final = 1024 * 1024
"""The most bytes that one message's ``data`` may have."""

PREVIEW_LENGTH: Final = 100
"""The most characters (code points) of a preview."""

_BLANK: Final = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
# ECMAScript's white space: Python's own differs, and both SDKs must trim alike.

EMPTY_DATA: Final = b'{"parts":[]}'


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: Any = ""


class _Data(msgspec.Struct, gc=False):
    parts: list[_Part] = []


_decode = msgspec.json.Decoder(_Data).decode
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def data_of_text(text: str) -> bytes:
    """
    Return the ``data`` of a message that is just this text; no text gives no parts.

    Raises:
        TooLarge: If it is over `MAX_DATA_BYTES`.
        Validation: If the text holds half a surrogate pair.

    """
    if not text:
        return EMPTY_DATA
    try:
        data = _encode({"parts": [{"type": "text", "text": text}]})
    except UnicodeEncodeError:
        raise Validation("the text holds half of a surrogate pair: send whole characters") from None
    if len(data) > MAX_DATA_BYTES:
        raise TooLarge(
            f"the text has {len(data)} bytes as data; the limit is {MAX_DATA_BYTES}: send less",
            limit=MAX_DATA_BYTES,
        )
    return data


def check_data(raw: bytes | msgspec.Raw, *, partial: bool = False) -> bytes:
    """
    Prove that a caller's ``data`` may be stored, and return its untouched text.

    Args:
        raw: The JSON text as it came.
        partial: Whether ``parts`` may be missing, as in an update.

    Raises:
        TooLarge: If it is over `MAX_DATA_BYTES`.
        Validation: If it isn't an object with a list of parts that each have a type.

    """
    value = check_json(raw, "data", max_bytes=MAX_DATA_BYTES)
    if not isinstance(value, dict):
        raise Validation('data is not an object: send {"parts": [...]}')
    if "parts" not in value:
        if not partial:
            raise Validation('data has no parts: send {"parts": [...]}, empty for no content')
    else:
        parts = value["parts"]
        if not isinstance(parts, list):
            raise Validation("data.parts is not a list: send a list of parts")
        for place, part in enumerate(parts):
            if not isinstance(part, dict) or not isinstance(part.get("type"), str):
                raise Validation(f"data.parts[{place}] is not an object with a type")
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                raise Validation(f"data.parts[{place}] is a text part without text")
    return bytes(raw)


def merge_data(old: bytes, patch: bytes) -> bytes:
    """Lay a patch over ``data``, top-level key by key; values keep their text."""
    return _encode({**_split(old), **_split(patch)})


def emptied(data: bytes) -> bytes:
    """Return ``data`` without parts, and of its other keys only ``turnOptions``."""
    kept = {key: value for key, value in _split(data).items() if key == "turnOptions"}
    return _encode({"parts": [], **kept}) if kept else EMPTY_DATA


def parts_checksum(parts: list[dict[str, Any]]) -> int:
    """Return the CRC-32 of the parts as RFC 8785 text: the same for a writer and every viewer."""
    return crc32(canonical(parts).encode())


def _parts(data: bytes | msgspec.Raw) -> list[_Part]:
    try:
        return _decode(data).parts
    except msgspec.ValidationError:
        # Of keys that come twice the last counts; the first may have been of another type.
        return msgspec.convert(msgspec.json.decode(data), _Data).parts


def _texts(data: bytes | msgspec.Raw) -> list[str]:
    parts = _parts(data)
    return [part.text for part in parts if part.type == "text" and isinstance(part.text, str)]


def text_of(data: bytes | msgspec.Raw) -> str:
    """Return the joined text of the text parts."""
    return "".join(_texts(data))


def preview_of(data: bytes | msgspec.Raw) -> str:
    """Return the first text that is not blank, trimmed and cut to `PREVIEW_LENGTH`."""
    for text in _texts(data):
        if trimmed := text.strip(_BLANK):
            return trimmed[:PREVIEW_LENGTH].rstrip(_BLANK)
    return ""


def is_empty(data: bytes | msgspec.Raw) -> bool:
    """Tell whether there are no parts at all."""
    return not _parts(data)
