import json
from itertools import count
from typing import Any

import pytest
from livetree.core import protocol as p
from livetree.core.content import MAX_DATA_BYTES, parts_checksum
from livetree.core.errors import (
    Conflict,
    InvalidOperation,
    LivetreeError,
    NotFound,
    StaleStream,
    TooLarge,
    TopicLive,
    Validation,
)
from livetree.core.live import LiveReply
from livetree.core.plan import (
    MAX_METADATA_BYTES,
    Content,
    Context,
    ExpireLease,
    ExpireOffer,
    ImportTopic,
    plan,
)
from livetree.core.tree import Tree
from msgspec import UNSET, Raw

from tests.helpers import assert_equal_everywhere, canonical_form, over_the_wire
from tests.tree.topic import ROOT, START, Topic, expire, message, run_of, text, topic_of

HALF = "\ud800"


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def create(topic: Topic, message_id: str, parent: str = "AUTO", **fields: Any) -> dict[str, Any]:
    fields.setdefault("role", "user")
    return topic.do(p.MessageCreate(message_id=message_id, parent=parent, **fields))


def born(command: p.TopicCreate | ImportTopic, topic_id: str = "t") -> tuple[Tree, dict[str, Any]]:
    tree = Tree(topic_id, ROOT)
    planned = plan(tree, command, Context(now=5, commit="c1", new_id=lambda: "new"))
    assert planned.delta is not None
    assert tree.apply(planned.delta)
    return tree, planned.result


# Every command ---------------------------------------------------------------------------


def test_D2_the_cause_says_who_asked_for_what_under_which_name():
    topic = topic_of("u1")

    topic.do(p.TopicUpdate(name="n", mutation="m-1"))

    assert topic.deltas[-1].cause == p.Cause("topic.update", "ann", "m-1")


def test_a_result_names_the_commit():
    topic = topic_of("u1")

    result = topic.do(p.TopicUpdate(name="n"))

    assert (result["seq"], result["commit"]) == (topic.tree.seq, topic.tree.commit)


@pytest.mark.parametrize(
    "command",
    [
        p.TopicUpdate(name=""),
        p.TopicSetMetadata(metadata=raw({})),
        p.TopicSetMetadataNamespace(namespace="nope"),
        p.TopicSetActive(node_id="a1"),
        p.MessageUpdate(message_id="u1"),
        p.MessageUpdate(message_id="u1", text="u1"),
        p.MessageUpdate(message_id="u1", data=raw({})),
        p.MessageUpdate(message_id="a1", parent="u1", status="success", group=0, stats=None),
        ExpireLease(message_id="a1", epoch=1),
        ExpireLease(message_id="nope", epoch=1),
        ExpireOffer(message_id="a1"),
        ExpireOffer(message_id="nope"),
        p.Batch(commands=[p.TopicUpdate(name="")]),
    ],
    ids=count(),
)
def test_X4_what_changes_nothing_has_no_delta(command: p.Mutation):
    topic = topic_of("u1 > a1")
    seq, commit = topic.tree.seq, topic.tree.commit

    result = topic.do(command)

    assert topic.deltas == []
    assert (result["seq"], result["commit"]) == (seq, commit)


def test_X4_clearing_an_empty_topic_changes_nothing():
    topic = topic_of()

    assert topic.do(p.TopicClear())["deleted"] == []
    assert topic.deltas == []


def test_T3_a_new_message_is_later_than_any_before_it():
    topic = topic_of("u1 > a1")
    topic.now = 50  # a clock that was put back

    create(topic, "new", status="success")
    topic.do(p.TurnSubmit(user=p.Fresh(text="x"), placeholders=[p.Placeholder()] * 2))

    times = [node.created_at for node in topic.tree.nodes()]
    assert times == sorted(times)
    assert len({*times}) == len(times)


# Topics ----------------------------------------------------------------------------------


def test_T1_a_topic_is_born_with_its_root_and_nothing_else():
    tree, result = born(p.TopicCreate(topic="t", name="n", metadata=raw({"a": 1})))

    assert result == {"topic": "t", "rootId": ROOT, "seq": 1, "commit": "c1"}
    assert tree.state == {"name": "n", "metadata": {"a": 1}, "lastActivityAt": 5, "live": {}}
    assert (len(tree), tree.active_node_id) == (0, None)


def test_a_topic_is_born_once():
    topic = topic_of("u1")

    topic.refuse(p.TopicCreate(), Conflict)
    again = ImportTopic(name="", metadata={}, nodes=[], active_node_id=None, last_activity_at=0)
    topic.refuse(again, Conflict)


@pytest.mark.parametrize("topic_id", ["", "a b", "x" * 65, "ä"])
def test_a_topic_must_have_an_id_that_is_one(topic_id: str):
    with pytest.raises(Validation):
        born(p.TopicCreate(topic=topic_id), topic_id)


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        (raw([]), Validation),
        (raw(1), Validation),
        (Raw(b'{"a":9007199254740992}'), Validation),
        (Raw(rb'{"a":"\ud800"}'), Validation),
        (Raw(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"), Validation),
        (raw({"a": "x" * MAX_METADATA_BYTES}), TooLarge),
    ],
    ids=count(),
)
def test_metadata_is_an_object_that_every_client_can_read(metadata: Raw, kind: type[LivetreeError]):
    topic = topic_of("u1")

    topic.refuse(p.TopicSetMetadata(metadata=metadata), kind)
    with pytest.raises(kind):
        born(p.TopicCreate(topic="t", metadata=metadata))


def test_an_imported_topic_is_one_commit_with_all_its_messages():
    nodes = [
        message("a1", "u1", role="assistant", created_at=2, status="paused", model_id="m"),
        message("u1", ROOT, role="user", created_at=1, author="ann", siblings_group_id=3),
        message("u2", "", role="user", created_at=3),  # whoever imports need not know the root
    ]

    tree, result = born(
        ImportTopic(
            name="n",
            metadata={"a": 1},
            nodes=nodes,
            active_node_id="a1",
            last_activity_at=77,
        )
    )

    assert result["seq"] == 1
    assert tree.is_first_turn("u2")
    assert (tree.active_node_id, tree.state["lastActivityAt"]) == ("a1", 77)
    assert tree.node("u1").author == "ann"
    assert (tree.node("a1").model_id, tree.node("a1").status) == ("m", "paused")
    assert {node.version for node in tree.nodes()} == {1}


def test_X4_the_birth_of_a_topic_is_a_change_even_if_it_has_nothing():
    tree, result = born(
        ImportTopic(name="", metadata={}, nodes=[], active_node_id=None, last_activity_at=0)
    )

    assert (tree.seq, result["seq"]) == (1, 1)
    assert tree.state == {"name": "", "metadata": {}, "lastActivityAt": 0, "live": {}}


def test_what_an_import_decides_knows_its_previews_like_the_tree_that_it_makes():
    command = ImportTopic(
        name="",
        metadata={},
        nodes=[
            message("u1", ROOT, role="user", data=text("  hello ")),
            message("u2", ROOT, role="user", data=text("")),
        ],
        active_node_id=None,
        last_activity_at=0,
    )

    draft = plan(Tree("t", ROOT), command, Context(now=5, commit="c", new_id=str)).draft

    # Rows are stored as the draft has them.
    assert (draft.node("u1").preview, draft.node("u1").empty) == ("hello", False)
    assert (draft.node("u2").preview, draft.node("u2").empty) == ("", True)
    assert draft.awaits_input("u2")


def test_a_topic_is_renamed():
    topic = topic_of("u1")

    topic.do(p.TopicUpdate(name="é\0\U0001f600"))

    assert topic.tree.state["name"] == "é\0\U0001f600"
    assert topic.deltas[-1].set == {"name": "é\0\U0001f600"}


