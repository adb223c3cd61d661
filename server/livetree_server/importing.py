"""Brings conversations of other apps in: a file's records to topics, one commit each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from hashlib import sha256
from typing import Any, Final

import msgspec
from anyio import to_thread
from livetree.core import protocol as p
from livetree.core.content import MAX_DATA_BYTES, is_empty, preview_of
from livetree.core.errors import LivetreeError, TooLarge
from livetree.core.plan import MAX_METADATA_BYTES, ImportTopic
from livetree.formats import Conversation, Record, read

from .topics.rooms import Rooms

__all__ = ["Importer"]

_NO_MORE: Final = object()
_encode = msgspec.json.Encoder(order="deterministic").encode


class Importer:
    """
    Imports files into the topics of a server.

    A conversation's topic id is made from its content, so the same file brought in twice
    makes nothing twice, and what its readers have added since stays as it is.

    """

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def bring_in(
        self, chunks: Iterable[bytes], name: str, subject: str, *, strict: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """
        Import a file, and tell what becomes of each conversation.

        Args:
            chunks: The file's bytes, to be read once; with `strict` twice.
            name: The file's name, for its format.
            subject: Whose topics they become.
            strict: Import nothing if anything would be refused.

        Yields:
            ``{"type": "topic" | "skipped" | "refused", ...}`` for each conversation, then
            ``{"type": "end", "imported", "messages", "skipped", "refused"}``.

        Raises:
            livetree.formats.FormatError: If the file is of no known format.

        """
        counts = {"imported": 0, "messages": 0, "skipped": 0, "refused": 0}
        if strict:
            refusals = [each async for each in self._refusals(chunks, name)]
            if refusals:
                for each in refusals:
                    yield each
                yield {"type": "end", **counts, "refused": len(refusals)}
                return
        async for record in _records(chunks, name):
            outcome = await self._one(record, subject)
            kind = outcome["type"]
            counts["imported" if kind == "topic" else kind] += 1
            if kind == "topic":
                counts["messages"] += outcome["messages"]
            yield outcome
        yield {"type": "end", **counts}

    async def _refusals(self, chunks: Iterable[bytes], name: str) -> AsyncIterator[dict[str, Any]]:
        async for record in _records(chunks, name):
            if record.error is not None:
                yield _refused(record, str(record.error))
            elif record.conversation is not None:
                try:
                    _nodes(record.conversation, "")
                except LivetreeError as error:
                    yield _refused(record, str(error))

    async def _one(self, record: Record, subject: str) -> dict[str, Any]:
        conversation = record.conversation
        if conversation is None:
            return _refused(record, str(record.error))
        topic_id = "im-" + sha256(_encode([subject, conversation])).hexdigest()[:32]
        about = {
            "index": record.index,
            "offset": record.offset,
            "name": conversation.name or "",
            "topic": topic_id,
            "messages": len(conversation.messages),
        }
        try:
            if await self._exists(topic_id):
                return {"type": "skipped", **about, "reason": "it has been imported before"}
            made = await self._make(topic_id, conversation, subject)
            return {"type": "topic", **about, "topic": made}
        except LivetreeError as error:
            return _refused(record, str(error))

    async def _exists(self, topic_id: str) -> bool:
        try:
            await self._answered(
                lambda answer: self._rooms.ask(p.TopicGet(topic=topic_id), topic_id, answer)
            )
        except LivetreeError as error:
            if error.code != "NOT_FOUND":
                raise
            return False
        return True

    async def _make(self, topic_id: str, conversation: Conversation, subject: str) -> str:
        for attempt in range(100):
            # The id of a topic that was deleted is never used again.
            made = topic_id if attempt == 0 else f"{topic_id}-{attempt + 1}"
            command = _command(made, conversation, subject)
            try:
                await self._answered(
                    lambda answer, command=command: self._rooms.command(command, subject, answer)
                )
            except LivetreeError as error:
                if error.code == "CONFLICT" and not await self._exists(made):
                    continue
                raise
            return made
        raise TooLarge("this conversation was imported and deleted a hundred times")

    async def _answered(self, start: Any) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answer(outcome: bytes | LivetreeError) -> None:
            if future.done():
                return
            if isinstance(outcome, LivetreeError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        start(answer)
        return await future


async def _records(chunks: Iterable[bytes], name: str) -> AsyncIterator[Record]:
    """Read a file in a thread, one record at a time: parsing never holds the event loop up."""
    records: Iterator[Record] = await to_thread.run_sync(lambda: iter(read(chunks, name=name)))
    while True:
        record = await to_thread.run_sync(next, records, _NO_MORE)
        if record is _NO_MORE:
            return
        assert isinstance(record, Record)
        yield record


def _refused(record: Record, reason: str) -> dict[str, Any]:
    return {"type": "refused", "index": record.index, "offset": record.offset, "reason": reason}


def _command(topic_id: str, conversation: Conversation, subject: str) -> ImportTopic:
    nodes = _nodes(conversation, subject)
    newest = max((node.created_at for node in nodes), default=0)
    return ImportTopic(
        topic=topic_id,
        name=(conversation.name or "")[:500],
        metadata=conversation.metadata,
        nodes=nodes,
        active_node_id=conversation.active_id,
        last_activity_at=max(conversation.updated_at or 0, conversation.created_at or 0, newest),
    )


def _nodes(conversation: Conversation, subject: str) -> list[p.Node]:
    size = len(_encode(conversation.metadata))
    if size > MAX_METADATA_BYTES:
        raise TooLarge(f"its metadata has {size} bytes; the limit is {MAX_METADATA_BYTES}")
    nodes: list[p.Node] = []
    for message in conversation.messages:
        data = _encode(message.data)
        if len(data) > MAX_DATA_BYTES:
            raise TooLarge(
                f"message {message.id} has {len(data)} bytes; the limit is {MAX_DATA_BYTES}"
            )
        nodes.append(
            p.Node(
                id=message.id,
                parent_id=message.parent_id or "",
                role=message.role,
                status=message.status,
                siblings_group_id=message.siblings_group_id,
                data=msgspec.Raw(data),
                preview=preview_of(data),
                empty=is_empty(data),
                model_id=message.model_id,
                author=subject if message.role == "user" else None,
                version=1,
                created_at=message.created_at,
                updated_at=message.created_at,
            )
        )
    return nodes
