"""What must cost the same in a topic of any size, and work at any depth."""

from collections.abc import Callable
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree.core.plan import (
    Context,
    ExpireLease,
    ExpireOffer,
    ImportTopic,
    Planned,
    Written,
    plan,
)
from livetree.core.reads import branch_page, messages, topic_info, tree_page
from livetree.core.tree import Draft, Tree
from msgspec import Raw
from msgspec.structs import replace

from tests.helpers import assert_equal_everywhere, check_invariants, over_the_wire
from tests.tree.costs import peak, shallow, steps
from tests.tree.topic import ROOT, chain, message, tree_with

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
    nodes[1] = replace(nodes[1], siblings_group_id=1)
    other = message("other", "c0", role="assistant", created_at=DEEP + 1, siblings_group_id=1)
    side = message("side", ROOT, role="user", created_at=DEEP + 2)
    return tree_with([*nodes, other, side], f"c{DEEP - 1}")


END = f"c{DEEP - 1}"
DEEP_COMMANDS: dict[str, Callable[[Tree], p.Mutation]] = {
    "append": lambda tree: p.MessageCreate(role="user", text="x"),
    "sibling": lambda tree: p.MessageCreateSibling(source_id=END, text="x"),
    "edit": lambda tree: p.MessageUpdate(message_id="c0", text="x"),
    "move": lambda tree: p.MessageUpdate(message_id="c1", parent="side"),
    "move the end": lambda tree: p.MessageUpdate(message_id=END, parent="side"),
    "splice": lambda tree: p.MessageDelete(message_id="c0"),
    "splice a reply": lambda tree: p.MessageDelete(message_id="c1"),
    "cascade": lambda tree: p.MessageDelete(message_id="c0", cascade=True),
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
        check_invariants(deep_tree)
        assert_equal_everywhere(tree=deep_tree, copy=over_the_wire(deep_tree))


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