def test_metadata_is_replaced_whole():
    topic = topic_of("u1")
    topic.do(p.TopicSetMetadata(metadata=raw({"a": 1, "b": {"c": [1.5]}})))

    topic.do(p.TopicSetMetadata(metadata=raw({"b": True})))

    assert topic.tree.state["metadata"] == {"b": True}


def test_one_key_of_the_metadata_is_set_and_no_other_touched():
    topic = topic_of("u1")
    topic.do(p.TopicSetMetadata(metadata=raw({"a": 1, "b": {"c": 1}})))

    topic.do(p.TopicSetMetadataNamespace(namespace="a", value=raw({"x": None})))
    assert topic.tree.state["metadata"] == {"a": {"x": None}, "b": {"c": 1}}
    topic.do(p.TopicSetMetadataNamespace(namespace="n", value=raw(None)))
    assert topic.tree.state["metadata"] == {"a": {"x": None}, "b": {"c": 1}, "n": None}
    topic.do(p.TopicSetMetadataNamespace(namespace="b"))
    assert topic.tree.state["metadata"] == {"a": {"x": None}, "n": None}


@pytest.mark.parametrize(("old", "new"), [(1, True), (0, False), (1, "1"), ([0], [False])])
def test_a_value_of_another_type_is_another_value(old: Any, new: Any):
    topic = topic_of("u1")
    topic.do(p.TopicSetMetadataNamespace(namespace="a", value=raw(old)))

    topic.do(p.TopicSetMetadataNamespace(namespace="a", value=raw(new)))

    assert topic.tree.state["metadata"]["a"] is new or topic.tree.state["metadata"]["a"] == new
    assert len(topic.deltas) == 2


def test_metadata_has_one_bound_however_it_is_set():
    topic = topic_of("u1")
    big = raw("x" * (MAX_METADATA_BYTES // 2))

    topic.do(p.TopicSetMetadataNamespace(namespace="a", value=big))
    topic.refuse(p.TopicSetMetadataNamespace(namespace="b", value=big), TooLarge)
    topic.do(p.TopicSetMetadataNamespace(namespace="a", value=big))


def test_T5_any_content_message_may_be_active():
    topic = topic_of("u1 > a1 > u2", "u1 > void~")

    for node_id in ("u1", "a1", "void", None, "u2"):
        assert topic.do(p.TopicSetActive(node_id=node_id))["activeNodeId"] == node_id
        assert topic.active == node_id


@pytest.mark.parametrize(("node_id", "kind"), [("nope", NotFound), (ROOT, InvalidOperation)])
def test_T5_nothing_else_may_be_active(node_id: str, kind: type[LivetreeError]):
    topic_of("u1").refuse(p.TopicSetActive(node_id=node_id), kind)


def test_T10_clearing_takes_every_message_and_keeps_the_root():
    topic = topic_of("u1 > a1:1 > w", "u1 > a2:1", "v1", activity=9)

    result = topic.do(p.TopicClear())

    assert {*result["deleted"]} == {"u1", "a1", "w", "a2", "v1"}
    assert (len(topic.tree), topic.active, topic.children()) == (0, None, [])
    assert topic.activity == 9
    create(topic, "u2")
    assert topic.parent("u2") == ROOT


def test_T10_deleting_a_topic_is_told():
    topic = topic_of("u1")

    topic.do(p.TopicDelete())

    assert topic.deltas[-1].set == {"deletedAt": START}


# Creating --------------------------------------------------------------------------------


def test_a_message_is_made_below_the_active_node_else_below_the_root():
    topic = topic_of("u1 > a1", "v1", active="a1")

    create(topic, "n1")
    assert topic.parent("n1") == "a1"
    create(topic, "n2", "ROOT")
    create(topic, "n3", ROOT)
    create(topic, "n4", "u1")
    assert [topic.parent(each) for each in ("n2", "n3", "n4")] == [ROOT, ROOT, "u1"]
    topic.do(p.TopicSetActive(node_id=None))
    create(topic, "n5")
    assert topic.parent("n5") == ROOT


def test_a_new_message_has_what_was_asked_for():
    topic = topic_of("u1")

    result = topic.do(
        p.MessageCreate(
            role="tool",
            data=raw({"parts": [{"type": "file"}], "x": 1.0}),
            status="error",
            group=4,
            model="m",
            stats=raw({"a": 1}),
        )
    )

    node = topic.node(result["messageId"])
    assert (node.role, node.status, node.siblings_group_id) == ("tool", "error", 4)
    assert (node.model_id, node.author) == ("m", "ann")
    assert bytes(node.data) == b'{"parts": [{"type": "file"}], "x": 1.0}'  # type: ignore[arg-type]
    assert bytes(node.stats or b"") == b'{"a": 1}'
    assert node.created_at == node.updated_at == START
    assert topic.active == node.id


def test_a_new_message_is_pending_empty_ungrouped_and_active_unless_asked_otherwise():
    topic = topic_of("u1 > a1")

    create(topic, "n", role="assistant")
    assert (topic.node("n").status, topic.group("n"), topic.node("n").empty) == ("pending", 0, True)
    assert topic.active == "n"
    create(topic, "m", "u1", set_active=False, text="")
    assert topic.active == "n"
    assert topic.tree.live == {}, "made by hand, it is offered to nobody"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (p.MessageCreate(role="user", parent="nope"), NotFound),
        (p.MessageCreate(role="user", message_id="u1"), Conflict),
        (p.MessageCreate(role="user", message_id=ROOT), Conflict),
        (p.MessageCreate(role="user", message_id="a b"), Validation),
        (p.MessageCreate(role="user", message_id=""), Validation),
        (p.MessageCreate(role="user", text="a", data=raw({"parts": []})), Validation),
        (p.MessageCreate(role="user", text=HALF), Validation),
        (p.MessageCreate(role="user", text="x" * MAX_DATA_BYTES), TooLarge),
        (p.MessageCreate(role="user", data=raw([])), Validation),
        (p.MessageCreate(role="user", data=raw({})), Validation),
        (p.MessageCreate(role="user", stats=raw([])), Validation),
        (p.MessageCreate(role="user", stats=raw({"a": "x" * MAX_METADATA_BYTES})), TooLarge),
    ],
    ids=count(),
)
def test_R5_a_message_that_can_not_be_made_is_not(command: p.Mutation, kind: type[LivetreeError]):
    topic_of("u1 > a1").refuse(command, kind)


def test_a_message_may_be_made_below_a_live_reply():
    topic = topic_of("u1 > a1*")

    create(topic, "n", "a1")

    assert topic.parent("n") == "a1"


@pytest.mark.parametrize(
    ("role", "status"), [("user", 1), ("assistant", 1), ("system", 0), ("tool", 0)]
)
def test_activity_is_that_of_users_and_assistants(role: Any, status: int):
    topic = topic_of("u1", activity=100)

    create(topic, "n", role=role)

    assert topic.activity == (START if status else 100)


def test_activity_does_not_go_back():
    topic = topic_of("u1", activity=START + 50)

    create(topic, "n")
    topic.now += 51
    create(topic, "m")

    assert topic.deltas[0].set == {}
    assert topic.activity == START + 51


# Siblings --------------------------------------------------------------------------------


def test_T4_a_sibling_stands_beside_its_source_in_a_group_of_their_own():
    topic = topic_of("u1 > a1:1", "u1 > a2:1", "u1 > a3")

    result = topic.do(p.MessageCreateSibling(source_id="a3", text="again", model="m"))

    made = result["messageId"]
    assert result["group"] == topic.group(made) == topic.group("a3") == 2
    assert (topic.parent(made), topic.node(made).role) == ("u1", "assistant")
    assert (topic.group("a1"), topic.group("a2")) == (1, 1)
    assert topic.active == made


