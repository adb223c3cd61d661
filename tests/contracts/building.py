"""Runs for a store, made of core plans: what a room does, without its queue."""

from collections.abc import Iterable
from typing import Any

from livetree.core import protocol as p
from livetree.core.content import data_of_text
from livetree.core.draft import Draft
from livetree.core.plan import Content, Context, ImportTopic, Planned, Written, plan
from livetree.core.trash import TrashEntry, Wanted
from livetree.core.tree import Tree
from livetree_server.topics.ports import Entry, LoadedTopic, MutationKey, Run, Store, StoredMutation
from msgspec import UNSET, Raw
from msgspec.structs import replace

from tests.helpers import assert_equal_everywhere, check_invariants

START = 1_000_000


class Room:
    """
    One topic, a clock that stands still, and ids that count.

    Attributes:
        tree: What is durable, once `keep` was told.
        now: The time of the next run, ms.
        written: What live replies have, for the commands that end one.
        trash: The trash entries that commands have asked for.

    """

    def __init__(self, topic_id: str = "topic", *, maker: str = "") -> None:
        self.tree = Tree(topic_id, f"{topic_id}-root")
        self.now = START
        self.written: dict[str, Written] = {}
        self.trash: dict[Wanted, TrashEntry | None] = {}
        self._maker = maker or topic_id
        self._made = 0

    @classmethod
    def of(cls, loaded: LoadedTopic, *, maker: str) -> "Room":
        """Return the room of a stored topic; the ids that it makes begin with `maker`."""
        room = cls(loaded.topic_id, maker=maker)
        room.tree = tree_of(loaded)
        return room

    def plan(self, *commands: p.Mutation, subject: str = "ann") -> Run:
        """Decide commands, each on the outcome of the one before; the tree stays as it is."""
        private = Draft(self.tree, self.now)
        entries = []
        leases = {}
        for command in commands:
            planned = plan(private, command, self._context(subject))
            entries.append(_entry(command, planned, subject))
            if planned.delta is not None:
                private.absorb(planned.draft, planned.delta)
            if isinstance(command, p.StreamClaim):
                leases[command.message_id] = self.now + command.lease_ms
        return Run(
            topic_id=self.tree.topic_id,
            root_id=self.tree.root_id,
            base_seq=self.tree.seq,
            entries=entries,
            seq=private.seq,
            commit=private.commit,
            digest=private.digest,
            active_node_id=private.active_node_id,
            state=dict(private.state),
            last_created_at=private.last_created_at,
            leases=leases,
            now=self.now,
        )

    def keep(self, run: Run) -> None:
        """Make a run true here: it is durable."""
        for entry in run.entries:
            if (delta := entry.delta) is None:
                continue
            rows = {node.id: node for node in entry.nodes}
            written = {each: data_of(rows[each]) for each in delta.ended}
            assert self.tree.apply(delta, written), "the digest is not the delta's"

    async def do(self, store: Store, *commands: p.Mutation, subject: str = "ann") -> Run:
        """Plan with what is in the trash, commit and keep."""
        self.trash.clear()
        while True:
            try:
                run = self.plan(*commands, subject=subject)
                break
            except Content as need:
                for wanted in need.trash:
                    self.trash[wanted] = await store.trash(self.tree.topic_id, wanted)
        await store.commit(run)
        self.keep(run)
        return run

    def _context(self, subject: str) -> Context:
        return Context(
            now=self.now,
            commit=self._new_id("commit"),
            new_id=lambda: self._new_id("m"),
            subject=subject,
            written=self.written.get,
            trash=self.trash,
        )

    def _new_id(self, kind: str) -> str:
        self._made += 1
        return f"{self._maker}-{kind}{self._made}"


def _entry(command: p.Mutation, planned: Planned, subject: str) -> Entry:
    delta = planned.delta
    key = None if command.mutation is None else MutationKey(subject, command.mutation)
    return Entry(
        delta=delta,
        frame=b"" if delta is None else p.encode(delta),
        nodes=[planned.draft.node(put.id) for put in delta.put] if delta else [],
        key=key,
        mutation=None if key is None else stored_mutation(command, planned.result),
        burial=planned.burial,
        revivals=planned.revivals,
    )


