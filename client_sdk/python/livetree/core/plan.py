"""
What a command changes: ``plan(view, command, context)`` decides, and touches nothing.

Every rule of the tree stands here, for the server, the SDK and the tests alike. Time,
ids and randomness come in with the context; a refusal is a `LivetreeError` and leaves
no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from . import protocol as p
from .canonical import check_json
from .content import (
    EMPTY_DATA,
    check_data,
    data_of_text,
    is_empty,
    merge_data,
    parts_checksum,
    preview_of,
)
from .errors import (
    Conflict,
    InvalidOperation,
    LivetreeError,
    NotFound,
    StaleStream,
    TopicLive,
    Validation,
)
from .ids import is_id
from .tree import Draft, View, off_the_wire

__all__ = [
    "MAX_METADATA_BYTES",
    "Content",
    "Context",
    "ExpireLease",
    "ExpireOffer",
    "ImportTopic",
    "Planned",
    "Written",
    "plan",
]

MAX_METADATA_BYTES: Final = 64 * 1024
"""The most bytes of a topic's metadata, and of a message's stats, timing or context."""


class Context(Struct, frozen=True, kw_only=True):
    """
    What a plan may not find out for itself.

    Args:
        now: The time, ms since the epoch.
        commit: The id of the commit to come.
        new_id: Makes an id that is not taken.
        subject: Who asks; None for the server itself.
        content: The data of cold messages that `Content` asked for, by id.
        written: What a live reply has, for the commands that end one.

    """

    now: int
    commit: str
    new_id: Callable[[], str]
    subject: str | None = None
    content: dict[str, bytes] = {}
    written: Callable[[str], Written | None] = lambda _: None


class Written(Struct, frozen=True):
    """The ops of a live reply so far: whose, how many, and the parts that they make."""

    epoch: int
    n: int
    parts: list[dict[str, Any]]


class Content(Exception):
    """The plan needs the data of messages that the tree doesn't hold: plan again with it."""

    def __init__(self, message_ids: list[str]) -> None:
        super().__init__(message_ids)
        self.message_ids = message_ids


class Planned(Struct, frozen=True):
    """
    A decided command.

    Attributes:
        delta: The change; None if there is none.
        result: The answer: ids, never content.
        draft: The topic as it is after the change.

    """

    delta: p.Delta | None
    result: dict[str, Any]
    draft: Draft


class ExpireLease(p.Mutation, frozen=True, kw_only=True, tag="stream.expire"):
    """The server's own: a writer has vanished, its reply is offered again."""

    message_id: str
    epoch: int


class ExpireOffer(p.Mutation, frozen=True, kw_only=True, tag="offer.expire"):
    """The server's own: nobody writes this pending reply, it ends as an error."""

    message_id: str


class ImportTopic(p.Mutation, frozen=True, kw_only=True, tag="topic.import"):
    """The server's own: a whole topic in one commit; a first turn may leave its parent empty."""

    name: str
    metadata: dict[str, Any]
    nodes: list[p.Node]
    active_node_id: str | None
    last_activity_at: int


def plan(view: View, command: p.Mutation, context: Context) -> Planned:
    """
    Decide what a command changes.

    The view is only read; applying the delta is what changes the tree.

    Raises:
        LivetreeError: If the rules refuse the command.
        Content: If it needs data that the tree doesn't hold.

    """
    draft = Draft(view, context.now)
    if isinstance(command, p.Batch):
        result: dict[str, Any] = {"results": _batch(view, draft, command, context)}
    else:
        _check_base(view, command, command.base)
        result = _RULES[type(command)](draft, command, context)
    cause = p.Cause(_op(command), context.subject, command.mutation)
    delta = draft.seal(context.commit, cause)
    if delta is None:
        result |= {"seq": view.seq, "commit": view.commit}
    else:
        result |= {"seq": delta.seq, "commit": delta.commit}
    return Planned(delta, result, draft)


def _op(command: p.Mutation) -> str:
    return str(command.__struct_config__.tag)


