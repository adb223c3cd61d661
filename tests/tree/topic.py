"""A topic that takes commands as a room does, and proves with each what holds for every one."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree.core.draft import Draft
from livetree.core.errors import LivetreeError
from livetree.core.live import LiveReply
from livetree.core.plan import Content, Context, ExpireLease, ImportTopic, Planned, Written, plan
from livetree.core.tree import Tree
from livetree.core.view import View, place_of
from livetree.testing.trash import MemoryTrash
from msgspec import UNSET, Raw

from tests.helpers import (
    assert_equal_everywhere,
    canonical_form,
    check_folds,
    check_invariants,
    over_the_wire,
)

ROOT = "root"
START = 1_000_000


def text(content: str) -> Raw:
    """Return the data of a message that is just this text."""
    return Raw(data_of_text(content))


def message(message_id: str, parent_id: str, **fields: Any) -> p.Node:
    """Return a message as an importer would bring it; its text is its id."""
    fields.setdefault("data", text(message_id))
    fields.setdefault("created_at", 1)
    fields.setdefault("updated_at", fields["created_at"])
    return p.Node(id=message_id, parent_id=parent_id, version=0, **fields)


class Topic:
    """
    One topic, its live replies, a clock and ids that count.

    Args:
        nodes: What is there to begin with.
        active: The active node.
        temporary: Make it a temporary topic, with nothing in it.

    """

    def __init__(
        self,
        nodes: Sequence[p.Node] = (),
        active: str | None = None,
        *,
        activity: int = 0,
        temporary: bool = False,
    ) -> None:
        self.tree = Tree("topic", ROOT)
        self.replies: dict[str, LiveReply] = {}
        self.now = START
        self.subject = "ann"
        self.trash = MemoryTrash()
        self.deltas: list[p.Delta] = []
        self.contents: dict[str, bytes] = {}
        self._ids = 0
        self._commits = 0
        if temporary:
            self.do(p.TopicCreate(temporary=True))
            return
        self.do(
            ImportTopic(
                topic="topic",
                name="",
                metadata={},
                nodes=list(nodes),
                active_node_id=active,
                last_activity_at=activity,
            )
        )

    def plan(self, command: p.Mutation, view: View | None = None) -> Planned:
        """Decide a command, by default on the topic as it is."""
        return plan_with(self.trash, self.tree if view is None else view, command, self.context())

    def context(self) -> Context:
        """Return what the next command is planned with."""
        self._commits += 1
        return Context(
            now=self.now,
            commit=f"commit-{self._commits}",
            new_id=self._new_id,
            subject=self.subject,
            content=self.contents,
            written=self.written,
        )

    def do(self, command: p.Mutation) -> dict[str, Any]:
        """Carry a command out and return its result; raises its refusal, which changes nothing."""
        before, old = canonical_form(self.tree), over_the_wire(self.tree)
        try:
            planned = self.plan(command)
        finally:
            assert_equal_everywhere(before=before, after_planning=self.tree)
        if planned.delta is None:
            assert planned.result["seq"] == self.tree.seq
            assert_equal_everywhere(before=before, decided=planned.draft)
            return planned.result
        self.fold(planned, old)
        return planned.result

    def fold(self, planned: Planned, old: Tree) -> None:
        """Apply what was decided on the tree as it is, and prove it to be what was decided."""
        delta = planned.delta
        assert delta is not None
        self.bury(planned)
        assert planned.result["seq"] == delta.seq == self.tree.seq + 1
        # The draft must not be looked at once that over which it lies has changed.
        decided = canonical_form(planned.draft) | {"seq": delta.seq, "commit": delta.commit}
        # As a room does: the draft's messages are taken as they are.
        self.adopt(delta, ended_data(planned), old, planned.draft)
        assert_equal_everywhere(decided=decided, applied=self.tree)

    def bury(self, planned: Planned) -> None:
        """Bring the trash up to date with what is about to be applied."""
        delta = planned.delta
        assert delta is not None
        assert (planned.burial is None) == (not delta.drop)
        self.trash.bury(planned.burial, {each: self.node(each) for each in delta.drop})
        self.trash.revive(planned.revivals)

    def adopt(
        self, delta: p.Delta, written: dict[str, Raw], old: Tree, draft: Draft | None = None
    ) -> None:
        """Apply a delta, and prove that it leads from the snapshot before to the one after."""
        assert self.tree.apply(delta, written, draft), "the digest is not the delta's"
        self.deltas.append(delta)
        check_invariants(self.tree)
        check_folds(old, [delta], self.tree, written)
        check_trash(self.tree, self.trash)
        self._follow_live()
        for put in delta.put:
            if put.data is not UNSET and not self.tree.live.get(put.id):
                self.replies.pop(put.id, None)  # nobody goes on with what was streamed before

    def refuse(self, command: p.Mutation, kind: type[LivetreeError]) -> LivetreeError:
        """Demand that a command is refused, that nothing has changed, and return the refusal."""
        before = canonical_form(self.tree)
        with pytest.raises(kind) as refusal:
            self.do(command)
        assert_equal_everywhere(before=before, after=self.tree)
        assert refusal.type is kind
        assert str(refusal.value), "a refusal says what to do"
        msgspec.json.encode(refusal.value.details)
        return refusal.value

    def write(self, message_id: str, *pieces: str, part: int = 0) -> None:
        """Append texts to a live reply, as its writer."""
        reply = self.replies[message_id]
        reply.take(reply.n + 1, [p.TextOp(part, piece) for piece in pieces])

    def written(self, message_id: str) -> Written | None:
        """Return what a live reply has."""
        reply = self.replies.get(message_id)
        return None if reply is None else Written(reply.epoch, reply.n, reply.parts())

    def _follow_live(self) -> None:
        for message_id, epoch in self.tree.live.items():
            left = self.replies.get(message_id)
            if epoch and left is None:
                self.replies[message_id] = LiveReply(epoch)
            elif epoch and left is not None and left.epoch != epoch:
                self.replies[message_id] = LiveReply(epoch, left.n, left.parts())
        for message_id in [*self.replies]:
            if message_id not in self.tree.live:
                del self.replies[message_id]

    def _new_id(self) -> str:
        self._ids += 1
        return f"new-{self._ids}"

    # What tests look at ------------------------------------------------------------------

    @property
    def active(self) -> str | None:
        return self.tree.active_node_id

    @property
    def activity(self) -> int:
        activity: int = self.tree.state["lastActivityAt"]
        return activity

    def node(self, message_id: str) -> p.Node:
        return self.tree.node(message_id)

    def group(self, message_id: str) -> int:
        return self.tree.node(message_id).siblings_group_id

    def parent(self, message_id: str) -> str:
        return self.tree.node(message_id).parent_id

    def children(self, parent_id: str = ROOT) -> list[str]:
        return [*self.tree.children(parent_id)]

    def data(self, message_id: str) -> Any:
        data = self.tree.node(message_id).data
        assert data is not UNSET
        return msgspec.json.decode(data)

    def ids(self) -> set[str]:
        return {node.id for node in self.tree.nodes()}


def ended_data(planned: Planned) -> dict[str, Raw]:
    """Return the data of the replies that a command ended, which its delta doesn't carry."""
    assert planned.delta is not None
    found = {}
    for message_id in planned.delta.ended:
        data = planned.draft.node(message_id).data
        assert data is not UNSET
        found[message_id] = data
    return found


