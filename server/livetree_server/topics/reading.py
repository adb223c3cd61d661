"""What is read of a topic: from its room, and where that is cold, from the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from livetree.core import protocol as p
from livetree.core.errors import Conflict, Internal, TooLarge
from livetree.core.plan import Content, Context, CopyTopic
from livetree.core.reads import branch_page, messages, path_page, topic_info, tree_page
from livetree.core.topic_rules import copy_path
from livetree.core.view import on_the_wire
from msgspec import UNSET
from msgspec.structs import replace

from .ports import Store
from .room import Room

__all__ = ["ANSWER_BYTES", "COPY_BYTES", "copied", "log_since", "read", "warm"]

COPY_BYTES: Final = 64 * 1024 * 1024
"""The most content that a path may have to be copied."""

AT_ONCE: Final = 200
"""How many messages are read together where there may be very many."""

ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Content that one answer carries, about; the rest is asked for again."""


async def read(room: Room, command: p.Command, store: Store) -> bytes:
    """
    Answer a read with its result's JSON text.

    Raises:
        LivetreeError: If what is asked for isn't there.
        StoreError: If the database can't be read.

    """
    tree = room.tree
    if isinstance(command, p.Read) and command.min_seq > tree.seq:
        raise Conflict(
            f"topic {tree.topic_id} is at seq {tree.seq}, not {command.min_seq}: open it again",
            seq=tree.seq,
        )
    if isinstance(command, p.TreeGet):
        return p.encode(tree_page(tree, command))
    if isinstance(command, p.BranchGet):
        page = branch_page(tree, command)
        nodes = await _whole(room, [item.node for item in page.items], store)
        fits = _fitting(nodes[::-1])
        items = [replace(item, node=node) for item, node in zip(page.items, nodes, strict=True)]
        if fits < len(items):
            items = items[-fits:]
            page = replace(page, next=items[0].node.id)
        return p.encode(replace(page, items=items))
    if isinstance(command, p.MessageGet):
        nodes = await _whole(room, messages(tree, command), store)
        nodes = nodes[: _fitting(nodes)]
        return p.encode({"nodes": nodes, "seq": tree.seq, "commit": tree.commit})
    if isinstance(command, (p.PathGet, p.PathThrough)):
        path = path_page(tree, command)
        return p.encode(replace(path, nodes=await _whole_end(room, path.nodes, store)))
    if isinstance(command, p.TrashList):
        rows, cursor = await store.trash_page(
            tree.topic_id, cursor=command.cursor, limit=command.limit
        )
        return p.encode({"items": rows, "next": cursor, "seq": tree.seq, "commit": tree.commit})
    if isinstance(command, p.TopicGet):
        return p.encode({"topic": topic_info(tree, room.created_at)})
    assert isinstance(command, p.TopicDeltas)
    return await _deltas(room, command, store)


async def _whole_end(room: Room, path: list[p.Node], store: Store) -> list[p.Node]:
    """Return a path whose last messages are whole, as many as one answer may carry."""
    whole: list[p.Node] = []
    size = 0
    for start in range(len(path), 0, -AT_ONCE):
        for node in reversed(await _whole(room, path[max(0, start - AT_ONCE) : start], store)):
            assert node.data is not UNSET
            size += len(memoryview(node.data))
            if size > ANSWER_BYTES and whole:
                break
            whole.append(node)
        else:
            continue
        break
    cold = [replace(node, data=UNSET) for node in path[: len(path) - len(whole)]]
    return [*cold, *reversed(whole)]


async def copied(
    room: Room, command: p.TopicDuplicate, copy_id: str, context: Context, store: Store
) -> CopyTopic:
    """
    Return the command that makes the copy of a path.

    Raises:
        LivetreeError: If there is no such message.
        TooLarge: If the path has more than `COPY_BYTES` of content.
        StoreError: If the database can't be read.

    """
    try:
        return copy_path(room.tree, command, copy_id, context)
    except Content as need:
        wanted = need.message_ids
    content: dict[str, bytes] = {}
    size = 0
    for start in range(0, len(wanted), AT_ONCE):
        found = await store.contents(room.tree.topic_id, wanted[start : start + AT_ONCE])
        for message_id, (version, data) in found.items():
            if version == room.tree.node(message_id).version:
                content[message_id] = data
                size += len(data)
        if size > COPY_BYTES:
            raise TooLarge(
                f"the path has more than {COPY_BYTES} bytes of content: duplicate it up to an "
                "earlier message",
                limit=COPY_BYTES,
            )
    if len(content) < len(wanted):
        raise Internal("the database holds other versions of the path than this room")
    return copy_path(room.tree, command, copy_id, replace(context, content=content))


def _fitting(nodes: list[p.Node]) -> int:
    """Return how many of these messages one answer may carry: at least the first."""
    size = 0
    for count, node in enumerate(nodes):
        assert node.data is not UNSET
        size += len(memoryview(node.data))
        if size > ANSWER_BYTES and count:
            return count
    return len(nodes)


async def _whole(room: Room, nodes: list[p.Node], store: Store) -> list[p.Node]:
    await warm(room, [node.id for node in nodes], store)
    return [on_the_wire(room.tree.node(node.id)) for node in nodes]


async def warm(room: Room, message_ids: Sequence[str], store: Store) -> None:
    """Read the content of those messages that are cold; raises `Internal` if it isn't there."""
    cold = [each for each in message_ids if room.tree.node(each).data is UNSET]
    if cold:
        room.hold(await store.contents(room.tree.topic_id, cold))
    missing = [each for each in cold if room.tree.node(each).data is UNSET]
    if missing:
        raise Internal(f"the database holds other versions of {missing[:3]} than this room")


async def _deltas(room: Room, command: p.TopicDeltas, store: Store) -> bytes:
    found = await log_since(room, command.seq, command.commit, store, limit=command.limit)
    head = {"seq": room.tree.seq, "commit": room.tree.commit}
    if found is None:
        return p.encode({"deltas": [], "reset": True, **head})
    # They are sent as they are stored.
    return p.encode(head)[:-1] + b',"reset":false,"deltas":[' + b",".join(found) + b"]}"


async def log_since(
    room: Room, seq: int, commit: str | None, store: Store, *, limit: int
) -> list[bytes] | None:
    """Return the stored deltas after a position, None if it isn't in this history's log."""
    recent = room.since(seq, commit)
    if recent is not None:
        return recent[:limit]
    if not 0 < seq < room.tree.seq:
        return None
    if await store.commit_at(room.tree.topic_id, seq) != commit:
        return None
    return await store.deltas(room.tree.topic_id, seq, limit) or None
