import json
import re
from typing import Any

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.canonical import MAX_INTEGER
from msgspec import UNSET, Raw

# Of each command one request with every field that it has.
REQUESTS: dict[str, dict[str, Any]] = {
    "topic.create": {"name": "n", "metadata": {"a": 1}, "temporary": True},
    "topic.persist": {},
    "topic.duplicate": {"nodeId": "m", "copyId": "t2", "name": "n"},
    "topic.open": {"seq": 1, "commit": "c", "streams": {"a1": [5, 2]}},
    "topic.close": {},
    "topic.get": {"minSeq": 3},
    "topic.list": {"cursor": "c", "limit": 200, "name": "n"},
    "topics.watch": {"watching": False, "limit": 200},
    "topic.markRead": {"seq": 3},
    "topic.update": {"name": "n"},
    "topic.setMetadata": {"metadata": {"a": [1.0]}},
    "topic.setMetadataNamespace": {"namespace": "a", "value": [1]},
    "topic.setActive": {"nodeId": None},
    "topic.clear": {},
    "topic.delete": {},
    "topic.restore": {},
    "topic.undo": {"seq": 3},
    "topic.deltas": {"seq": 1, "commit": "c", "limit": 1000},
    "message.create": {
        "messageId": "m",
        "parent": "ROOT",
        "role": "tool",
        "text": "hi",
        "data": {"parts": []},
        "status": "paused",
        "setActive": False,
        "group": 2,
        "model": "m",
        "stats": {"a": 1},
    },
    "message.createSibling": {
        "sourceId": "s",
        "messageId": "m",
        "text": "hi",
        "data": {"parts": []},
        "model": "m",
    },
    "message.update": {
        "messageId": "m",
        "parent": None,
        "text": "hi",
        "data": {"a": 1},
        "status": "error",
        "group": 1,
        "model": None,
        "stats": None,
        "context": {"contextTokens": 1},
        "ifVersion": 3,
    },
    "message.delete": {
        "messageId": "m",
        "cascade": True,
        "strategy": "clear",
        "awaitingInputOnly": True,
    },
    "message.deleteGroup": {"messageId": "m"},
    "message.retry": {"messageId": "m", "whenLive": "steer"},
    "message.restore": {"messageId": "m", "cascade": True},
    "message.get": {"minSeq": 1, "messageIds": ["m"]},
    "branch.reserve": {"anchorId": "m", "messageIds": ["r1", "r2"], "activate": False},
    "turn.submit": {
        "user": {
            "mode": "create",
            "messageId": "u",
            "parent": "ROOT",
            "text": "hi",
            "data": {"parts": []},
            "status": "pending",
            "model": "m",
        },
        "placeholders": [{"messageId": "p", "model": "m"}],
        "group": 2,
        "preserveActive": True,
        "whenLive": "reject",
    },
    "stream.claim": {"messageId": "m", "leaseMs": 1000},
    "stream.renew": {"messageId": "m", "epoch": 3, "leaseMs": 120000},
    "stream.append": {
        "messageId": "m",
        "epoch": 3,
        "from": 1,
        "ops": [["t", 0, "hi"], ["p", 1, {"type": "x"}]],
    },
    "stream.finish": {
        "messageId": "m",
        "epoch": 3,
        "n": 2,
        "status": "paused",
        "stats": {"a": 1},
        "timing": {"ms": 1},
    },
    "stream.abort": {"messageId": "m"},
    "batch": {"commands": [{"op": "topic.clear"}, {"op": "topic.update", "name": "n"}]},
    "tree.get": {"minSeq": 1, "depth": -1, "nodeId": "m", "rootId": "m"},
    "branch.get": {
        "minSeq": 1,
        "nodeId": "m",
        "cursor": "m",
        "limit": 500,
        "includeSiblings": False,
    },
    "path.get": {"minSeq": 1, "nodeId": "m"},
    "path.through": {"minSeq": 1, "nodeId": "m"},
    "trash.list": {"minSeq": 1, "cursor": "c", "limit": 200},
    "bot.serve": {"models": ["echo", "gpt-*"]},
}
WITHOUT_TOPIC = {"topic.list", "topics.watch", "bot.serve"}
TAGS = {kind.__struct_config__.tag: kind for kind in p.COMMANDS}
MUTATING = {kind.__struct_config__.tag for kind in p.MUTATIONS}


def request(op: str, /, **changes: Any) -> dict[str, Any]:
    made = {"id": 7, "op": op, **REQUESTS[op]}
    if op not in WITHOUT_TOPIC:
        made["topic"] = "t"
    if op in MUTATING:
        made |= {"mutation": "m-1", "base": 9}
    return {key: value for key, value in (made | changes).items() if value is not UNSET}