def stored_mutation(command: p.Mutation, result: dict[str, Any]) -> StoredMutation:
    """Return what is stored under a command's mutation id; its text stands for its hash."""
    return StoredMutation(p.encode(command), p.encode(result))


def create(name: str = "", **fields: Any) -> p.TopicCreate:
    """Make the topic."""
    return p.TopicCreate(name=name, **fields)


def say(message_id: str, parent: str = "AUTO", **fields: Any) -> p.MessageCreate:
    """Add a message; its text is its id, if no other is given."""
    fields.setdefault("role", "user")
    fields.setdefault("status", "success")
    if "data" not in fields:
        fields.setdefault("text", message_id)
    return p.MessageCreate(message_id=message_id, parent=parent, **fields)


def ask(message_id: str, *replies: str, model: str | None = "echo", **fields: Any) -> p.TurnSubmit:
    """Submit a first turn and placeholders for its replies."""
    return p.TurnSubmit(
        user=p.Fresh(message_id=message_id, text=message_id),
        placeholders=[p.Placeholder(message_id=reply, model=model) for reply in replies],
        **fields,
    )


def chain(root_id: str, length: int) -> ImportTopic:
    """Make the topic with messages ``m0``, ``m1``, …, each below the one before."""
    nodes = [
        p.Node(
            id=f"m{place}",
            parent_id=f"m{place - 1}" if place else root_id,
            role="user",
            data=Raw(data_of_text(f"m{place}")),
            version=0,
            created_at=START + place,
            updated_at=START + place,
        )
        for place in range(length)
    ]
    return ImportTopic(
        name="chain",
        metadata={},
        nodes=nodes,
        active_node_id=nodes[-1].id,
        last_activity_at=START,
    )


def data_of(node: p.Node) -> Raw:
    """Return a message's data, which must be there."""
    assert node.data is not UNSET
    return node.data


def tree_of(loaded: LoadedTopic) -> Tree:
    """Build the tree of a stored topic, and demand that its digest is the stored one."""
    tree = loaded.tree()
    assert tree.digest == loaded.digest, "the rows are not those that the digest was made of"
    return tree


async def tree_in(store: Store, topic_id: str) -> Tree:
    """Read a whole topic, with all content."""
    loaded = await store.load(topic_id)
    assert loaded is not None, f"topic {topic_id} is not there"
    assert all(node.data is UNSET for node in loaded.nodes)
    previews = {node.id: (node.preview, node.empty) for node in loaded.nodes}
    tree = tree_of(loaded)
    for message_id, (version, data) in (
        await store.contents(topic_id, [node.id for node in loaded.nodes])
    ).items():
        assert tree.hold(message_id, version, Raw(data)), f"{message_id} has no version {version}"
        node = tree.node(message_id)
        assert previews[message_id] == (node.preview, node.empty), f"preview of {message_id}"
    return tree


async def check_stored(store: Store, *rooms: Room) -> None:
    """Demand that the store has what the rooms have: trees, contents, pointer, state and log."""
    for room in rooms:
        tree = await tree_in(store, room.tree.topic_id)
        check_invariants(tree)
        assert_equal_everywhere(room=room.tree, store=tree)
        assert tree.last_created_at == room.tree.last_created_at
        await check_graves(store, room)


async def check_graves(store: Store, room: Room) -> None:
    """Demand that the store's trash has what the room takes for deleted."""
    loaded = await store.load(room.tree.topic_id)
    assert loaded is not None
    assert loaded.graves == room.tree._graves


def frames_of(runs: Iterable[Run]) -> list[bytes]:
    """Return what the event log has of these runs."""
    return [entry.frame for run in runs for entry in run.entries if entry.delta is not None]


def forged(run: Run, node: p.Node, put: p.Put, **fields: Any) -> Run:
    """Return a run of one command as no plan would make it: with this one row."""
    (entry,) = run.entries
    assert entry.delta is not None
    delta = replace(entry.delta, put=[put])
    return replace(run, entries=[replace(entry, delta=delta, nodes=[node])], **fields)
