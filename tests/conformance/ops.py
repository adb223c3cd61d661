"""The ops of the cases, said in commands of the protocol."""

from collections.abc import Callable
from typing import Any, get_args

import msgspec
from livetree.core import protocol as p
from livetree.core.flow import LiveRow, flow_graph, merge
from livetree.formats.cherry_v1 import migrate
from livetree.formats.reachable import check_reachable

from .backend import Backend, Pen, Row, row_of
from .matching import CaseFault

Step = dict[str, Any]
Op = Callable[[Backend, Step], dict[str, Any]]

FEATURES = {
    *("anchors", "clock", "soft-delete", "raw-store", "live", "temporary", "migrate", "flow"),
}
COMMON = {"op", "topic", "as", "at", "error", "expect"}


def strange(step: Step) -> set[str]:
    """Return a step's parameters that its op doesn't have."""
    return {*step} - COMMON - {*PARAMETERS[step["op"]].split()} if step["op"] in OPS else set()


def lacking(step: Step) -> str | None:
    """Return what of a step's op has no command yet."""
    if step["op"] == "turn.submit" and step.get("whenLive") == "queue":
        return "whenLive queue"
    return None


def perform(backend: Backend, step: Step) -> dict[str, Any]:
    """
    Carry out a step whose references are resolved, and return its result in the cases' words.

    Raises:
        Refused: If it is refused.
        KeyError: If there is no such op.

    """
    return OPS[step["op"]](backend, step)


def _ask(backend: Backend, step: Step, **command: Any) -> dict[str, Any]:
    told = {key: value for key, value in command.items() if value is not _ABSENT}
    told.setdefault("op", step["op"])
    told.setdefault("topic", step["topic"])
    return backend.request(told, step.get("at"))


_ABSENT: Any = object()


def _given(step: Step, *names: str, **renamed: str) -> dict[str, Any]:
    """Take parameters of a step that are there, by their own name or by the protocol's."""
    found = {name: step[name] for name in names if name in step}
    return found | {told: step[name] for told, name in renamed.items() if name in step}


def _row(backend: Backend, topic: str, message_id: str) -> Row:
    return backend.stored()[topic].rows[message_id]


# Topics ----------------------------------------------------------------------------------


def _topic_create(backend: Backend, step: Step) -> dict[str, Any]:
    told = backend.request({"op": "topic.create"}, step.get("at"))
    return {"id": told["topic"], "active": backend.stored()[told["topic"]].active}


def _duplicate(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, nodeId=step["nodeId"])
    return {"id": told["topic"], "active": told["activeNodeId"]}


def _persist(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, op="topic.persist", topic=step["id"])
    kept = backend.stored()[told["topic"]]
    return {"id": kept.root_id, "topic": told["topic"], "count": len(kept.rows) - 1}


def _topic_clear(backend: Backend, step: Step) -> dict[str, Any]:
    return {"deleted": _ask(backend, step)["deleted"]}


def _topic_delete(backend: Backend, step: Step) -> dict[str, Any]:
    _ask(backend, step)
    return {}


def _set_active(backend: Backend, step: Step) -> dict[str, Any]:
    return {"active": _ask(backend, step, nodeId=step["nodeId"])["activeNodeId"]}


# Messages --------------------------------------------------------------------------------


