"""Random lives of a topic: whatever is asked, sense or nonsense, what must hold goes on holding."""

import copy
import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from livetree.core import protocol as p
from livetree.core.content import parts_checksum
from livetree.core.errors import LivetreeError
from livetree.core.live import LiveReply
from livetree.core.plan import Context, ExpireLease, ExpireOffer, plan
from livetree.core.topic_rules import copy_path
from livetree.core.tree import Tree
from livetree.core.view import View
from msgspec import UNSET, Raw

from tests.helpers import (
    assert_equal_everywhere,
    canonical_form,
    check_invariants,
    differences,
    over_the_wire,
)
from tests.tree.topic import (
    ROOT,
    Topic,
    ended_data,
    message,
    plan_with,
    rewriting,
    run_of,
    topic_of,
)

TEXTS = st.sampled_from(["", "hi", " \n", "é\0\U0001f600", "longer text, longer than the others"])
GROUPS = st.sampled_from([0, 0, 0, 1, 2, 7])
STATUSES = st.sampled_from(["pending", "success", "error", "paused"])
ROLES = st.sampled_from(["user", "assistant", "assistant", "system", "tool"])
DATA = st.sampled_from(
    [
        Raw(b'{"parts":[]}'),
        Raw(b'{"parts":[{"type":"text","text":"data"}],"turnOptions":{"a":1}}'),
        Raw(b'{"parts":[{"type":"file"}],"b":[1.0]}'),
        Raw(b'{"parts":3,"parts":[]}'),
        Raw(b'{"turnOptions":{"b":[1.0]}}'),  # a patch; new data has parts
        Raw(b'{"x":9007199254740992,"parts":[]}'),
    ]
)
OBJECTS = st.sampled_from([None, Raw(b"{}"), Raw(b'{"a":1}'), Raw(b'{"a":true}'), Raw(b"[1]")])
MODELS = st.sampled_from([None, "echo", "gpt-x"])
NAMES = st.sampled_from(["", "Trip plan", "é\n\0"])


BEGINNINGS: list[tuple[str, ...]] = [
    (),
    ("u1 > a1:1 > u2 > a2", "u1 > b1:1 > w1", "v1~"),
    ("u > a:1 > c1:6 > d1", "a > c2:6", "u > b:1 > e1:6", "u > c:1"),
    ("u1 > a1 > u2 > s* > below", "u2 > t+", "a1 > r1 > b1"),
    ("u1:3 > a1", "u2:3 > a2?", "u3:3 > a3:1+", "u3 > a4:1*"),
    ("u > a:1 > r~", "u > b:1 > x:2 > y", "b > z:2", "u > c:1~ > s~", "c > t~"),
]