def decode(made: Any) -> Any:
    return p.decode_command(json.dumps(made).encode())


def fields(value: Any) -> Any:
    return msgspec.json.decode(p.encode(value))


# Requests --------------------------------------------------------------------------------


def test_every_command_is_tried_here():
    assert {*REQUESTS} == {*TAGS}
    assert len(TAGS) == len(p.COMMANDS)
    assert set(p.MUTATIONS) <= set(p.COMMANDS)
    assert all(issubclass(kind, p.Mutation) for kind in p.MUTATIONS)


@pytest.mark.parametrize("op", REQUESTS)
def test_R1_a_request_is_decoded_whole_and_encoded_as_it_was(op: str):
    made = request(op)

    command = decode(made)

    assert type(command) is TAGS[op]
    assert {*made} == {"op", *command.__struct_encode_fields__}, "every field is tried"
    told = fields(command)
    left_out = {key: value for key, value in made.items() if key not in told}
    assert told | left_out == made
    assert left_out in ({}, {"whenLive": "reject"}), "only what is the default isn't told"
    assert p.encode(decode(fields(command))) == p.encode(command)
    assert command.id == 7


@pytest.mark.parametrize("op", REQUESTS)
def test_R1_what_is_not_sent_has_its_default(op: str):
    made = request(op)
    kind = TAGS[op]
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}

    command = decode({key: made[key] for key in ("op", *required)})

    for field in msgspec.structs.fields(kind):
        if not field.required and field.default_factory is msgspec.NODEFAULT:
            assert getattr(command, field.name) == field.default


@pytest.mark.parametrize("op", REQUESTS)
def test_R3_a_field_that_is_unknown_is_refused(op: str):
    with pytest.raises(msgspec.ValidationError, match="unknown field `whenEver`"):
        decode(request(op, whenEver=1))


@pytest.mark.parametrize("op", REQUESTS)
def test_R3_names_are_camel_case_and_nothing_else(op: str):
    for key in request(op):
        snake = re.sub("[A-Z]", lambda upper: "_" + upper[0].lower(), key)
        if snake != key:
            with pytest.raises(msgspec.ValidationError):
                decode(request(op, **{key: UNSET, snake: request(op)[key]}))


@pytest.mark.parametrize("op", REQUESTS)
def test_R3_a_field_that_must_be_there_is_missed(op: str):
    for field in msgspec.structs.fields(TAGS[op]):
        if field.required:
            with pytest.raises(msgspec.ValidationError, match=field.encode_name):
                decode(request(op, **{field.encode_name: UNSET}))


@pytest.mark.parametrize("op", REQUESTS)
def test_R3_a_field_of_another_type_is_refused(op: str):
    untyped = {"data", "metadata", "value", "stats", "timing", "context"}
    for key in {*request(op)} - untyped:
        for wrong in (object, [[]], {"a": []}):
            value = {"no": {"such": "thing"}} if wrong is object else wrong
            with pytest.raises(msgspec.ValidationError):
                decode(request(op, **{key: value}))