def test_T4_a_sibling_joins_the_group_that_is_there():
    topic = topic_of("u1:7", "u2:7")

    result = topic.do(p.MessageCreateSibling(source_id="u2", message_id="u3", text="v3"))

    assert result["group"] == topic.group("u3") == 7
    assert [put.id for put in topic.deltas[-1].put] == ["u3"]


def test_a_resent_first_turn_is_a_sibling_like_any_other():
    topic = topic_of("u1 > a1")

    topic.do(p.MessageCreateSibling(source_id="u1", message_id="u2", text="again"))

    assert topic.children() == ["u1", "u2"]
    assert topic.tree.is_first_turn("u2")
    assert topic.group("u1") == topic.group("u2") == 1
    assert topic.node("u2").status == "success"


def test_a_sibling_of_a_reply_is_pending_and_of_its_model():
    topic = topic_of("u1 > a1")
    topic.do(p.MessageUpdate(message_id="a1", model="m"))

    topic.do(p.MessageCreateSibling(source_id="a1", message_id="a2"))

    assert (topic.node("a2").status, topic.node("a2").model_id) == ("pending", "m")
    assert topic.node("a2").empty


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (p.MessageCreateSibling(source_id="nope"), NotFound),
        (p.MessageCreateSibling(source_id=ROOT), InvalidOperation),
        (p.MessageCreateSibling(source_id="u1", message_id="u1"), Conflict),
        (p.MessageCreateSibling(source_id="u1", message_id="ö"), Validation),
        (p.MessageCreateSibling(source_id="u1", text="a", data=raw({"parts": []})), Validation),
        (p.MessageCreateSibling(source_id="u1", data=raw({"parts": [1]})), Validation),
    ],
    ids=count(),
)
def test_R5_a_sibling_that_can_not_be_made_is_not(command: p.Mutation, kind: type[LivetreeError]):
    topic_of("u1").refuse(command, kind)


# Updating --------------------------------------------------------------------------------


def test_data_merges_by_top_level_key():
    topic = topic_of("u1")
    topic.do(p.MessageUpdate(message_id="u1", data=raw({"turnOptions": {"a": 1}, "x": 1})))
    assert topic.data("u1")["parts"] == [{"type": "text", "text": "u1"}]

    topic.do(p.MessageUpdate(message_id="u1", data=raw({"turnOptions": {"b": 2}})))
    topic.do(p.MessageUpdate(message_id="u1", text="new"))

    assert topic.data("u1") == {
        "parts": [{"type": "text", "text": "new"}],
        "turnOptions": {"b": 2},
        "x": 1,
    }
    assert topic.node("u1").preview == "new"


def test_an_update_changes_what_it_names_and_dates_it():
    topic = topic_of("u1 > a1")
    topic.now += 9

    topic.do(
        p.MessageUpdate(
            message_id="a1",
            status="paused",
            group=3,
            model="m",
            stats=raw({"a": 1}),
            context=raw({"contextTokens": 2}),
        )
    )

    node = topic.node("a1")
    assert (node.status, node.siblings_group_id, node.model_id) == ("paused", 3, "m")
    assert (bytes(node.stats or b""), bytes(node.context or b"")) == (
        b'{"a": 1}',
        b'{"contextTokens": 2}',
    )
    assert (node.created_at, node.updated_at) == (200, START + 9)
    topic.do(p.MessageUpdate(message_id="a1", model=None, stats=None, context=None))
    node = topic.node("a1")
    assert (node.model_id, node.stats, node.context) == (None, None, None)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (p.MessageUpdate(message_id="nope", text="x"), NotFound),
        (p.MessageUpdate(message_id=ROOT, text="x"), InvalidOperation),
        (p.MessageUpdate(message_id=ROOT, parent="u1"), InvalidOperation),
        (p.MessageUpdate(message_id="u1", text="x", data=raw({})), Validation),
        (p.MessageUpdate(message_id="u1", text=HALF), Validation),
        (p.MessageUpdate(message_id="u1", data=raw([])), Validation),
        (p.MessageUpdate(message_id="u1", data=raw(None)), Validation),
        (p.MessageUpdate(message_id="u1", data=raw({"parts": 1})), Validation),
        (p.MessageUpdate(message_id="u1", stats=raw([])), Validation),
        (p.MessageUpdate(message_id="u1", context=raw("x")), Validation),
        (p.MessageUpdate(message_id="u1", parent="nope"), NotFound),
        (p.MessageUpdate(message_id="u1", parent=None), InvalidOperation),
        (p.MessageUpdate(message_id="u1", if_version=99, text="x"), Conflict),
    ],
    ids=count(),
)
def test_R5_an_update_that_can_not_be_is_not(command: p.Mutation, kind: type[LivetreeError]):
    topic_of("u1 > a1").refuse(command, kind)


