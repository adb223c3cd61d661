"""
What a topic's columns hold as text and JSON, looked over and mended.

All of it is read as bytes: of a column that is not UTF-8, the driver would give nothing.
Sound is what the server can read, even where it would refuse it from a caller.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import msgspec
from livetree.core.content import EMPTY_DATA, is_empty, preview_of
from sqlalchemy import Connection

from .checking_rows import Examined, Messages, clipped, name_of, rows

__all__ = ["check_contents", "check_state"]

_TEXTS: Final = ("preview", "model_id", "author")
_OBJECTS: Final = ("decisions", "stats", "timing", "context")
_COLUMNS: Final = ("id", "parent_id", *_TEXTS, *_OBJECTS, "data")

_STATE_TEXTS: Final = ("name", "name_folded", "commit_id", "digest", "active_node_id")
_STATE_OBJECTS: Final = ("metadata", "other_state")

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_decode = msgspec.json.decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


def check_state(tx: Connection, key: int, found: Examined) -> None:
    """Look at the texts and the JSON of a topic's own row."""
    columns = "id", "root_id", *_STATE_TEXTS, *_STATE_OBJECTS
    sql = f'SELECT {_as_bytes(columns)} FROM topic WHERE "key" = ?'
    raw = dict(zip(columns, rows(tx, sql, key)[0], strict=True))
    for column in ("id", "root_id"):
        if not _is_text(raw[column]):
            found.hopeless.append(
                f"its {column} {clipped(raw[column])} is not UTF-8: restore it from a backup"
            )
    mended: dict[str, str] = {}
    for column in _STATE_TEXTS:
        if not _is_text(raw[column]):
            found.texts.append(f"its {column} {clipped(raw[column])} is not UTF-8")
            mended[column] = raw[column].decode(errors="replace")
    for column in _STATE_OBJECTS:
        if not _is_object(raw[column]):
            found.texts.append(f"its {column} {clipped(raw[column])} is no JSON object")
            mended[column] = "{}"
    # A pointer that is not UTF-8 leads to no message, and a trigger keeps it from being set.
    if mended.pop("active_node_id", None) is not None:
        tx.exec_driver_sql('UPDATE topic SET active_node_id = NULL WHERE "key" = ?', (key,))
    _update(tx, "topic", '"key"', key, mended)


def check_contents(tx: Connection, key: int, table: Messages, found: Examined) -> None:
    """Look at the texts and the JSON of messages, of which only one is in memory at a time."""
    sql = (
        f"SELECT rowid, {_as_bytes(_COLUMNS)} FROM {table} "
        "WHERE topic_key = ? AND parent_id IS NOT NULL ORDER BY id"
    )
    with closing(tx.connection.cursor()) as cursor:
        wrong = [row[0] for row in cursor.execute(sql, (key,)) if not _is_sound(row[1:])]
    for rowid in wrong:
        sql = f"SELECT {_as_bytes(_COLUMNS)} FROM {table} WHERE rowid = ?"
        _mend(tx, table, rowid, dict(zip(_COLUMNS, rows(tx, sql, rowid)[0], strict=True)), found)


def _mend(
    tx: Connection, table: Messages, rowid: int, raw: dict[str, Any], found: Examined
) -> None:
    name = name_of(table, raw["id"].decode(errors="backslashreplace"))
    for column in ("id", "parent_id"):
        if not _is_text(raw[column]):
            told = f"{name} has the {column} {clipped(raw[column])}, which is not UTF-8"
            found.hopeless.append(f"{told}: restore it from a backup")
    mended: dict[str, Any] = {}
    for column in _TEXTS:
        if not _is_text(raw[column]):
            found.texts.append(f"{name} has the {column} {clipped(raw[column])}, which is no UTF-8")
            mended[column] = raw[column].decode(errors="replace")
    for column in _OBJECTS:
        if not _is_object(raw[column]):
            told = f"{name} has the {column} {clipped(raw[column])}, which is no JSON object"
            found.texts.append(told)
            mended[column] = None
    if not _is_data(raw["data"]):
        told = f"{name} has the data {clipped(raw['data'])}, which can't be read"
        found.texts.append(f"{told}: it becomes text")
        data = _as_data(raw["data"])
        mended |= {"data": data.decode(), "preview": preview_of(data), "empty": is_empty(data)}
    _update(tx, table, "rowid", rowid, mended)


def _update(tx: Connection, table: str, key: str, value: int, mended: dict[str, Any]) -> None:
    if mended:
        changes = ", ".join(f"{column} = ?" for column in mended)
        tx.exec_driver_sql(
            f"UPDATE {table} SET {changes} WHERE {key} = ?", (*mended.values(), value)
        )


def _as_bytes(columns: tuple[str, ...]) -> str:
    return ", ".join(f"CAST({column} AS BLOB)" for column in columns)


def _is_sound(row: tuple[Any, ...]) -> bool:
    objects = len(_COLUMNS) - 1 - len(_OBJECTS)
    return (
        all(map(_is_text, row[:objects])) and all(map(_is_object, row[objects:-1]))
    ) and _is_data(row[-1])


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or raw.decode() is not None
    except UnicodeError:
        return False


def _is_object(raw: bytes | None) -> bool:
    try:
        return raw is None or _decode_object(raw) is not None
    except _UNREADABLE:
        return False


def _is_data(raw: bytes) -> bool:
    """Tell whether it is an object with a list of parts that the core can read."""
    try:
        value = _decode(raw)
        is_empty(raw)
    except _UNREADABLE:
        return False
    return isinstance(value, dict) and isinstance(value.get("parts"), list)


def _as_data(raw: bytes) -> bytes:
    """
    Make data of what can't be read as such, and throw nothing away.

    Where only some bytes are wrong the rest keeps its form; everything else becomes the
    one text part, as it stands.

    """
    text = raw.decode(errors="replace")
    if _is_data(data := text.encode()):
        return data
    return _encode({"parts": [{"type": "text", "text": text}]}) if text else EMPTY_DATA
