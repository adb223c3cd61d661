"""
What a command changes: ``plan(view, command, context)`` decides, and touches nothing.

The rules themselves stand in `topic_rules`, `message_rules`, `delete_rules`, `trash_rules`
and `live_rules`, for the server, the SDK and the tests alike. Time, ids and randomness come
in with the context; a refusal is a `LivetreeError` and leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import delete_rules, live_rules, message_rules, topic_rules, trash_rules
from . import protocol as p
from .draft import Draft
from .errors import Conflict, LivetreeError, Validation
from .live_rules import ExpireLease, ExpireOffer
from .planning import MAX_METADATA_BYTES, Content, Context, Planned, Written
from .repair import RepairTopic, repair_topic
from .topic_rules import CopyTopic, EraseTopic, ImportTopic
from .trash import Wanted, burial_of, revivals_of
from .view import View

__all__ = [
    "MAX_METADATA_BYTES",
    "Content",
    "Context",
    "CopyTopic",
    "EraseTopic",
    "ExpireLease",
    "ExpireOffer",
    "ImportTopic",
    "Planned",
    "RepairTopic",
    "Written",
    "plan",
]


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
    # A wrong digest alone changes no row, and has to be told all the same.
    delta = draft.seal(context.commit, cause, force=bool(result.get("repaired")))
    if delta is None:
        return Planned(None, result | {"seq": view.seq, "commit": view.commit}, draft)
    result |= {"seq": delta.seq, "commit": delta.commit}
    burial = burial_of(draft, delta, cause)
    return Planned(delta, result, draft, burial, revivals_of(draft))


def _op(command: p.Mutation) -> str:
    return str(command.__struct_config__.tag)


def _batch(view: View, draft: Draft, batch: p.Batch, context: Context) -> list[dict[str, Any]]:
    results = []
    missing: dict[str, None] = {}
    wanted: dict[Wanted, None] = {}
    for place, command in enumerate(batch.commands):
        try:
            if command.topic not in ("", batch.topic):
                raise Validation("it names another topic than the batch: leave topic out")
            if command.mutation is not None:
                raise Validation("it has a mutation id of its own: the batch has one")
            _check_base(view, command, batch.base if command.base is None else command.base)
            results.append(_RULES[type(command)](draft, command, context))
        except Content as need:
            missing |= dict.fromkeys(need.message_ids)  # all are asked for together
            wanted |= dict.fromkeys(need.trash)
        except LivetreeError as error:
            if missing or wanted:
                break  # what was left out may be the reason: it is decided with the content
            error.args = (f"commands[{place}] ({_op(command)}): {error}",)
            error.details["command"] = place
            raise
    if missing or wanted:
        raise Content([*missing], [*wanted])
    return results


def _check_base(view: View, command: p.Mutation, base: int | None) -> None:
    """Refuse a destructive command whose user did not see what it would destroy."""
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
    elif isinstance(command, p.MessageDeleteGroup) and command.message_id in view:
        members = delete_rules.group_of(view, view.node(command.message_id))
        touched = [each for top in members for each in (top.id, *view.children(top.id))]
    elif isinstance(command, (p.MessageUpdate, p.MessageRetry)) and command.message_id in view:
        touched = [command.message_id]
    changed = [message_id for message_id in touched if view.node(message_id).version > base]
    if changed:
        raise Conflict(
            f"{len(changed)} of the messages have changed since {base}: look and decide again",
            seq=view.seq,
            changed=changed[:100],
        )


_RULES: Final[dict[type[p.Mutation], Callable[[Draft, Any, Context], dict[str, Any]]]] = {
    p.TopicCreate: topic_rules.topic_create,
    p.TopicPersist: topic_rules.persist,
    p.TopicUpdate: topic_rules.topic_update,
    p.TopicSetMetadata: topic_rules.set_metadata,
    p.TopicSetMetadataNamespace: topic_rules.set_metadata_namespace,
    p.TopicSetActive: topic_rules.set_active,
    p.TopicClear: topic_rules.topic_clear,
    p.TopicDelete: topic_rules.topic_delete,
    p.TopicRestore: topic_rules.topic_restore,
    p.TopicUndo: trash_rules.undo,
    p.MessageCreate: message_rules.message_create,
    p.MessageCreateSibling: message_rules.create_sibling,
    p.MessageUpdate: message_rules.message_update,
    p.MessageDelete: delete_rules.message_delete,
    p.MessageDeleteGroup: delete_rules.delete_group,
    p.MessageRestore: trash_rules.restore,
    p.MessageRetry: live_rules.retry,
    p.BranchReserve: message_rules.reserve,
    p.TurnSubmit: live_rules.turn_submit,
    p.StreamClaim: live_rules.claim,
    p.StreamFinish: live_rules.finish,
    p.StreamAbort: live_rules.abort,
    ExpireLease: live_rules.expire_lease,
    ExpireOffer: live_rules.expire_offer,
    RepairTopic: repair_topic,
    ImportTopic: topic_rules.import_topic,
    CopyTopic: topic_rules.import_topic,
    EraseTopic: topic_rules.erase,
}
