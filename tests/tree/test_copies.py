"""Topics that are copied, kept for a while, deleted and brought back."""

from itertools import count

import pytest
from livetree.core import protocol as p
from livetree.core.errors import Conflict, InvalidOperation, LivetreeError, NotFound
from livetree.core.plan import Content, Context, CopyTopic, EraseTopic, plan
from livetree.core.topic_rules import copy_path
from livetree.core.tree import Tree
from msgspec import UNSET, Raw

from tests.helpers import check_invariants, over_the_wire
from tests.tree.topic import ROOT, START, Topic, topic_of

CONTEXT = Raw(b'{"contextTokens":1}')


def copied(topic: Topic, command: p.TopicDuplicate, **fields: object) -> tuple[CopyTopic, Tree]:
    """Make the copy of a path; returns its command, and the new topic."""
    ids = (f"copy-{each}" for each in count())
    context = Context(now=START + 5, commit="c", new_id=ids.__next__, subject="bob", **fields)  # type: ignore[arg-type]
    made = copy_path(topic.tree, command, "other", context)
    tree = Tree("other", "root-2")
    planned = plan(tree, made, context)
    assert planned.delta is not None
    assert planned.result["activeNodeId"] == planned.delta.active_node_id
    assert tree.apply(planned.delta)
    check_invariants(tree)
    return made, tree


def test_T16_a_copy_is_one_path_with_new_ids_and_no_groups():
    topic = topic_of("u1:2 > a1:1 > u2 > a2", "u1 > b1:1", "v1", active="v1")
    topic.do(p.TopicUpdate(name="Trip"))
    topic.do(p.TopicSetMetadata(metadata=Raw(b'{"a":1}')))
    before = over_the_wire(topic.tree)

    made, tree = copied(topic, p.TopicDuplicate(node_id="u2", mutation="m-1"))

    path = tree.path(tree.active_node_id)
    assert len(tree) == len(path) == 3
    assert [node.preview for node in path] == ["u1", "a1", "u2"]
    assert {node.id for node in path}.isdisjoint(topic.ids())
    assert {node.siblings_group_id for node in path} == {0}
    assert path[0].parent_id == "root-2"
    assert [node.role for node in path] == ["user", "assistant", "user"]
    originals = [topic.node(each) for each in ("u1", "a1", "u2")]
    assert [node.created_at for node in path] == [node.created_at for node in originals]
    assert [bytes(node.data) for node in path] == [bytes(node.data) for node in originals]  # type: ignore[arg-type]
    assert (tree.state["name"], tree.state["metadata"]) == ("Trip", {"a": 1})
    assert tree.state["lastActivityAt"] == START + 5
    assert (made.topic, made.mutation) == ("other", "m-1")
    assert topic.tree.digest == before.digest, "the original is as it was"


def test_T16_what_was_counted_or_derived_stays_behind_and_the_rest_comes_along():
    topic = topic_of("u1 > a1*")
    epoch = topic.tree.live["a1"]
    topic.write("a1", "hello")
    topic.do(
        p.StreamFinish(
            message_id="a1", epoch=epoch, n=1, stats=CONTEXT, timing=CONTEXT, status="paused"
        )
    )
    topic.do(p.MessageUpdate(message_id="a1", context=CONTEXT, model="m"))
    topic.do(p.MessageCreate(message_id="u2", role="user", text="said", status="success"))

    _, tree = copied(topic, p.TopicDuplicate(node_id="u2"))

    one, two, three = tree.path(tree.active_node_id)
    assert (two.stats, two.context) == (None, None)
    assert (two.timing, two.model_id, two.status, two.preview) == (CONTEXT, "m", "paused", "hello")
    assert (one.author, three.author) == (None, "ann"), "who said it is not who copied it"
    assert two.updated_at == topic.node("a1").updated_at


@pytest.mark.parametrize("mark", ["?", "*", "+"])
def test_T16_a_pending_message_is_an_error_in_the_copy(mark: str):
    topic = topic_of(f"u1 > a1{mark} > u2~")

    _, tree = copied(topic, p.TopicDuplicate(node_id="u2"))

    one, two, three = tree.path(tree.active_node_id)
    assert (one.status, two.status, three.status) == ("success", "error", "success")
    assert tree.live == {}
    assert tree.awaits_input(three.id)


@pytest.mark.parametrize(("name", "becomes"), [(None, "Trip"), ("", ""), ("Other", "Other")])
def test_T16_a_copy_may_have_a_name_of_its_own(name: str | None, becomes: str):
    topic = topic_of("u1")
    topic.do(p.TopicUpdate(name="Trip"))

    _, tree = copied(topic, p.TopicDuplicate(node_id="u1", name=name))

    assert tree.state["name"] == becomes


