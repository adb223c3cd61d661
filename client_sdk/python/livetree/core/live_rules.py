"""The rules of turns and live replies: offered, claimed, ended."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from . import protocol as p
from .content import EMPTY_DATA, emptied, is_empty, merge_data, parts_checksum
from .draft import Draft
from .errors import Conflict, InvalidOperation, StaleStream
from .planning import (
    Content,
    Context,
    clear_context_below,
    content_node,
    data_of,
    fresh_group,
    fresh_id,
    insert,
    object_of,
    parent_of,
    refuse_if_live,
    touch,
)

__all__ = [
    "ExpireLease",
    "ExpireOffer",
    "abort",
    "claim",
    "expire_lease",
    "expire_offer",
    "finish",
    "retry",
    "turn_submit",
]


class ExpireLease(p.Mutation, frozen=True, kw_only=True, tag="stream.expire"):
    """The server's own: a writer has vanished, its reply is offered again."""

    message_id: str
    epoch: int


class ExpireOffer(p.Mutation, frozen=True, kw_only=True, tag="offer.expire"):
    """The server's own: nobody writes this pending reply, it ends as an error."""

    message_id: str


def turn_submit(draft: Draft, command: p.TurnSubmit, context: Context) -> dict[str, Any]:
    """Add a user message, or take one that is there, and offer the replies to it."""
    _make_way(draft, command.when_live, context)
    if isinstance(command.user, p.Existing):
        user = content_node(draft, command.user.message_id)
        if user.role != "user":
            raise InvalidOperation(f"message {user.id} is of role {user.role}, not user")
    elif isinstance(command.user, p.Reserved):
        user = _fill(draft, command.user, context)
    else:
        fresh = command.user
        user = insert(
            draft,
            parent_id=parent_of(draft, fresh.parent),
            id=fresh_id(draft, fresh.message_id, context),
            role="user",
            status=fresh.status,
            data=data_of(fresh.text, fresh.data),
            model_id=fresh.model,
            author=context.subject,
        )
    group = command.group or 0
    if command.group is None and len(command.placeholders) > 1:
        # Several models' replies to one prompt are alternatives.
        group = fresh_group(draft, user.id)
    elif group:
        for child_id in draft.children(user.id):
            if not draft.node(child_id).siblings_group_id:
                draft.change(child_id, siblings_group_id=group)
    replies = []
    live = dict(draft.live)
    for placeholder in command.placeholders:
        reply = insert(
            draft,
            id=fresh_id(draft, placeholder.message_id, context),
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


def _make_way(draft: Draft, when_live: p.WhenLive, context: Context) -> None:
    """Let no reply be live any more, as the command wishes."""
    if when_live == "reject":
        refuse_if_live(draft)
    missing: list[str] = []
    for message_id in list(draft.live):
        try:
            _end(draft, draft.node(message_id), context, status="paused")
        except Content as need:
            missing += need.message_ids
    if missing:
        raise Content(missing)


def _fill(draft: Draft, reserved: p.Reserved, context: Context) -> p.Node:
    """Put a prompt into the place that was reserved for it."""
    node = content_node(draft, reserved.message_id)
    if not draft.awaits_input(node.id):
        raise InvalidOperation(f"message {node.id} no longer awaits input: add a message instead")
    data = data_of(reserved.text, reserved.data)
    if is_empty(data):
        raise InvalidOperation("a reserved prompt is filled with content: send text or parts")
    changes: dict[str, Any] = {"data": data, "author": context.subject}
    if reserved.model is not None:
        changes["model_id"] = reserved.model
    draft.change(node.id, **changes)
    touch(draft, context.now)
    return draft.node(node.id)


def retry(draft: Draft, command: p.MessageRetry, context: Context) -> dict[str, Any]:
    """Offer a reply that came to nothing again, in its place."""
    node = content_node(draft, command.message_id)
    failed = node.status in ("error", "paused") or (node.status == "success" and node.empty)
    live = node.id in draft.live
    if node.role != "assistant" or not (failed or live):
        raise InvalidOperation(
            f"message {node.id} is {node.role}, {node.status}: only a reply that failed, was "
            "paused or is empty can be retried; ask for another reply instead"
        )
    _make_way(draft, command.when_live, context)
    node = draft.node(node.id)  # which may just have been paused
    old = context.content.get(node.id) if node.data is UNSET else bytes(node.data)
    if old is None:
        raise Content([node.id])  # its turn options stay
    draft.change(
        node.id,
        status="pending",
        data=Raw(emptied(old or EMPTY_DATA)),
        decisions=None,
        timing=None,
        context=None,
    )
    clear_context_below(draft, node.id)
    draft.set_state("live", {**draft.live, node.id: 0})
    return {"messageId": node.id}


def claim(draft: Draft, command: p.StreamClaim, context: Context) -> dict[str, Any]:
    """Give a pending reply to a writer, under a new epoch."""
    node = content_node(draft, command.message_id)
    if node.role != "assistant" or node.status != "pending":
        raise InvalidOperation(f"message {node.id} is no pending reply: there is nothing to write")
    if draft.live.get(node.id, 0):
        raise Conflict(f"reply {node.id} is being written by another", messageId=node.id)
    if node.data is UNSET and not node.empty and node.id not in context.content:
        raise Content([node.id])  # the writer goes on from what is stored
    epoch = draft.seq + 1
    draft.set_state("live", {**draft.live, node.id: epoch})
    return {"messageId": node.id, "epoch": epoch, "leaseMs": command.lease_ms}


def finish(draft: Draft, command: p.StreamFinish, context: Context) -> dict[str, Any]:
    """End a reply as its writer says, with all of its ops."""
    node = content_node(draft, command.message_id)
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
        changes["stats"] = object_of(command.stats, "stats")
    if command.timing is not None:
        changes["timing"] = object_of(command.timing, "timing")
    _end(draft, node, context, **changes)
    return {"messageId": node.id, "status": command.status}


def abort(draft: Draft, command: p.StreamAbort, context: Context) -> dict[str, Any]:
    """End a reply as it is, for whoever asks."""
    node = content_node(draft, command.message_id)
    if node.id not in draft.live:
        raise InvalidOperation(f"reply {node.id} is not being written: there is nothing to stop")
    _end(draft, node, context, status="paused")
    return {"messageId": node.id, "status": "paused"}


def expire_lease(draft: Draft, command: ExpireLease, _: Context) -> dict[str, Any]:
    """Offer a reply again whose writer has vanished; a later epoch is left alone."""
    if draft.live.get(command.message_id) == command.epoch:
        draft.set_state("live", {**draft.live, command.message_id: 0})
    return {}


def expire_offer(draft: Draft, command: ExpireOffer, context: Context) -> dict[str, Any]:
    """End a reply as an error that nobody writes."""
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
    # What a command of the same batch has rewritten doesn't get its old text back.
    written = None if node.id in draft.rewritten else context.written(node.id)
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
        touch(draft, context.now)
