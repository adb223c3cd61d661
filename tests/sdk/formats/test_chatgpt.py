from typing import Any

import pytest
from livetree.formats import FormatError, validate
from livetree.formats.chatgpt import convert

from tests.sdk.formats.exports import (
    by_id,
    export,
    message,
    one,
    parts_of,
    refusal,
    shown,
    tree,
)

BRANCHED = """
    root:
    hi < root: user Hello
    re < hi: assistant Hello you
    retry < hi: assistant Hi
    more < re: user Tell a joke
    edit < re: user Tell a story
    joke < more: assistant Knock knock
"""


def test_a_conversation_comes_in_whole():
    conversation = convert(export(BRANCHED, current_node="joke"))

    validate(conversation)
    assert shown(conversation) == [
        "hi < -: user Hello",
        "re < hi: assistant Hello you",
        "more < re: user Tell a joke",
        "joke < more: assistant Knock knock",
        "edit < re: user Tell a story",
        "retry < hi: assistant Hi",
    ]
    assert conversation.active_id == "joke"
    assert (conversation.source_id, conversation.name) == ("c-1", "A talk")
    assert (conversation.created_at, conversation.updated_at) == (1700000000500, 1700000100250)
    groups = {message.id: message.siblings_group_id for message in conversation.messages}
    assert groups == {"hi": 0, "re": 1, "retry": 1, "more": 1, "edit": 1, "joke": 0}


@pytest.mark.parametrize("title", [None, 5, ["a"]], ids=repr)
def test_a_title_that_is_no_text_names_nothing(title: Any):
    conversation = convert(export("a: user hi", title=title))

    assert conversation.name is None
    assert conversation.metadata["source"]["fields"]["title"] == title


def test_a_conversation_without_messages_is_empty():
    for mapping in ({}, tree("root:"), tree("x:\ny < x:")):
        conversation = convert(export(mapping))

        assert (conversation.messages, conversation.active_id) == ([], None)


def test_the_id_is_the_conversations_or_the_exports():
    assert convert(export("a: user", conversation_id="c-2")).source_id == "c-2"
    assert convert(export("a: user", conversation_id=None)).source_id == "c-1"
    assert convert(export("a: user", conversation_id=None, id=3)).source_id is None


# What is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (None, "it is null, not a conversation"),
        ("text", "it is a text, not a conversation"),
        ([], "it is a list, not a conversation"),
        ({}, "its mapping, which holds the messages, is missing"),
        ({"mapping": None}, "its mapping, which holds the messages, is null, not an object"),
        ({"mapping": []}, "its mapping, which holds the messages, is a list, not an object"),
        (export({"a": None}), "node 'a' is null, not an object"),
        (export({"a": {"parent": 1}}), "node 'a': its parent is a number, not a key"),
        (export({"a": {"message": "hi"}}), "node 'a': its message is a text, not an object"),
        (export({"a": {"message": {}}}), "node 'a': its message has no author with a role"),
        (
            export({"a": {"message": {"author": {"role": "critic"}}}}),
            "node 'a': the role 'critic' is none of assistant, system, tool, user",
        ),
        (export("a < b: user\nb < a: user"), "the parents of node 'a' run in a circle"),
        (export("a < a: user"), "the parents of node 'a' run in a circle"),
    ],
    ids=[
        *("null", "text", "list", "no mapping", "null mapping", "list mapping", "null node"),
        *("numeric parent", "text message", "no author", "unknown role", "circle", "self"),
    ],
)
def test_what_is_no_whole_conversation_is_refused_saying_why(record: Any, reason: str):
    assert refusal(record).reason == reason


def test_a_refused_conversation_is_named():
    fault = refusal({"id": "c-9", "title": "Lost"})

    assert (fault.source_id, fault.title) == ("c-9", "Lost")
    assert "'Lost'" in str(fault)


ODD = pytest.mark.parametrize("odd", [[], {}, 5, True, "x", None], ids=repr)


@ODD
@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
def test_a_messages_field_of_an_unknown_form_disturbs_nothing(role: str, odd: Any):
    for field in ("id", "create_time", "status", "metadata", "recipient", "content", "more"):
        said = message(role, "hi", **{field: odd})

        validate(convert(export(tree("a:", a=said))))


