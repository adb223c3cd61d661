"""
ChatGPT data exports: `conversations.json`, its numbered shards, or one conversation alone.

G1  Links go by the keys of `mapping`, never by a message's own id. A node whose `message` is
    null vanishes (F2).
G2  The role is `author.role`. An assistant message whose `recipient` is not `all` is a tool
    call: a part `tool-<recipient>`, its text the input. A tool message is the result of the
    call that is its parent, or of the same call as the tool message that is its parent.
G3  There are no call ids in the file, so a call's is `call_<message id>`, and its results
    have that. A result without a call has one of its own.
G4  `thoughts` and `reasoning_recap` are reasoning; texts and transcriptions are text; asset
    pointers are files, whose bytes the export keeps elsewhere. What else there is, or has
    another form than expected, is kept whole in a part `data-chatgpt`.
G5  Hidden messages stay and are marked. So are a person's custom instructions and the
    model's memory, flagged or not: they open no conversation and name none.
G6  An unfinished message is paused; every other one is a success.
G7  The model is `metadata.model_slug`, else the conversation's; only assistants have one.
G8  The active message is at `current_node`; if that is missing or dangling, it is the newest
    leaf by the source's time.
G9  All that has no place of its own is kept in `source`: of a message under `data`, of the
    conversation under its metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, cast, get_args

from .faults import FormatError, kind_of, quoted
from .neutral import Conversation, ImportedMessage, Role, Status
from .reading import Format, Head, Record, read_json
from .shape import Place, SourceNode, lay_out
from .times import ms_of_seconds

__all__ = ["CHATGPT", "convert"]

Json: TypeAlias = dict[str, Any]

_NAME: Final = "chatgpt"
_DATA_PART: Final = "data-chatgpt"
_ROLES: Final = frozenset(get_args(Role))
_UNFINISHED: Final = frozenset({"in_progress", "finished_partial_completion"})
_INSTRUCTIONS: Final = frozenset({"user_editable_context", "model_editable_context"})

# A conversation without a mapping is one all the same, and is to be named as refused.
_KEYS: Final = frozenset({"mapping", "current_node", "conversation_template_id"})

_SOME_TEXT: Final = ("text", "result", "parts")
_FIELDS: Final[dict[str | None, tuple[str, ...]]] = {
    None: ("parts",),
    "text": ("parts",),
    "multimodal_text": ("parts",),
    "code": _SOME_TEXT,
    "execution_output": _SOME_TEXT,
    "tether_quote": _SOME_TEXT,
    "tether_browsing_display": _SOME_TEXT,
    "system_error": ("text",),
    "thoughts": ("thoughts",),
    "reasoning_recap": ("content",),
}
"""The field in which a content of each known type, or of none, holds its text."""

_REASONING: Final = frozenset({"thoughts", "reasoning_recap"})

_TEXT_TYPES: Final = frozenset({"text", "audio_transcription"})
_MEDIA: Final = {
    "image_asset_pointer": "image",
    "audio_asset_pointer": "audio",
    "video_container_asset_pointer": "video",
    "real_time_user_audio_video_asset_pointer": "audio",
}
_SUBTYPE = re.compile(r"[a-z0-9][a-z0-9.+-]*")


def convert(record: Any) -> Conversation:
    """
    Make a conversation of one decoded record.

    Raises:
        FormatError: If it is none, naming it by its id and title as far as it has them.

    """
    if not isinstance(record, dict):
        raise FormatError(f"it is {kind_of(record)}, not a conversation")
    source_id = _text(record.get("conversation_id")) or _text(record.get("id"))
    title = _text(record.get("title"))
    try:
        return _conversation(record, source_id, title)
    except FormatError as fault:
        fault.source_id, fault.title = source_id, title
        raise


def _conversation(record: Json, source_id: str | None, title: str | None) -> Conversation:
    mapping = record.get("mapping")
    if not isinstance(mapping, dict):
        reason = f"is {kind_of(mapping)}, not an object" if "mapping" in record else "is missing"
        raise FormatError(f"its mapping, which holds the messages, {reason}")
    created_at = ms_of_seconds(record.get("create_time"))
    nodes = [_node(key, node) for key, node in mapping.items()]
    layout = lay_out(nodes, start=created_at)

    default_model = _text(record.get("default_model_slug"))
    calls: dict[str, _Call] = {}
    messages = [
        _message(place, mapping[place.key], default_model, calls) for place in layout.places
    ]

    current = record.get("current_node")
    active_id = layout.ids.get(current) if isinstance(current, str) else None
    known = {"mapping", *(key for key in ("id", "conversation_id") if record.get(key) == source_id)}
    if title is not None:
        known.add("title")
    fields = {key: value for key, value in record.items() if key not in known}
    return Conversation(
        source_id=source_id,
        name=title,
        messages=messages,
        active_id=active_id or layout.newest_leaf(),
        metadata={"source": {"format": _NAME, "id": source_id, "fields": fields}},
        created_at=created_at,
        updated_at=ms_of_seconds(record.get("update_time")),
    )


def _node(key: str, node: Any) -> SourceNode:
    if not isinstance(node, dict):
        raise FormatError(f"node {quoted(key)} is {kind_of(node)}, not an object")
    parent = node.get("parent")
    if parent is not None and not isinstance(parent, str):
        raise FormatError(f"node {quoted(key)}: its parent is {kind_of(parent)}, not a key")
    children = [child for child in _items(node.get("children")) if isinstance(child, str)]
    message = node.get("message")
    if message is None:
        return SourceNode(key, parent, None, None, children)
    if not isinstance(message, dict):
        raise FormatError(f"node {quoted(key)}: its message is {kind_of(message)}, not an object")
    role = _object(message.get("author")).get("role")
    if not isinstance(role, str):
        raise FormatError(f"node {quoted(key)}: its message has no author with a role")
    if role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise FormatError(f"node {quoted(key)}: the role {quoted(role)} is none of {known}")
    time = ms_of_seconds(message.get("create_time"))
    return SourceNode(key, parent, cast(Role, role), time, children)


# One message ----------------------------------------------------------------------------


class _Call:
    """A tool call, as its results need to know it."""

    def __init__(self, message_id: str, tool: str) -> None:
        self.id = f"call_{message_id}"
        self.tool = tool


def _message(
    place: Place, node: Json, default_model: str | None, calls: dict[str, _Call]
) -> ImportedMessage:
    message: Json = node["message"]
    role: Role = message["author"]["role"]
    model = _text(_object(message.get("metadata")).get("model_slug")) or default_model
    content = message.get("content")
    parts, rest = _content(content)

    recipient = _text(message.get("recipient"))
    if role == "assistant" and recipient and recipient != "all":
        call = calls[place.id] = _Call(place.id, recipient)
        parts, rest = _tool_call(call, parts, content, rest)
    elif role == "tool":
        found = calls.get(place.parent_id) if place.parent_id is not None else None
        if found is None:
            found = _Call(place.id, _text(message["author"].get("name")) or "unknown")
        else:
            # A call may have several results, each below the one before.
            calls[place.id] = found
        parts, rest = _tool_result(found, parts, content, rest)
    elif role == "user" and not parts:
        # A prompt without parts is one that still waits for its text.
        parts = [{"type": "text", "text": ""}]

    return ImportedMessage(
        id=place.id,
        parent_id=place.parent_id,
        role=role,
        status=_status(message),
        siblings_group_id=place.siblings_group_id,
        data={"parts": parts, "source": _source(place.key, node, rest)},
        model_id=model if role == "assistant" else None,
        created_at=place.created_at,
    )


def _status(message: Json) -> Status:
    return "paused" if _text(message.get("status")) in _UNFINISHED else "success"


def _source(key: str, node: Json, content: Any) -> Json:
    """Keep of a node what its message does not say elsewhere (G9)."""
    message: Json = node["message"]
    source: Json = {"format": _NAME, "id": key}
    if (time := message.get("create_time")) is not None:
        source["time"] = time
    kind = _text(_object(message.get("content")).get("content_type"))
    hidden = _object(message.get("metadata")).get("is_visually_hidden_from_conversation")
    if hidden is True or kind in _INSTRUCTIONS:
        source["hidden"] = True
    fields = {
        name: value for name, value in message.items() if name not in ("create_time", "content")
    }
    if fields.get("id") == key:
        del fields["id"]
    fields["author"] = {name: value for name, value in message["author"].items() if name != "role"}
    if "content" in message:
        fields["content"] = content
    source["fields"] = fields
    node_fields = {
        name: value
        for name, value in node.items()
        if name not in ("parent", "children", "message") and (name, value) != ("id", key)
    }
    if node_fields:
        source["node"] = node_fields
    return source


# Content --------------------------------------------------------------------------------


def _content(content: Any) -> tuple[list[Json], Any]:
    """Turn a message's content into parts, and tell what of it is not in them."""
    if content is None:
        return [], None
    fields = _object(content)
    kind = _text(fields.get("content_type"))
    named = next((name for name in _FIELDS.get(kind, ()) if fields.get(name)), None)
    if named is None:
        # An empty text is a text; only without any does the content have another form.
        named = next((name for name in _FIELDS.get(kind, ()) if name in fields), None)
    if named is not None and (parts := _parts(kind, fields[named])) is not None:
        return parts, {name: value for name, value in fields.items() if name != named}
    return [{"type": _DATA_PART, "data": content}], {"content_type": kind} if fields else None


