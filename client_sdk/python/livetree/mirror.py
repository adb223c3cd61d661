"""
One topic kept equal to the server's tree: frames go in, changes and needs come out.

A mirror never waits and reads no clock. What it must ask the server for it returns as
needs; whoever owns it carries them out and brings the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from . import changes as c
from .contents import Contents, owned_delta, owned_node
from .core import protocol as p
from .core.content import text_of
from .core.live import LiveReply
from .core.tree import Tree
from .live_texts import LiveTexts
from .results import Deltas, Messages

__all__ = ["CONTENT_BYTES", "FetchContent", "FetchDeltas", "Mirror", "Need", "Reopen", "Step"]

CONTENT_BYTES: Final = 64 * 1024 * 1024
"""How much message content a mirror keeps, unless told otherwise."""

AHEAD: Final = 100
"""How many deltas are kept that came before the one that they build on."""

SNAPSHOT_SECONDS: Final = 60.0
"""How far apart a mirror that keeps drifting asks for snapshots."""

REOPEN_SECONDS: Final = 1.0
"""How far apart a mirror asks to be caught up."""

REFUSED_SECONDS: Final = 5.0
"""How long after a refusal a topic is opened again."""

_parts_of = msgspec.json.Decoder(dict[str, Any]).decode


class Reopen(Struct, frozen=True):
    """Send ``topic.open`` with `Mirror.resume` after ``delay`` seconds, if it is still due."""

    delay: float
    reason: str


class FetchDeltas(Struct, frozen=True, eq=False):
    """Ask for the deltas after this position, for `Mirror.deltas_came`."""

    seq: int
    commit: str | None


class FetchContent(Struct, frozen=True):
    """Read these messages, for `Mirror.content_came`."""

    message_ids: list[str]


Need: TypeAlias = Reopen | FetchDeltas | FetchContent


class Step(Struct, frozen=True):
    """What came of a frame or an answer: what readers are told, and what is to be asked."""

    changes: list[c.Change]
    needs: list[Need]


class Mirror:
    """
    A copy of one topic that is equal to the server's tree at some `seq`.

    Args:
        topic_id: The topic.
        content_bytes: How many bytes of message content are kept. Beyond it the content
            that was used longest ago becomes cold; replies being written keep theirs.

    Attributes:
        tree: The tree; None until the first snapshot has come.
        gone: Why the topic is no longer there, once it isn't.
        drifts: How often the tree turned out not to be the server's.

    """

    def __init__(self, topic_id: str, *, content_bytes: int = CONTENT_BYTES) -> None:
        self.topic_id = topic_id
        self.tree: Tree | None = None
        self.gone: str | None = None
        self.drifts = 0
        self._contents = Contents(content_bytes)
        self._texts = LiveTexts()
        self._chunks: list[p.Snapshot] = []
        self._ahead: dict[int, p.Delta] = {}
        self._fetch: FetchDeltas | None = None
        self._reopen: Literal["no", "due", "asked"] = "no"
        self._awaits_snapshot = False
        self._reopened_at: float | None = None
        self._snapshot_at: float | None = None
        self._target: p.Synced | None = None
        self._caught_up = False
        self._void = False  # the tree is not the server's: only a snapshot helps
        self._broken = False  # it is not even whole
        self._changes: list[c.Change] = []
        self._needs: list[Need] = []

    @property
    def synced(self) -> bool:
        """Whether nothing is known to be missing."""
        return (
            self._caught_up
            and not self._void
            and not self._texts.doubted
            and self._fetch is None
            and self._reopen == "no"
            and self.gone is None
        )

    @property
    def replies(self) -> dict[str, LiveReply]:
        """The live replies as far as they are known here; not to be changed."""
        return self._texts.replies

    @property
    def reopen_due(self) -> bool:
        """Whether a `Reopen` that was asked for is still to be carried out."""
        return self._reopen == "due" and self.gone is None

    def resume(self, now: float) -> p.Resume:
        """Return what to open the topic with, now; the answer is awaited from here on."""
        if self._reopen == "due":
            self._reopened_at = now
        self._reopen = "asked"
        self._awaits_snapshot = self.tree is None or self._void
        self._chunks = []
        streams = self._texts.ask()
        if self.tree is None or self._void:
            self._snapshot_at = now
            return p.Resume(topic=self.topic_id)
        return p.Resume(
            topic=self.topic_id, seq=self.tree.seq, commit=self.tree.commit, streams=streams
        )

    # What comes in ----------------------------------------------------------------------

    def receive(
        self, frame: p.Snapshot | p.Delta | p.Synced | p.Stream | p.Gone, now: float
    ) -> Step:
        """
        Take a frame about this topic.

        Never raises: a frame that can't be followed voids the tree, and a snapshot is
        asked for.

        """
        if self.gone is None:
            try:
                self._receive(frame, now)
            except Exception as error:
                self._break(f"a frame can't be followed: {error!r}", now)
        return self._step()

    def unreadable(self, reason: str, now: float) -> Step:
        """Take note of a frame about this topic that could not be read."""
        self._break(reason, now)
        return self._step()

    def deltas_came(self, need: FetchDeltas, page: Deltas, now: float) -> Step:
        """Take the answer to a `FetchDeltas`."""
        if need is self._fetch:
            self._fetch = None
            try:
                self._take_page(page, now)
            except Exception as error:
                self._break(f"a delta can't be followed: {error!r}", now)
        return self._step()

    def deltas_failed(self, need: FetchDeltas, now: float) -> Step:
        """Take note that a `FetchDeltas` was refused."""
        if need is self._fetch:
            self._fetch = None
            self._ask_to_reopen("the missing deltas can't be had", now)
        return self._step()

    def open_failed(self) -> Step:
        """Take note that the topic can't be opened at present; it is tried again later."""
        self._reopen = "due"
        self._needs.append(Reopen(REFUSED_SECONDS, "the topic could not be opened"))
        return self._step()

    def content_came(self, answer: Messages) -> Step:
        """
        Keep fetched content, of exactly the versions that the tree holds.

        It stays at least until the next call or commit, whatever the bound.

        """
        tree = self.tree
        if tree is not None:
            self._contents.evict(tree)
            nodes = [owned_node(node) for node in answer.nodes]
            loaded = [node.id for node in nodes if self._contents.hold(tree, node)]
            if loaded:
                self._changes.append(c.Loaded(loaded))
        return self._step()

    def disconnected(self) -> Step:
        """Take note that the connection is lost: what was on its way never comes."""
        self._chunks = []
        self._ahead.clear()
        self._texts.drop_held()
        self._contents.drop_early()
        self._fetch = None
        self._reopen = "no"
        self._target = None
        self._caught_up = False
        if self.gone is None:
            self._changes.append(c.Offline())
        return self._step()

    def _step(self) -> Step:
        step = Step(self._changes, self._needs)
        self._changes, self._needs = [], []
        return step

    def _receive(
        self, frame: p.Snapshot | p.Delta | p.Synced | p.Stream | p.Gone, now: float
    ) -> None:
        match frame:
            case p.Delta():
                self._take_delta(frame, now)
            case p.Stream():
                if not self._broken:
                    tree = None if self._chunks else self.tree
                    self._changes += self._texts.take(frame, tree)
                    self._ask_for_texts(now)
            case p.Snapshot():
                self._take_chunk(frame, now)
            case p.Synced():
                self._take_synced(frame, now)
            case p.Gone():
                self.gone = frame.reason
                self._changes.append(c.Gone(frame.reason))

    # Deltas -----------------------------------------------------------------------------

    def _take_delta(self, delta: p.Delta, now: float) -> None:
        if self._chunks:
            self._keep_ahead(delta)  # it follows the snapshot that is coming in
            return
        tree = self.tree
        if tree is None or self._broken:
            return
        if delta.seq > tree.seq + 1:
            self._keep_ahead(delta)
            self._ask_for_deltas()
        else:
            self._apply_next(delta, now)
            self._apply_ahead(now)
            if self._ahead:
                self._ask_for_deltas()

    def _take_page(self, page: Deltas, now: float) -> None:
        tree = self.tree
        if tree is None or self._broken or self._chunks:
            return
        if page.reset:
            self._ask_to_reopen("the missing deltas are no longer there", now)
            return
        before = tree.seq
        for delta in page.deltas:
            if delta.seq > tree.seq + 1 or delta.large:
                break
            self._apply_next(owned_delta(delta), now)
        self._apply_ahead(now)
        if tree.seq < max(page.seq, *self._ahead, 0):
            if tree.seq > before:
                self._ask_for_deltas()
            else:
                self._ask_to_reopen("the missing deltas did not come", now)
        self._check_synced(now)

    def _apply_ahead(self, now: float) -> None:
        tree = self.tree
        assert tree is not None
        for seq in [seq for seq in self._ahead if seq <= tree.seq]:
            del self._ahead[seq]
        while (delta := self._ahead.pop(tree.seq + 1, None)) is not None:
            if not self._apply_next(delta, now):
                return

    def _apply_next(self, delta: p.Delta, now: float) -> bool:
        """Apply a delta if it is the next; tells whether it is applied now."""
        tree = self.tree
        assert tree is not None
        if delta.seq <= tree.seq:
            if delta.seq == tree.seq and delta.commit != tree.commit:
                self._ask_to_reopen("the server has another history", now)
            return delta.seq < tree.seq or delta.commit == tree.commit
        if delta.prev != tree.commit:
            self._ask_to_reopen("the server has another history", now)
            return False
        if delta.large:
            self._ask_for_deltas()
            return False
        self._apply(tree, delta, now)
        return True

    def _apply(self, tree: Tree, delta: p.Delta, now: float) -> None:
        written = {
            message_id: data
            for message_id, (_, _, checksum) in delta.ended.items()
            if (data := self._texts.written(tree.get(message_id), checksum)) is not None
        }
        # What was followed while it grew is fetched, so that its text does not vanish.
        lost = [
            message_id
            for message_id in delta.ended
            if message_id not in written
            and (message_id in self.replies or tree.live.get(message_id))
        ]
        exact = tree.apply(delta, written)
        self._changes.append(c.Committed(delta))
        for put in delta.put:
            if put.data is not UNSET:
                self._contents.note(put.id, put.data)
        for message_id in delta.ended:
            self._contents.note(message_id, written.get(message_id))
        for message_id in delta.drop:
            self._contents.note(message_id, None)
        loaded = self._contents.follow(tree, [*(put.id for put in delta.put), *lost])
        if loaded:
            self._changes.append(c.Loaded(loaded))
        rewritten = [put.id for put in delta.put if put.data is not UNSET]
        self._changes += self._texts.follow(tree, rewritten)
        self._ask_for_texts(now)
        self._contents.evict(tree)
        if lost := [each for each in lost if each in tree and tree.node(each).data is UNSET]:
            self._needs.append(FetchContent(lost))
        if not exact:
            self._drifted(now)
        else:
            self._check_synced(now)

    def _keep_ahead(self, delta: p.Delta) -> None:
        if len(self._ahead) < AHEAD:  # else it is fetched
            self._ahead[delta.seq] = delta

    def _ask_for_deltas(self) -> None:
        if self._fetch is None and self.tree is not None:
            self._fetch = FetchDeltas(self.tree.seq, self.tree.commit)
            self._needs.append(self._fetch)

    def _ask_for_texts(self, now: float) -> None:
        if self._texts.doubted:
            self._ask_to_reopen("live text is missing", now)

    # Snapshots --------------------------------------------------------------------------

    def _take_chunk(self, frame: p.Snapshot, now: float) -> None:
        if frame.chunk == 0:
            self._chunks = []
        elif len(self._chunks) != frame.chunk or self._chunks[0].commit != frame.commit:
            self._chunks = []  # the rest of one that was given up; `synced` will tell
            return
        self._chunks.append(frame)
        if len(self._chunks) >= frame.chunks:
            chunks, self._chunks = self._chunks, []
            self._load(chunks, now)

    def _load(self, chunks: list[p.Snapshot], now: float) -> None:
        first = chunks[0]
        old, old_void = self.tree, self._void
        tree = Tree.load(
            topic_id=self.topic_id,
            root_id=first.root_id,
            seq=first.seq,
            commit=first.commit,
            active_node_id=first.active_node_id,
            state=first.state,
            nodes=[owned_node(node) for chunk in chunks for node in chunk.nodes],
        )
        self.tree = tree
        self._contents.load(tree, None if old_void or first.reset else old)
        self._texts.load(first.live)
        self._void = self._broken = self._caught_up = self._awaits_snapshot = False
        self._fetch = self._target = None
        if old is not None:
            self._changes.append(c.Reset(first.reset))
        self._changes += self._texts.follow(tree)
        self._ask_for_texts(now)
        self._contents.evict(tree)
        if tree.digest != first.digest:
            self._drifted(now)
        self._apply_ahead(now)
        if self._ahead:
            self._ask_for_deltas()

    # Being equal ------------------------------------------------------------------------

    def _take_synced(self, frame: p.Synced, now: float) -> None:
        if self._reopen == "asked":
            self._reopen = "no"
        self._texts.answered()
        tree = self.tree
        if tree is None or self._broken or self._chunks:
            self._break("the snapshot did not come whole", now)
            return
        if self._void:
            self.drifts += self._awaits_snapshot  # which did not come
            self._ask_to_reopen("the mirror has drifted", now)
            return
        self._ask_for_texts(now)
        self._target = frame
        if frame.seq > tree.seq:
            self._ask_for_deltas()
        self._check_synced(now)

    def _check_synced(self, now: float) -> None:
        frame, tree = self._target, self.tree
        if frame is None or tree is None or frame.seq > tree.seq or self._fetch is not None:
            return
        self._target = None
        if self._texts.doubted or self._void:
            return  # another will come
        if frame.seq == tree.seq and frame.commit != tree.commit:
            self._ask_to_reopen("the server has another history", now)
        elif frame.seq == tree.seq and frame.digest != tree.digest:
            self._drifted(now)
        else:
            self._caught_up = True
            self._changes.append(c.Synced(tree.seq, tree.commit or ""))

    def _drifted(self, now: float, reason: str = "the mirror has drifted") -> None:
        self.drifts += not self._void
        self._void = True
        self._ask_to_reopen(reason, now)

    def _break(self, reason: str, now: float) -> None:
        self._broken = True
        self._chunks = []
        self._drifted(now, reason)

    def _ask_to_reopen(self, reason: str, now: float) -> None:
        if self._reopen != "no":
            return  # and when that answer is here, it is seen whether it was enough
        self._reopen = "due"
        last, apart = (
            (self._snapshot_at, SNAPSHOT_SECONDS)
            if self._void and self.drifts > 1
            else (self._reopened_at, REOPEN_SECONDS)
        )
        self._needs.append(Reopen(0.0 if last is None else max(0.0, last + apart - now), reason))

    # Content ----------------------------------------------------------------------------

    def text(self, message_id: str) -> str | None:
        """Return a message's text, of a live reply what is there; None if it is cold."""
        reply = self.replies.get(message_id)
        if reply is not None:
            return "".join(
                part["text"]
                for part in reply.parts()
                if part.get("type") == "text" and isinstance(part.get("text"), str)
            )
        data = self._known(message_id).data
        return None if data is UNSET else text_of(data)

    def parts(self, message_id: str) -> list[dict[str, Any]] | None:
        """Return a message's parts, of a live reply what is there; None if they are cold."""
        reply = self.replies.get(message_id)
        if reply is not None:
            return reply.parts()
        data = self._known(message_id).data
        if data is UNSET:
            return None
        parts: list[dict[str, Any]] = _parts_of(data).get("parts", [])
        return parts

    def cold(self, message_ids: Iterable[str]) -> list[str]:
        """Return those of the messages whose content is to be fetched; they count as used."""
        cold: list[str] = []
        for message_id in message_ids:
            node = self._node(message_id)
            if node is None:
                continue
            if node.data is UNSET:
                cold.append(message_id)
            else:
                self._contents.touch(message_id)
        return cold

    def is_early(self, message_id: str) -> bool:
        """Tell whether content is here of a version that the tree is still to reach."""
        return self._contents.is_early(message_id)

    def _known(self, message_id: str) -> p.Node:
        node = self._node(message_id)
        if node is None:
            raise KeyError(message_id)
        return node

    def _node(self, message_id: str) -> p.Node | None:
        return None if self.tree is None else self.tree.get(message_id)

    def statistics(self) -> dict[str, int]:
        """Return figures for logs and tests."""
        return {
            "seq": 0 if self.tree is None else self.tree.seq,
            "messages": 0 if self.tree is None else len(self.tree),
            "contentBytes": self._contents.size,
            "live": len(self.replies),
            "ahead": len(self._ahead),
            "held": self._texts.held,
            "drifts": self.drifts,
        }

    def __repr__(self) -> str:
        state = "gone" if self.gone is not None else "synced" if self.synced else "behind"
        return f"<Mirror {self.topic_id} {state} {self.tree!r}>"