@ODD
def test_a_conversations_or_a_nodes_field_of_an_unknown_form_disturbs_nothing(odd: Any):
    for field in ("title", "create_time", "update_time", "current_node", "default_model_slug"):
        validate(convert(export("a: assistant hi", **{field: odd})))
    for field in ("id", "children", "more"):
        mapping = tree("a: user hi")
        mapping["a"][field] = odd
        validate(convert(export(mapping)))


@ODD
@pytest.mark.parametrize("kind", ["text", "code", "thoughts", "reasoning_recap", "new", None])
def test_a_contents_field_of_an_unknown_form_disturbs_nothing(kind: str | None, odd: Any):
    for field in ("parts", "text", "result", "thoughts", "content", "content_type"):
        content = {"content_type": kind, field: odd}

        validate(convert(export(tree("a:", a=message(content=content)))))


# Links ----------------------------------------------------------------------------------


def test_G1_links_go_by_the_mappings_keys_and_not_by_the_messages_ids():
    mapping = tree("a: user one\nb < a: assistant two")
    mapping["a"]["message"]["id"] = "b"
    mapping["b"]["message"]["id"] = "a"
    mapping["b"]["id"] = "z"

    first, second = convert(export(mapping)).messages

    assert (first.id, second.id, second.parent_id) == ("a", "b", "a")
    assert second.data["source"]["id"] == "b"
    assert second.data["source"]["fields"]["id"] == "a"
    assert second.data["source"]["node"] == {"id": "z"}


def test_G1_a_key_that_is_no_id_is_replaced_and_kept():
    conversation = convert(export("a b: user one\nm1 < a b: assistant two", current_node="a b"))

    assert shown(conversation) == ["m2 < -: user one", "m1 < m2: assistant two"]
    assert conversation.messages[0].data["source"]["id"] == "a b"
    assert conversation.active_id == "m2"


def test_G1_children_give_siblings_their_order_and_nothing_else():
    mapping = tree("a: user\nb < a: assistant\nc < a: assistant\nd: user")
    mapping["a"]["children"] = ["c", "d", "gone", 5]

    assert shown(convert(export(mapping))) == [
        *("a < -: user", "c < a: assistant", "b < a: assistant", "d < -: user"),
    ]


def test_G1_a_parent_that_is_not_there_makes_a_first_turn():
    conversation = convert(export("a < client-created-root: user one\nb < a: assistant two"))

    assert shown(conversation) == ["a < -: user one", "b < a: assistant two"]


def test_G1_messages_below_a_node_without_one_go_to_the_next_above():
    conversation = convert(export("a: user one\nx < a:\nb < x: assistant two"))

    assert shown(conversation) == ["a < -: user one", "b < a: assistant two"]


# Roles and tools ------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
def test_G2_the_role_is_the_authors(role: str):
    assert one({"content_type": "text", "parts": ["hi"]}, role).role == role


CALL = {"content_type": "code", "language": "unknown", "text": 'search("x")'}


def test_G2_a_message_to_a_tool_is_a_call_and_the_tools_answer_its_result():
    call = message("assistant", content=CALL, recipient="browser")
    author = {"role": "tool", "name": "browser", "metadata": {}}
    display = {"content_type": "tether_browsing_display", "result": "found", "summary": ""}
    result = message("tool", author=author, content=display)

    found = by_id(convert(export(tree("q: user\nc < q:\nr < c:", c=call, r=result))))

    assert found["c"].data["parts"] == [
        {
            "type": "tool-browser",
            "toolCallId": "call_c",
            "state": "input-available",
            "input": 'search("x")',
        }
    ]
    assert found["r"].data["parts"] == [
        {
            "type": "tool-browser",
            "toolCallId": "call_c",
            "state": "output-available",
            "output": "found",
        }
    ]
    assert found["c"].data["source"]["fields"]["content"] == {
        **{"content_type": "code", "language": "unknown"}
    }
    assert found["r"].data["source"]["fields"]["author"]["name"] == "browser"


@pytest.mark.parametrize("recipient", ["all", None, "", 5], ids=repr)
def test_G2_a_message_to_all_is_no_call(recipient: Any):
    content = {"content_type": "text", "parts": ["hi"]}

    assert parts_of(content, recipient=recipient) == [{"type": "text", "text": "hi"}]