def _batch(view: View, draft: Draft, batch: p.Batch, context: Context) -> list[dict[str, Any]]:
    results = []
    for place, command in enumerate(batch.commands):
        try:
            if command.topic not in ("", batch.topic):
                raise Validation("it names another topic than the batch: leave topic out")
            if command.mutation is not None:
                raise Validation("it has a mutation id of its own: the batch has one")
            _check_base(view, command, batch.base if command.base is None else command.base)
            results.append(_RULES[type(command)](draft, command, context))
        except LivetreeError as error:
            error.args = (f"commands[{place}] ({_op(command)}): {error}",)
            error.details["command"] = place
            raise
    return results


# Guards ---------------------------------------------------------------------------------


def _content_node(view: View, message_id: str, what: str = "message") -> p.Node:
    if message_id == view.root_id:
        raise InvalidOperation(f"{what} {message_id} is the virtual root, which is no message")
    node = view.get(message_id)
    if node is None:
        raise NotFound(f"there is no {what} {message_id} in topic {view.topic_id}", id=message_id)
    return node


def _parent_id(draft: Draft, parent: str) -> str:
    if parent == "AUTO":
        return draft.active_node_id or draft.root_id
    if parent in ("ROOT", draft.root_id):
        return draft.root_id
    if draft.get(parent) is None:
        raise NotFound(f"there is no parent {parent} in topic {draft.topic_id}", id=parent)
    return parent


def _fresh_id(draft: Draft, asked: str | None, context: Context) -> str:
    if asked is None:
        return context.new_id()
    if not is_id(asked):
        raise Validation(f"id {asked[:80]!r} is not of the form [A-Za-z0-9_-]{{1,64}}")
    if asked == draft.root_id or draft.is_taken(asked):
        raise Conflict(f"id {asked} is taken in topic {draft.topic_id}: choose another", id=asked)
    return asked


def _refuse_if_live(view: View) -> None:
    # Its writer holds a lease on a message that would be gone.
    for reply_id in view.live:
        raise TopicLive(reply_id)


def _refuse_if_above_live(view: View, message_id: str) -> None:
    for reply_id in view.live:
        if view.is_within(reply_id, message_id):
            raise TopicLive(reply_id)


def _check_base(view: View, command: p.Mutation, base: int | None) -> None:
    """Refuse a destructive command whose user did not see what it would destroy (DESIGN §6)."""
    if base is None:
        return
    if isinstance(command, (p.TopicClear, p.TopicDelete)):
        if view.seq > base:
            raise Conflict(
                f"the topic has changed since {base}: look at {view.seq} and decide again",
                seq=view.seq,
            )
        return
    touched: list[str] = []
    if isinstance(command, p.MessageDelete) and command.message_id in view:
        if command.cascade:
            touched = [node.id for node in view.subtree(command.message_id)]
        else:
            touched = [command.message_id, *view.children(command.message_id)]
    elif isinstance(command, p.MessageUpdate) and command.message_id in view:
        touched = [command.message_id]
    changed = [message_id for message_id in touched if view.node(message_id).version > base]
    if changed:
        raise Conflict(
            f"{len(changed)} of the messages have changed since {base}: look and decide again",
            seq=view.seq,
            changed=changed[:100],
        )


def _data(text: str | None, data: Raw | None, *, default: bytes = EMPTY_DATA) -> Raw:
    if text is not None and data is not None:
        raise Validation("text and data are both given: send one")
    if text is not None:
        return Raw(data_of_text(text))
    return Raw(default if data is None else check_data(data))


def _object(raw: Raw | None, what: str) -> Raw | None:
    if raw is None:
        return None
    if not isinstance(check_json(raw, what, max_bytes=MAX_METADATA_BYTES), dict):
        raise Validation(f"{what} is not an object")
    return Raw(bytes(raw))


def _fresh_group(draft: Draft, parent_id: str) -> int:
    return draft.top_group(parent_id) + 1


def _insert(draft: Draft, **fields: Any) -> p.Node:
    at = draft.next_created_at()
    data: Raw = fields["data"]
    node = p.Node(
        version=0,  # the draft gives it the commit's
        created_at=at,
        updated_at=at,
        preview=preview_of(data),
        empty=is_empty(data),
        **fields,
    )
    draft.insert(node)
    if node.role in ("user", "assistant"):
        _touch(draft, at)
    return node


