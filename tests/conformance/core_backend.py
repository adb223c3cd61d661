"""Runs cases through the pure core, each change told to a twin that must stay equal."""

from collections.abc import Sequence
from typing import Any

import msgspec
from livetree.core import protocol as p
from livetree.core.errors import LivetreeError, NotFound
from livetree.core.live import LiveReply
from livetree.core.plan import Context, ExpireOffer, ImportTopic, Written, plan
from livetree.core.reads import branch_page, path_page, tree_page
from livetree.core.topic_rules import copy_path
from livetree.core.tree import Tree
from livetree.core.view import View
from livetree.formats import Conversation
from livetree_server.importing import _command
from msgspec import UNSET, Raw

from tests.helpers import assert_equal_everywhere, check_invariants, walk

from .backend import Pen, Refused, Seed, Stored, root_row, row_of


class CoreBackend:
    """Topics as trees in memory; what a room does, without its queue."""

    name = "core"
    features = frozenset({"anchors", "clock", "flow", "live", "migrate", "temporary"})
    lacks = frozenset({"store.raw"})

    def __init__(self) -> None:
        self.pens: dict[str, Pen] = {}
        self._trees: dict[str, Tree] = {}
        self._twins: dict[str, Tree] = {}
        self._replies: dict[str, LiveReply] = {}
        self._made = 0
        # Later than any time that a case gives.
        self._clock = 10_000_000

    def seed(self, topics: Sequence[Seed]) -> None:
        for seed in topics:
            self._carry_out(seed.id, seed.root_id, import_of(seed), self._clock)

    def request(self, command: dict[str, Any], now: int | None) -> dict[str, Any]:
        if now is None:
            self._clock += 1
            now = self._clock
        try:
            return self._request(command, now)
        except LivetreeError as refusal:
            raise Refused(refusal.code, str(refusal)) from None
        except msgspec.ValidationError as fault:
            raise Refused("VALIDATION", str(fault)) from None

    def _request(self, told: dict[str, Any], now: int) -> dict[str, Any]:
        if told["op"] == "offer.expire":  # the server's own, which nobody can send
            command: Any = ExpireOffer(topic=told["topic"], message_id=told["messageId"])
        else:
            command = p.decode_command(msgspec.json.encode(told))
        if isinstance(command, p.TopicCreate):
            return self._carry_out(command.topic or self._new_id(), self._new_id(), command, now)
        tree = self._trees.get(command.topic)
        if tree is None:
            raise NotFound(f"there is no topic {command.topic}")
        if isinstance(command, p.TreeGet):
            return _told(tree_page(tree, command))
        if isinstance(command, p.BranchGet):
            return _told(branch_page(tree, command))
        if isinstance(command, (p.PathGet, p.PathThrough)):
            return _told(path_page(tree, command))
        if isinstance(command, p.TopicDuplicate):
            context = Context(now=now, commit="", new_id=self._new_id)
            copy = copy_path(tree, command, self._new_id(), context)
            return self._carry_out(copy.topic, self._new_id(), copy, now)
        return self._carry_out(tree.topic_id, tree.root_id, command, now)

    def _carry_out(
        self, topic_id: str, root_id: str, command: p.Mutation, now: int
    ) -> dict[str, Any]:
        # Not by `or`: a tree without messages is false.
        tree = self._trees[topic_id] if topic_id in self._trees else Tree(topic_id, root_id)
        twin = self._twins[topic_id] if topic_id in self._twins else Tree(topic_id, root_id)
        context = Context(
            now=now, commit=self._new_id(), new_id=self._new_id, written=self._written
        )
        planned = plan(tree, command, context)
        if planned.delta is not None:
            written: dict[str, Raw] = {}
            for message_id in planned.delta.ended:
                data = planned.draft.node(message_id).data
                assert data is not UNSET
                written[message_id] = data
            told = p.decode_frame(p.encode(planned.delta))
            assert isinstance(told, p.Delta)
            assert tree.apply(planned.delta, written), "the digest is not the delta's"
            assert twin.apply(told, written), "the digest of the twin is not the delta's"
            self._trees[topic_id], self._twins[topic_id] = tree, twin
            self._follow_live(tree)
        if "deletedAt" in tree.state:
            del self._trees[topic_id], self._twins[topic_id]
        return planned.result

    def append(self, topic: str, message_id: str, pen: Pen, text: str) -> None:
        self._replies[message_id].take(pen.n + 1, [p.TextOp(0, text)])

    def written(self, topic: str) -> dict[str, str] | None:
        live = self._trees[topic].live
        texts = {
            message_id: "".join(str(part.get("text", "")) for part in reply.parts())
            for message_id, reply in self._replies.items()
            if message_id in live
        }
        return texts or None

    def raw(self, step: dict[str, Any]) -> None:
        raise NotImplementedError("the core has no store")

    def view(self, topic: str) -> View:
        if topic not in self._twins:
            raise Refused("NOT_FOUND", f"there is no topic {topic}")
        return self._twins[topic]

    def bring_in(self, conversation: Conversation) -> None:
        assert conversation.source_id is not None
        # As the importer does it, but for the id: cases know topics by the one that they had.
        command = _command(conversation.source_id, conversation, "")
        self._carry_out(command.topic, self._new_id(), command, self._clock)

    def stored(self) -> dict[str, Stored]:
        return {topic_id: stored_of(tree) for topic_id, tree in self._trees.items()}

    def temporary(self, topic: str) -> int | None:
        tree = self._trees.get(topic)
        return len(tree) if tree is not None and "temporary" in tree.state else None

    def reconcile(self, now: int | None) -> None:
        for topic_id, tree in self._trees.items():
            for node in tree.nodes():
                if (node.role, node.status) == ("assistant", "pending"):
                    command = {"op": "offer.expire", "topic": topic_id, "messageId": node.id}
                    self.request(command, now)

    def check(self) -> None:
        for topic_id, tree in self._trees.items():
            check_invariants(tree)
            assert_equal_everywhere(tree=tree, twin=self._twins[topic_id])

    def close(self) -> None:
        pass

    def _written(self, message_id: str) -> Written | None:
        reply = self._replies.get(message_id)
        return None if reply is None else Written(reply.epoch, reply.n, reply.parts())

    def _follow_live(self, tree: Tree) -> None:
        for message_id, epoch in tree.live.items():
            if epoch and message_id not in self._replies:
                self._replies[message_id] = LiveReply(epoch)

    def _new_id(self) -> str:
        self._made += 1
        return f"made-{self._made}"


def import_of(seed: Seed) -> ImportTopic:
    """Return the command that makes a topic as a case gives it."""
    return ImportTopic(
        topic=seed.id,
        name="",
        metadata={},
        nodes=seed.nodes,
        active_node_id=seed.active,
        last_activity_at=seed.activity,
    )


def stored_of(tree: Tree) -> Stored:
    """Return a topic as the cases see it; all its content must be held."""
    rows = {node.id: row_of(node) for node in walk(tree)}
    rows[tree.root_id] = root_row(tree.root_id)
    return Stored(
        root_id=tree.root_id,
        active=tree.active_node_id,
        activity=tree.state["lastActivityAt"],
        rows=rows,
    )


def _told(page: Any) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(p.encode(page))
    return answer