@pytest.mark.parametrize("role", ["user", "system"])
def test_G2_only_an_assistant_calls(role: str):
    content = {"content_type": "text", "parts": ["hi"]}

    assert parts_of(content, role, recipient="browser") == [{"type": "text", "text": "hi"}]


def test_G3_a_call_may_have_several_results_below_each_other_or_beside():
    call = message("assistant", content=CALL, recipient="web")
    lines = "c:\nr1 < c: tool one\nr2 < r1: tool two\nr3 < c: tool three\na < r2: assistant done"

    found = by_id(convert(export(tree(lines, c=call))))

    results = [found[key].data["parts"][0] for key in ("r1", "r2", "r3")]
    assert [part["toolCallId"] for part in results] == ["call_c"] * 3
    assert [part["type"] for part in results] == ["tool-web"] * 3
    assert [part["output"] for part in results] == ["one", "two", "three"]
    assert (found["r1"].siblings_group_id, found["r3"].siblings_group_id) == (1, 1)


def test_G3_each_call_of_a_chain_has_its_own_results():
    call = message("assistant", content=CALL, recipient="web")
    lines = "c1:\nr1 < c1: tool one\nc2 < r1:\nr2 < c2: tool two"

    found = by_id(convert(export(tree(lines, c1=call, c2=call))))

    calls = [found[key].data["parts"][0]["toolCallId"] for key in ("c1", "r1", "c2", "r2")]
    assert calls == ["call_c1", "call_c1", "call_c2", "call_c2"]


@pytest.mark.parametrize(
    ("name", "kind"), [("bio", "tool-bio"), (None, "tool-unknown")], ids=["named", "unnamed"]
)
def test_G3_a_result_without_a_call_has_an_id_of_its_own(name: str | None, kind: str):
    told = message("tool", "noted", author={"role": "tool", "name": name})

    found = by_id(convert(export(tree("q: user\nr < q:\ns < r: tool more", r=told))))

    assert found["r"].data["parts"] == [
        {"type": kind, "toolCallId": "call_r", "state": "output-available", "output": "noted"}
    ]
    assert found["s"].data["parts"][0]["toolCallId"] == "call_s"


def test_G3_a_calls_id_is_made_of_the_messages_not_of_the_key():
    call = message("assistant", content=CALL, recipient="web")
    mapping = tree("x:\nr < x: tool found", x=call)
    mapping = {"an odd key": mapping["x"], "r": {**mapping["r"], "parent": "an odd key"}}

    found = convert(export(mapping)).messages

    assert [sent.data["parts"][0]["toolCallId"] for sent in found] == ["call_m1", "call_m1"]


def test_G2_a_failed_tool_says_so():
    content = {"content_type": "system_error", "name": "tool_error", "text": "no such page"}

    (part,) = parts_of(content, "tool", author={"role": "tool", "name": "web"})

    assert (part["state"], part["errorText"]) == ("output-error", "no such page")


def test_G2_a_tools_files_stand_beside_its_output():
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://f1"}
    content = {"content_type": "multimodal_text", "parts": [image, "one image"]}

    result, file = parts_of(content, "tool", author={"role": "tool", "name": "dalle.text2im"})

    assert (result["type"], result["output"]) == ("tool-dalle.text2im", "one image")
    assert (file["type"], file["url"]) == ("file", "file-service://f1")


def test_G9_texts_joined_for_a_tool_are_kept_apart_too():
    content = {"content_type": "text", "parts": ["one\ntwo", "three"]}

    found = one(content, "tool")

    assert found.data["parts"][0]["output"] == "one\ntwo\nthree"
    assert found.data["source"]["fields"]["content"] == content


