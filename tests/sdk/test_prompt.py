from typing import Any

import msgspec
import pytest
from livetree.core.content import data_of_text
from livetree.core.protocol import Node
from livetree.prompt import Prompt, prompt_messages
from msgspec import UNSET, Raw


def node(role: str, data: Any, **fields: Any) -> Node:
    if isinstance(data, str):
        raw: Any = Raw(data_of_text(data))
    elif data is UNSET:
        raw = UNSET
    else:
        raw = Raw(msgspec.json.encode(data))
    return Node(
        id="m",
        parent_id="root",
        role=role,  # type: ignore[arg-type]
        data=raw,
        version=1,
        created_at=1,
        updated_at=1,
        **fields,
    )


def test_roles_and_text_go_to_the_model():
    path = [
        node("system", "Be brief."),
        node("user", "Hello"),
        node("assistant", "Hi", status="success"),
        node("tool", "42"),
        node("user", "Why?"),
    ]

    assert prompt_messages(path) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "tool", "content": "42"},
        {"role": "user", "content": "Why?"},
    ]


def test_text_parts_are_joined_and_others_left_out():
    parts = [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "one"},
        {"type": "file", "url": "x"},
        {"type": "text", "text": " two"},
    ]

    assert prompt_messages([node("assistant", {"parts": parts})]) == [
        {"role": "assistant", "content": "one two"}
    ]


@pytest.mark.parametrize("status", ["pending", "error", "paused"])
def test_replies_without_a_word_are_left_out(status: str):
    assert prompt_messages([node("assistant", "", status=status)]) == []


@pytest.mark.parametrize("status", ["error", "paused"])
def test_what_was_said_before_it_failed_is_kept(status: str):
    assert len(prompt_messages([node("assistant", "Hel", status=status)])) == 1


def test_what_the_source_app_hides_is_left_out():
    hidden = {"parts": [{"type": "text", "text": "x"}], "source": {"hidden": True}}
    shown = {"parts": [{"type": "text", "text": "y"}], "source": {"hidden": False}}
    odd = {"parts": [{"type": "text", "text": "z"}], "source": "file"}

    messages = prompt_messages([node("user", hidden), node("user", shown), node("user", odd)])

    assert [message["content"] for message in messages] == ["y", "z"]


def test_cold_messages_are_left_out():
    assert prompt_messages([node("user", UNSET)]) == []


def test_the_text_of_a_prompt_is_what_the_user_said_last():
    def prompt(*messages: dict[str, str]) -> Prompt:
        return Prompt(topic_id="t", message_id="r", model="m", path=[], messages=[*messages])

    asked = {"role": "user", "content": "Why?"}
    assert prompt(asked, {"role": "tool", "content": "42"}).text == "Why?"
    assert prompt().text == ""
