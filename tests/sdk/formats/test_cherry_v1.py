from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from livetree.formats import Conversation, FormatError, ImportedMessage, text_of, validate
from livetree.formats.cherry_v1 import Migration, migrate
from livetree.formats.reachable import check_reachable

from tests.sdk.formats.exports import by_id
from tests.tree.costs import shallow, steps

Json = dict[str, Any]


def user(id: str, **fields: Any) -> Json:
    return {"id": id, "role": "user", "text": id, **fields}


def reply(id: str, ask: str | None = None, **fields: Any) -> Json:
    asked = {} if ask is None else {"askId": ask}
    return {"id": id, "role": "assistant", "text": id, **asked, **fields}


def topic(*messages: Json, **fields: Any) -> Json:
    return {"id": "T", "messages": [*messages], **fields}


def migrated(*messages: Json, **fields: Any) -> Conversation:
    result = migrate([topic(*messages, **fields)])
    assert (result.ok, result.migrated, result.skipped) == (True, ["T"], []), result.errors
    return result.conversations[0]


def links(conversation: Conversation) -> list[str]:
    """Return each message as ``id < parent :group``."""
    return [
        f"{message.id} < {message.parent_id or '-'}"
        + (f" :{message.siblings_group_id}" if message.siblings_group_id else "")
        for message in conversation.messages
    ]


def refusal(*messages: Any, **fields: Any) -> str:
    result = migrate([topic(*messages, **fields)])
    assert (result.ok, result.conversations, result.migrated) == (False, [], [])
    return str(result.errors[0])


# The tree --------------------------------------------------------------------------------


def test_C1_a_list_is_a_line():
    found = migrated(user("u1"), reply("a1", "u1"), user("u2"), reply("a2", "u2"))

    assert links(found) == ["u1 < -", "a1 < u1", "u2 < a1", "a2 < u2"]
    assert [(each.role, text_of(each)) for each in found.messages[:2]] == [
        ("user", "u1"),
        ("assistant", "a1"),
    ]
    assert found.active_id == "a2"


def test_C1_whatever_its_role_a_message_hangs_below_the_one_before_it():
    system: Json = {"id": "s", "role": "system", "text": "be kind"}

    assert links(migrated(reply("a"), system, reply("b"), user("u"), user("v"))) == [
        *("a < -", "s < a", "b < s", "u < b", "v < u"),
    ]


def test_C2_replies_to_one_message_are_a_group_below_it():
    found = migrated(user("u1"), reply("a1", "u1"), reply("a2", "u1"), reply("b", "u2"))

    assert links(found) == ["u1 < -", "a1 < u1 :1", "a2 < u1 :1", "b < a2"]


def test_C2_the_asked_message_may_stand_far_above():
    found = migrated(user("u1"), user("u2"), reply("a1", "u1"), reply("a2", "u1"))

    assert links(found) == ["u1 < -", "u2 < u1", "a1 < u1 :1", "a2 < u1 :1"]


def test_C2_replies_to_what_is_gone_hang_together():
    found = migrated(reply("a0"), reply("a1", "gone"), reply("a2", "gone"))

    assert links(found) == ["a0 < -", "a1 < a0 :1", "a2 < a0 :1"]
    assert links(migrated(reply("a1", "gone"), reply("a2", "gone"))) == ["a1 < - :1", "a2 < - :1"]


@pytest.mark.parametrize("asked", ["u1", "a1", "a2"])
def test_C2_a_group_never_hangs_below_what_comes_after_it(asked: str):
    found = migrated(user("u0"), reply("a1", asked), reply("a2", asked), user("u1"))

    assert links(found) == ["u0 < -", "a1 < u0 :1", "a2 < u0 :1", "u1 < a2"]


def test_C2_only_replies_are_a_group():
    found = migrated(user("u1"), user("u2", askId="u1"), reply("a", "u1"), user("u3", askId="u1"))

    assert links(found) == ["u1 < -", "u2 < u1", "a < u2", "u3 < a"]