def _create(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(
        backend,
        step,
        **_given(step, "parent", "role", "text", "data", "status", "setActive", "group", "model"),
    )
    return _row(backend, step["topic"], told["messageId"])


def _create_sibling(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, **_given(step, "sourceId", "text", "data"))
    return _row(backend, step["topic"], told["messageId"])


def _update(backend: Backend, step: Step) -> dict[str, Any]:
    changes = _given(step, "parent", "text", "data", "status", "group")
    _ask(backend, step, messageId=step["id"], **changes)
    return _row(backend, step["topic"], step["id"])


def _delete(backend: Backend, step: Step) -> dict[str, Any]:
    flags = _given(step, "cascade", "strategy", "awaitingInputOnly")
    told = _ask(backend, step, messageId=step["id"], **flags)
    return {key: told[key] for key in ("deleted", "reparented", "newActive")}


def _delete_group(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, messageId=step["id"])
    return {key: told[key] for key in ("deleted", "reparented", "newActive")}


def _retry(backend: Backend, step: Step) -> dict[str, Any]:
    _ask(backend, step, messageId=step["id"])
    return _row(backend, step["topic"], step["id"])


def _reserve(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, **_given(step, "anchorId", "activate"))
    return _row(backend, step["topic"], told["messageId"])


def append_temporary(backend: Backend, step: Step) -> dict[str, Any]:
    """Put a message into a temporary chat, which has no other words for it."""
    given = _given(step, "parent", "role", "text", "setActive", "group", messageId="messageId")
    told = _ask(
        backend,
        step,
        op="message.create",
        topic=step["id"],
        status=step.get("status", "success"),
        **given,
    )
    return {"id": told["messageId"]}


def _submit(backend: Backend, step: Step) -> dict[str, Any]:
    user = step["user"]
    told = _ask(
        backend,
        step,
        user=_given(user, "mode", "parent", "text", "status", "model", messageId="id"),
        placeholders=[_given(each, "model", messageId="id") for each in step["placeholders"]],
        **_given(step, "group", "preserveActive", "whenLive"),
    )
    rows = backend.stored()[step["topic"]].rows
    return {
        "id": told["userId"],
        "user": rows[told["userId"]],
        "placeholders": [rows[each] for each in told["placeholderIds"]],
    }


# Reads -----------------------------------------------------------------------------------


def _tree_get(backend: Backend, step: Step) -> dict[str, Any]:
    return _tree_page(_ask(backend, step, **_given(step, "depth", "nodeId", "rootId")))


def _tree_page(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "rootId": told["rootId"],
        "active": told["activeNodeId"],
        "nodes": [_tree_node(node) for node in told["nodes"]],
        "groups": [
            {
                "parent": group["parentId"],
                "group": group["group"],
                "nodes": [_tree_node(node, parent=False) for node in group["nodes"]],
            }
            for group in told["groups"]
        ],
    }


def _tree_node(node: dict[str, Any], *, parent: bool = True) -> dict[str, Any]:
    taken = ("id", "role", "status", "hasChildren", "awaitingInput", "preview", "createdAt")
    return {key: node[key] for key in taken} | ({"parent": node["parentId"]} if parent else {})


def _branch_get(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, **_given(step, "nodeId", "cursor", "limit", "includeSiblings"))
    return {
        "items": [
            {**row_of(_node(item["node"])), "siblings": item["siblings"]} for item in told["items"]
        ],
        "next": told["next"],
        "active": told["activeNodeId"],
        "rootId": told["rootId"],
    }


def _path(backend: Backend, step: Step) -> dict[str, Any]:
    told = _ask(backend, step, nodeId=step["nodeId"])
    return {"ids": told["ids"], "rows": [row_of(_node(node)) for node in told["nodes"]]}


def _node(told: dict[str, Any]) -> p.Node:
    return msgspec.json.decode(msgspec.json.encode(told), type=p.Node)


# What clients make of a topic ------------------------------------------------------------


def _flow_graph(backend: Backend, step: Step) -> dict[str, Any]:
    told = _json(flow_graph(backend.view(step["topic"])))
    edge = ("onActivePath", "siblingBranch", "inactiveBranch")
    return {
        "nodes": [_flow_node(node) for node in told["nodes"]],
        "edges": [
            {"from": each["fromId"], "to": each["toId"]} | {key: each[key] for key in edge}
            for each in told["edges"]
        ],
        "stats": told["stats"],
    }


def _flow_node(told: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: told["row"][key] for key in ("id", "awaitingInput")},
        "parent": told["row"]["parentId"],
        **{key: told[key] for key in ("active", "onActivePath", "inactiveBranch")},
        **({"group": told["group"]} if told["group"] else {}),
    }


def _flow_merge(backend: Backend, step: Step) -> dict[str, Any]:
    told = step["live"]
    rows = [{**row, "parentId": row["parent"]} for row in told["nodes"]]
    live = msgspec.convert(rows, list[LiveRow])
    return _tree_page(_json(merge(backend.view(step["topic"]), live, told.get("active"))))


def _json(value: Any) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(p.encode(value))
    return told


# Old topics ------------------------------------------------------------------------------


def _migrate(backend: Backend, step: Step) -> dict[str, Any]:
    found = migrate(step["topics"])
    for conversation in found.conversations:
        backend.bring_in(conversation)
    return {
        "ok": found.ok,
        "errors": [str(fault) for fault in found.errors],
        "migrated": found.migrated,
        "skipped": found.skipped,
    }


def _validate(backend: Backend, step: Step) -> dict[str, Any]:
    found = check_reachable(
        {
            topic: [(row["id"], row["parent"]) for row in stored.rows.values()]
            for topic, stored in backend.stored().items()
        }
    )
    return {"ok": found.ok, "errors": found.errors}


# Live replies ----------------------------------------------------------------------------