def test_data_that_grows_too_large_by_merging_is_refused():
    topic = topic_of("u1")
    big = "x" * (MAX_DATA_BYTES * 2 // 3)
    topic.do(p.MessageUpdate(message_id="u1", data=raw({"a": big})))

    topic.refuse(p.MessageUpdate(message_id="u1", data=raw({"b": big})), TooLarge)
    topic.do(p.MessageUpdate(message_id="u1", data=raw({"a": big + "y"})))


def test_T8_an_update_with_the_version_that_is_there_is_made():
    topic = topic_of("u1 > a1")
    seen = topic.node("u1").version

    topic.do(p.MessageUpdate(message_id="u1", if_version=seen, text="x"))
    refusal = topic.refuse(p.MessageUpdate(message_id="u1", if_version=seen, text="y"), Conflict)

    assert refusal.details == {"version": topic.node("u1").version}


def test_a_cold_message_is_updated_only_with_its_content_at_hand():
    topic = topic_of("u1")
    stored = bytes(topic.node("u1").data)  # type: ignore[arg-type]
    topic.tree.release("u1")
    command = p.MessageUpdate(message_id="u1", data=raw({"x": 1}))

    with pytest.raises(Content) as wanted:
        topic.plan(command)
    assert wanted.value.message_ids == ["u1"]
    topic.contents = {"u1": stored}
    topic.do(command)

    assert topic.data("u1") == {"parts": [{"type": "text", "text": "u1"}], "x": 1}


def test_a_cold_message_is_moved_without_its_content():
    topic = topic_of("u1", "v1")
    topic.tree.release("u1")

    topic.do(p.MessageUpdate(message_id="u1", parent="v1", status="error"))

    assert topic.node("u1").data is UNSET


@pytest.mark.parametrize(
    ("role", "old", "new", "counts"),
    [
        ("assistant", "pending", "success", True),
        ("assistant", "pending", "error", True),
        ("assistant", "pending", "paused", True),
        ("assistant", "success", "error", False),
        ("assistant", "success", "pending", False),
        ("user", "pending", "success", False),
        ("tool", "pending", "success", False),
    ],
)
def test_the_end_of_a_reply_is_activity(role: Any, old: Any, new: Any, counts: bool):
    node = message("m", ROOT, role=role, status=old)
    topic = Topic([node], "m", activity=100)

    topic.do(p.MessageUpdate(message_id="m", status=new))

    assert topic.activity == (START if counts else 100)


# Moving ----------------------------------------------------------------------------------


def test_T6_a_message_moves_with_all_below_it():
    topic = topic_of("u1 > a1 > u2 > a2", "u1 > b1", active="a2")

    topic.do(p.MessageUpdate(message_id="u2", parent="b1"))

    assert [node.id for node in topic.tree.path("a2")] == ["u1", "b1", "u2", "a2"]
    assert topic.children("a1") == []
    assert [put.id for put in topic.deltas[-1].put] == ["u2"]


@pytest.mark.parametrize("parent", [ROOT, "ROOT"])
def test_a_message_moves_to_the_root(parent: str):
    topic = topic_of("u1 > a1 > u2")

    topic.do(p.MessageUpdate(message_id="u2", parent=parent))

    assert topic.children() == ["u1", "u2"]


@pytest.mark.parametrize("parent", ["u1", "a1", "u2", "a2"])
def test_T6_a_message_is_not_moved_below_itself(parent: str):
    topic_of("u1 > a1 > u2 > a2").refuse(
        p.MessageUpdate(message_id="u1", parent=parent), InvalidOperation
    )


def test_T6_auto_may_not_lead_a_message_below_itself_either():
    topic_of("u1 > a1 > u2").refuse(
        p.MessageUpdate(message_id="a1", parent="AUTO"), InvalidOperation
    )


def test_T4_a_moved_message_takes_a_number_that_is_not_used_there():
    topic = topic_of("u1 > a1:4", "u1 > a2:4", "v1 > b1:4", "v1 > b2:9", "w1")

    topic.do(p.MessageUpdate(message_id="a1", parent="v1"))
    assert topic.group("a1") == 10
    topic.do(p.MessageUpdate(message_id="a2", parent="w1"))
    assert topic.group("a2") == 1
    topic.do(p.MessageUpdate(message_id="w1", parent="v1"))
    assert topic.group("w1") == 0


def test_T4_to_where_it_is_already_a_message_does_not_move():
    topic = topic_of("u1 > a1:4", "u1 > a2:4")

    topic.do(p.MessageUpdate(message_id="a1", parent="u1"))

    assert topic.group("a1") == 4
    assert topic.deltas == []


# Deleting: splice -------------------------------------------------------------------------


def test_T7_a_splice_hands_the_children_to_the_parent():
    topic = topic_of("u1 > a1 > u2 > a2", "a1 > u3", active="a2")

    result = topic.do(p.MessageDelete(message_id="a1"))

    assert result["deleted"] == ["a1"]
    assert result["reparented"] == topic.children("u1") == ["u2", "u3"]
    assert result["newActive"] == "UNCHANGED"
    assert topic.active == "a2"


def test_T7_children_of_a_first_turn_become_first_turns():
    topic = topic_of("u1 > a1", "u1 > b1", "v1", active="b1")

    topic.do(p.MessageDelete(message_id="u1"))

    assert topic.children() == ["a1", "b1", "v1"]


@pytest.mark.parametrize(
    ("message_id", "strategy", "expected"),
    [
        ("a1", "parent", "u1"),
        ("a1", "clear", None),
        ("u1", "parent", None),
        ("u1", "clear", None),
    ],
)
def test_T5_the_pointer_on_a_deleted_message_falls_back(
    message_id: str, strategy: Any, expected: str | None
):
    topic = topic_of("u1 > a1", active=message_id)

    result = topic.do(p.MessageDelete(message_id=message_id, strategy=strategy))

    assert result["newActive"] == topic.active == expected


GROUP = ("u > a:1 > x", "u > b:1 > y", "u > c:1 > z")


@pytest.mark.parametrize(("gone", "heir"), [("a", "b"), ("b", "c"), ("c", "b")])
def test_T7_a_reply_on_the_active_path_hands_its_children_to_a_neighbour(gone: str, heir: str):
    child = {"a": "x", "b": "y", "c": "z"}[gone]
    topic = topic_of(*GROUP, active=child)

    result = topic.do(p.MessageDelete(message_id=gone))

    assert topic.parent(child) == heir
    assert result["newActive"] == "UNCHANGED"
    assert topic.active == child


def test_T7_the_active_reply_itself_makes_its_heir_active():
    topic = topic_of(*GROUP, active="b")

    assert topic.do(p.MessageDelete(message_id="b"))["newActive"] == "c"
    assert topic.active == "c"
    assert topic.do(p.MessageDelete(message_id="c"))["newActive"] == "a"
    assert topic.do(p.MessageDelete(message_id="a"))["newActive"] == "u"
    assert topic.children("u") == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("lines", "active", "strategy"),
    [
        (GROUP, "x", "clear"),
        (GROUP, "y", "parent"),  # it is not on the active path
        (GROUP, None, "parent"),
        (("u > a > x", "u > b > y"), "x", "parent"),  # no group
        (("u > a:1 > x", "u > b:2"), "x", "parent"),  # nobody else in it
        (("u > a:1 > x", "v > b:1"), "x", "parent"),  # a number of another parent's
    ],
)
def test_T7_otherwise_the_children_go_to_the_parent(
    lines: tuple[str, ...], active: str | None, strategy: Any
):
    topic = topic_of(*lines, active=active)

    topic.do(p.MessageDelete(message_id="a", strategy=strategy))

    assert topic.parent("x") == "u"


def test_T7_users_hand_nothing_to_their_alternatives():
    topic = topic_of("u1:1 > a1", "u2:1", active="a1")

    topic.do(p.MessageDelete(message_id="u1"))

    assert topic.parent("a1") == ROOT


def test_T7_only_a_reply_inherits():
    topic = Topic(
        [
            message("u", ROOT, role="user", created_at=1),
            message("a", "u", role="assistant", siblings_group_id=1, created_at=2),
            message("t", "u", role="tool", siblings_group_id=1, created_at=3),
            message("b", "u", role="assistant", siblings_group_id=1, created_at=4),
            message("x", "a", role="user", created_at=5),
        ],
        "x",
    )

    topic.do(p.MessageDelete(message_id="a"))

    assert topic.parent("x") == "b"


def test_T7_neighbours_are_in_order_of_time_then_id():
    rows = [("m", 200), ("b", 200), ("z", 150), ("y", 120)]
    nodes = [
        message(name, "u", role="assistant", siblings_group_id=1, created_at=at)
        for name, at in rows
    ]
    q = message("q", "z", role="user", created_at=300)
    topic = Topic([message("u", ROOT, role="user"), *nodes, q], "q")

    topic.do(p.MessageDelete(message_id="z"))

    assert topic.parent("q") == "b"


def test_T4_moved_groups_stay_apart_from_each_other_and_from_those_that_are_there():
    topic = topic_of(
        "u > mid > c1:4", "mid > c2:4", "mid > d1:2", "mid > d2:2", "mid > e", "u > far:4"
    )

    topic.do(p.MessageDelete(message_id="mid"))

    groups = {name: topic.group(name) for name in ("c1", "c2", "d1", "d2", "e", "far")}
    assert groups == {"c1": 5, "c2": 5, "d1": 6, "d2": 6, "e": 0, "far": 4}


def test_T4_an_heirs_own_groups_stay_apart_too():
    topic = topic_of("u > a:1 > c1:6", "a > c2:6", "u > b:1 > d1:6", active="c1")

    topic.do(p.MessageDelete(message_id="a"))

    assert (topic.parent("c1"), topic.group("c1"), topic.group("c2")) == ("b", 7, 7)
    assert topic.group("d1") == 6


def with_context(*names: str) -> Topic:
    topic = topic_of("u > a:1 > x > y", "u > b:1 > z", active="y")
    for name in names:
        context = raw({"contextTokens": 1, "compactionSummary": "s"})
        topic.do(p.MessageUpdate(message_id=name, context=context, stats=raw({"used": 1})))
    topic.now += 100
    return topic


def test_T7_what_was_derived_from_a_deleted_reply_is_cleared_below_it():
    topic = with_context("u", "a", "x", "y", "b", "z")

    topic.do(p.MessageDelete(message_id="a"))

    assert {name: topic.node(name).context is None for name in ("u", "b", "z", "x", "y")} == {
        "u": False,
        "b": False,
        "z": False,
        "x": True,
        "y": True,
    }
    assert bytes(topic.node("y").stats or b"") == b'{"used": 1}'
    assert topic.node("y").updated_at == START, "only what moved is dated"
    assert topic.node("x").updated_at == START + 100


