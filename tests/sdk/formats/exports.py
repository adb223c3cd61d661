"""ChatGPT exports in small, as tests write them."""

from __future__ import annotations

import json
from typing import Any

from livetree.formats import Conversation, FormatError, ImportedMessage, text_of
from livetree.formats.chatgpt import convert

Json = dict[str, Any]


def message(role: str = "user", text: str = "", **fields: Any) -> Json:
    """Write a message; a field that is given replaces the one that is usual."""
    return {
        "id": None,
        "author": {"role": role, "name": None, "metadata": {}},
        "create_time": None,
        "content": {"content_type": "text", "parts": [text]},
        "status": "finished_successfully",
        "weight": 1.0,
        "metadata": {},
        "recipient": "all",
        **fields,
    }


def tree(lines: str, **messages: Json) -> Json:
    """
    Write a mapping from lines of `key < parent: role text`.

    Without a role there is no message, without a parent it is null. The `children` are left
    out, as in some exports. A message of the key given by keyword stands in for the line's.
    """
    mapping: Json = {}
    for line in filter(None, (line.strip() for line in lines.splitlines())):
        place, _, said = line.partition(":")
        key, _, parent = (word.strip() for word in place.partition("<"))
        role, _, text = said.strip().partition(" ")
        mapping[key] = {"id": key, "parent": parent or None, "message": None}
        if role or key in messages:
            mapping[key]["message"] = messages.get(key) or message(role, text)
    return mapping


def export(mapping: Json | str, **fields: Any) -> Json:
    """Write one conversation, with what an importer reads of it."""
    if isinstance(mapping, str):
        mapping = tree(mapping)
    return {
        "title": "A talk",
        "create_time": 1700000000.5,
        "update_time": 1700000100.25,
        "mapping": mapping,
        "current_node": next(reversed(mapping), None),
        "conversation_id": "c-1",
        "id": "c-1",
        **fields,
    }


def one(content: Any, role: str = "assistant", **fields: Any) -> ImportedMessage:
    """Import a conversation of one message with this content."""
    said = message(role, content=content, **fields)
    return convert(export(tree("root:\na < root:", a=said))).messages[0]


def parts_of(content: Any, role: str = "assistant", **fields: Any) -> list[Json]:
    parts: list[Json] = one(content, role, **fields).data["parts"]
    return parts


def as_file(*conversations: Any) -> bytes:
    return json.dumps(conversations, indent=1).encode()


def shown(conversation: Conversation) -> list[str]:
    """Draw the tree, a line for each message: `key < parent: role text`, first turns first."""
    return [
        f"{message.id} < {message.parent_id or '-'}: {message.role} {text_of(message)}".rstrip()
        for message in conversation.messages
    ]


def by_id(conversation: Conversation) -> dict[str, ImportedMessage]:
    return {message.id: message for message in conversation.messages}


def refusal(record: Any) -> FormatError:
    """Import what must be refused, and return why."""
    try:
        convert(record)
    except FormatError as fault:
        return fault
    raise AssertionError("it was not refused")
