"""The protocol as JSON Schema (draft 2020-12): what ``docs/schema.json`` is made of."""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from . import protocol as p
from .reads import BranchPage, TreePage

__all__ = ["json_schema"]

_REF: Final = "#/$defs/{name}"
_CLIENT: Final = (p.Hello, p.Ping, p.Pong)
_PAGES: Final = (p.TopicInfo, BranchPage, TreePage)

# What the structs hold as raw JSON, by the name of the field.
_OBJECT_OR_NULL: Final = {"type": ["object", "null"]}
_RAW: Final[dict[str, dict[str, Any]]] = {
    "data": {"$ref": "#/$defs/Data"},
    "metadata": _OBJECT_OR_NULL,
    "decisions": _OBJECT_OR_NULL,
    "stats": _OBJECT_OR_NULL,
    "timing": _OBJECT_OR_NULL,
    "context": _OBJECT_OR_NULL,
}
_PART: Final = {
    "title": "Part",
    "description": "One part of a message; what else it has is kept untouched.",
    "type": "object",
    "properties": {"type": {"type": "string"}, "text": {}},
    "required": ["type"],
    "if": {"properties": {"type": {"const": "text"}}},
    "then": {"properties": {"text": {"type": "string"}}, "required": ["text"]},
}
_DATA: Final = {
    "title": "Data",
    "description": "The content of a message; only an update's may lack `parts`.",
    "type": ["object", "null"],
    "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}}},
}


def json_schema() -> dict[str, Any]:
    """
    Return the schema of every frame, the same each time.

    ``ClientFrame`` is what a client may send, ``ServerFrame`` what a server may; each
    command, frame and part of one is under ``$defs`` by its name.

    """
    server = get_args(p.ServerFrame)
    kinds = [*p.COMMANDS, *_CLIENT, *server, *_PAGES]
    _, found = msgspec.json.schema_components(kinds, ref_template=_REF)
    definitions = {name: _said(each) for name, each in found.items()}
    definitions["Part"], definitions["Data"] = _PART, _DATA
    definitions["PutOp"]["prefixItems"][2] = {"$ref": "#/$defs/Part"}
    definitions["LiveText"]["properties"]["parts"]["items"] = {"$ref": "#/$defs/Part"}
    definitions["Request"] = {
        "description": "A command with the number that its answer has as `re`.",
        "required": ["op", "id"],
        "anyOf": [_ref(kind) for kind in p.COMMANDS],
    }
    definitions["ClientFrame"] = {
        "description": "What a client sends; `hello` comes first.",
        "anyOf": [*map(_ref, _CLIENT), {"$ref": "#/$defs/Request"}],
    }
    definitions["ServerFrame"] = {
        "description": "What a server sends.",
        "anyOf": [_ref(kind) for kind in server],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": p.PROTOCOL,
        "description": "Generated from livetree.core.protocol: python -m tests.house.generate.",
        "$ref": "#/$defs/ClientFrame",
        "$defs": dict(sorted(definitions.items())),
    }


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}


def _said(schema: dict[str, Any]) -> dict[str, Any]:
    """Complete what msgspec says of one struct."""
    schema = dict(schema)
    if "description" in schema:
        schema["description"] = schema["description"].replace("``", "`")
    if "properties" not in schema:
        return schema
    properties = {name: _field(name, each) for name, each in schema["properties"].items()}
    return {**schema, "properties": properties}


def _field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("default") == -1:  # a request's number, which every request has
        return {key: value for key, value in schema.items() if key != "default"}
    is_raw = not {*schema} - {"default"}
    return {**schema, **_RAW[name]} if is_raw and name in _RAW else schema