def test_T7_a_reply_without_heir_clears_it_too():
    topic = with_context("x", "y")
    topic.do(p.MessageDelete(message_id="b", cascade=True))

    topic.do(p.MessageDelete(message_id="a"))

    assert topic.parent("x") == "u"
    assert (topic.node("x").context, topic.node("y").context) == (None, None)


@pytest.mark.parametrize(
    "command",
    [
        p.MessageDelete(message_id="a", strategy="clear"),
        p.MessageDelete(message_id="u"),
        p.MessageDelete(message_id="b"),
    ],
    ids=["clear", "ungrouped", "off the path"],
)
def test_T7_other_deletes_leave_what_was_derived(command: p.MessageDelete):
    topic = with_context("x", "y", "z")

    topic.do(command)

    assert all(topic.node(name).context is not None for name in ("x", "y", "z"))


# Deleting: cascade -----------------------------------------------------------------------


def test_T7_a_cascade_takes_all_that_is_below():
    topic = topic_of("u1 > a1 > u2 > a2", "u1 > s", active="a2")

    result = topic.do(p.MessageDelete(message_id="a1", cascade=True))

    assert {*result["deleted"]} == {"a1", "u2", "a2"}
    assert (result["reparented"], result["newActive"]) == ([], "u1")
    assert topic.ids() == {"u1", "s"}


@pytest.mark.parametrize(
    ("lines", "gone", "strategy", "expected"),
    [
        (GROUP, "a", "parent", "u"),  # no handing over
        (GROUP, "a", "clear", None),
        (GROUP, "u", "parent", None),
        (("u > a > x", "v"), "u", "parent", None),
    ],
)
def test_T5_the_pointer_in_a_deleted_subtree_falls_back(
    lines: tuple[str, ...], gone: str, strategy: Any, expected: str | None
):
    topic = topic_of(*lines, active="x")

    result = topic.do(p.MessageDelete(message_id=gone, cascade=True, strategy=strategy))

    assert result["newActive"] == topic.active == expected


@pytest.mark.parametrize("strategy", ["parent", "clear"])
def test_T5_a_pointer_outside_stays(strategy: Any):
    topic = topic_of("u1 > a1 > u2", "u1 > s", active="s")

    result = topic.do(p.MessageDelete(message_id="a1", cascade=True, strategy=strategy))

    assert (result["newActive"], topic.active) == ("UNCHANGED", "s")


@pytest.mark.parametrize("cascade", [False, True])
@pytest.mark.parametrize("strategy", ["parent", "clear"])
@pytest.mark.parametrize("awaiting", [False, True])
def test_T1_the_root_is_not_deleted_whatever_the_flags(
    cascade: bool, strategy: Any, awaiting: bool
):
    topic = topic_of("u1", active=None)

    for message_id, kind in ((ROOT, InvalidOperation), ("nope", NotFound)):
        command = p.MessageDelete(
            message_id=message_id,
            cascade=cascade,
            strategy=strategy,
            awaiting_input_only=awaiting,
        )
        topic.refuse(command, kind)


@pytest.mark.parametrize("cascade", [False, True])
def test_a_message_that_no_longer_awaits_input_is_kept(cascade: bool):
    topic = topic_of("u1 > a1 > r1~", "a1 > r2~ > x", active="r1")

    def delete(message_id: str) -> p.MessageDelete:
        return p.MessageDelete(message_id=message_id, cascade=cascade, awaiting_input_only=True)

    for kept in ("u1", "a1", "r2", "x"):
        topic.refuse(delete(kept), InvalidOperation)
    assert topic.do(delete("r1"))["newActive"] == "a1"


def test_deleting_and_clearing_are_no_activity():
    topic = topic_of("u1 > a1 > u2 > a2", "v1", activity=100)

    topic.do(p.MessageDelete(message_id="a2"))
    topic.do(p.MessageDelete(message_id="a1", cascade=True))
    topic.do(p.TopicClear())

    assert topic.activity == 100


# What the user saw -----------------------------------------------------------------------


def touched(topic: Topic, message_id: str) -> int:
    """Change a message, and return the `seq` before."""
    seq = topic.tree.seq
    topic.do(p.MessageUpdate(message_id=message_id, stats=raw({"at": seq})))
    return seq


@pytest.mark.parametrize(
    ("cascade", "changed", "conflicts"),
    [
        (False, "a1", True),
        (False, "u2", True),  # it would be moved
        (False, "a2", False),
        (True, "a2", True),
        (True, "u1", False),
        (False, "u1", False),
    ],
)
def test_T8_a_delete_conflicts_when_what_it_drops_or_moves_has_changed(
    cascade: bool, changed: str, conflicts: bool
):
    topic = topic_of("u1 > a1 > u2 > a2")
    seen = touched(topic, changed)
    command = p.MessageDelete(message_id="a1", cascade=cascade, base=seen)

    if conflicts:
        refusal = topic.refuse(command, Conflict)
        assert refusal.details == {"seq": topic.tree.seq, "changed": [changed]}
    else:
        topic.do(command)


def test_T8_an_update_conflicts_when_its_message_has_changed():
    topic = topic_of("u1 > a1")
    seen = touched(topic, "u1")

    topic.refuse(p.MessageUpdate(message_id="u1", text="x", base=seen), Conflict)
    topic.do(p.MessageUpdate(message_id="a1", text="x", base=seen))
    topic.do(p.MessageUpdate(message_id="u1", text="x", base=topic.tree.seq))


@pytest.mark.parametrize("command", [p.TopicClear, p.TopicDelete])
def test_T8_clearing_and_deleting_a_topic_conflict_with_any_change(command: Any):
    topic = topic_of("u1 > a1")
    seen = topic.tree.seq
    topic.do(p.TopicUpdate(name="other"))

    assert topic.refuse(command(base=seen), Conflict).details == {"seq": topic.tree.seq}
    topic.do(command(base=topic.tree.seq))


def test_T8_appends_never_conflict():
    topic = topic_of("u1 > a1")
    touched(topic, "a1")

    create(topic, "u2", "a1", base=0)
    topic.do(p.MessageCreateSibling(source_id="u2", base=0, text="x"))
    topic.do(p.TurnSubmit(user=p.Existing(message_id="u2"), placeholders=[], base=0))


def test_T8_what_is_not_there_is_not_found_rather_than_a_conflict():
    topic = topic_of("u1")

    topic.refuse(p.MessageDelete(message_id="nope", base=0), NotFound)
    topic.refuse(p.MessageUpdate(message_id="nope", base=0), NotFound)


def test_T8_a_conflict_names_a_hundred_messages_at_most():
    topic = Topic([message(f"m{place}", ROOT, role="user") for place in range(150)])
    moves = [p.MessageUpdate(message_id=f"m{place}", parent="m0") for place in range(1, 150)]
    topic.do(p.Batch(commands=[*moves]))

    refusal = topic.refuse(p.MessageDelete(message_id="m0", base=1), Conflict)

    assert len(refusal.details["changed"]) == 100


# Turns -----------------------------------------------------------------------------------