def _touch(draft: Draft, at: int) -> None:
    if at > draft.state["lastActivityAt"]:
        draft.set_state("lastActivityAt", at)


# Topics ---------------------------------------------------------------------------------


def _topic_create(draft: Draft, command: p.TopicCreate, context: Context) -> dict[str, Any]:
    if draft.seq:
        raise Conflict(f"topic id {draft.topic_id} is taken: choose another", id=draft.topic_id)
    if not is_id(draft.topic_id):
        raise Validation(f"topic id {draft.topic_id[:80]!r} is not [A-Za-z0-9_-]{{1,64}}")
    _set_name(draft, command.name)
    if command.metadata is not None:
        draft.set_state("metadata", _metadata(command.metadata))
    draft.set_state("lastActivityAt", context.now)
    return {"topic": draft.topic_id, "rootId": draft.root_id}


def _import_topic(draft: Draft, command: ImportTopic, context: Context) -> dict[str, Any]:
    if draft.seq:
        raise Conflict(f"topic id {draft.topic_id} is taken: choose another", id=draft.topic_id)
    _set_name(draft, command.name)
    draft.set_state("metadata", command.metadata)
    draft.set_state("lastActivityAt", command.last_activity_at)
    for node in command.nodes:
        if not node.parent_id:
            node = replace(node, parent_id=draft.root_id)
        draft.insert(off_the_wire(node))
    draft.set_active(command.active_node_id)
    return {"topic": draft.topic_id, "rootId": draft.root_id}


def _set_name(draft: Draft, name: str) -> None:
    check_json(msgspec.json.encode(name), "name", max_bytes=4000)
    draft.set_state("name", name)


def _metadata(raw: Raw) -> dict[str, Any]:
    value = check_json(raw, "metadata", max_bytes=MAX_METADATA_BYTES)
    if not isinstance(value, dict):
        raise Validation("metadata is not an object")
    return value


def _topic_update(draft: Draft, command: p.TopicUpdate, _: Context) -> dict[str, Any]:
    _set_name(draft, command.name)
    return {}


def _set_metadata(draft: Draft, command: p.TopicSetMetadata, _: Context) -> dict[str, Any]:
    draft.set_state("metadata", _metadata(command.metadata))
    return {}


def _set_metadata_namespace(
    draft: Draft, command: p.TopicSetMetadataNamespace, _: Context
) -> dict[str, Any]:
    metadata = dict(draft.state["metadata"])
    metadata.pop(command.namespace, None)
    if command.value is not UNSET:
        metadata[command.namespace] = check_json(
            command.value, "value", max_bytes=MAX_METADATA_BYTES
        )
        check_json(msgspec.json.encode(metadata), "metadata", max_bytes=MAX_METADATA_BYTES)
    draft.set_state("metadata", metadata)
    return {}


def _set_active(draft: Draft, command: p.TopicSetActive, _: Context) -> dict[str, Any]:
    if command.node_id is not None:
        _content_node(draft, command.node_id)
    draft.set_active(command.node_id)
    return {"activeNodeId": command.node_id}


def _topic_clear(draft: Draft, _: p.TopicClear, __: Context) -> dict[str, Any]:
    _refuse_if_live(draft)
    gone = [node.id for top in draft.children(draft.root_id) for node in draft.subtree(top)]
    draft.set_active(None)
    for message_id in reversed(gone):
        draft.remove(message_id)
    return {"deleted": gone}


def _topic_delete(draft: Draft, _: p.TopicDelete, context: Context) -> dict[str, Any]:
    _refuse_if_live(draft)
    draft.set_state("deletedAt", context.now)
    return {}


# Messages -------------------------------------------------------------------------------


def _message_create(draft: Draft, command: p.MessageCreate, context: Context) -> dict[str, Any]:
    parent_id = _parent_id(draft, command.parent)
    node = _insert(
        draft,
        id=_fresh_id(draft, command.message_id, context),
        parent_id=parent_id,
        role=command.role,
        status=command.status,
        siblings_group_id=command.group,
        data=_data(command.text, command.data),
        model_id=command.model,
        author=context.subject,
        stats=_object(command.stats, "stats"),
    )
    if command.set_active:
        draft.set_active(node.id)
    return {"messageId": node.id}