class Draw:
    """Draws commands that make sense of a topic, and some that don't."""

    def __init__(self, data: Any, topic: Topic, gone: Sequence[str]) -> None:
        self.one = data.draw
        self.view: View = topic.tree
        self.topic = topic
        self.gone = gone
        self.named = 0

    def an_id(self) -> str:
        known = sorted(self.topic.ids())
        odd = st.sampled_from([ROOT, "nope", "", "AUTO", *self.gone[-3:]])
        usual = st.sampled_from(known) if known else odd
        return str(self.one(st.one_of(usual, usual, usual, usual, odd), label="id"))

    def a_new_id(self) -> str | None:
        self.named += 1
        free = st.just(f"mine-{self.view.seq}-{self.named}")
        taken = st.sampled_from(["a b", ROOT, *sorted(self.topic.ids())[:3], *self.gone[-3:]])
        return self.one(st.one_of(*[st.none()] * 5, free, free, free, taken), label="new id")

    def one_of(self, wanted: Callable[[p.Node], bool], label: str) -> str:
        """Draw a message that makes sense, or now and then any id."""
        fit = sorted(node.id for node in self.topic.tree.nodes() if wanted(node))
        if fit and self.one(st.integers(0, 4), label="sense"):
            return str(self.one(st.sampled_from(fit), label=label))
        return self.an_id()

    def a_parent(self) -> str:
        named = self.an_id()
        return str(self.one(st.sampled_from(["AUTO", "ROOT", named, named, named]), label="parent"))

    def a_base(self) -> int | None:
        seq = self.view.seq
        return self.one(st.sampled_from([None] * 5 + [seq, seq - 1, 0]), label="base")

    def an_epoch(self, message_id: str) -> int:
        epoch = self.view.live.get(message_id, 0)
        return int(self.one(st.sampled_from([epoch, epoch, epoch, 0, epoch + 1]), label="epoch"))

    def fields(self, **strategies: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {name: self.one(strategy, label=name) for name, strategy in strategies.items()}

    def some(self, **strategies: st.SearchStrategy[Any]) -> dict[str, Any]:
        """Draw a few of the fields; the others stay unset."""
        names = self.one(st.lists(st.sampled_from([*strategies]), max_size=2, unique=True))
        return self.fields(**{name: strategies[name] for name in names})

    # Commands ----------------------------------------------------------------------------

    def create(self) -> p.Mutation:
        return p.MessageCreate(
            message_id=self.a_new_id(),
            parent=self.a_parent(),
            base=self.a_base(),
            **self.fields(role=ROLES, status=STATUSES, group=GROUPS, set_active=st.booleans()),
            **self.some(text=TEXTS, data=DATA, stats=OBJECTS, model=MODELS),
        )

    def sibling(self) -> p.Mutation:
        return p.MessageCreateSibling(
            source_id=self.an_id(),
            message_id=self.a_new_id(),
            **self.some(text=TEXTS, data=DATA, model=MODELS),
        )

    def update(self) -> p.Mutation:
        message_id = self.an_id()
        node = self.view.get(message_id)
        version = node.version if node else 1
        return p.MessageUpdate(
            message_id=message_id,
            base=self.a_base(),
            if_version=self.one(st.sampled_from([None, None, None, version, version - 1])),
            **self.some(
                text=TEXTS,
                data=DATA,
                status=STATUSES,
                group=GROUPS,
                model=MODELS,
                stats=OBJECTS,
                context=OBJECTS,
            ),
        )

    def move(self) -> p.Mutation:
        parent = self.one(st.one_of(st.none(), *[st.just(self.a_parent())] * 9), label="to")
        return p.MessageUpdate(
            message_id=self.an_id(), parent=parent, **self.some(text=TEXTS, group=GROUPS)
        )

    def delete(self) -> p.Mutation:
        return p.MessageDelete(
            message_id=self.an_id(),
            base=self.a_base(),
            **self.fields(
                cascade=st.booleans(),
                strategy=st.sampled_from(["parent", "parent", "clear"]),
                awaiting_input_only=st.sampled_from([False] * 5 + [True]),
            ),
        )

    def delete_group(self) -> p.Mutation:
        message_id = self.one_of(
            lambda node: node.role == "assistant" and node.status != "pending", "of the group"
        )
        return p.MessageDeleteGroup(message_id=message_id, base=self.a_base())

    def clear(self) -> p.Mutation:
        return p.TopicClear(base=self.a_base())

    def undo(self) -> p.Mutation:
        seqs = sorted(self.topic.trash.entries)
        seq = self.one(st.sampled_from([None, None, *seqs, *seqs, 1]), label="undone")
        return p.TopicUndo(seq=seq)

    def restore(self) -> p.Mutation:
        buried = [row.node.id for row in self.topic.trash.rows()]
        message_id = self.one(st.sampled_from(buried * 4 + ["nope", ROOT]), label="restored")
        return p.MessageRestore(
            message_id=self.one(st.sampled_from([message_id] * 5 + [self.an_id()])),
            cascade=self.one(st.booleans(), label="cascade"),
        )

    def reserve(self) -> p.Mutation:
        named = [self.a_new_id() for _ in range(self.one(st.integers(0, 2), label="named"))]
        return p.BranchReserve(
            anchor_id=self.one_of(lambda node: node.role == "assistant", "anchor"),
            message_ids=[each for each in named if each is not None],
            activate=self.one(st.booleans(), label="activate"),
        )

    def retry(self) -> p.Mutation:
        message_id = self.one_of(
            lambda node: (
                node.role == "assistant" and (node.status in ("error", "paused") or node.empty)
            ),
            "retried",
        )
        return p.MessageRetry(
            message_id=message_id,
            when_live=self.when_live(),
            base=self.a_base(),
        )

    def when_live(self) -> Any:
        return self.one(st.sampled_from(["reject", "steer", "steer"]), label="when live")

    def persist(self) -> p.Mutation:
        return p.TopicPersist()

    def set_active(self) -> p.Mutation:
        return p.TopicSetActive(node_id=self.one(st.one_of(st.none(), st.just(self.an_id()))))

    def rename(self) -> p.Mutation:
        return p.TopicUpdate(name=self.one(NAMES))

    def set_metadata(self) -> p.Mutation:
        return p.TopicSetMetadata(metadata=self.one(OBJECTS) or Raw(b"1"))

    def set_namespace(self) -> p.Mutation:
        values = [UNSET, Raw(b"1"), Raw(b"true"), Raw(b"1.0"), Raw(b"null"), Raw(rb'"\ud800"')]
        return p.TopicSetMetadataNamespace(
            namespace=self.one(st.sampled_from(["a", "b", "é"])),
            value=self.one(st.sampled_from(values)),
        )

    def submit_fresh(self) -> p.Mutation:
        user = p.Fresh(
            message_id=self.a_new_id(),
            parent=self.a_parent(),
            **self.some(text=TEXTS, data=DATA, status=STATUSES, model=MODELS),
        )
        return self._submit(user)

    def submit_existing(self) -> p.Mutation:
        user = self.one_of(lambda node: node.role == "user", "answered")
        return self._submit(p.Existing(message_id=user))

    def submit_reserved(self) -> p.Mutation:
        return self._submit(
            p.Reserved(
                message_id=self.one_of(lambda node: self.view.awaits_input(node.id), "filled"),
                **self.some(text=TEXTS, data=DATA, model=MODELS),
            )
        )

    def _submit(self, user: p.Fresh | p.Existing | p.Reserved) -> p.Mutation:
        count = self.one(st.integers(0, 3), label="replies")
        placeholders = [
            p.Placeholder(message_id=self.a_new_id(), model=self.one(MODELS)) for _ in range(count)
        ]
        group = self.one(st.one_of(st.none(), GROUPS), label="group")
        preserve = self.one(st.booleans(), label="preserve")
        return p.TurnSubmit(
            user=user,
            placeholders=placeholders,
            group=group,
            preserve_active=preserve,
            when_live=self.when_live(),
        )

    def a_reply(self) -> str:
        """Draw a message that may well be live."""
        live = sorted(self.view.live)
        return self.one(st.sampled_from(live * 4 + ["nope"])) if live else self.an_id()

    def claim(self) -> p.Mutation:
        return p.StreamClaim(message_id=self.a_reply())

    def finish(self) -> p.Mutation:
        message_id = self.a_reply()
        written = self.topic.written(message_id)
        n = written.n if written else 0
        return p.StreamFinish(
            message_id=message_id,
            epoch=self.an_epoch(message_id),
            n=self.one(st.sampled_from([n, n, n, n + 1]), label="n"),
            status=self.one(st.sampled_from(["success", "error", "paused"])),
            **self.some(stats=OBJECTS, timing=OBJECTS),
        )

    def abort(self) -> p.Mutation:
        return p.StreamAbort(message_id=self.a_reply())

    def expire_lease(self) -> p.Mutation:
        message_id = self.a_reply()
        return ExpireLease(message_id=message_id, epoch=self.an_epoch(message_id))

    def expire_offer(self) -> p.Mutation:
        return ExpireOffer(message_id=self.a_reply())

    BATCHABLE = (
        *("create", "create", "sibling", "update", "move", "delete", "clear", "set_active"),
        *("rename", "set_metadata", "set_namespace", "submit_fresh", "submit_existing"),
        *("submit_reserved", "reserve", "retry", "delete_group", "restore"),
    )
    ANY = (
        *BATCHABLE,
        *("claim", "finish", "abort", "expire_lease", "expire_offer", "batch"),
        *("undo", "undo", "persist"),
    )

    def command(self, kinds: Sequence[str] = ANY) -> p.Mutation:
        kind = self.one(st.sampled_from(kinds), label="kind")
        draw: Callable[[], p.Mutation] = getattr(self, kind)
        return draw()

    def batch(self) -> p.Mutation:
        count = self.one(st.integers(1, 3), label="commands")
        commands: Any = [self.command(self.BATCHABLE) for _ in range(count)]
        return p.Batch(commands=commands, base=self.a_base())


class TopicMachine(RuleBasedStateMachine):
    """A topic, a twin that folds its deltas, and viewers of its live replies."""

    def __init__(self) -> None:
        super().__init__()
        self.begin(Topic())

    def begin(self, topic: Topic) -> None:
        self.topic = topic
        self.twin = over_the_wire(self.topic.tree)
        self.viewers: dict[str, LiveReply] = {}
        self.told = len(self.topic.deltas)
        self.gone: list[str] = []

    @initialize(lines=st.sampled_from([*BEGINNINGS, None]))
    def begin_with(self, lines: tuple[str, ...] | None) -> None:
        self.begin(Topic(temporary=True) if lines is None else topic_of(*lines))

    # Commands, one by one ----------------------------------------------------------------

    def ask(self, command: p.Mutation) -> None:
        """Carry a command out; what is refused has changed nothing, as `Topic.do` proves."""
        before, trash = over_the_wire(self.topic.tree), buried(self.topic)
        try:
            result = self.topic.do(command)
        except LivetreeError:
            return
        finally:
            self.topic.now += 7
        check_effect(before, self.topic.tree, command, result)
        check_trash_effect(trash, self.topic, command, result)
        self.follow(before)

    def draw(self, data: Any) -> Draw:
        return Draw(data, self.topic, self.gone)

    @rule(data=st.data())
    def create(self, data: Any) -> None:
        self.ask(self.draw(data).create())

    @rule(data=st.data())
    def submit(self, data: Any) -> None:
        kinds = ["submit_fresh", "submit_fresh", "submit_existing", "submit_reserved"]
        self.ask(self.draw(data).command(kinds))

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def reserve_or_retry(self, data: Any) -> None:
        self.ask(self.draw(data).command(["reserve", "retry", "retry", "submit_reserved"]))

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def sibling(self, data: Any) -> None:
        self.ask(self.draw(data).sibling())

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def change(self, data: Any) -> None:
        self.ask(self.draw(data).command(["update", "move"]))

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        self.ask(self.draw(data).command(["delete", "delete", "delete_group"]))

    @precondition(lambda self: self.topic.trash.entries)
    @rule(data=st.data())
    def bring_back(self, data: Any) -> None:
        self.ask(self.draw(data).command(["undo", "restore"]))

    @rule(lucky=st.integers(0, 3))
    def delete_the_topic_and_restore_it(self, lucky: int) -> None:
        self.ask(p.TopicDelete() if lucky else p.TopicRestore())
        if "deletedAt" in self.topic.tree.state:
            self.ask(p.TopicRestore())

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def duplicate(self, data: Any) -> None:
        """Copy a path, and find it in the copy as it is here."""
        tree = self.topic.tree
        node_id = data.draw(st.sampled_from(sorted(self.topic.ids())), label="copied")
        ids = (f"copy-{each}" for each in count())
        context = Context(now=self.topic.now, commit="copy", new_id=ids.__next__)
        command = copy_path(tree, p.TopicDuplicate(node_id=node_id), "copy", context)
        copied = Tree("copy", "copied-root")
        planned = plan(copied, command, context)
        assert planned.delta is not None
        assert copied.apply(planned.delta)
        check_invariants(copied)
        check_copy(tree, node_id, copied)

    @rule(data=st.data())
    def topic_command(self, data: Any) -> None:
        kinds = ["set_active"] * 5 + ["rename", "set_metadata", "set_namespace", "clear", "persist"]
        self.ask(self.draw(data).command(kinds))

    @precondition(lambda self: self.topic.tree.live)
    @rule(data=st.data())
    def live_command(self, data: Any) -> None:
        kinds = ["claim", "claim", "finish", "finish", "abort", "expire_lease", "expire_offer"]
        self.ask(self.draw(data).command(kinds))

    @rule(data=st.data())
    def batch(self, data: Any) -> None:
        self.ask(self.draw(data).batch())

    @rule()
    def clock_is_put_back(self) -> None:
        self.topic.now -= 1_000

    # Several at once ---------------------------------------------------------------------

    @rule(data=st.data())
    def run(self, data: Any) -> None:
        """Decide commands each on the one before, and find what one by one would have been."""
        count = data.draw(st.integers(2, 5), label="run")
        commands = [self.draw(data).command() for _ in range(count)]
        contexts = [self.frozen_context(place) for place in range(count)]
        # A copy to the last detail: which numbers groups have had decides which one is fresh.
        before, alone = over_the_wire(self.topic.tree), copy.deepcopy(self.topic.tree)
        form = canonical_form(self.topic.tree)

        draft, decided = run_of(self.topic.tree, commands, contexts, self.topic.trash)

        assert_equal_everywhere(before=form, after_planning=self.topic.tree)
        trash: Any = self.topic.trash
        rewritten: set[str] = set()
        expected = []
        for place, _ in enumerate(decided):
            # A run ends before what needs the trash, unless it is the first.
            given = rewriting(self.frozen_context(place), rewritten)
            expected.append(one_by_one(alone, commands[place], given, trash, rewritten))
            trash = None
        outcomes = [
            each.code if isinstance(each, LivetreeError) else (each.delta, each.result)
            for each in decided
        ]
        unlike = differences(*(json.loads(p.encode(each)) for each in (expected, outcomes)))
        assert not unlike, "one by one, and in a run:\n  " + "\n  ".join(unlike)
        assert_equal_everywhere(alone=alone, run=canonical_form(draft))
        for message_id in [*self.gone, *self.topic.ids()]:
            assert alone.grave(message_id) == draft.grave(message_id)
        check_invariants(draft)
        for each in decided:
            if isinstance(each, LivetreeError) or each.delta is None:
                continue
            old = over_the_wire(self.topic.tree)
            self.topic.bury(each)
            self.topic.adopt(each.delta, ended_data(each), old)
        self.topic.now += 7
        assert_equal_everywhere(alone=alone, applied=self.topic.tree)
        self.follow(before)

    def frozen_context(self, place: int) -> Context:
        """Return a context that gives the same ids each time it is made."""
        ids = iter(f"run-{self.topic.tree.seq}-{place}-{each}" for each in range(99))
        return Context(
            now=self.topic.now + place,
            commit=f"run-{self.topic.tree.seq}-{place}",
            new_id=lambda: next(ids),
            subject="ann",
            written=self.topic.written,
        )

    # Live text ---------------------------------------------------------------------------

    @precondition(lambda self: self.topic.replies)
    @rule(data=st.data(), again=st.booleans())
    def append(self, data: Any, again: bool) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.topic.replies)), label="reply")
        reply = self.topic.replies[message_id]
        if not self.topic.tree.live.get(message_id):
            return  # its writer has left
        ops: list[p.TextOp | p.PutOp] = []
        parts = len(reply.parts())
        for _ in range(data.draw(st.integers(1, 3), label="ops")):
            part = data.draw(st.integers(0, parts), label="part")
            if data.draw(st.booleans(), label="put"):
                ops.append(p.PutOp(part, Raw(b'{"type":"tool-x","text":"t","n":1.5}')))
            else:
                ops.append(p.TextOp(part, data.draw(TEXTS, label="text")))
            parts = max(parts, part + 1)
        first = reply.n + 1
        assert reply.take(first, ops) == ops
        if again:
            assert reply.take(first, ops) == []

    @precondition(lambda self: self.topic.replies)
    @rule(data=st.data())
    def watch(self, data: Any) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.topic.replies)), label="watched")
        self.see(message_id)
        assert self.viewers[message_id].parts() == self.topic.replies[message_id].parts()

    def see(self, message_id: str) -> None:
        """Bring a viewer up to date, by the tail where there is one."""
        host, viewer = self.topic.replies[message_id], self.viewers.get(message_id)
        if viewer is None or not host.has(viewer.epoch, viewer.n):
            self.viewers[message_id] = LiveReply.of(host.snapshot(message_id))
            return
        told = p.Stream(
            topic="topic",
            message_id=message_id,
            epoch=host.epoch,
            first=viewer.n + 1,
            to=host.n,
            ops=host.tail(viewer.n),
        )
        read = p.decode_frame(p.encode(told))
        assert isinstance(read, p.Stream)
        assert viewer.follow(read)

    # The twin ----------------------------------------------------------------------------

    def follow(self, before: Tree) -> None:
        """Tell the twin what has happened since it was told last."""
        for delta in self.topic.deltas[self.told :]:
            told = p.decode_frame(p.encode(delta))
            assert isinstance(told, p.Delta)
            written = {}
            for message_id, (epoch, n, checksum) in told.ended.items():
                viewer = self.viewers.get(message_id)
                if viewer and (viewer.epoch, viewer.n) == (epoch, n):
                    assert parts_checksum(viewer.parts()) == checksum
                    written[message_id] = self.data_of(message_id, viewer)
            assert self.twin.apply(told, written)
            self.gone += told.drop
        self.told = len(self.topic.deltas)
        for message_id in [*self.viewers]:
            if message_id not in self.topic.tree.live:
                del self.viewers[message_id]
        assert before.seq <= self.twin.seq == self.topic.tree.seq

    def data_of(self, message_id: str, viewer: LiveReply) -> Raw:
        """Return what the twin has of an ended reply: its parts, and the keys it had before."""
        old = self.twin.node(message_id).data
        rest = {} if old is UNSET else json.loads(bytes(old))
        return Raw(json.dumps(rest | {"parts": viewer.parts()}).encode())

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data())
    def forget_content(self, data: Any) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.topic.ids())), label="forgotten")
        self.twin.release(message_id)

    @precondition(lambda self: len(self.twin))
    @rule(data=st.data(), late=st.integers(0, 1))
    def fetch_content(self, data: Any, late: int) -> None:
        message_id = data.draw(st.sampled_from(sorted(self.topic.ids())), label="fetched")
        node = self.topic.node(message_id)
        assert node.data is not UNSET
        held = self.twin.node(message_id).data
        assert self.twin.hold(message_id, node.version - late, node.data) == (not late)
        if late:
            assert self.twin.node(message_id).data is held

    # What always holds -------------------------------------------------------------------

    @invariant()
    def the_twin_is_equal(self) -> None:
        contents = {
            node.id: node.data for node in self.topic.tree.nodes() if node.data is not UNSET
        }
        assert_equal_everywhere(tree=self.topic.tree, twin=canonical_form(self.twin, contents))
        assert self.twin.last_created_at == self.topic.tree.last_created_at
        check_invariants(self.twin)

    @invariant()
    def previews_of_what_was_forgotten_are_still_right(self) -> None:
        for node in self.twin.nodes():
            there = self.topic.node(node.id)
            told = (there.preview, there.empty)
            # An ended reply whose text the twin has not seen is known by nothing.
            assert (node.preview, node.empty) in (told, ("", False))