def test_L1_a_turn_is_a_user_message_and_pending_replies_that_are_offered():
    topic = topic_of("u1 > a1")

    result = topic.do(
        p.TurnSubmit(
            user=p.Fresh(parent="a1", text="hi", model="m"),
            placeholders=[p.Placeholder(model="x"), p.Placeholder(message_id="mine")],
            group=3,
        )
    )

    user, (one, two) = topic.node(result["userId"]), result["placeholderIds"]
    assert two == topic.active == "mine"
    assert (user.parent_id, user.role, user.status, user.model_id) == ("a1", "user", "success", "m")
    assert topic.children(user.id) == [one, two]
    for reply in (topic.node(one), topic.node(two)):
        assert (reply.role, reply.status, reply.siblings_group_id) == ("assistant", "pending", 3)
        assert reply.empty
    assert topic.node(one).model_id == "x"
    assert topic.tree.live == {one: 0, two: 0}
    assert len(topic.deltas) == 1


def test_a_turn_without_a_parent_is_a_first_turn_whatever_is_active():
    topic = topic_of("u1 > a1", active="a1")

    result = topic.do(p.TurnSubmit(user=p.Fresh(text="hi"), placeholders=[]))

    assert topic.tree.is_first_turn(result["userId"])
    assert topic.active == result["userId"]


def test_a_turn_answers_a_user_message_that_is_there():
    topic = topic_of("u1 > a1:12", active="a1")

    result = topic.do(
        p.TurnSubmit(
            user=p.Existing(message_id="u1"),
            placeholders=[p.Placeholder(message_id="p")],
            group=12,
        )
    )

    assert result["userId"] == "u1"
    assert topic.children("u1") == ["a1", "p"]
    assert [put.id for put in topic.deltas[-1].put] == ["p"]


def test_T4_a_turns_group_takes_along_the_ungrouped_replies_and_no_others():
    topic = topic_of("u1 > old", "u1 > other:44")

    topic.do(
        p.TurnSubmit(
            user=p.Existing(message_id="u1"),
            placeholders=[p.Placeholder(message_id="p")],
            group=31,
        )
    )

    assert [topic.group(each) for each in ("old", "other", "p")] == [31, 44, 31]


@pytest.mark.parametrize("group", [None, 0])
def test_T4_a_turn_without_a_group_groups_nothing(group: int | None):
    topic = topic_of("u1 > old")

    topic.do(
        p.TurnSubmit(
            user=p.Existing(message_id="u1"),
            placeholders=[p.Placeholder(message_id="p")],
            group=group,
        )
    )

    assert (topic.group("old"), topic.group("p")) == (0, 0)


def test_a_turn_can_leave_the_active_node_alone():
    topic = topic_of("u1 > a1", active="a1")

    topic.do(
        p.TurnSubmit(
            user=p.Existing(message_id="u1"),
            placeholders=[p.Placeholder(message_id="p")],
            preserve_active=True,
        )
    )

    assert topic.active == "a1"


def one_placeholder(user: p.Fresh | p.Existing) -> p.TurnSubmit:
    return p.TurnSubmit(user=user, placeholders=[p.Placeholder()])


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (one_placeholder(p.Existing(message_id="nope")), NotFound),
        (one_placeholder(p.Existing(message_id="a1")), InvalidOperation),
        (one_placeholder(p.Existing(message_id=ROOT)), InvalidOperation),
        (one_placeholder(p.Fresh(parent="nope")), NotFound),
        (one_placeholder(p.Fresh(message_id="u1")), Conflict),
        (one_placeholder(p.Fresh(message_id="a b")), Validation),
        (one_placeholder(p.Fresh(text="x", data=raw({"parts": []}))), Validation),
        (
            p.TurnSubmit(
                user=p.Fresh(message_id="n"),
                placeholders=[p.Placeholder(message_id="p"), p.Placeholder(message_id="a1")],
            ),
            Conflict,
        ),
        (
            p.TurnSubmit(
                user=p.Fresh(message_id="n"),
                placeholders=[p.Placeholder(message_id="p"), p.Placeholder(message_id="p")],
            ),
            Conflict,
        ),
        (
            p.TurnSubmit(
                user=p.Fresh(message_id="n"), placeholders=[p.Placeholder(message_id="n")]
            ),
            Conflict,
        ),
    ],
    ids=count(),
)
def test_R5_a_turn_is_made_whole_or_not_at_all(command: p.Mutation, kind: type[LivetreeError]):
    topic_of("u1 > a1").refuse(command, kind)


# Live replies ----------------------------------------------------------------------------


def test_L2_a_claim_is_won_by_one():
    topic = topic_of("u1 > a1+")

    result = topic.do(p.StreamClaim(message_id="a1", lease_ms=2_000))

    assert result["epoch"] == result["seq"] == topic.tree.seq == topic.tree.live["a1"]
    assert result["leaseMs"] == 2_000
    refusal = topic.refuse(p.StreamClaim(message_id="a1"), Conflict)
    assert refusal.details == {"messageId": "a1"}


def test_L2_any_pending_reply_can_be_claimed_by_its_id():
    topic = topic_of("u1 > a1?")

    topic.do(p.StreamClaim(message_id="a1"))

    assert topic.tree.live == {"a1": topic.tree.seq}


@pytest.mark.parametrize(
    ("message_id", "kind"),
    [("u1", InvalidOperation), ("a1", InvalidOperation), (ROOT, InvalidOperation), ("x", NotFound)],
)
def test_L2_nothing_else_can_be_claimed(message_id: str, kind: type[LivetreeError]):
    topic_of("u1 > a1").refuse(p.StreamClaim(message_id=message_id), kind)


def test_L2_a_pending_user_message_is_no_reply():
    topic_of("u1 > a1 > u2?").refuse(p.StreamClaim(message_id="u2"), InvalidOperation)


def test_L8_a_finish_names_what_was_written_and_carries_no_parts():
    topic = topic_of("u1 > a1*", activity=100)
    topic.write("a1", "hel", "lo")
    epoch = topic.tree.live["a1"]
    parts = [{"type": "text", "text": "hello"}]

    topic.do(
        p.StreamFinish(
            message_id="a1", epoch=epoch, n=2, stats=raw({"tokens": 5}), timing=raw({"ms": 9})
        )
    )

    delta = topic.deltas[-1]
    assert delta.ended == {"a1": (epoch, 2, parts_checksum(parts))}
    assert [put.id for put in delta.put] == ["a1"]
    assert delta.put[0].data is UNSET
    assert delta.set == {"live": {}, "lastActivityAt": START}
    assert topic.data("a1") == {"parts": parts}
    node = topic.node("a1")
    assert (node.status, node.preview, node.empty) == ("success", "hello", False)
    assert (bytes(node.stats or b""), bytes(node.timing or b"")) == (b'{"tokens": 5}', b'{"ms": 9}')


@pytest.mark.parametrize("status", ["success", "error", "paused"])
def test_L8_a_reply_may_end_without_a_word(status: Any):
    topic = topic_of("u1 > a1*")

    topic.do(p.StreamFinish(message_id="a1", epoch=topic.tree.live["a1"], n=0, status=status))

    assert topic.deltas[-1].ended == {}
    assert (topic.node("a1").status, topic.data("a1")) == (status, {"parts": []})


def test_L8_what_else_a_reply_has_stays_when_its_parts_come():
    topic = topic_of("u1 > a1?")
    topic.do(p.MessageUpdate(message_id="a1", data=raw({"turnOptions": {"fast": True}})))
    topic.do(p.StreamClaim(message_id="a1"))
    topic.write("a1", "hi")

    topic.do(p.StreamFinish(message_id="a1", epoch=topic.tree.live["a1"], n=1))

    assert topic.data("a1") == {
        "parts": [{"type": "text", "text": "hi"}],
        "turnOptions": {"fast": True},
    }


def test_L8_a_cold_reply_ends_only_with_its_content_at_hand():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "hi")
    topic.tree.release("a1")
    command = p.StreamFinish(message_id="a1", epoch=topic.tree.live["a1"], n=1)

    with pytest.raises(Content) as wanted:
        topic.plan(command)
    assert wanted.value.message_ids == ["a1"]
    topic.contents = {"a1": b'{"parts":[],"x":1}'}
    topic.do(command)

    assert topic.data("a1") == {"parts": [{"type": "text", "text": "hi"}], "x": 1}