def _create_sibling(
    draft: Draft, command: p.MessageCreateSibling, context: Context
) -> dict[str, Any]:
    source = _content_node(draft, command.source_id)
    message_id = _fresh_id(draft, command.message_id, context)
    data = _data(command.text, command.data)
    group = source.siblings_group_id
    if not group:
        group = _fresh_group(draft, source.parent_id)
        draft.change(source.id, siblings_group_id=group)
    node = _insert(
        draft,
        id=message_id,
        parent_id=source.parent_id,
        role=source.role,
        status="pending" if source.role == "assistant" else "success",
        siblings_group_id=group,
        data=data,
        model_id=source.model_id if command.model is None else command.model,
        author=context.subject,
    )
    draft.set_active(node.id)
    return {"messageId": node.id, "group": group}


def _message_update(draft: Draft, command: p.MessageUpdate, context: Context) -> dict[str, Any]:
    if command.message_id == draft.root_id:
        raise InvalidOperation("the virtual root cannot be changed")
    node = _content_node(draft, command.message_id)
    if command.if_version is not None and command.if_version != node.version:
        raise Conflict(
            f"message {node.id} has version {node.version}, not {command.if_version}: "
            "look at it and decide again",
            version=node.version,
        )
    _refuse_if_above_live(draft, node.id)
    changes: dict[str, Any] = {}
    if command.parent is not UNSET:
        changes |= _move(draft, node, command.parent)
    if command.group is not UNSET:
        changes["siblings_group_id"] = command.group
    if command.text is not UNSET or command.data is not UNSET:
        changes["data"] = Raw(_merged(node, command, context))
    if command.status is not UNSET:
        changes["status"] = command.status
    if command.model is not UNSET:
        changes["model_id"] = command.model
    if command.stats is not UNSET:
        changes["stats"] = _object(command.stats, "stats")
    if command.context is not UNSET:
        changes["context"] = _object(command.context, "context")
    ended = node.status == "pending" and changes.get("status", "pending") != "pending"
    draft.change(node.id, **changes)
    if ended and node.role == "assistant":
        _touch(draft, context.now)
    return {"messageId": node.id}


def _merged(node: p.Node, command: p.MessageUpdate, context: Context) -> bytes:
    if command.text is not UNSET and command.data is not UNSET:
        raise Validation("text and data are both given: send one")
    if command.text is not UNSET:
        patch = data_of_text(command.text)
    else:
        assert command.data is not UNSET
        patch = check_data(command.data, partial=True)
    old = context.content.get(node.id) if node.data is UNSET else bytes(node.data)
    if old is None:
        raise Content([node.id])
    return check_data(merge_data(old, patch))


def _move(draft: Draft, node: p.Node, parent: str | None) -> dict[str, Any]:
    if parent is None:
        raise InvalidOperation("a message cannot be moved to null: name the root's id instead")
    parent_id = _parent_id(draft, parent)
    if parent_id == node.parent_id:
        return {}
    if draft.is_within(parent_id, node.id):
        raise InvalidOperation(f"message {node.id} cannot be moved below itself")
    changes: dict[str, Any] = {"parent_id": parent_id}
    # Group numbers mean something below one parent only: never join a strange group.
    if node.siblings_group_id:
        changes["siblings_group_id"] = _fresh_group(draft, parent_id)
    return changes


def _message_delete(draft: Draft, command: p.MessageDelete, _: Context) -> dict[str, Any]:
    if command.message_id == draft.root_id:
        raise InvalidOperation("the virtual root cannot be deleted; topic.clear empties a topic")
    node = _content_node(draft, command.message_id)
    if command.awaiting_input_only and not draft.awaits_input(node.id):
        raise InvalidOperation(f"message {node.id} no longer awaits input: it is kept")
    _refuse_if_above_live(draft, node.id)
    if command.cascade:
        return _cascade(draft, node, command)
    return _splice(draft, node, command)


