"""What must cost the same in a topic of any size, and work at any depth."""

from collections.abc import Callable
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.plan import (
    Context,
    ExpireLease,
    ExpireOffer,
    ImportTopic,
    Planned,
    Written,
    plan,
)
from livetree.core.reads import branch_page, messages, path_page, topic_info, tree_page
from livetree.core.topic_rules import copy_path
from livetree.core.tree import Tree
from livetree.testing.trash import MemoryTrash
from msgspec import Raw
from msgspec.structs import replace

from tests.helpers import assert_equal_everywhere, check_invariants, over_the_wire
from tests.tree.costs import peak, shallow, steps
from tests.tree.topic import ROOT, chain, message, plan_with, tree_with

SMALL, LARGE = 100, 20_000
DEEP = 20_000


def a_chain(size: int) -> Tree:
    return tree_with(chain(size), f"c{size - 1}")


def a_meadow(size: int) -> Tree:
    """Return a topic of first turns, each with a reply."""
    nodes = []
    for place in range(size // 2):
        nodes.append(message(f"u{place}", ROOT, role="user", created_at=2 * place + 1))
        reply = message(f"a{place}", f"u{place}", role="assistant", created_at=2 * place + 2)
        nodes.append(replace(reply, siblings_group_id=1))
    return tree_with(nodes, f"a{size // 2 - 1}")


SHAPES: dict[str, Callable[[int], Tree]] = {"chain": a_chain, "meadow": a_meadow}


def context(commit: str = "next", **fields: Any) -> Context:
    ids = iter(f"new-{place}" for place in range(99))
    return Context(now=10**9, commit=commit, new_id=lambda: next(ids), **fields)


def decide(tree: Tree | Draft, command: p.Mutation, **fields: Any) -> Planned:
    return plan(tree, command, context(**fields))


def commit(tree: Tree, command: p.Mutation, **fields: Any) -> dict[str, Any]:
    planned = decide(tree, command, **fields)
    assert planned.delta is not None
    written = {each: planned.draft.node(each).data for each in planned.delta.ended}
    assert tree.apply(planned.delta, written)  # type: ignore[arg-type]
    return planned.result


def last(tree: Tree) -> str:
    assert tree.active_node_id is not None
    return tree.active_node_id


def claimed(tree: Tree) -> Tree:
    """Give the topic a reply that is being written, off the active path."""
    turn = p.TurnSubmit(
        user=p.Fresh(message_id="q", text="hi"),
        placeholders=[p.Placeholder(message_id="r")],
        preserve_active=True,
    )
    commit(tree, turn)
    commit(tree, p.StreamClaim(message_id="r"))
    return tree


# Commands whose cost is that of what they touch; each takes a tree and makes one.
LOCAL: dict[str, Callable[[Tree], p.Mutation]] = {
    "append": lambda tree: p.MessageCreate(role="user", text="x"),
    "first turn": lambda tree: p.MessageCreate(role="user", parent="ROOT", text="x"),
    "set active": lambda tree: p.TopicSetActive(node_id=next(iter(tree._nodes))),
    "set nothing active": lambda tree: p.TopicSetActive(node_id=None),
    "rename": lambda tree: p.TopicUpdate(name="n"),
    "metadata": lambda tree: p.TopicSetMetadata(metadata=Raw(b'{"a":1}')),
    "edit the last": lambda tree: p.MessageUpdate(message_id=last(tree), text="y"),
    "edit the first": lambda tree: p.MessageUpdate(message_id=next(iter(tree._nodes)), text="y"),
    "sibling": lambda tree: p.MessageCreateSibling(source_id=last(tree), text="y"),
    "turn": lambda tree: p.TurnSubmit(
        user=p.Fresh(parent=last(tree), text="x"),
        placeholders=[p.Placeholder(), p.Placeholder()],
        group=1,
    ),
    "delete the last": lambda tree: p.MessageDelete(message_id=last(tree), strategy="clear"),
    "splice the first": lambda tree: p.MessageDelete(message_id=next(iter(tree._nodes))),
    "delete the last one's group": lambda tree: p.MessageDeleteGroup(message_id=last(tree)),
    "reserve": lambda tree: p.BranchReserve(anchor_id=last(tree)),
    "steer": lambda tree: p.TurnSubmit(
        user=p.Fresh(parent=last(tree), text="x"), placeholders=[], when_live="steer"
    ),
    "reserve and fill": lambda tree: p.Batch(
        commands=[
            p.BranchReserve(anchor_id=last(tree), message_ids=["r"]),
            p.TurnSubmit(user=p.Reserved(message_id="r", text="x"), placeholders=[]),
        ]
    ),
    "fail and retry": lambda tree: p.Batch(
        commands=[
            p.MessageUpdate(message_id=last(tree), status="error"),
            p.MessageRetry(message_id=last(tree)),
        ]
    ),
    "batch": lambda tree: p.Batch(
        commands=[
            p.MessageCreate(role="user", text="x"),
            p.MessageCreate(role="assistant", text="y", status="success"),
            p.TopicUpdate(name="n"),
        ]
    ),
}


@pytest.fixture(scope="module", params=SHAPES)
def sizes(request: pytest.FixtureRequest) -> tuple[Tree, Tree]:
    shape = SHAPES[request.param]
    return shape(SMALL), shape(LARGE)


# Memory is measured in pages of what an allocator hands out, not to the byte.
SLACK = 4_000


@pytest.mark.parametrize("name", LOCAL)
def test_deciding_costs_the_same_in_a_topic_of_any_size(sizes: tuple[Tree, Tree], name: str):
    commands = [LOCAL[name](tree) for tree in sizes]
    assert all(decide(*each).delta for each in zip(sizes, commands, strict=True))

    # Finding a place in order is a search of C's; what is left to Python must not grow.
    small, large = (
        steps(lambda: decide(tree, command))  # noqa: B023
        for tree, command in zip(sizes, commands, strict=True)
    )
    assert large == small

    small, large = (
        peak(lambda: decide(tree, command))  # noqa: B023
        for tree, command in zip(sizes, commands, strict=True)
    )
    assert large < small + SLACK


@pytest.mark.parametrize("name", LOCAL)
def test_folding_a_delta_costs_the_same_in_a_topic_of_any_size(sizes: tuple[Tree, Tree], name: str):
    counted: list[int] = []
    for tree in sizes:
        delta = decide(tree, LOCAL[name](tree)).delta
        assert delta is not None
        mirror = over_the_wire(tree)
        counted.append(steps(lambda: mirror.apply(delta)))  # noqa: B023
        assert mirror.digest == delta.digest

    assert counted[0] == counted[1]


@pytest.mark.parametrize("name", LOCAL)
def test_a_run_costs_the_same_in_a_topic_of_any_size(sizes: tuple[Tree, Tree], name: str):
    def run(tree: Tree) -> None:
        draft = Draft(tree)
        planned = decide(draft, command)
        assert planned.delta is not None
        draft.absorb(planned.draft, planned.delta)
        plan(draft, p.TopicSetActive(node_id=None), context("later"))

    counted: list[int] = []
    for tree in sizes:
        command = LOCAL[name](tree)
        counted.append(steps(lambda: run(tree)))  # noqa: B023

    assert counted[0] == counted[1]


@pytest.mark.parametrize("shape", SHAPES)
def test_live_replies_cost_the_same_in_a_topic_of_any_size(shape: str):
    small, large = (claimed(SHAPES[shape](size)) for size in (SMALL, LARGE))
    parts = [{"type": "text", "text": "hello"}]

    for command in (
        p.StreamAbort(message_id="r"),
        p.StreamFinish(message_id="r", epoch=small.live["r"], n=1),
        ExpireLease(message_id="r", epoch=small.live["r"]),
    ):

        def end(tree: Tree) -> None:
            reply = Written(tree.live["r"], 1, parts)
            planned = decide(tree, command, written=lambda _: reply)  # noqa: B023
            assert planned.delta is not None

        assert steps(lambda: end(small)) == steps(lambda: end(large))


def test_a_draft_that_has_changed_nothing_looks_below_for_what_the_tree_does():
    tree = a_chain(SMALL)

    assert steps(lambda: Draft(tree).subtree("c0")) < 2 * steps(lambda: tree.subtree("c0"))


def test_the_counting_sees_what_grows():
    small, large = a_chain(SMALL), a_chain(LARGE)
    command = p.TreeGet(topic="topic", depth=-1)

    assert steps(lambda: tree_page(large, command)) > 100 * steps(lambda: tree_page(small, command))
    assert peak(lambda: dict(large._nodes)) > peak(lambda: dict(small._nodes)) + SLACK


# Depth -----------------------------------------------------------------------------------


def deep() -> Tree:
    """
    Return a chain with a fork: ``c0`` to ``c19999``, with a group and contexts below ``c0``.

    The second message is a reply of a group, so that deleting it clears what all below it has.

    """
    nodes = [replace(node, context=Raw(b'{"contextTokens":1}')) for node in chain(DEEP)]
    nodes[1] = replace(nodes[1], siblings_group_id=1, status="error")
    other = message("other", "c0", role="assistant", created_at=DEEP + 1, siblings_group_id=1)
    side = message("side", ROOT, role="user", created_at=DEEP + 2)
    return tree_with([*nodes, other, side], f"c{DEEP - 1}")


END, MIDDLE = f"c{DEEP - 1}", f"c{DEEP // 2}"
DEEP_COMMANDS: dict[str, Callable[[Tree], p.Mutation]] = {
    "append": lambda tree: p.MessageCreate(role="user", text="x"),
    "sibling": lambda tree: p.MessageCreateSibling(source_id=END, text="x"),
    "edit": lambda tree: p.MessageUpdate(message_id="c0", text="x"),
    "move": lambda tree: p.MessageUpdate(message_id="c1", parent="side"),
    "move the end": lambda tree: p.MessageUpdate(message_id=END, parent="side"),
    "splice": lambda tree: p.MessageDelete(message_id="c0"),
    "splice a reply": lambda tree: p.MessageDelete(message_id="c1"),
    "splice in the middle": lambda tree: p.MessageDelete(message_id=MIDDLE),
    "splice the end": lambda tree: p.MessageDelete(message_id="pending"),
    "delete a group": lambda tree: p.MessageDeleteGroup(message_id="other"),
    "cascade": lambda tree: p.MessageDelete(message_id="c0", cascade=True),
    "retry": lambda tree: p.MessageRetry(message_id="c1"),
    "reserve": lambda tree: p.BranchReserve(anchor_id=END),
    "steer": lambda tree: p.TurnSubmit(
        user=p.Existing(message_id="c0"), placeholders=[p.Placeholder()], when_live="steer"
    ),
    "clear": lambda tree: p.TopicClear(),
    "delete": lambda tree: p.TopicDelete(),
    "set active": lambda tree: p.TopicSetActive(node_id="c0"),
    "turn": lambda tree: p.TurnSubmit(
        user=p.Fresh(parent=END), placeholders=[p.Placeholder()] * 2, group=1
    ),
    "rename": lambda tree: p.TopicUpdate(name="n"),
    "metadata": lambda tree: p.TopicSetMetadata(metadata=Raw(b'{"a":1}')),
    "namespace": lambda tree: p.TopicSetMetadataNamespace(namespace="a", value=Raw(b"1")),
    "claim": lambda tree: p.StreamClaim(message_id="pending"),
    "expire": lambda tree: ExpireOffer(message_id="pending"),
    "with base": lambda tree: p.MessageDelete(message_id="c0", cascade=True, base=tree.seq),
    "batch": lambda tree: p.Batch(
        commands=[
            p.MessageUpdate(message_id="c1", parent="side"),
            p.MessageCreate(role="user", message_id="n", parent=END),
            p.MessageDelete(message_id="side"),
            p.MessageDelete(message_id="c1", cascade=True),
        ]
    ),
}


@pytest.fixture(scope="module")
def deep_tree() -> Tree:
    tree = deep()
    reply = p.MessageCreate(message_id="pending", role="assistant", parent=END, set_active=False)
    commit(tree, reply)
    return tree


@pytest.mark.parametrize("name", DEEP_COMMANDS)
def test_no_command_recurses_into_a_chain_of_20000(deep_tree: Tree, name: str):
    mirror = over_the_wire(deep_tree)
    command = DEEP_COMMANDS[name](deep_tree)

    with shallow(60):
        planned = decide(deep_tree, command)
        assert planned.delta is not None
        told = p.decode_frame(p.encode(planned.delta))
        assert isinstance(told, p.Delta)
        assert mirror.apply(told)
        run = Draft(deep_tree)
        run.absorb(planned.draft, planned.delta)
    assert (run.digest, len(run)) == (mirror.digest, len(mirror))


@pytest.mark.parametrize(
    "command",
    [
        p.MessageUpdate(message_id="c0", parent=END),
        p.MessageUpdate(message_id="c0", parent="c0"),
        p.MessageDelete(message_id="c0", awaiting_input_only=True),
        p.MessageDelete(message_id=ROOT, cascade=True),
    ],
    ids=["below its end", "below itself", "it awaits nothing", "the root"],
)
def test_no_refusal_recurses_either(deep_tree: Tree, command: p.Mutation):
    with shallow(60), pytest.raises(Exception, match=r"cannot be|no longer awaits"):
        decide(deep_tree, command)


def test_the_guard_does_not_recurse_either():
    tree = deep()
    reply = p.MessageCreate(message_id="r", role="assistant", parent=END, set_active=False)
    commit(tree, reply)
    commit(tree, p.StreamClaim(message_id="r"), commit="claimed")

    for command in (
        p.MessageUpdate(message_id="c0", text="x"),
        p.MessageDelete(message_id="c0", cascade=True),
        p.TopicClear(),
    ):
        with shallow(60), pytest.raises(Exception, match="still being written"):
            decide(tree, command)


def test_no_read_recurses_into_a_chain_of_20000(deep_tree: Tree):
    with shallow(60):
        page = tree_page(deep_tree, p.TreeGet(topic="topic", depth=-1))
        assert len(page.nodes) + sum(len(group.nodes) for group in page.groups) == DEEP + 3
        below = tree_page(deep_tree, p.TreeGet(topic="topic", depth=-1, root_id="c1"))
        assert len(below.nodes) == DEEP
        newest = branch_page(deep_tree, p.BranchGet(topic="topic"))
        assert newest.items[-1].index == DEEP - 1
        oldest = branch_page(deep_tree, p.BranchGet(topic="topic", cursor="c1"))
        assert [item.node.id for item in oldest.items] == ["c0"]
        assert len(deep_tree.path(END)) == DEEP
        assert len(deep_tree.subtree("c1")) == DEEP
        assert messages(deep_tree, p.MessageGet(topic="topic", message_ids=[END]))[0].id == END
        assert topic_info(deep_tree, 1)["activeNodeId"] == END
        through = path_page(deep_tree, p.PathThrough(topic="topic", node_id="c0"))
        assert (len(through.ids), through.ids[-1]) == (DEEP + 1, "pending")
        assert len(path_page(deep_tree, p.PathGet(topic="topic", node_id=END)).ids) == DEEP
        check_invariants(deep_tree)
        assert_equal_everywhere(tree=deep_tree, copy=over_the_wire(deep_tree))


# Deletions and what takes them back -----------------------------------------------------------


def a_broom(size: int) -> Tree:
    """Return a chain of half the size with a fan of groups at its end, one of them large."""
    nodes = chain(size // 2 + 1)
    end = nodes[-1].id
    for place in range(size // 2):
        group = 1 if place % 2 else place + 2
        reply = message(f"f{place}", end, role="assistant", created_at=size + place)
        nodes.append(replace(reply, siblings_group_id=group))
    return tree_with(nodes, "f1")


BROKEN: dict[str, Callable[[Tree], p.Mutation]] = {
    "splice of a leaf": lambda tree: p.MessageDelete(message_id=last(tree)),
    "splice of the top": lambda tree: p.MessageDelete(message_id="c0"),
    "splice in the middle": lambda tree: p.MessageDelete(message_id="c50"),
    "cascade": lambda tree: p.MessageDelete(message_id="c0", cascade=True),
    "clear": lambda tree: p.TopicClear(),
    "group": lambda tree: p.MessageDeleteGroup(message_id=last(tree)),
}


def splice_of_the_fans_parent(tree: Tree) -> p.Mutation:
    return p.MessageDelete(message_id=tree.node("f0").parent_id)


def broken(tree: Tree, command: p.Mutation) -> MemoryTrash:
    trash = MemoryTrash()
    planned = decide(tree, command)
    assert planned.delta is not None
    trash.bury(planned.burial, {each: tree.node(each) for each in planned.delta.drop})
    assert tree.apply(planned.delta)
    return trash


def mend(tree: Tree, trash: MemoryTrash) -> Planned:
    return plan_with(trash, tree, p.TopicUndo(seq=max(trash.entries)), context("undone"))


@pytest.mark.parametrize("shape", [a_chain, a_broom])
@pytest.mark.parametrize("name", [*BROKEN, "splice of the fan's parent"])
def test_what_is_undone_costs_what_it_touches_and_nothing_recurses(
    name: str, shape: Callable[[int], Tree]
):
    if shape is a_chain and "fan" in name:
        return
    make = BROKEN.get(name, splice_of_the_fans_parent)
    counted = []
    for size in (1_000, 2_000):
        tree = shape(size)
        before = [(node.id, node.parent_id, node.siblings_group_id) for node in tree.subtree("c0")]
        command = make(tree)
        decided = steps(lambda: decide(tree, command))  # noqa: B023
        with shallow(80):
            trash = broken(tree, command)
            undone = steps(lambda: mend(tree, trash))  # noqa: B023
            planned = mend(tree, trash)
            assert planned.delta is not None
            assert tree.apply(planned.delta)
        after = [(node.id, node.parent_id, node.siblings_group_id) for node in tree.subtree("c0")]
        assert before == after
        counted.append((decided, undone))

    for small, large in zip(*counted, strict=True):
        assert large <= 2.2 * small, "twice as much may cost twice, and no more"


@pytest.mark.parametrize("name", ["splice of the top", "cascade", "clear"])
def test_undo_does_not_recurse_into_a_chain_of_20000(name: str):
    tree = a_chain(DEEP)
    with shallow(80):
        trash = broken(tree, BROKEN[name](tree))
        planned = mend(tree, trash)
        assert planned.delta is not None
        assert tree.apply(planned.delta)

    assert [node.id for node in tree.path(END)] == [f"c{place}" for place in range(DEEP)]


def test_a_group_of_10000_is_deleted_and_brought_back():
    nodes = [message("u", ROOT, role="user")]
    for place in range(10_000):
        reply = message(f"r{place}", "u", role="assistant", created_at=place + 2)
        nodes.append(replace(reply, siblings_group_id=1))
    tree = tree_with(nodes, "r9999")
    with shallow(80):
        trash = broken(tree, p.MessageDeleteGroup(message_id="r0"))
        assert len(tree) == 1
        planned = mend(tree, trash)
        assert planned.delta is not None
        assert tree.apply(planned.delta)

    assert [*tree.children("u")] == [f"r{place}" for place in range(10_000)]
    assert {node.siblings_group_id for node in tree.nodes()} == {0, 1}
    assert tree.active_node_id == "r9999"


@pytest.mark.parametrize("command", ["group", "undo"])
def test_a_live_reply_far_below_is_looked_for_once_and_not_for_each_message(command: str):
    counted = []
    for size in (400, 800):
        line = chain(size, parent_id=ROOT, prefix="q")
        fan = [
            replace(message(f"f{each}", "p", role="assistant"), siblings_group_id=1)
            for each in range(size)
        ]
        fan = [replace(node, created_at=place + 2) for place, node in enumerate(fan)]
        above, parent = message("g", ROOT, role="user"), message("p", "g", role="user")
        tree = tree_with([*line, above, parent, *fan], None)
        trash = MemoryTrash()
        if command == "undo":
            trash = broken(tree, p.MessageDelete(message_id="p"))
        turn = p.TurnSubmit(
            user=p.Fresh(message_id="x", parent=line[-1].id, text="x"),
            placeholders=[p.Placeholder()],
        )
        commit(tree, turn, commit="live")
        if command == "undo":
            counted.append(steps(lambda: mend(tree, trash)))  # noqa: B023
        else:
            group = p.MessageDeleteGroup(message_id="f0")
            counted.append(steps(lambda: decide(tree, group)))  # noqa: B023

    assert counted[1] <= 2.2 * counted[0]


def test_a_copy_of_a_whole_chain_costs_what_the_chain_has():
    def copy(tree: Tree) -> Planned:
        ids = (f"copy-{place}" for place in range(2 * DEEP))
        made = copy_path(
            tree,
            p.TopicDuplicate(node_id=last(tree)),
            "copy",
            Context(now=1, commit="c", new_id=ids.__next__),
        )
        return decide(Tree("copy", "its-root"), made)

    small, large = a_chain(500), a_chain(1_000)
    assert steps(lambda: copy(large)) <= 2.1 * steps(lambda: copy(small))
    with shallow(80):
        planned = copy(a_chain(DEEP))
    assert planned.delta is not None
    assert len(planned.delta.put) == DEEP


def test_100000_messages_are_no_other_than_100():
    size = 100_000
    nodes = chain(size // 2)
    nodes += [
        message(f"f{place}", f"c{place}", role="user", created_at=size + place)
        for place in range(size // 2)
    ]
    tree = tree_with(nodes, f"c{size // 2 - 1}")
    with shallow(80):
        through = path_page(tree, p.PathThrough(topic="topic", node_id="c0"))
        assert through.ids[-1] == f"f{size // 2 - 1}"
        assert len(tree_page(tree, p.TreeGet(topic="topic", depth=-1)).nodes) == size
        trash = broken(tree, p.TopicClear())
        assert len(tree) == 0
        planned = mend(tree, trash)
        assert planned.delta is not None
        assert tree.apply(planned.delta)
    assert (len(tree), tree.active_node_id) == (size, f"c{size // 2 - 1}")


def test_loading_and_importing_do_not_recurse():
    nodes = chain(DEEP)
    command = ImportTopic(name="", metadata={}, nodes=nodes, active_node_id=END, last_activity_at=0)

    with shallow(60):
        assert len(tree_with(nodes[::-1], END)) == DEEP
        planned = decide(Tree("topic", ROOT), command)
        assert planned.delta is not None
        assert [put.id for put in planned.delta.put] == [node.id for node in nodes]


def test_the_shallow_limit_is_one_that_recursion_meets():
    def down(levels: int) -> int:
        return 0 if not levels else 1 + down(levels - 1)

    with shallow(60):
        down(20)
        with pytest.raises(RecursionError):
            down(100)