def plan_with(trash: MemoryTrash, view: View, command: p.Mutation, context: Context) -> Planned:
    """Decide a command with the trash entries that it asks for."""
    while True:
        try:
            return plan(view, command, context)
        except Content as need:
            if not need.trash:
                raise
            found = {wanted: trash.find(wanted) for wanted in need.trash}
            context = msgspec.structs.replace(context, trash=context.trash | found)


def check_trash(tree: Tree, trash: MemoryTrash) -> None:
    """Demand that the tree knows where everything hung that can be brought back."""
    rows = [row for _, rows in trash.entries.values() for row in rows.values()]
    assert len({row.id for row in rows}) == len(rows), "an id is in the trash twice"
    assert all(tree.grave(node.id) is None for node in tree.nodes()), "what lives has no grave"
    for row in rows:
        assert row.id not in tree, f"{row.id} is in the tree and in the trash"
        assert tree.is_taken(row.id)
        assert tree.grave(row.id) == place_of(row)
        assert tree.top_group(row.parent_id) >= row.siblings_group_id
        assert tree.nearest_living(row.id) in (tree.root_id, *(node.id for node in tree.nodes()))


def topic_of(*lines: str, active: str | None = "", activity: int = 0) -> Topic:
    """
    Make a topic of lines such as ``"ask > answer:1"``: messages, each below the one before.

    A line that begins with a message that is there already goes on from it. Users and assistants
    take turns. Behind a name, ``:2`` is its group, ``*`` makes it a reply that is being written,
    ``+`` one that is offered, ``?`` a pending one that is neither, and ``~`` an empty message.

    Args:
        active: The active node; by default the end of the last line, None for none.

    """
    nodes: dict[str, p.Node] = {}
    marks: dict[str, str] = {}
    for line in lines:
        parent_id = ROOT
        for word in line.split(" > "):
            name, _, group = word.rstrip("*+?~").partition(":")
            mark = word[len(word.rstrip("*+?~")) :]
            if name not in nodes:
                nodes[name] = message(
                    name,
                    parent_id,
                    role="assistant" if is_user(nodes.get(parent_id)) else "user",
                    status="pending" if mark in ("*", "+", "?") else "success",
                    siblings_group_id=int(group or 0),
                    data=text("" if mark else name),
                    created_at=100 * (len(nodes) + 1),
                )
                marks[name] = mark
            parent_id = name
    last = parent_id if lines else None
    topic = Topic([*nodes.values()], last if active == "" else active, activity=activity)
    for name, mark in marks.items():
        if mark in ("*", "+"):
            claim = topic.do(p.StreamClaim(message_id=name))
            if mark == "+":
                expire(topic, name, claim["epoch"])
    topic.deltas.clear()
    return topic