def test_C2_an_empty_askId_asks_nothing():
    assert links(migrated(reply("a", ""), reply("b", ""))) == ["a < -", "b < a"]


@pytest.mark.parametrize("selected", ["a1", "a2", "a3"])
def test_C3_the_next_question_hangs_below_the_selected_reply(selected: str):
    replies = [reply(id, "u1", foldSelected=id == selected) for id in ("a1", "a2", "a3")]

    assert links(migrated(user("u1"), *replies, user("u2")))[-1] == f"u2 < {selected}"


def test_C3_without_a_selection_it_hangs_below_the_last():
    found = migrated(user("u1"), reply("a1", "u1"), reply("a2", "u1"), user("u2"), user("u3"))

    assert links(found)[-2:] == ["u2 < a2", "u3 < u2"]


def test_C3_of_two_selected_the_first_counts():
    chosen = [reply(id, "u1", foldSelected=True) for id in ("a1", "a2")]

    assert links(migrated(user("u1"), *chosen, user("u2")))[-1] == "u2 < a1"


def test_C3_what_is_no_question_hangs_below_the_message_before():
    found = migrated(
        *(user("u1"), reply("a1", "u1", foldSelected=True), reply("a2", "u1")),
        *({"id": "s", "role": "system", "text": "s"}, user("u2")),
    )

    assert links(found)[-2:] == ["s < a2", "u2 < s"]


def test_C3_the_selected_reply_may_stand_after_the_question():
    found = migrated(
        *(user("u1"), reply("a1", "u1"), user("u2"), reply("b", "u2")),
        reply("a2", "u1", foldSelected=True),
    )

    assert links(found) == ["u1 < -", "a1 < u1 :1", "a2 < u1 :1", "u2 < a2", "b < u2"]
    assert [message.created_at for message in found.messages] == [100, 200, 500, 300, 400]
    assert found.active_id == "a2"


def test_C4_messages_without_content_are_left_out_and_what_is_below_them_moves_up():
    found = migrated(
        *(user("u0", text=""), user("u1"), reply("a1", text=""), user("u2", text="")),
        reply("a2"),
    )

    assert links(found) == ["u1 < -", "a2 < u1"]


def test_C4_a_question_below_a_selected_reply_that_is_left_out_moves_up():
    lost = reply("a1", "u1", foldSelected=True, text="")

    assert links(migrated(user("u1"), lost, reply("a2", "u1"), user("u2"))) == [
        *("u1 < -", "a2 < u1", "u2 < u1"),
    ]


def test_C4_blanks_are_content():
    assert links(migrated(user("u", text=" "))) == ["u < -"]


def test_C4_a_clear_marker_stays_and_does_not_wait_for_a_prompt():
    found = migrated(user("u1"), reply("a1"), user("c", text="", type="clear"))

    assert links(found) == ["u1 < -", "a1 < u1", "c < a1"]
    assert found.messages[2].data["parts"] == [{"type": "data-cherry", "data": {"type": "clear"}}]
    assert text_of(migrated(user("c", type="clear")).messages[0]) == "c"


def test_C5_one_reply_that_is_left_is_no_group():
    found = migrated(user("u1"), reply("a1", "u1", text=""), reply("a2", "u1"))

    assert links(found) == ["u1 < -", "a2 < u1"]


def test_C5_groups_that_meet_at_one_parent_have_numbers_of_their_own():
    found = migrated(
        *(user("u1"), reply("a1", "u1"), reply("a2", "u1")),
        *(user("u2"), reply("b1", "gone"), reply("b2", "gone")),
        *(reply("c1", "u2"), reply("c2", "u2")),
    )

    assert links(found) == [
        *("u1 < -", "a1 < u1 :1", "a2 < u1 :1", "u2 < a2"),
        *("b1 < u2 :1", "b2 < u2 :1", "c1 < u2 :2", "c2 < u2 :2"),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((None, "success"), ("success", "success"), ("error", "error"), ("paused", "paused")),
        *(("sending", "error"), ("pending", "error"), ("searching", "error")),
        *(("processing", "error"), ("", "error"), ("root", "error")),
    ],
)
def test_C6_what_has_not_ended_was_interrupted(old: str | None, new: str):
    assert migrated(reply("a", status=old)).messages[0].status == new