@pytest.mark.parametrize(
    "change",
    [
        ("topic.list", {"limit": 0}),
        ("topic.list", {"limit": 201}),
        ("topics.watch", {"limit": 0}),
        ("topics.watch", {"limit": 201}),
        ("topic.update", {"name": "x" * 501}),
        ("topic.duplicate", {"name": "x" * 501}),
        ("topic.markRead", {"seq": -1}),
        ("topic.undo", {"seq": -1}),
        ("topic.setMetadataNamespace", {"namespace": ""}),
        ("topic.setMetadataNamespace", {"namespace": "x" * 201}),
        ("topic.deltas", {"limit": 1001}),
        ("topic.deltas", {"seq": -1}),
        ("message.create", {"role": "root"}),
        ("message.create", {"role": "wizard"}),
        ("message.create", {"status": "done"}),
        ("message.create", {"group": -1}),
        ("message.create", {"group": MAX_INTEGER + 1}),
        ("message.create", {"group": 1.5}),
        ("message.create", {"id": -1}),
        ("message.create", {"mutation": ""}),
        ("message.create", {"mutation": "x" * 65}),
        ("message.create", {"base": -1}),
        ("message.delete", {"strategy": "none"}),
        ("message.delete", {"cascade": 1}),
        ("message.retry", {"whenLive": "never"}),
        ("message.retry", {"whenLive": "queue"}),
        ("branch.reserve", {"messageIds": ["a", "b", "c"]}),
        ("trash.list", {"limit": 0}),
        ("trash.list", {"limit": 201}),
        ("message.get", {"messageIds": []}),
        ("message.get", {"messageIds": ["m"] * 201}),
        ("turn.submit", {"user": {"mode": "other", "messageId": "u"}}),
        ("turn.submit", {"user": {"messageId": "u"}}),
        ("turn.submit", {"user": {"mode": "existing", "messageId": "u", "text": "x"}}),
        ("turn.submit", {"user": {"mode": "create", "role": "user"}}),
        ("turn.submit", {"user": {"mode": "fill-reserved", "text": "x"}}),
        ("turn.submit", {"user": {"mode": "fill-reserved", "messageId": "u", "parent": "p"}}),
        ("turn.submit", {"placeholders": [{}] * 33}),
        ("turn.submit", {"placeholders": [{"text": "x"}]}),
        ("turn.submit", {"whenLive": "never"}),
        ("stream.claim", {"leaseMs": 999}),
        ("stream.claim", {"leaseMs": 120_001}),
        ("stream.append", {"from": 0}),
        ("stream.append", {"ops": []}),
        ("stream.append", {"ops": [["t", 0, "x"]] * 1001}),
        ("stream.append", {"ops": [["x", 0, "x"]]}),
        ("stream.append", {"ops": [["t", -1, "x"]]}),
        ("stream.append", {"ops": [["t", 0]]}),
        ("stream.append", {"ops": [["t", 0, 1]]}),
        ("stream.append", {"ops": [{"part": 0}]}),
        ("stream.finish", {"status": "pending"}),
        ("tree.get", {"depth": -2}),
        ("branch.get", {"limit": 0}),
        ("branch.get", {"limit": 501}),
        ("bot.serve", {"models": ["x"] * 101}),
        ("bot.serve", {"models": [""]}),
        ("batch", {"commands": []}),
        ("batch", {"commands": [{"op": "topic.clear"}] * 201}),
        *(
            ("batch", {"commands": [{"op": op, **REQUESTS[op]}]})
            for op in (
                *("batch", "topic.delete", "topic.create", "stream.claim", "topic.get"),
                *("topic.persist", "topic.duplicate", "topic.restore", "topic.undo"),
            )
        ),
        ("batch", {"commands": [{"op": "topic.clear", "extra": 1}]}),
    ],
    ids=str,
)
def test_R3_a_value_out_of_its_bounds_is_refused(change: tuple[str, dict[str, Any]]):
    op, changes = change

    decode(request(op))
    with pytest.raises(msgspec.ValidationError):
        decode(request(op, **changes))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"op":"nope","id":1}',
        b'{"op":1,"id":1}',
        b'{"op":"topic.get","topic":"t"',
        b'{"op":"topic.get","topic":"t"} {}',
        b'{"op":"topic.get","topic":"\xff"}',
        rb'{"op":"topic.get","topic":"\ud800"}',
        rb'{"op":"message.create","topic":"t","role":"user","text":"\udc00"}',
        b'{"op":"topic.get","topic":"t","minSeq":' + b"9" * 5_000 + b"}",
    ],
    ids=range(12),
)
def test_R3_what_is_no_request_is_refused(text: bytes):
    with pytest.raises(msgspec.DecodeError):
        p.decode_command(text)