# Content --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"content_type": "text", "parts": ["a", "", "b"]}, ["a", "", "b"]),
        ({"content_type": "text", "parts": []}, []),
        ({"parts": ["a"]}, ["a"]),
        ({"content_type": "code", "text": "x = 1", "language": "python"}, ["x = 1"]),
        ({"content_type": "code", "text": ""}, [""]),
        ({"content_type": "code", "parts": ["x", "y"]}, ["x", "y"]),
        ({"content_type": "execution_output", "text": "1"}, ["1"]),
        ({"content_type": "tether_quote", "text": "cited", "url": "https://a.example"}, ["cited"]),
        ({"content_type": "tether_browsing_display", "text": "", "result": "found"}, ["found"]),
        ({"content_type": "system_error", "text": "failed"}, ["failed"]),
    ],
    ids=[
        *("texts", "no texts", "no type", "code", "empty code", "code in parts", "output"),
        *("quote", "display", "error"),
    ],
)
def test_G4_texts_are_text(content: Any, parts: list[str]):
    assert parts_of(content) == [{"type": "text", "text": text} for text in parts]


def test_G4_thoughts_are_reasoning_one_part_each():
    first = {"summary": "Weighing", "content": "It may be alive.", "chunks": []}
    second = {"summary": "Deciding", "content": ""}
    content = {"content_type": "thoughts", "thoughts": [first, second, "so"], "source": "m"}

    found = one(content)

    assert found.data["parts"] == [
        {
            "type": "reasoning",
            "text": "It may be alive.",
            "providerMetadata": {"chatgpt": {"summary": "Weighing", "chunks": []}},
        },
        {
            "type": "reasoning",
            "text": "Deciding",
            "providerMetadata": {"chatgpt": {"content": ""}},
        },
        {"type": "reasoning", "text": "so"},
    ]
    assert found.data["source"]["fields"]["content"] == {
        **{"content_type": "thoughts", "source": "m"}
    }


def test_G4_a_recap_is_reasoning():
    content = {"content_type": "reasoning_recap", "content": "Thought for 5 seconds"}

    assert parts_of(content) == [{"type": "reasoning", "text": "Thought for 5 seconds"}]


def test_G4_texts_and_files_stand_in_their_order():
    parts = [
        "look",
        {
            "content_type": "image_asset_pointer",
            "asset_pointer": "sediment://file_1",
            "width": 800,
        },
        {"content_type": "audio_transcription", "text": "hear", "direction": "in"},
        {
            "content_type": "audio_asset_pointer",
            "asset_pointer": "sediment://file_2",
            "format": "wav",
        },
        {"content_type": "video_container_asset_pointer", "asset_pointer": "sediment://file_3"},
    ]

    assert parts_of({"content_type": "multimodal_text", "parts": parts}, "user") == [
        {"type": "text", "text": "look"},
        {
            "type": "file",
            "mediaType": "image/*",
            "url": "sediment://file_1",
            "providerMetadata": {
                "chatgpt": {"content_type": "image_asset_pointer", "width": 800},
            },
        },
        {
            "type": "text",
            "text": "hear",
            "providerMetadata": {
                "chatgpt": {"content_type": "audio_transcription", "direction": "in"},
            },
        },
        {
            "type": "file",
            "mediaType": "audio/wav",
            "url": "sediment://file_2",
            "providerMetadata": {
                "chatgpt": {"content_type": "audio_asset_pointer", "format": "wav"},
            },
        },
        {
            "type": "file",
            "mediaType": "video/*",
            "url": "sediment://file_3",
            "providerMetadata": {"chatgpt": {"content_type": "video_container_asset_pointer"}},
        },
    ]


def test_G4_what_was_said_live_is_an_audio_file():
    live = {
        "content_type": "real_time_user_audio_video_asset_pointer",
        "audio_asset_pointer": {"asset_pointer": "file-service://f1", "format": "no/../type"},
        "frames_asset_pointers": [],
    }

    (part,) = parts_of({"content_type": "multimodal_text", "parts": [live]}, "user")

    assert (part["type"], part["mediaType"]) == ("file", "audio/*")
    assert part["url"] == "file-service://f1"
    assert part["providerMetadata"] == {"chatgpt": live}


@pytest.mark.parametrize(
    "content",
    [
        {"content_type": "new_kind", "text": "?"},
        {"content_type": "text", "parts": None},
        {"content_type": "text"},
        {"content_type": "thoughts", "thoughts": {}},
        {"content_type": "reasoning_recap", "content": 5},
        {"content_type": ["text"], "text": "?"},
        {},
        "plain",
        [1],
        5,
    ],
    ids=repr,
)
def test_G4_content_of_another_kind_or_form_is_kept_whole(content: Any):
    assert parts_of(content) == [{"type": "data-chatgpt", "data": content}]