def is_user(node: p.Node | None) -> bool:
    return node is not None and node.role == "user"


def expire(topic: Topic, message_id: str, epoch: int) -> None:
    """Let a writer's lease end, so that its reply is offered again."""
    topic.do(ExpireLease(message_id=message_id, epoch=epoch))


def chain(length: int, *, parent_id: str = ROOT, prefix: str = "c", start: int = 1) -> list[p.Node]:
    """Return messages that each hang below the one before."""
    above = parent_id
    nodes = []
    for place in range(length):
        role = ("user", "assistant")[place % 2]
        nodes.append(message(f"{prefix}{place}", above, role=role, created_at=start + place))
        above = f"{prefix}{place}"
    return nodes


def tree_with(nodes: Sequence[p.Node], active: str | None = None, *, seq: int = 7) -> Tree:
    """Return a tree as it is loaded from a store, without the proofs of `Topic`."""
    return Tree.load(
        topic_id="topic",
        root_id=ROOT,
        seq=seq,
        commit=f"commit-{seq}",
        active_node_id=active,
        state={},
        nodes=[msgspec.structs.replace(node, version=seq) for node in nodes],
    )


def run_of(
    tree: Tree,
    commands: Sequence[p.Mutation],
    context: Sequence[Context],
    trash: MemoryTrash | None = None,
) -> tuple[Draft, list[Planned | LivetreeError]]:
    """
    Plan commands each on the outcome of the one before, on one private draft.

    The first is planned with the trash; the run ends before another that needs it, as what
    the run itself deletes isn't there yet.

    """
    run = Draft(tree)
    decided: list[Planned | LivetreeError] = []
    rewritten: set[str] = set()
    for command, each in zip(commands, context, strict=True):
        each = rewriting(each, rewritten)
        try:
            if decided or trash is None:
                planned = plan(run, command, each)
            else:
                planned = plan_with(trash, run, command, each)
        except LivetreeError as refusal:
            decided.append(refusal)
            continue
        except Content:
            break
        decided.append(planned)
        if planned.delta is not None:
            run.absorb(planned.draft, planned.delta)
            rewritten.update(put.id for put in planned.delta.put if put.data is not UNSET)
    return run, decided


def rewriting(context: Context, rewritten: set[str]) -> Context:
    """Return a context to which what was streamed of rewritten replies is nothing."""
    written = context.written
    return msgspec.structs.replace(
        context, written=lambda each: None if each in rewritten else written(each)
    )