def _parts(kind: str | None, value: Any) -> list[Json] | None:
    """Turn the field that holds a content's text into parts; None if it has another form."""
    reasons = kind in _REASONING
    if isinstance(value, str):
        return [{"type": "reasoning" if reasons else "text", "text": value}]
    if not isinstance(value, list):
        return None
    return [_thought(part) if reasons else _part(part) for part in value]


def _thought(thought: Any) -> Json:
    if isinstance(thought, str):
        return {"type": "reasoning", "text": thought}
    fields = _object(thought)
    if text := _text(fields.get("content")):
        return _with_rest({"type": "reasoning", "text": text}, fields, "content")
    if text := _text(fields.get("summary")):
        return _with_rest({"type": "reasoning", "text": text}, fields, "summary")
    return {"type": _DATA_PART, "data": thought}


def _part(part: Any) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    fields = _object(part)
    kind = _text(fields.get("content_type"))
    if kind in _TEXT_TYPES and isinstance(text := fields.get("text"), str):
        return _with_rest({"type": "text", "text": text}, fields, "text")
    if kind in _MEDIA:
        # The pointer to what was said and seen live holds the pointer to what was said.
        inner = fields.get("audio_asset_pointer")
        asset = inner if isinstance(inner, dict) else fields
        if isinstance(url := asset.get("asset_pointer"), str):
            subtype = asset.get("format")
            if not isinstance(subtype, str) or not _SUBTYPE.fullmatch(subtype):
                subtype = "*"
            media = f"{_MEDIA[kind]}/{subtype}"
            return _with_rest(
                {"type": "file", "mediaType": media, "url": url}, fields, "asset_pointer"
            )
    return {"type": _DATA_PART, "data": part}