@pytest.mark.parametrize(
    "part",
    [
        {"content_type": "new_pointer", "asset_pointer": "a"},
        {"content_type": "image_asset_pointer"},
        {"content_type": "audio_transcription", "text": None},
        {"content_type": {}},
        None,
        5,
        ["a"],
    ],
    ids=repr,
)
def test_G4_a_part_of_another_kind_or_form_is_kept_whole(part: Any):
    content = {"content_type": "multimodal_text", "parts": ["a", part]}

    assert parts_of(content) == [
        {"type": "text", "text": "a"},
        {"type": "data-chatgpt", "data": part},
    ]


def test_G4_a_thought_of_another_form_is_kept_whole():
    for thought in (None, 5, {}, {"summary": "", "content": ""}):
        content = {"content_type": "thoughts", "thoughts": [thought]}

        assert parts_of(content) == [{"type": "data-chatgpt", "data": thought}]


def test_G4_a_message_without_content_has_no_parts():
    assert parts_of(None) == []
    assert convert(export({"a": {"message": {"author": {"role": "assistant"}}}})).messages


def test_an_empty_prompt_does_not_look_like_one_that_waits_for_its_text():
    for content in (None, {"content_type": "text", "parts": []}):
        assert parts_of(content, "user") == [{"type": "text", "text": ""}]


def test_marks_of_citations_stay_in_the_text():
    text = "so it is \ue200cite\ue202turn0search0\ue201."

    assert parts_of({"content_type": "text", "parts": [text]}) == [{"type": "text", "text": text}]


# Hidden, status, model, active ----------------------------------------------------------


def test_G5_hidden_messages_stay_and_are_marked():
    hidden = message("system", metadata={"is_visually_hidden_from_conversation": True})

    found = by_id(
        convert(export(tree("s:\nu < s: user hi\nt < u:\na < t: user", s=hidden, t=hidden)))
    )

    assert [key for key in found if found[key].data["source"].get("hidden")] == ["s", "t"]
    assert [sent.parent_id for sent in found.values()] == [None, "s", "u", "t"]


def test_G5_a_weight_of_zero_hides_nothing_and_is_kept():
    source = one({"content_type": "text", "parts": ["hi"]}, weight=0.0).data["source"]

    assert "hidden" not in source
    assert source["fields"]["weight"] == 0.0


@pytest.mark.parametrize("kind", ["user_editable_context", "model_editable_context"])
def test_G5_instructions_are_hidden_even_if_not_flagged_and_are_no_text(kind: str):
    content = {"content_type": kind, "user_profile": "A cook.", "user_instructions": "Be brief."}

    found = one(content, "user")

    assert found.data["source"]["hidden"] is True
    assert found.data["parts"] == [{"type": "data-chatgpt", "data": content}]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("finished_successfully", "success"),
        ("in_progress", "paused"),
        ("finished_partial_completion", "paused"),
        ("something new", "success"),
        (None, "success"),
    ],
    ids=repr,
)
def test_G6_an_unfinished_message_is_paused(status: str | None, expected: str):
    found = one({"content_type": "text", "parts": ["hi"]}, status=status)

    assert found.status == expected
    assert found.data["source"]["fields"]["status"] == status


def test_G7_the_model_is_the_messages_else_the_conversations_and_only_an_assistants():
    own = message("assistant", metadata={"model_slug": "gpt-4"})
    prompt = message("user", metadata={"model_slug": "gpt-4"})
    mapping = tree("u:\na < u:\nb < a: assistant\nt < b: tool", u=prompt, a=own)

    found = by_id(convert(export(mapping, default_model_slug="gpt-5")))
    assert [sent.model_id for sent in found.values()] == [None, "gpt-4", "gpt-5", None]

    found = by_id(convert(export(mapping)))
    assert [sent.model_id for sent in found.values()] == [None, "gpt-4", None, None]


def dated(*times: float | None) -> dict[str, dict[str, Any]]:
    return {f"b{at}": message("assistant", create_time=time) for at, time in enumerate(times)}