@pytest.mark.parametrize(
    ("messages", "active"),
    [
        ([user("u"), reply("a")], "a"),
        ([user("u"), reply("a", "u", foldSelected=True), reply("b", "u")], "a"),
        ([user("u"), reply("a", "u"), reply("b", "u")], "b"),
        ([user("u"), reply("a", "u", foldSelected=True), reply("b", "u"), user("v", text="")], "a"),
        ([user("u"), reply("a"), user("v", text="")], "a"),
        ([user("u"), reply("a", "u", foldSelected=True, text=""), reply("b", "u")], "b"),
        ([user("u"), reply("a", "u"), reply("b", "u", text="")], "a"),
        ([user("u", text="")], None),
    ],
    ids=[
        *("last", "selected", "none selected", "end left out", "line's end left out"),
        *("selected left out", "last of a group left out", "all left out"),
    ],
)
def test_C7_the_end_of_the_old_list_is_active(messages: list[Json], active: str | None):
    assert migrated(*messages).active_id == active


def test_C7_a_selection_far_above_the_end_is_not_gone_back_to():
    found = migrated(
        *(user("u"), reply("a", "u", foldSelected=True), reply("b", "u")),
        *(user("v"), reply("c"), user("w", text="")),
    )

    assert found.active_id == "c"


def test_C8_ids_are_kept_where_they_are_valid_and_made_where_not():
    found = migrated(user("a.b"), reply("m1", "a.b"), reply("é", "a.b"), user("ROOT"))

    assert links(found) == ["m2 < -", "m1 < m2 :1", "m3 < m2 :1", "m4 < m3"]
    assert [message.data["source"]["id"] for message in found.messages] == [
        *("a.b", "m1", "é", "ROOT"),
    ]
    assert found.active_id == "m4"


def test_C9_times_rise_and_the_old_ones_are_kept_beside():
    found = migrated(
        user("a"), reply("b", createdAt=5000), user("c", createdAt=5000), reply("d", createdAt=7)
    )

    assert [message.created_at for message in found.messages] == [100, 5000, 5001, 5002]
    assert [message.data["source"].get("time") for message in found.messages] == [
        *(None, 5000, 5000, 7),
    ]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, False),
        ({"pinned": True}, True),
        ({"renamed": True}, True),
        ({"prompt": "be kind"}, True),
        ({"pinned": False, "renamed": None, "prompt": " \n"}, False),
        ({"name": "Default"}, False),
    ],
    ids=str,
)
def test_C10_an_empty_topic_is_kept_if_somebody_cared_for_it(fields: Json, kept: bool):
    result = migrate([topic(**fields)])

    assert (result.migrated, result.skipped) == ((["T"], []) if kept else ([], ["T"]))
    assert [each.messages for each in result.conversations] == ([[]] if kept else [])
    assert result.ok


def test_C10_a_topic_of_which_nothing_is_left_is_kept():
    found = migrated(user("u", text=""))

    assert (found.messages, found.active_id) == ([], None)


def test_what_has_no_place_of_its_own_is_kept_as_the_source():
    found = migrated(
        reply("a", "u", modelId="gpt", status="sending"), name="Trip", prompt="be kind", extra=[1]
    )

    assert (found.source_id, found.name) == ("T", "Trip")
    assert found.metadata == {
        "source": {
            **{"format": "cherry-v1", "id": "T"},
            "fields": {"prompt": "be kind", "extra": [1]},
        }
    }
    assert found.messages[0].data["source"] == {
        **{"format": "cherry-v1", "id": "a"},
        "fields": {"askId": "u", "modelId": "gpt", "status": "sending"},
    }


# Refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (5, "message 1 is a number, not an object"),
        (None, "message 1 is null, not an object"),
        ({"role": "user", "text": ""}, "message 1: its id is missing"),
        ({"id": None, "role": "user", "text": ""}, "message 1: its id is null, not a text"),
        ({"id": "", "role": "user", "text": ""}, "message 1: its id is empty"),
        ({"id": 7, "role": "user", "text": ""}, "message 1: its id is a number, not a text"),
        ({"id": "b", "text": ""}, "message 1: its role is missing"),
        ({"id": "b", "role": "root", "text": ""}, "message 1: the role 'root' is none of"),
        ({"id": "b", "role": [], "text": ""}, "message 1: its role is a list, not a text"),
        ({"id": "b", "role": "user"}, "message 1: its text is missing"),
        (user("b", text=None), "message 1: its text is null, not a text"),
        (user("b", text="\ud83d"), "message 'b' holds half of a surrogate pair"),
        (user("a"), "message 1: its id 'a' is that of message 0 too"),
        (user("b", askId=1), "message 1: its askId is a number, not a text"),
        (user("b", foldSelected="yes"), "message 1: its foldSelected is a text, not true or false"),
        (user("b", foldSelected=1), "message 1: its foldSelected is a number, not true or false"),
        (user("b", type=[]), "message 1: its type is a list, not a text"),
        (user("b", status={}), "message 1: its status is an object, not a text"),
        (user("b", createdAt="now"), "message 1: its createdAt is a text, not a whole number"),
        (user("b", createdAt=True), "message 1: its createdAt is true or false, not a whole"),
        (user("b", createdAt=1.5), "message 1: its createdAt is a number, not a whole number"),
        (user("b", createdAt=-1), "message 1: its createdAt '-1' is not a time"),
        (user("b", createdAt=2**60), "message 1: its createdAt '1152921504606846976' is not"),
        (user("b", extra=2**60), "message 'b' holds an integer beyond"),
    ],
    ids=range(24),
)
def test_C11_a_message_that_is_wrong_refuses_its_topic_by_its_place(message: Any, reason: str):
    assert refusal(user("a"), message).startswith(f"record 0 'T': {reason}")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("T", "record 0: it is a text, not a topic"),
        ({"messages": []}, "record 0: the topic: its id is missing"),
        ({"id": 5, "messages": []}, "record 0: the topic: its id is a number, not a text"),
        ({"id": "T"}, "record 0 'T': its messages are missing"),
        (topic() | {"messages": {}}, "record 0 'T': its messages are an object, not a list"),
        (topic(name=5), "record 0 'T': the topic: its name is a number, not a text"),
        (topic(name="Trip", pinned="no"), "record 0 'Trip': the topic: its pinned is a text"),
        (topic(renamed=1), "record 0 'T': the topic: its renamed is a number"),
        (topic(prompt=[]), "record 0 'T': the topic: its prompt is a list"),
    ],
    ids=range(9),
)
def test_C11_a_topic_that_is_wrong_is_refused_by_its_place(wrong: Any, reason: str):
    result = migrate([wrong])

    assert str(result.errors[0]).startswith(reason)
    assert not result.ok


def test_C11_neighbours_of_a_refused_topic_come_in():
    result = migrate(
        [
            *(topic(user("u"), id="A"), topic({}, id="B"), topic(id="C"), topic(user("u"), id="D")),
            topic(user("v"), id="A"),
        ]
    )

    assert (result.migrated, result.skipped) == (["A", "D"], ["C"])
    assert [each.source_id for each in result.conversations] == ["A", "D"]
    assert [(fault.record, fault.source_id) for fault in result.errors] == [(1, "B"), (4, "A")]
    assert "two topics have the id 'A'" in str(result.errors[1])


@pytest.mark.parametrize("wrong", [None, {}, "[]"], ids=str)
def test_what_is_no_list_of_topics_is_refused_whole(wrong: Any):
    with pytest.raises(FormatError, match="not a list"):
        migrate(wrong)