def test_R3_endless_nesting_is_refused():
    for inner in (b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
        text = b'{"op":"topic.setMetadata","topic":"t","metadata":' + inner + b"}"
        with pytest.raises((msgspec.DecodeError, RecursionError)):
            p.decode_command(text)


@pytest.mark.parametrize("value", ['{"b": 1.0,  "a": [1E5]}', '"\\u00e9"', "[ ]", "1.50"])
def test_values_keep_the_text_that_they_came_with(value: str):
    text = '{"op":"topic.setMetadata","topic":"t","metadata": ' + value + ' , "id":3}'

    command = p.decode_command(text)

    assert isinstance(command, p.TopicSetMetadata)
    assert bytes(command.metadata) == value.encode()
    assert bytes(msgspec.json.decode(p.encode(command), type=dict[str, Raw])["metadata"]) == (
        value.encode()
    )


@pytest.mark.parametrize(
    ("op", "field"),
    [
        ("topic.create", "metadata"),
        ("message.create", "data"),
        ("message.create", "stats"),
        ("message.createSibling", "data"),
        ("stream.finish", "stats"),
        ("stream.finish", "timing"),
    ],
)
def test_an_optional_value_may_be_null_a_value_or_absent(op: str, field: str):
    assert getattr(decode(request(op, **{field: None})), field) is None
    assert getattr(decode(request(op, **{field: UNSET})), field) is None
    assert bytes(getattr(decode(request(op, **{field: {"a": 1}})), field)) == b'{"a": 1}'


@pytest.mark.parametrize("field", ["stats", "context"])
def test_an_update_tells_cleared_from_untouched(field: str):
    assert getattr(decode(request("message.update", **{field: None})), field) is None
    assert getattr(decode(request("message.update", **{field: UNSET})), field) is UNSET
    value = getattr(decode(request("message.update", **{field: {"a": 1}})), field)
    assert bytes(value) == b'{"a": 1}'


@pytest.mark.parametrize(
    "user", [{"mode": "create"}, {"mode": "fill-reserved", "messageId": "u"}], ids=str
)
def test_the_user_of_a_turn_may_bring_data(user: dict[str, Any]):
    user = user | {"data": {"parts": []}}

    command = decode(request("turn.submit", user=user))

    assert bytes(command.user.data) == b'{"parts": []}'
    assert decode(request("turn.submit", user=user | {"data": None})).user.data is None


def test_the_last_of_two_equal_keys_counts():
    command = p.decode_command(b'{"op":"topic.update","topic":"t","name":"a","name":"b"}')

    assert isinstance(command, p.TopicUpdate)
    assert command.name == "b"


# Frames ----------------------------------------------------------------------------------

NODE = {
    "id": "m",
    "parentId": "p",
    "role": "assistant",
    "status": "error",
    "siblingsGroupId": 3,
    "data": {"parts": []},
    "preview": "x",
    "empty": True,
    "decisions": {"call": {"approved": True}},
    "modelId": "x",
    "author": "ann",
    "stats": {"a": 1.5},
    "timing": {"ms": 1},
    "context": {"contextTokens": 1},
    "version": 4,
    "createdAt": 1,
    "updatedAt": 2,
}
FRAMES: dict[str, dict[str, Any]] = {
    "welcome": {
        "protocol": "livetree.v1",
        "connectionId": "c",
        "subject": "ann",
        "limits": {"frameBytes": 1, "dataBytes": 2, "subscriptions": 3},
        "done": {"m-1": {"seq": 3}},
        "server": "0.1",
        "now": 5,
    },
    "result": {"re": 1, "result": {"a": [1]}},
    "error": {"re": None, "code": "BUSY", "message": "later", "details": {"a": 1}},
    "snapshot": {
        "topic": "t",
        "rootId": "r",
        "seq": 3,
        "commit": "c",
        "activeNodeId": None,
        "digest": "0" * 16,
        "state": {"name": "n", "live": {"m": 0}},
        "nodes": [NODE],
        "live": [{"messageId": "m", "epoch": 3, "n": 2, "parts": [{"type": "text", "text": ""}]}],
        "chunk": 0,
        "chunks": 1,
        "reset": True,
    },
    "delta": {
        "topic": "t",
        "rootId": "r",
        "seq": 3,
        "commit": "c",
        "prev": "b",
        "activeNodeId": "m",
        "put": [
            {key: NODE[key] for key in NODE if key not in ("preview", "empty", "version")},
            {"id": "n", "context": None, "stats": None, "modelId": None, "timing": None},
        ],
        "drop": ["x"],
        "set": {"live": {"m": 3}},
        "ended": {"m": [3, 2, 77]},
        "digest": "0" * 16,
        "cause": {"op": "batch", "by": "ann", "mutation": "m-1"},
        "large": True,
    },
    "synced": {"topic": "t", "seq": 3, "commit": "c", "digest": "0" * 16},
    "stream": {
        "topic": "t",
        "messageId": "m",
        "epoch": 3,
        "from": 1,
        "to": 9,
        "ops": [["t", 0, "x"], ["p", 1, {"type": "x"}]],
        "reset": True,
    },
    "streamAck": {"topic": "t", "messageId": "m", "epoch": 3, "received": 9, "durable": 4},
    "offer": {"topic": "t", "messageId": "m", "model": None},
    "gone": {"topic": "t", "reason": "deleted"},
    "topics": {
        "whole": True,
        "topics": [
            {
                "id": "t",
                "rootId": "r",
                "name": "n",
                "seq": 3,
                "commit": "c",
                "activeNodeId": "m",
                "metadata": {"a": 1},
                "createdAt": 1,
                "lastActivityAt": 2,
                "temporary": False,
                "readSeq": 2,
                "unread": 1,
            }
        ],
        "gone": ["x"],
        "next": "cursor",
    },
    "read": {"topic": "t", "readSeq": 2, "unread": 1},
    "ping": {},
    "pong": {},
}


def frame(kind: str, /, **changes: Any) -> bytes:
    return json.dumps({"type": kind, **FRAMES[kind], **changes}).encode()


def test_every_frame_is_tried_here():
    kinds = p.ServerFrame.__args__  # type: ignore[attr-defined]

    assert {*FRAMES} == {kind.__struct_config__.tag for kind in kinds}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_is_decoded_whole_and_encoded_as_it_was(kind: str):
    decoded = p.decode_frame(frame(kind))

    assert {*FRAMES[kind]} == {*decoded.__struct_encode_fields__}, "every field is tried"
    assert fields(decoded) == {"type": kind, **FRAMES[kind]}


@pytest.mark.parametrize("kind", FRAMES)
def test_an_older_client_reads_what_a_newer_server_adds(kind: str):
    assert p.decode_frame(frame(kind, more={"a": [1]})) == p.decode_frame(frame(kind))


def test_D4_a_put_tells_cleared_from_unchanged():
    decoded = p.decode_frame(frame("delta"))
    assert isinstance(decoded, p.Delta)
    whole, change = decoded.put

    assert bytes(whole.stats) == b'{"a": 1.5}'  # type: ignore[arg-type]
    assert (change.stats, change.context, change.model_id, change.timing) == (None,) * 4
    assert (change.decisions, change.data, change.status) == (UNSET,) * 3
    assert p.encode(p.decode_frame(p.encode(decoded))) == p.encode(decoded)


def test_S4_a_nodes_empty_fields_do_not_travel():
    node = p.Node(id="m", parent_id="p", role="user", version=1, created_at=2, updated_at=2)

    assert fields(node) == {
        "id": "m",
        "parentId": "p",
        "role": "user",
        "version": 1,
        "createdAt": 2,
        "updatedAt": 2,
    }
    null = json.dumps(fields(node) | {"stats": None, "context": None}).encode()
    assert msgspec.json.decode(null, type=p.Node) == node


def test_D2_a_delta_tells_its_position_even_where_nothing_is_active():
    delta = p.Delta(
        topic="t",
        root_id="r",
        seq=1,
        commit="c",
        prev=None,
        active_node_id=None,
        digest="0" * 16,
        cause=p.Cause("topic.create"),
    )

    assert fields(delta) == {
        "type": "delta",
        "topic": "t",
        "rootId": "r",
        "seq": 1,
        "commit": "c",
        "prev": None,
        "activeNodeId": None,
        "put": [],
        "drop": [],
        "set": {},
        "ended": {},
        "digest": "0" * 16,
        "cause": {"op": "topic.create"},
    }


def test_ops_are_short():
    ops = [p.TextOp(0, "x"), p.PutOp(1, Raw(b'{"type":"x"}'))]

    assert p.encode(ops) == b'[["t",0,"x"],["p",1,{"type":"x"}]]'


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"type":"nope"}',
        b'{"type":"gone","topic":"t"}',
        frame("error", re="1"),
        frame("snapshot", nodes=[{"id": "m"}]),
        rb'{"type":"gone","topic":"t","reason":"\ud800"}',
    ],
    ids=range(7),
)
def test_what_is_no_frame_is_refused(text: bytes):
    with pytest.raises(msgspec.DecodeError):
        p.decode_frame(text)