def one_by_one(
    tree: Tree, command: p.Mutation, context: Context, trash: Any, rewritten: set[str]
) -> Any:
    """Carry a command out on a tree that has no others waiting."""
    try:
        if trash is None:
            planned = plan(tree, command, context)
        else:
            planned = plan_with(trash, tree, command, context)
    except LivetreeError as refusal:
        return refusal.code
    if planned.delta is not None:
        assert tree.apply(planned.delta, ended_data(planned))
        rewritten.update(put.id for put in planned.delta.put if put.data is not UNSET)
    return planned.delta, planned.result


def buried(topic: Topic) -> dict[str, p.Node]:
    """Return what is in the trash."""
    return {row.node.id: row.node for row in topic.trash.rows()}


def check_trash_effect(
    before: dict[str, p.Node], topic: Topic, command: p.Mutation, result: dict[str, Any]
) -> None:
    """Demand that what a command deleted is in the trash, and what it brought back isn't."""
    now = buried(topic)
    went, came = {*now} - {*before}, {*before} - {*now}
    match command:
        case p.MessageDelete() | p.MessageDeleteGroup() | p.TopicClear():
            assert (went, came) == ({*result["deleted"]}, set())
        case p.TopicUndo() | p.MessageRestore():
            assert (went, came) == (set(), {*result["restored"]})
        case p.Batch():
            assert not (went & came)
            assert came <= topic.ids()
        case _:
            assert now == before