def test_no_topics_give_nothing():
    assert migrate([]) == Migration(conversations=[], migrated=[], skipped=[], errors=[])


# Whatever the list -----------------------------------------------------------------------


@st.composite
def lists(draw: st.DrawFn) -> list[Json]:
    """Draw a flat list whose replies ask for what is before, behind, themselves or gone."""
    ids = [f"m{place}" for place in range(draw(st.integers(0, 9)))]
    some_id = st.sampled_from([None, "gone", *ids[:3], *ids[-2:]])
    return [
        {
            "id": id,
            "role": draw(st.sampled_from(["user", "assistant", "assistant", "system"])),
            "text": draw(st.sampled_from(["", "said", "said"])),
            "askId": draw(some_id),
            "foldSelected": draw(st.booleans()),
            "type": draw(st.sampled_from([None, None, "clear"])),
            "status": draw(st.sampled_from([None, "success", "sending"])),
            "createdAt": draw(st.none() | st.integers(0, 500)),
        }
        for id in ids
    ]


def is_kept(message: Json) -> bool:
    return message["text"] != "" or message["type"] == "clear"


@given(lists())
def test_every_kept_message_is_in_a_sound_tree_once_and_in_order(messages: list[Json]):
    found = migrated(*messages, pinned=True)
    kept = [message["id"] for message in messages if is_kept(message)]

    validate(found)
    rows = [("ROOT", None), *((each.id, each.parent_id or "ROOT") for each in found.messages)]
    assert check_reachable({"T": rows}).ok
    assert [each.id for each in sorted(found.messages, key=time_of)] == kept
    times = [time_of(each) for each in sorted(found.messages, key=time_of)]
    assert all(one < other for one, other in pairwise(times))
    assert (found.active_id is None) == (kept == [])


@given(lists())
def test_groups_are_the_kept_replies_to_one_message(messages: list[Json]):
    found = by_id(migrated(*messages, pinned=True))
    groups: dict[tuple[Any, int], set[str]] = {}
    for message in found.values():
        if message.siblings_group_id:
            key = (message.parent_id, message.siblings_group_id)
            groups.setdefault(key, set()).add(message.id)
    asked: dict[str, set[str]] = {}
    for told in messages:
        if told["role"] == "assistant" and told["askId"] and is_kept(told):
            asked.setdefault(told["askId"], set()).add(told["id"])

    expected = [members for members in asked.values() if len(members) > 1]
    assert sorted(map(sorted, groups.values())) == sorted(map(sorted, expected))


def time_of(message: ImportedMessage) -> int:
    return message.created_at


# Large topics ----------------------------------------------------------------------------


def long_list(length: int) -> list[Json]:
    """Return a list in which every other message is left out, and each fourth begins a group."""
    return [
        reply(f"m{place}", f"q{place // 4}", text="" if place % 2 else "said", foldSelected=True)
        if place % 4
        else user(f"m{place}")
        for place in range(length)
    ]


def test_a_list_of_20000_needs_no_recursion():
    with shallow(60):
        found = migrated(*long_list(20_000))

    assert len(found.messages) == 10_000


def test_a_list_of_messages_that_are_left_out_needs_no_recursion():
    lost = [user(f"m{place}", text="") for place in range(20_000)]

    with shallow(60):
        assert links(migrated(*lost, user("end"))) == ["end < -"]


def scattered(length: int) -> list[Json]:
    """Return a list in which the replies of one large group stand between users' messages."""
    return [reply(f"m{place}", "q") if place % 2 else user(f"m{place}") for place in range(length)]


@pytest.mark.parametrize("make", [long_list, scattered])
def test_twice_the_messages_cost_twice_the_work(make: Callable[[int], list[Json]]):
    def work(size: int) -> int:
        return steps(lambda: migrate([topic(*make(size))]))

    assert work(2_000) < 2.2 * work(1_000)