def test_G8_the_active_message_is_at_current_node_leaf_or_not():
    for key in ("hi", "retry", "more"):
        assert convert(export(BRANCHED, current_node=key)).active_id == key


def test_G8_a_current_node_without_a_message_stands_for_the_nearest_ancestor():
    lines = "a: user\nb < a: assistant\nx < a:\ny < x:"

    assert convert(export(lines, current_node="y")).active_id == "a"


@pytest.mark.parametrize("current", [None, "gone", 5, "root"], ids=repr)
def test_G8_without_one_the_newest_leaf_is_active(current: Any):
    mapping = tree("root:\na < root: user\nb0 < a:\nb1 < a:\nb2 < a:", **dated(5, 9, None))

    assert convert(export(mapping, current_node=current)).active_id == "b1"


def test_G8_an_inner_message_is_no_leaf_however_new():
    mapping = tree("a: user\nb0 < a:\nb1 < b0:", **dated(9, 5))

    assert convert(export(mapping, current_node=None)).active_id == "b1"


# What is kept ---------------------------------------------------------------------------


def test_G9_what_has_no_place_of_its_own_is_kept_in_source():
    sent = message(
        "assistant",
        "hi",
        id="a",
        create_time=1700000001.5,
        end_turn=True,
        channel="final",
        metadata={"model_slug": "gpt-4", "citations": [{"start": 1}]},
    )
    mapping = tree("a:", a=sent)
    mapping["a"]["extra"] = [1]

    (found,) = convert(export(mapping)).messages

    assert found.created_at == 1700000001500
    assert found.data["source"] == {
        "format": "chatgpt",
        "id": "a",
        "time": 1700000001.5,
        "fields": {
            "author": {"name": None, "metadata": {}},
            "status": "finished_successfully",
            "weight": 1.0,
            "metadata": {"model_slug": "gpt-4", "citations": [{"start": 1}]},
            "recipient": "all",
            "end_turn": True,
            "channel": "final",
            "content": {"content_type": "text"},
        },
        "node": {"extra": [1]},
    }


def test_G9_what_the_export_says_of_the_conversation_is_kept_in_its_metadata():
    conversation = convert(export("a: user hi", gizmo_id="g-1", is_archived=True, safe_urls=["u"]))

    assert conversation.metadata == {
        "source": {
            "format": "chatgpt",
            "id": "c-1",
            "fields": {
                "create_time": 1700000000.5,
                "update_time": 1700000100.25,
                "current_node": "a",
                "gizmo_id": "g-1",
                "is_archived": True,
                "safe_urls": ["u"],
            },
        }
    }


def test_a_time_keeps_its_order_and_the_sources_stays_readable():
    late, early = message("user", create_time=20.0), message("assistant", create_time=10.0)

    prompt, answer = convert(export(tree("a:\nb < a:", a=late, b=early))).messages

    assert (prompt.created_at, answer.created_at) == (20_000, 20_001)
    assert answer.data["source"]["time"] == 10.0


# Size -----------------------------------------------------------------------------------


def test_a_line_of_20_000_messages_comes_in():
    size = 20_000
    mapping = {
        f"n{at}": {
            "parent": f"n{at - 1}",
            "children": [f"n{at + 1}"],
            "message": message("user" if at % 2 else "assistant", f"text {at}"),
        }
        for at in range(size)
    }

    conversation = convert(export(mapping))

    validate(conversation)
    assert len(conversation.messages) == size
    assert conversation.active_id == f"n{size - 1}"


def test_a_line_of_20_000_results_below_each_other_comes_in():
    size = 20_000
    call = message("assistant", content=CALL, recipient="web")
    results = {
        f"n{at}": {"parent": f"n{at - 1}" if at else "c", "message": message("tool", "found")}
        for at in range(size)
    }

    conversation = convert(export({**tree("c:", c=call), **results}))

    assert {sent.data["parts"][0]["toolCallId"] for sent in conversation.messages} == {"call_c"}


def test_a_refusal_of_a_value_that_cannot_be_stored_names_the_message():
    conversation = convert(export(tree("a:", a=message(metadata={"seed": 2**60}))))

    with pytest.raises(FormatError, match="message 'a' holds an integer beyond"):
        validate(conversation)
