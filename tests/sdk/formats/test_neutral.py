from typing import Any

import pytest
from livetree.formats import Conversation, FormatError, ImportedMessage, text_of, validate


def message(id: str, parent_id: str | None = None, **fields: Any) -> ImportedMessage:
    usual = {"role": "user", "data": {"parts": [], "source": {}}, "created_at": 1}
    return ImportedMessage(id=id, parent_id=parent_id, **{**usual, **fields})


def conversation(*messages: ImportedMessage, **fields: Any) -> Conversation:
    usual = {"active_id": None, "metadata": {}}
    return Conversation(messages=list(messages), **{**usual, **fields})


def refusal(checked: Conversation) -> str:
    with pytest.raises(FormatError) as refused:
        validate(checked)
    return refused.value.reason


def test_an_empty_conversation_is_valid():
    validate(conversation())


def test_a_tree_is_valid():
    validate(
        conversation(
            message("a", created_at=5, siblings_group_id=1),
            message("b", "a", created_at=3, role="assistant", model_id="gpt", status="paused"),
            message("c", "b", created_at=3, siblings_group_id=1),
            message("d", created_at=6, siblings_group_id=1),
            active_id="b",
            name="Trip",
            source_id="c-1",
            metadata={"source": {}},
            created_at=0,
            updated_at=2**53 - 1,
        )
    )


def test_one_group_number_under_two_parents_is_two_groups():
    validate(
        conversation(
            message("a", siblings_group_id=1),
            message("b", created_at=2, siblings_group_id=1),
            message("c", "a", siblings_group_id=1),
            message("d", "a", created_at=2, siblings_group_id=1),
        )
    )


@pytest.mark.parametrize("id", ["", "a b", "a\n", "é", "x" * 65, "a.b"])
def test_an_id_must_be_of_the_form(id: str):
    assert "its id is not of the form" in refusal(conversation(message(id)))


def test_an_id_may_be_used_once():
    reason = refusal(conversation(message("a"), message("a", created_at=2)))

    assert reason == "message 'a': two messages have this id"


@pytest.mark.parametrize("parent", ["b", "a", "elsewhere"])
def test_a_parent_must_stand_before_its_children(parent: str):
    reason = refusal(conversation(message("a", parent), message("b")))

    assert reason == f"message 'a': its parent '{parent}' is not before it"


def test_the_active_message_must_exist():
    assert "'b' does not exist" in refusal(conversation(message("a"), active_id="b"))


@pytest.mark.parametrize("earlier", [("b", 2), ("a", 1)], ids=["time", "id"])
def test_siblings_must_stand_in_the_order_of_their_times_and_ids(earlier: tuple[str, int]):
    id, created_at = earlier
    elder = message("b" if id == "a" else "a", created_at=created_at)
    younger = message(id, created_at=1)

    assert "before a sibling" in refusal(conversation(elder, younger))
    validate(conversation(younger, elder))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"role": "root"}, "there is no role 'root'"),
        ({"status": "pending"}, "there is no status 'pending'"),
        ({"siblings_group_id": -1}, "its group is not"),
        ({"siblings_group_id": True}, "its group is not"),
        ({"siblings_group_id": 2**53}, "its group is not"),
        ({"created_at": 1.5}, "its time is not"),
        ({"created_at": -1}, "its time is not"),
        ({"model_id": "\ud800"}, "its model holds half"),
        ({"data": {}}, "its parts are null, not a list"),
        ({"data": {"parts": ["a"]}}, "a part is not an object with a type"),
        ({"data": {"parts": [{"type": 1}]}}, "a part is not an object with a type"),
        ({"data": {"parts": [{"type": "text"}]}}, "a text part has no text"),
        ({"data": {"parts": [], "source": []}}, "its source is a list"),
        ({"data": {"parts": [{"type": "text", "text": "\udfff"}]}}, "half of a surrogate"),
        ({"data": {"parts": [], "source": {"a": 2**53}}}, "an integer beyond"),
    ],
    ids=[
        *("role", "status", "group -1", "group True", "group 2**53", "time 1.5", "time -1"),
        *("model", "no parts", "part", "part type", "part text", "source", "surrogate", "integer"),
    ],
)
def test_a_message_must_be_storable(fields: dict[str, Any], reason: str):
    found = refusal(conversation(message("a", **fields)))

    assert found.startswith("message 'a'")
    assert reason in found


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "\ud800"}, "the title holds half"),
        ({"source_id": "\ud800"}, "the conversation's id holds half"),
        ({"metadata": {"a": float("nan")}}, "the conversation's metadata holds 'nan'"),
        ({"created_at": -1}, "a time of the conversation is not"),
        ({"updated_at": 0.5}, "a time of the conversation is not"),
    ],
    ids=["name", "source id", "metadata", "created", "updated"],
)
def test_a_conversation_must_be_storable(fields: dict[str, Any], reason: str):
    assert reason in refusal(conversation(**fields))


def test_a_line_of_many_messages_is_checked_without_recursion():
    ids = [f"m{number}" for number in range(50_000)]
    parents = [None, *ids[:-1]]

    validate(conversation(*map(message, ids, parents), active_id=ids[-1]))


def test_the_text_is_that_of_the_text_parts_line_by_line():
    parts = [
        {"type": "text", "text": "one"},
        {"type": "reasoning", "text": "hidden"},
        {"type": "text", "text": "two\n"},
        {"type": "text", "text": "three"},
    ]

    assert text_of(message("a", data={"parts": parts})) == "one\ntwo\n\nthree"