@pytest.mark.parametrize(("node_id", "kind"), [("nope", NotFound), (ROOT, InvalidOperation)])
def test_T16_only_the_path_to_a_message_is_copied(node_id: str, kind: type[LivetreeError]):
    with pytest.raises(kind):
        copied(topic_of("u1"), p.TopicDuplicate(node_id=node_id))


def test_T16_cold_content_is_asked_for_at_once():
    topic = topic_of("u1 > a1 > u2", "v1")
    contents = {each: bytes(topic.node(each).data) for each in ("u1", "u2")}  # type: ignore[arg-type]
    for each in ("u1", "u2", "v1"):
        topic.tree.release(each)

    with pytest.raises(Content) as need:
        copied(topic, p.TopicDuplicate(node_id="u2"))
    _, tree = copied(topic, p.TopicDuplicate(node_id="u2"), content=contents)

    assert need.value.message_ids == ["u1", "u2"]
    assert [node.preview for node in tree.path(tree.active_node_id)] == ["u1", "a1", "u2"]
    assert all(node.data is not UNSET for node in tree.nodes())


def test_T16_a_copy_is_made_once():
    topic = topic_of("u1")
    made, tree = copied(topic, p.TopicDuplicate(node_id="u1"))

    with pytest.raises(Conflict):
        plan(tree, made, topic.context())


def test_T16_a_copy_of_a_temporary_topic_is_an_ordinary_one():
    topic = Topic(temporary=True)
    topic.do(p.MessageCreate(message_id="u1", role="user", text="hi"))

    _, tree = copied(topic, p.TopicDuplicate(node_id="u1"))

    assert "temporary" not in tree.state


# Temporary topics --------------------------------------------------------------------------


def test_S10_a_temporary_topic_is_a_topic_with_a_flag():
    topic = Topic(temporary=True)

    assert topic.tree.state["temporary"] is True
    topic.do(p.MessageCreate(role="user", text="hi"))
    assert len(topic.tree) == 1


def test_S10_persisting_takes_the_flag_away_once():
    topic = Topic(temporary=True)

    topic.do(p.TopicPersist())

    assert "temporary" not in topic.tree.state
    assert topic.deltas[-1].set == {"temporary": None}
    topic.refuse(p.TopicPersist(), InvalidOperation)


def test_D5_null_takes_a_key_out_of_the_state():
    topic = Topic(temporary=True)
    topic.do(p.TopicDelete())
    assert topic.tree.state["deletedAt"] == topic.now
    topic.do(p.TopicRestore())
    topic.do(p.TopicPersist())

    assert {*topic.tree.state} == {"name", "metadata", "lastActivityAt", "live"}
    twin = Topic()
    twin.do(p.TopicSetMetadata(metadata=Raw(b'{"a":null}')))
    assert twin.tree.state["metadata"] == {"a": None}, "within a value null is null"


def test_X4_a_flag_that_comes_and_goes_in_one_draft_is_no_change():
    topic = topic_of("u1")

    topic.do(p.TopicDelete())
    assert topic.do(p.TopicRestore())["rootId"] == ROOT
    topic.refuse(p.TopicRestore(), InvalidOperation)
    assert topic.deltas[-1].set == {"deletedAt": None}


def test_T10_a_deleted_topic_comes_back_as_it_was():
    topic = topic_of("u1 > a1:1", "u1 > a2:1")
    before = over_the_wire(topic.tree)

    topic.do(p.TopicDelete())
    topic.do(p.TopicRestore())

    assert topic.tree.digest == before.digest
    assert topic.trash.entries == {}


def test_T10_what_is_not_deleted_can_not_be_restored():
    topic_of("u1").refuse(p.TopicRestore(), InvalidOperation)


@pytest.mark.parametrize(
    ("temporary", "since", "live", "erased"),
    [
        (True, 1, False, True),
        (True, 0, False, False),
        (True, 1, True, False),
        (False, 1, False, False),
    ],
)
def test_S10_a_temporary_topic_is_erased_only_if_nobody_uses_it(
    temporary: bool, since: int, live: bool, erased: bool
):
    topic = Topic(temporary=True)
    topic.do(p.TurnSubmit(user=p.Fresh(), placeholders=[p.Placeholder(message_id="r")]))
    if not live:
        topic.do(p.StreamAbort(message_id="r"))
    if not temporary:
        topic.do(p.TopicPersist())

    topic.do(EraseTopic(unused_since=topic.activity + since))

    assert ("deletedAt" in topic.tree.state) == erased