def test_L4_a_finish_before_the_last_op_is_refused():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "hi")
    epoch = topic.tree.live["a1"]

    for n in (0, 2):
        refusal = topic.refuse(p.StreamFinish(message_id="a1", epoch=epoch, n=n), InvalidOperation)
        assert refusal.details == {"received": 1}


def test_L5_a_writer_that_was_replaced_can_not_finish():
    topic = topic_of("u1 > a1*")
    old = topic.tree.live["a1"]
    expire(topic, "a1", old)
    topic.do(p.StreamClaim(message_id="a1"))

    for epoch in (old, 0, 99):
        topic.refuse(p.StreamFinish(message_id="a1", epoch=epoch, n=0), StaleStream)
    topic.do(p.StreamFinish(message_id="a1", epoch=topic.tree.live["a1"], n=0))
    topic.refuse(p.StreamFinish(message_id="a1", epoch=old, n=0), StaleStream)


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_L5_nobody_finishes_a_reply_that_nobody_has_claimed(epoch: int):
    topic = topic_of("u1 > a1+")
    topic.replies["a1"] = LiveReply(0)

    topic.refuse(p.StreamFinish(message_id="a1", epoch=epoch, n=0), StaleStream)


@pytest.mark.parametrize(("message_id", "kind"), [("u1", StaleStream), ("nope", NotFound)])
def test_L5_what_is_not_live_can_not_be_finished(message_id: str, kind: type[LivetreeError]):
    topic_of("u1").refuse(p.StreamFinish(message_id=message_id, epoch=1, n=0), kind)


@pytest.mark.parametrize("mark", ["*", "+"])
def test_L9_an_aborted_reply_is_paused_with_what_it_has(mark: str):
    topic = topic_of(f"u1 > a1{mark}", activity=100)
    if mark == "*":
        topic.write("a1", "half")

    topic.do(p.StreamAbort(message_id="a1"))

    assert topic.node("a1").status == "paused"
    assert topic.node("a1").preview == ("half" if mark == "*" else "")
    assert (topic.tree.live, topic.activity) == ({}, START)


@pytest.mark.parametrize(
    ("message_id", "kind"),
    [("u1", InvalidOperation), ("a1", InvalidOperation), (ROOT, InvalidOperation), ("x", NotFound)],
)
def test_L9_nothing_else_can_be_aborted(message_id: str, kind: type[LivetreeError]):
    topic_of("u1 > a1?").refuse(p.StreamAbort(message_id=message_id), kind)


def test_L10_a_lease_that_ends_is_an_offer_and_the_next_writer_goes_on():
    topic = topic_of("u1 > a1*")
    topic.write("a1", "half")
    old = topic.tree.live["a1"]

    topic.do(ExpireLease(message_id="a1", epoch=old))
    assert topic.tree.live == {"a1": 0}
    assert topic.node("a1").status == "pending"
    topic.do(p.StreamClaim(message_id="a1"))
    assert topic.replies["a1"].parts() == [{"type": "text", "text": "half"}]
    topic.write("a1", " more")
    topic.do(p.StreamFinish(message_id="a1", epoch=topic.tree.live["a1"], n=topic.replies["a1"].n))

    assert topic.data("a1") == {"parts": [{"type": "text", "text": "half more"}]}


def test_L10_only_the_lease_that_has_ended_ends():
    topic = topic_of("u1 > a1*")
    epoch = topic.tree.live["a1"]

    topic.do(ExpireLease(message_id="a1", epoch=epoch - 1))
    topic.do(ExpireOffer(message_id="a1"))

    assert topic.tree.live == {"a1": epoch}
    assert topic.deltas == []


def test_L10_an_offer_that_nobody_takes_ends_as_an_error_with_what_was_written():
    topic = topic_of("u1 > a1*", activity=100)
    topic.write("a1", "half")
    expire(topic, "a1", topic.tree.live["a1"])

    topic.do(ExpireOffer(message_id="a1"))

    assert (topic.node("a1").status, topic.node("a1").preview) == ("error", "half")
    assert topic.tree.live == {}
    assert topic.activity == 100, "nobody did anything"


def test_L10_a_pending_reply_that_was_never_offered_ends_too():
    topic = topic_of("u1 > a1?")

    topic.do(ExpireOffer(message_id="a1"))

    assert topic.node("a1").status == "error"


def test_L10_a_pending_user_message_waits_for_no_writer():
    topic = topic_of("u1?")

    topic.do(ExpireOffer(message_id="u1"))

    assert topic.node("u1").status == "pending"


def test_L1_replies_of_one_turn_live_and_end_each_for_itself():
    topic = topic_of("u1 > a1:1*", "u1 > a2:1+", "u1 > a3:1*")

    topic.do(p.StreamAbort(message_id="a1"))
    assert {*topic.tree.live} == {"a2", "a3"}
    topic.do(p.StreamFinish(message_id="a3", epoch=topic.tree.live["a3"], n=0))

    assert topic.tree.live == {"a2": 0}


# The guard -------------------------------------------------------------------------------

GUARDED: list[p.Mutation] = [
    p.MessageUpdate(message_id="s", text="x"),
    p.MessageUpdate(message_id="s", status="success"),
    p.MessageUpdate(message_id="u1", stats=None),
    p.MessageUpdate(message_id="u2", parent="ROOT"),
    p.MessageUpdate(message_id="a1", group=9),
    p.MessageDelete(message_id="s"),
    p.MessageDelete(message_id="u2"),
    p.MessageDelete(message_id="u1", cascade=True),
    p.MessageDelete(message_id="a1", strategy="clear"),
    p.TopicClear(),
    p.TopicDelete(),
    p.TurnSubmit(user=p.Fresh(parent="s"), placeholders=[]),
    p.TurnSubmit(user=p.Existing(message_id="r1"), placeholders=[p.Placeholder()]),
    p.Batch(commands=[p.TopicUpdate(name="n"), p.MessageDelete(message_id="u2")]),
]


@pytest.mark.parametrize("command", GUARDED, ids=count())
@pytest.mark.parametrize("mark", ["*", "+"])
def test_L3_what_would_disturb_a_live_reply_is_refused_and_names_it(command: p.Mutation, mark: str):
    topic = topic_of(f"u1 > a1 > u2 > s{mark}", "a1 > r1 > b1")

    refusal = topic.refuse(command, TopicLive)

    assert refusal.details["messageId"] == "s"


@pytest.mark.parametrize("command", GUARDED, ids=count())
def test_L3_a_pending_reply_that_nobody_writes_guards_nothing(command: p.Mutation):
    topic_of("u1 > a1 > u2 > s?", "a1 > r1 > b1").do(command)


@pytest.mark.parametrize(
    "command",
    [
        p.MessageUpdate(message_id="r1", text="x"),
        p.MessageUpdate(message_id="r1", parent="s"),
        p.MessageDelete(message_id="r1", cascade=True),
        p.MessageDelete(message_id="b1"),
        p.MessageDelete(message_id="below"),
        p.MessageCreate(role="user", parent="a1"),
        p.MessageCreateSibling(source_id="u2", text="x"),
        p.TopicSetActive(node_id="b1"),
        p.TopicUpdate(name="n"),
        p.TopicSetMetadata(metadata=raw({"a": 1})),
    ],
    ids=count(),
)
def test_L3_what_is_beside_or_below_a_live_reply_stays_free(command: p.Mutation):
    topic = topic_of("u1 > a1 > u2 > s* > below", "a1 > r1 > b1")
    live = topic.tree.live

    topic.do(command)

    assert topic.tree.live == live