def _fallback(draft: Draft, node: p.Node, strategy: str) -> str | None:
    if strategy == "clear" or node.parent_id == draft.root_id:
        return None
    return node.parent_id


def _cascade(draft: Draft, node: p.Node, command: p.MessageDelete) -> dict[str, Any]:
    gone = [below.id for below in draft.subtree(node.id)]
    new_active: str | None = "UNCHANGED"
    if draft.active_node_id in set(gone):
        new_active = _fallback(draft, node, command.strategy)
        draft.set_active(new_active)
    for message_id in reversed(gone):
        draft.remove(message_id)
    return {"deleted": gone, "reparented": [], "newActive": new_active}


def _splice(draft: Draft, node: p.Node, command: p.MessageDelete) -> dict[str, Any]:
    children = list(draft.children(node.id))
    heir_id = node.parent_id
    handed_over = (
        command.strategy == "parent"
        and node.role == "assistant"
        and node.siblings_group_id != 0
        and draft.active_node_id is not None
        and draft.is_within(draft.active_node_id, node.id)
    )
    successor = _successor(draft, node) if handed_over else None
    if handed_over:
        # What was derived from the deleted reply is true of no descendant any more.
        for below in draft.subtree(node.id)[1:]:
            draft.change(below.id, silent=True, context=None)
        heir_id = successor or heir_id
    groups: dict[int, int] = {}
    for child_id in children:
        child = draft.node(child_id)
        changes: dict[str, Any] = {"parent_id": heir_id}
        if child.siblings_group_id:
            if child.siblings_group_id not in groups:
                groups[child.siblings_group_id] = _fresh_group(draft, heir_id)
            changes["siblings_group_id"] = groups[child.siblings_group_id]
        draft.change(child_id, **changes)
    new_active: str | None = "UNCHANGED"
    if draft.active_node_id == node.id:
        new_active = successor or _fallback(draft, node, command.strategy)
        draft.set_active(new_active)
    draft.remove(node.id)
    return {"deleted": [node.id], "reparented": children, "newActive": new_active}


def _successor(draft: Draft, node: p.Node) -> str | None:
    """Return the group's next reply by ``(createdAt, id)``, else the one before."""
    before: str | None = None
    passed = False
    for other_id in draft.children(node.parent_id):
        if other_id == node.id:
            passed = True
            continue
        other = draft.node(other_id)
        if other.role != "assistant" or other.siblings_group_id != node.siblings_group_id:
            continue
        if passed:
            return other_id
        before = other_id
    return before


# Turns and live replies -----------------------------------------------------------------


def _turn_submit(draft: Draft, command: p.TurnSubmit, context: Context) -> dict[str, Any]:
    _refuse_if_live(draft)
    if isinstance(command.user, p.Existing):
        user = _content_node(draft, command.user.message_id)
        if user.role != "user":
            raise InvalidOperation(f"message {user.id} is of role {user.role}, not user")
    else:
        fresh = command.user
        user = _insert(
            draft,
            parent_id=_parent_id(draft, fresh.parent),
            id=_fresh_id(draft, fresh.message_id, context),
            role="user",
            status=fresh.status,
            data=_data(fresh.text, fresh.data),
            model_id=fresh.model,
            author=context.subject,
        )
    group = command.group or 0
    if group:
        for child_id in draft.children(user.id):
            if not draft.node(child_id).siblings_group_id:
                draft.change(child_id, siblings_group_id=group)
    replies = []
    live = dict(draft.live)
    for placeholder in command.placeholders:
        reply = _insert(
            draft,
            id=_fresh_id(draft, placeholder.message_id, context),
            parent_id=user.id,
            role="assistant",
            status="pending",
            siblings_group_id=group,
            data=Raw(EMPTY_DATA),
            model_id=placeholder.model,
        )
        replies.append(reply.id)
        live[reply.id] = 0
    if replies:
        draft.set_state("live", live)
    if not command.preserve_active:
        draft.set_active(replies[-1] if replies else user.id)
    return {"userId": user.id, "placeholderIds": replies}