def check_copy(tree: Tree, node_id: str, copied: Tree) -> None:
    """Demand that a topic is the copy of a path, and has nothing else."""
    originals, path = tree.path(node_id), copied.path(copied.active_node_id)
    assert len(copied) == len(path) == len(originals)
    for original, node in zip(originals, path, strict=True):
        assert (node.role, node.data, node.preview) == (
            original.role,
            original.data,
            original.preview,
        )
        assert (node.siblings_group_id, node.context, node.stats) == (0, None, None)
        assert node.status == ("error" if original.status == "pending" else original.status)
        assert node.created_at == original.created_at
    assert {"name", "metadata", "live", "lastActivityAt"} == {*copied.state}
    assert copied.state["metadata"] == tree.state["metadata"]


def check_effect(before: Tree, after: Tree, command: p.Mutation, result: dict[str, Any]) -> None:
    """Demand that a command did what its kind may do to messages, and to no others."""
    old = {node.id: node for node in before.nodes()}
    new = {node.id: node for node in after.nodes()}
    came, went = {*new} - {*old}, {*old} - {*new}
    changed = {each for each in {*old} & {*new} if old[each].version != new[each].version}
    where = {each: new[each].parent_id for each in changed}
    active = after.active_node_id
    match command:
        case p.MessageCreate() | p.MessageCreateSibling():
            assert came == {result["messageId"]}
            assert not went
            source = getattr(command, "source_id", None)
            assert changed <= {source}
            if getattr(command, "set_active", True):
                assert active == result["messageId"]
            else:
                assert active == before.active_node_id
        case p.MessageUpdate():
            assert not came
            assert not went
            assert changed <= {command.message_id}
            assert active == before.active_node_id
            if command.group is UNSET:
                _check_groups(old, new, changed)
        case p.MessageDelete(cascade=True):
            assert went == {node.id for node in before.subtree(command.message_id)}
            assert went == {*result["deleted"]}
            assert not came
            assert not changed
            assert active not in went
            if before.active_node_id not in went:
                assert active == before.active_node_id
        case p.MessageDelete():
            assert went == {command.message_id} == {*result["deleted"]}
            assert not came
            children = [*before.children(command.message_id)]
            assert result["reparented"] == children
            assert len({where[each] for each in children}) <= 1
            for each in changed - {*children}:
                assert before.is_within(each, command.message_id)
                assert new[each].context is None
                assert new[each].updated_at == old[each].updated_at
            if before.active_node_id != command.message_id:
                assert active == before.active_node_id
            _check_groups(old, new, {*children})
        case p.TopicClear():
            assert not new
            assert active is None
            assert {*result["deleted"]} == {*old}
        case p.MessageDeleteGroup():
            target = old[command.message_id]
            members = {command.message_id}
            if target.siblings_group_id:
                members = {
                    each
                    for each, node in old.items()
                    if _group(node) == _group(target) and node.role == "assistant"
                }
            assert went == members == {*result["deleted"]}
            assert not came
            children = [each for top in result["deleted"] for each in before.children(top)]
            assert result["reparented"] == children
            assert {where[each] for each in children} <= {target.parent_id}
            for each in changed - {*children}:
                assert new[each].context is None
            if before.active_node_id not in went:
                assert active == before.active_node_id
            _check_groups(old, new, {*children})
        case p.TopicUndo():
            assert came == {*result["restored"]}
            assert not went
            assert changed == {*result["reparented"]}
            if result["newActive"] == "UNCHANGED":
                assert active == before.active_node_id
            else:
                assert active == result["newActive"]
            assert all(new[each].status != "pending" for each in came)
            assert not ({*after.live} - {*before.live})
        case p.MessageRestore():
            assert came == {*result["restored"]}
            assert command.message_id in came
            assert command.cascade or len(came) == 1
            assert not went
            assert not changed
            assert active == before.active_node_id
            assert new[command.message_id].parent_id == result["parentId"]
            assert all(new[each].status != "pending" for each in came)
        case p.BranchReserve():
            assert came == {*result["reserved"]}
            assert len(came) == (1 if before.has_children(command.anchor_id) else 2)
            assert all(after.awaits_input(each) for each in came)
            assert {new[each].parent_id for each in came} == {command.anchor_id}
            assert not went
            assert not changed
            chosen = result["messageId"] if command.activate else before.active_node_id
            assert active == chosen
        case p.MessageRetry():
            assert not came
            assert not went
            steered = {*before.live}
            below = {node.id for node in before.subtree(command.message_id)}
            assert changed <= below | steered
            node = new[command.message_id]
            assert (node.status, node.empty, node.context) == ("pending", True, None)
            assert after.live == {command.message_id: 0}
            assert all(new[each].context is None for each in below)
            assert all(new[each].status == "paused" for each in steered - {command.message_id})
            assert active == before.active_node_id
        case p.TurnSubmit():
            replies = result["placeholderIds"]
            assert came >= {*replies}
            assert came - {*replies} <= {result["userId"]}
            assert not went
            steered = {*before.live}
            assert not steered or command.when_live == "steer"
            assert all(new[each].status == "paused" for each in steered)
            filled = {result["userId"]} if isinstance(command.user, p.Reserved) else set()
            assert changed <= {*before.children(result["userId"])} | steered | filled
            for each in filled:
                assert before.awaits_input(each)
                assert not new[each].empty
            chosen = replies[-1] if replies else result["userId"]
            assert active == (before.active_node_id if command.preserve_active else chosen)
            assert after.live == dict.fromkeys(replies, 0)
        case p.StreamFinish() | p.StreamAbort() | ExpireOffer():
            assert not came
            assert not went
            assert changed <= {command.message_id}
            # To the server's own an offer that was taken meanwhile is nothing.
            assert command.message_id not in after.live or before.seq == after.seq
            assert active == before.active_node_id
        case p.Batch():
            assert len(result["results"]) == len(command.commands)
        case _:
            assert not came
            assert not went
            assert not changed


def _check_groups(old: dict[str, p.Node], new: dict[str, p.Node], moved: set[str]) -> None:
    """Demand that those who moved out of one group are one group again, with nobody else in it."""
    for each in moved:
        before, after = old[each], new[each]
        if before.parent_id == after.parent_id or not after.siblings_group_id:
            continue
        fellows = {node.id for node in new.values() if _group(node) == _group(after)}
        assert fellows == {other for other in moved if _group(old[other]) == _group(before)}


def _group(node: p.Node) -> tuple[str, int]:
    return node.parent_id, node.siblings_group_id


TestTopic = TopicMachine.TestCase
TestTopic.settings = settings(stateful_step_count=30)


def test_a_topic_is_what_the_machine_begins_with():
    machine = TopicMachine()

    machine.ask(p.MessageCreate(role="user", text="hi"))
    machine.the_twin_is_equal()

    assert len(machine.twin) == 1


def test_the_machine_sees_a_twin_that_drifts():
    machine = TopicMachine()
    machine.ask(p.MessageCreate(message_id="m", role="user", text="hi"))
    other = Topic([message("m", ROOT, role="user")], "m")
    machine.twin = other.tree

    with pytest.raises(AssertionError, match="differ"):
        machine.the_twin_is_equal()