def test_L3_the_guard_lifts_when_the_reply_ends():
    topic = topic_of("u1 > a1*")
    topic.refuse(p.TopicClear(), TopicLive)
    topic.do(p.StreamAbort(message_id="a1"))

    topic.do(p.TopicClear())

    assert topic.ids() == set()


# Batches ---------------------------------------------------------------------------------


def test_T9_a_batch_is_one_commit_each_on_the_one_before():
    topic = topic_of("u1 > a1", "v1")

    result = topic.do(
        p.Batch(
            commands=[
                p.MessageCreate(message_id="n", role="user", parent="a1", text="n"),
                p.MessageUpdate(message_id="n", text="changed"),
                p.MessageCreateSibling(source_id="n", message_id="m"),
                p.MessageDelete(message_id="v1"),
                p.TopicUpdate(name="name"),
                p.TopicSetActive(node_id="n"),
            ],
            mutation="m-1",
        )
    )

    assert len(topic.deltas) == 1
    assert topic.deltas[0].cause == p.Cause("batch", "ann", "m-1")
    assert [each.get("messageId") for each in result["results"]] == ["n", "n", "m", *[None] * 3]
    assert (topic.node("n").preview, topic.active) == ("changed", "n")
    assert {node.version for node in topic.tree.nodes() if node.id in ("n", "m")} == {2}


def test_T9_the_first_refusal_undoes_all_and_says_where_it_was():
    topic = topic_of("u1 > a1")

    refusal = topic.refuse(
        p.Batch(
            commands=[
                p.TopicClear(),
                p.MessageCreate(message_id="n", role="user"),
                p.MessageDelete(message_id="u1"),
                p.TopicUpdate(name="never"),
            ]
        ),
        NotFound,
    )

    assert refusal.details == {"id": "u1", "command": 2}
    assert str(refusal).startswith("commands[2] (message.delete): there is no message u1")


def test_T9_what_a_batch_made_and_took_back_is_as_if_never_made():
    topic = topic_of("u1 > a1")
    create_n = p.MessageCreate(message_id="n", role="system", set_active=False)

    topic.do(p.Batch(commands=[create_n, p.MessageDelete(message_id="n")]))

    assert topic.deltas == []
    topic.refuse(p.Batch(commands=[create_n, p.MessageDelete(message_id="n"), create_n]), Conflict)


def test_T9_commands_of_a_batch_belong_to_its_topic_and_its_name():
    topic = topic_of("u1")
    update = p.TopicUpdate(name="n")

    topic.do(p.Batch(topic="t", commands=[p.TopicUpdate(topic="t", name="n")]))
    topic.refuse(
        p.Batch(topic="t", commands=[update, p.TopicUpdate(topic="x", name="m")]), Validation
    )
    topic.refuse(
        p.Batch(topic="t", commands=[update, p.TopicUpdate(name="m", mutation="1")]), Validation
    )


def test_T8_a_batch_does_not_conflict_with_itself():
    topic = topic_of("u1 > a1", "v1")
    seq = topic.tree.seq

    topic.do(
        p.Batch(
            base=seq,
            commands=[
                p.MessageUpdate(message_id="u1", text="x"),
                p.MessageCreate(message_id="n", role="user", parent="u1"),
                p.MessageDelete(message_id="u1"),
                p.MessageDelete(message_id="n"),
                p.TopicClear(),
            ],
        )
    )

    assert topic.ids() == set()


def test_T8_a_batchs_base_is_that_of_each_command_without_its_own():
    topic = topic_of("u1 > a1")
    seen = touched(topic, "u1")
    update = p.MessageUpdate(message_id="u1", text="x")

    refusal = topic.refuse(p.Batch(base=seen, commands=[p.TopicUpdate(name="n"), update]), Conflict)
    assert refusal.details["command"] == 1
    own = p.MessageUpdate(message_id="u1", text="x", base=topic.tree.seq)
    topic.do(p.Batch(base=seen, commands=[p.TopicUpdate(name="n"), own]))


def test_T9_a_live_turn_made_by_a_batch_guards_the_rest_of_it():
    topic = topic_of("u1")
    turn = p.TurnSubmit(user=p.Fresh(), placeholders=[p.Placeholder()])

    topic.refuse(p.Batch(commands=[turn, p.TopicClear()]), TopicLive)
    topic.refuse(p.Batch(commands=[turn, turn]), TopicLive)


def test_T9_a_batch_with_cold_content_asks_for_it_once_for_each_message():
    topic = topic_of("u1", "v1")
    contents = {each: bytes(topic.node(each).data) for each in ("u1", "v1")}  # type: ignore[arg-type]
    for each in contents:
        topic.tree.release(each)
    updates = [p.MessageUpdate(message_id=each, text="x") for each in ("u1", "v1", "u1")]
    batch = p.Batch(commands=updates)

    with pytest.raises(Content) as wanted:
        topic.do(batch)
    topic.contents |= contents
    topic.do(batch)

    assert wanted.value.message_ids == ["u1", "v1"]


def test_T9_a_batch_is_refused_for_what_it_says_and_not_for_content_that_was_not_here():
    topic = topic_of("u1", "v1")
    contents = {"u1": bytes(topic.node("u1").data)}  # type: ignore[arg-type]
    topic.tree.release("u1")
    batch = p.Batch(
        commands=[p.MessageUpdate(message_id="u1", text="x"), p.TopicSetActive(node_id="nope")]
    )

    with pytest.raises(Content):
        topic.do(batch)
    topic.contents |= contents
    with pytest.raises(NotFound, match=r"commands\[1\]"):
        topic.do(batch)


# Runs ------------------------------------------------------------------------------------


def test_a_run_decides_what_one_by_one_would_be_decided():
    topic = topic_of("u1 > a1:1 > w", "u1 > a2:1", active="w")
    commands: list[p.Mutation] = [
        p.MessageCreate(message_id="n", role="user", parent="w"),
        p.MessageDelete(message_id="nope"),
        p.MessageDelete(message_id="a1"),
        p.MessageCreateSibling(source_id="n", message_id="m"),
        p.MessageDelete(message_id="n", cascade=True),
        p.MessageCreate(message_id="n", role="user", parent="a2"),
        p.MessageCreate(message_id="o", role="user", parent="a2"),
        p.TopicSetMetadata(metadata=raw({"a": 1})),
        p.TurnSubmit(user=p.Existing(message_id="o"), placeholders=[p.Placeholder(message_id="r")]),
        p.TopicClear(),
        p.StreamClaim(message_id="r"),
        p.StreamAbort(message_id="r"),
        p.TopicClear(),
    ]
    contexts = [
        Context(now=START + place, commit=f"c{place}", new_id=lambda: "x", subject="ann")
        for place in range(len(commands))
    ]
    alone = over_the_wire(topic.tree)
    expected: list[p.Delta | type[LivetreeError]] = []
    for command, context in zip(commands, contexts, strict=True):
        try:
            planned = plan(alone, command, context)
        except LivetreeError as refusal:
            expected.append(type(refusal))
            continue
        assert planned.delta is not None
        assert alone.apply(planned.delta)
        expected.append(planned.delta)

    run, decided = run_of(topic.tree, commands, contexts)

    found = [type(each) if isinstance(each, LivetreeError) else each.delta for each in decided]
    assert [p.encode(each) if isinstance(each, p.Delta) else each for each in found] == [
        p.encode(each) if isinstance(each, p.Delta) else each for each in expected
    ]
    assert [place for place, each in enumerate(expected) if isinstance(each, type)] == [1, 5, 9]
    assert (expected[1], expected[5], expected[9]) == (NotFound, Conflict, TopicLive)
    assert_equal_everywhere(alone=alone, run=canonical_form(run))