def _claim(draft: Draft, command: p.StreamClaim, _: Context) -> dict[str, Any]:
    node = _content_node(draft, command.message_id)
    if node.role != "assistant" or node.status != "pending":
        raise InvalidOperation(f"message {node.id} is no pending reply: there is nothing to write")
    if draft.live.get(node.id, 0):
        raise Conflict(f"reply {node.id} is being written by another", messageId=node.id)
    epoch = draft.seq + 1
    draft.set_state("live", {**draft.live, node.id: epoch})
    return {"messageId": node.id, "epoch": epoch, "leaseMs": command.lease_ms}


def _finish(draft: Draft, command: p.StreamFinish, context: Context) -> dict[str, Any]:
    node = _content_node(draft, command.message_id)
    # Epoch 0 is an open offer, which nobody writes.
    if not command.epoch or draft.live.get(node.id) != command.epoch:
        raise StaleStream(f"reply {node.id} is no longer yours to write", messageId=node.id)
    written = context.written(node.id)
    if written is None or written.n != command.n:
        raise InvalidOperation(
            f"reply {node.id} has {written.n if written else 0} ops, not {command.n}: "
            "send the missing ones first",
            received=written.n if written else 0,
        )
    changes: dict[str, Any] = {"status": command.status}
    if command.stats is not None:
        changes["stats"] = _object(command.stats, "stats")
    if command.timing is not None:
        changes["timing"] = _object(command.timing, "timing")
    _end(draft, node, context, **changes)
    return {"messageId": node.id, "status": command.status}


def _abort(draft: Draft, command: p.StreamAbort, context: Context) -> dict[str, Any]:
    node = _content_node(draft, command.message_id)
    if node.id not in draft.live:
        raise InvalidOperation(f"reply {node.id} is not being written: there is nothing to stop")
    _end(draft, node, context, status="paused")
    return {"messageId": node.id, "status": "paused"}


def _expire_lease(draft: Draft, command: ExpireLease, _: Context) -> dict[str, Any]:
    if draft.live.get(command.message_id) == command.epoch:
        draft.set_state("live", {**draft.live, command.message_id: 0})
    return {}


def _expire_offer(draft: Draft, command: ExpireOffer, context: Context) -> dict[str, Any]:
    node = draft.get(command.message_id)
    if node is None or node.role != "assistant" or node.status != "pending":
        return {}
    if not draft.live.get(node.id, 0):
        _end(draft, node, context, status="error", active=False)
    return {}


def _end(
    draft: Draft, node: p.Node, context: Context, *, active: bool = True, **changes: Any
) -> None:
    draft.change(node.id, **changes)
    written = context.written(node.id)
    if written is not None and written.n:
        old = context.content.get(node.id) if node.data is UNSET else bytes(node.data)
        if old is None:
            raise Content([node.id])
        parts = msgspec.json.encode({"parts": written.parts})
        data = Raw(merge_data(old, parts))
        draft.end(node.id, (written.epoch, written.n, parts_checksum(written.parts)), data)
    live = dict(draft.live)
    if live.pop(node.id, None) is not None:
        draft.set_state("live", live)
    if active:
        _touch(draft, context.now)


_RULES: Final[dict[type[p.Mutation], Callable[[Draft, Any, Context], dict[str, Any]]]] = {
    p.TopicCreate: _topic_create,
    p.TopicUpdate: _topic_update,
    p.TopicSetMetadata: _set_metadata,
    p.TopicSetMetadataNamespace: _set_metadata_namespace,
    p.TopicSetActive: _set_active,
    p.TopicClear: _topic_clear,
    p.TopicDelete: _topic_delete,
    p.MessageCreate: _message_create,
    p.MessageCreateSibling: _create_sibling,
    p.MessageUpdate: _message_update,
    p.MessageDelete: _message_delete,
    p.TurnSubmit: _turn_submit,
    p.StreamClaim: _claim,
    p.StreamFinish: _finish,
    p.StreamAbort: _abort,
    ExpireLease: _expire_lease,
    ExpireOffer: _expire_offer,
    ImportTopic: _import_topic,
}