def _with_rest(part: Json, fields: Json, used: str) -> Json:
    """Keep the other fields of a source's part beside what was made of it."""
    if rest := {key: value for key, value in fields.items() if key != used}:
        part["providerMetadata"] = {_NAME: rest}
    return part


def _tool_call(call: _Call, parts: list[Json], content: Any, rest: Any) -> tuple[list[Json], Any]:
    text, others, rest = _joined(parts, content, rest)
    made = {
        "type": f"tool-{call.tool}",
        "toolCallId": call.id,
        "state": "input-available",
        "input": text,
    }
    return [made, *others], rest


def _tool_result(call: _Call, parts: list[Json], content: Any, rest: Any) -> tuple[list[Json], Any]:
    text, others, rest = _joined(parts, content, rest)
    made = {"type": f"tool-{call.tool}", "toolCallId": call.id}
    if _object(content).get("content_type") == "system_error":
        made |= {"state": "output-error", "errorText": text}
    else:
        made |= {"state": "output-available", "output": text}
    return [made, *others], rest


def _joined(parts: list[Json], content: Any, rest: Any) -> tuple[str, list[Json], Any]:
    """Join the texts to one, and keep the content whole if that hides where one ended."""
    texts = [part for part in parts if part["type"] == "text"]
    others = [part for part in parts if part["type"] != "text"]
    if len(texts) > 1 or any("providerMetadata" in part for part in texts):
        rest = content
    return "\n".join(part["text"] for part in texts), others, rest


# Reading what may be anything -------------------------------------------------------------


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _recognises(head: Head) -> bool:
    return not head.keys.isdisjoint(_KEYS)


def _read(chunks: Iterable[bytes], max_record_bytes: int) -> Iterator[Record]:
    return read_json(chunks, max_record_bytes, convert)


CHATGPT: Final = Format(
    name=_NAME,
    title="ChatGPT data export (conversations.json)",
    recognises=_recognises,
    read=_read,
)