def test_H1_hello_has_all_that_a_resume_needs():
    made = {
        "type": "hello",
        "protocol": "livetree.v1",
        "token": "x",
        "client": "test",
        "unacknowledged": ["m-1"],
        "resume": [{"topic": "t", "seq": 3, "commit": "c", "streams": {"m": [3, 2]}}],
    }

    hello = msgspec.json.decode(json.dumps(made).encode(), type=p.Hello)

    assert fields(hello) == made
    assert {*made} == {"type", *p.Hello.__struct_encode_fields__}
    bare = msgspec.json.decode(b'{"type":"hello","protocol":"livetree.v1"}', type=p.Hello)
    assert (bare.token, bare.unacknowledged, bare.resume) == (None, [], [])


def test_what_is_decoded_can_not_be_changed():
    command = decode(request("topic.update"))

    with pytest.raises(AttributeError):
        command.name = "other"


def test_close_codes_tell_whether_to_come_back():
    codes = {name: code for name, code in vars(p.Close).items() if name.isupper()}

    assert codes == {
        "PROTOCOL_ERROR": 4400,
        "UNAUTHENTICATED": 4401,
        "FORBIDDEN": 4403,
        "NO_HELLO": 4408,
        "TOO_LARGE": 4413,
        "RATE_LIMITED": 4429,
        "RESTARTING": 1012,
        "OVERLOADED": 1013,
    }
