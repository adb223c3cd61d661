"""A line is the path by its ids, however the tree has changed since the last one was asked for."""

from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from livetree.core import protocol as p
from livetree.core.draft import Draft
from livetree.core.errors import LivetreeError
from livetree.core.view import View

from tests.tree.costs import steps
from tests.tree.topic import ROOT, Topic, chain, topic_of, tree_with


def ids_of(view: View, message_id: str | None) -> list[str]:
    line = view.line(message_id)
    return [*line.ids[: line.length]]


def check_line(view: View, message_id: str | None) -> None:
    path = [node.id for node in view.path(message_id)]
    line = view.line(message_id)

    assert [*line.ids[: line.length]] == path
    assert [line.place(each) for each in path] == [*range(len(path))]
    below = {*line.ids} - {*path}
    assert [line.place(each) for each in below] == [None] * len(below)


def test_a_line_is_the_path():
    tree = topic_of("a > b > c", "b > d").tree

    for message_id in ("c", "d", "b", "a", "c"):
        check_line(tree, message_id)
    assert ids_of(tree, "d") == ["a", "b", "d"]


def test_of_nothing_there_is_no_line():
    tree = topic_of("a > b").tree

    for view in (tree, Draft(tree)):
        assert [view.line(each).length for each in (None, "nope", ROOT)] == [0, 0, 0]
        assert ids_of(view, "b") == ["a", "b"]


def test_a_draft_has_lines_too():
    draft = Draft(topic_of("a > b", "a > c").tree, 900)
    draft.change("c", parent_id="b")

    for message_id in ("b", "c", "a"):
        check_line(draft, message_id)
    assert draft.line("b").place("c") is None


def test_a_message_further_down_is_not_on_the_line():
    tree = topic_of("a > b > c").tree
    tree.line("c")

    line = tree.line("a")

    assert line.place("a") == 0
    assert line.place("c") is None


def test_asking_for_what_is_above_or_for_nothing_forgets_nothing():
    tree = tree_with(chain(5_000), "c4999")
    tree.line("c4999")

    assert tree.line("c10").length == 11
    assert tree.line(None).length == 0
    assert steps(lambda: tree.line("c4999")) < 500


def test_what_goes_from_the_end_of_a_line_leaves_what_is_above_it():
    tree = tree_with(chain(5_000))
    tree.line("c4999")
    draft = Draft(tree, 9_000)
    draft.remove("c4999")
    delta = draft.seal("next", p.Cause("test"))
    assert delta is not None
    assert tree.apply(delta)

    assert steps(lambda: tree.line("c4998")) < 500
    check_line(tree, "c4998")


@given(st.data())
def test_a_line_follows_every_change(data: Any):
    topic = Topic()
    for number in range(data.draw(st.integers(1, 25))):
        known = sorted(topic.ids())
        some = st.sampled_from([*known, ROOT])
        commands: list[p.Mutation] = [
            p.MessageCreate(role="user", message_id=f"m{number}", parent=data.draw(some))
        ]
        if known:
            one = data.draw(st.sampled_from(known))
            commands += [
                p.MessageUpdate(message_id=one, parent=data.draw(some)),
                p.MessageDelete(message_id=one, cascade=data.draw(st.booleans())),
                p.TopicUndo(),
            ]
        try:
            topic.do(data.draw(st.sampled_from(commands)))
        except LivetreeError:
            continue
        for message_id in data.draw(st.lists(st.sampled_from([*topic.ids(), None]), max_size=3)):
            check_line(topic.tree, message_id)


def test_a_message_that_comes_back_elsewhere_is_on_another_line():
    topic = topic_of("a > b > c")
    topic.tree.line("c")
    topic.do(p.MessageDelete(message_id="c"))
    assert ids_of(topic.tree, "c") == []
    topic.do(p.MessageDelete(message_id="b"))
    topic.do(p.MessageRestore(message_id="c"))

    check_line(topic.tree, "c")
    assert ids_of(topic.tree, "c") == ["a", "c"]