def claim(backend: Backend, topic: str, message_id: str, now: int | None) -> None:
    """Begin to write a pending reply."""
    command = {"op": "stream.claim", "topic": topic, "messageId": message_id}
    backend.pens[message_id] = Pen(backend.request(command, now)["epoch"])


def _write(backend: Backend, step: Step, text: str) -> None:
    pen = backend.pens[step["id"]]
    if text:
        backend.append(step["topic"], step["id"], pen, text)
        pen.n += 1


def _finish(backend: Backend, step: Step) -> Row:
    pen = backend.pens.pop(step["id"])
    _ask(
        backend,
        step,
        op="stream.finish",
        messageId=step["id"],
        status=step["status"],
        epoch=pen.epoch,
        n=pen.n,
    )
    return _row(backend, step["topic"], step["id"])


def _finalize(backend: Backend, step: Step) -> dict[str, Any]:
    """Let a writer claim a reply, write it and end it."""
    if step["status"] not in get_args(p.Ended):
        # Alone, since what is refused after a claim leaves the claim behind.
        backend.pens[step["id"]] = Pen(1)
        return _finish(backend, step)
    claim(backend, step["topic"], step["id"], step.get("at"))
    _write(backend, step, step["text"])
    return _finish(backend, step)


def _emit(backend: Backend, step: Step) -> dict[str, Any]:
    _write(backend, step, step["delta"])
    return {}


def _end(backend: Backend, step: Step) -> dict[str, Any]:
    so_far = (backend.written(step["topic"]) or {}).get(step["id"], "")
    if not step["text"].startswith(so_far):
        raise CaseFault(f"{step['id']} can't take back that it wrote {so_far!r}")
    _write(backend, step, step["text"][len(so_far) :])
    return _finish(backend, step)


def _attach(backend: Backend, step: Step) -> dict[str, Any]:
    text = backend.written(step["topic"])
    return {"mode": "not-found"} if text is None else {"mode": "live", "text": text}


def _reconcile(backend: Backend, step: Step) -> dict[str, Any]:
    """Take the time of every pending reply as up."""
    before, _ = backend.stored(), backend.reconcile(step.get("at"))
    after = backend.stored()
    changed = [
        message_id
        for topic, stored in before.items()
        for message_id, row in stored.rows.items()
        if after[topic].rows[message_id] != row
    ]
    return {"changed": changed}


def _raw(backend: Backend, step: Step) -> dict[str, Any]:
    backend.raw(step)
    return {}


OPS: dict[str, Op] = {
    "topic.create": _topic_create,
    "topic.duplicate": _duplicate,
    "topic.persistTemporary": _persist,
    "temporary.append": append_temporary,
    "topic.clear": _topic_clear,
    "topic.delete": _topic_delete,
    "topic.setActive": _set_active,
    "message.create": _create,
    "message.createSibling": _create_sibling,
    "message.update": _update,
    "message.delete": _delete,
    "message.deleteGroup": _delete_group,
    "message.retry": _retry,
    "branch.reserve": _reserve,
    "message.finalize": _finalize,
    "turn.submit": _submit,
    "tree.get": _tree_get,
    "branch.get": _branch_get,
    "path.get": _path,
    "path.through": _path,
    "flow.graph": _flow_graph,
    "flow.merge": _flow_merge,
    "migrate.v1": _migrate,
    "migrate.validate": _validate,
    "stream.emit": _emit,
    "stream.end": _end,
    "stream.attach": _attach,
    "boot.reconcile": _reconcile,
    "store.raw": _raw,
}

PARAMETERS: dict[str, str] = {
    "topic.create": "",
    "topic.duplicate": "nodeId",
    "topic.persistTemporary": "id",
    "temporary.append": "id role text parent group setActive status",
    "topic.clear": "",
    "topic.delete": "",
    "topic.setActive": "nodeId",
    "message.create": "parent role text data status setActive group model",
    "message.createSibling": "sourceId text data",
    "message.update": "id parent text data status group",
    "message.delete": "id cascade strategy awaitingInputOnly",
    "message.deleteGroup": "id",
    "message.retry": "id",
    "branch.reserve": "anchorId activate",
    "message.finalize": "id status text",
    "turn.submit": "user placeholders group preserveActive whenLive",
    "tree.get": "depth nodeId rootId",
    "branch.get": "nodeId cursor limit includeSiblings",
    "path.get": "nodeId",
    "path.through": "nodeId",
    "flow.graph": "",
    "flow.merge": "live",
    "migrate.v1": "topics",
    "migrate.validate": "",
    "stream.emit": "id delta",
    "stream.end": "id status text",
    "stream.attach": "",
    "boot.reconcile": "",
    "store.raw": "insert update set delete pointer deleteTopic",
}
