import json
from typing import Any, get_args

import pytest
from livetree.core import protocol as p
from livetree.core.schema import json_schema

from tests.tree.test_protocol import FRAMES, REQUESTS, frame, request

SCHEMA = json_schema()
DEFINED = SCHEMA["$defs"]


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Tell whether a value fits a schema, for those words that ours has."""
    return not complaints(value, schema, "it")


def complaints(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    if "$ref" in schema:
        found = complaints(value, DEFINED[schema["$ref"].removeprefix("#/$defs/")], where)
        rest = {key: each for key, each in schema.items() if key != "$ref"}
        return found + complaints(value, rest, where) if rest else found
    unknown = {*schema} - WORDS
    assert not unknown, f"the schema uses {unknown}, which this test doesn't know"
    found = []
    if "anyOf" in schema and not any(fits(value, each) for each in schema["anyOf"]):
        found.append(f"{where} fits none of {len(schema['anyOf'])}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where} is none of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{where} is not {schema['const']}")
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(TYPES[kind](value) for kind in kinds):
            return [*found, f"{where} is no {kinds}"]
    if isinstance(value, dict):
        found += object_complaints(value, schema, where)
    if isinstance(value, list):
        found += list_complaints(value, schema, where)
    if isinstance(value, str):
        size = len(value)
        if not schema.get("minLength", 0) <= size <= schema.get("maxLength", size):
            found.append(f"{where} has {size} characters")
    if type(value) in (int, float) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        found.append(f"{where} is out of bounds")
    if "if" in schema and fits(value, schema["if"]):
        found += complaints(value, schema["then"], where)
    return found


def object_complaints(value: dict[str, Any], schema: dict[str, Any], where: str) -> list[str]:
    properties = schema.get("properties", {})
    found = [f"{where} has no {key}" for key in schema.get("required", ()) if key not in value]
    for key, item in value.items():
        other = schema.get("additionalProperties", True)
        if key in properties:
            found += complaints(item, properties[key], f"{where}.{key}")
        elif other is False:
            found.append(f"{where} has the unknown {key}")
        elif other is not True:
            found += complaints(item, other, f"{where}.{key}")
    return found


def list_complaints(value: list[Any], schema: dict[str, Any], where: str) -> list[str]:
    size = len(value)
    found = []
    if not schema.get("minItems", 0) <= size <= schema.get("maxItems", size):
        found.append(f"{where} has {size} items")
    first = schema.get("prefixItems", [])
    for place, (item, each) in enumerate(zip(value, first, strict=False)):
        found += complaints(item, each, f"{where}[{place}]")
    if isinstance(rest := schema.get("items"), dict):
        for place, item in enumerate(value[len(first) :]):
            found += complaints(item, rest, f"{where}[{place}]")
    return found


TYPES = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "null": lambda value: value is None,
}
WORDS = {
    *("title", "description", "default", "discriminator", "type", "enum", "const", "anyOf"),
    *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems"),
    *("maxItems", "minLength", "maxLength", "minimum", "maximum", "if", "then"),
}
CLIENT = {"$ref": "#/$defs/ClientFrame"}
SERVER = {"$ref": "#/$defs/ServerFrame"}


def test_every_command_and_frame_is_there_and_says_what_it_is():
    for kind in (*p.COMMANDS, p.Hello, *get_args(p.ServerFrame)):
        assert DEFINED[kind.__name__]["description"], kind


@pytest.mark.parametrize("op", REQUESTS)
def test_every_request_fits(op: str):
    assert complaints(request(op), CLIENT, op) == []
    assert not fits(request(op, extra=1), CLIENT)
    assert not fits({key: value for key, value in request(op).items() if key != "id"}, CLIENT)


@pytest.mark.parametrize("kind", FRAMES)
def test_every_frame_fits(kind: str):
    made = json.loads(frame(kind))

    assert complaints(made, SERVER, kind) == []
    assert fits(made | {"more": 1}, SERVER), "a newer server may say more"
    assert not fits(made | {"type": "nope"}, SERVER)


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("message.create", {"role": "root"}),
        ("message.create", {"role": None}),
        ("message.create", {"data": []}),
        ("message.create", {"data": {"parts": [{}]}}),
        ("message.create", {"data": {"parts": [{"type": "text"}]}}),
        ("message.create", {"stats": [1]}),
        ("message.create", {"group": -1}),
        ("message.create", {"id": -1}),
        ("message.create", {"id": 2**53}),
        ("stream.append", {"ops": []}),
        ("stream.append", {"ops": [["t", 0]]}),
        ("stream.append", {"ops": [["p", 0, {}]]}),
        ("turn.submit", {"user": {"mode": "other"}}),
        ("batch", {"commands": [{"op": "topic.delete"}]}),
        ("tree.get", {"depth": -2}),
    ],
    ids=str,
)
def test_what_the_server_would_refuse_does_not_fit(op: str, changes: dict[str, Any]):
    assert not fits(request(op, **changes), CLIENT)


def test_hello_comes_first_and_fits():
    hello = {"type": "hello", "protocol": "livetree.v1", "resume": [{"topic": "t", "seq": 1}]}

    assert fits(hello, CLIENT)
    assert not fits({**hello, "resume": [{}]}, CLIENT)


def test_every_reference_leads_somewhere():
    def references(value: Any) -> set[str]:
        if isinstance(value, list):
            return set().union(*map(references, value)) if value else set()
        if not isinstance(value, dict):
            return set()
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))

    names = {name.removeprefix("#/$defs/") for name in references(SCHEMA)}

    assert names <= {*DEFINED}
    assert {*DEFINED} - names <= {"ServerFrame", "TopicInfo", "BranchPage", "TreePage"}
