"""What a bot answers: a path of a tree, as messages for a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from .core.content import text_of
from .core.protocol import Node

__all__ = ["Prompt", "prompt_messages"]


class _Data(Struct):
    source: Any = None


_decode = msgspec.json.Decoder(_Data).decode


class Prompt(Struct, frozen=True, kw_only=True):
    """
    What a reply answers.

    Attributes:
        topic_id: The topic.
        message_id: The reply that is to be written.
        model: Which model was asked for.
        path: The messages above the reply, from the first turn down, whole.
        messages: The same as ``{"role": …, "content": …}``, as providers take them.
        partial: The parts that an earlier writer left before it vanished.

    """

    topic_id: str
    message_id: str
    model: str | None
    path: list[Node]
    messages: list[dict[str, str]]
    partial: list[dict[str, Any]] = []

    @property
    def text(self) -> str:
        """The text of the last message of the user."""
        for message in reversed(self.messages):
            if message["role"] == "user":
                return message["content"]
        return ""


def prompt_messages(path: Iterable[Node]) -> list[dict[str, str]]:
    """
    Turn a path into a provider's messages: role, and the joined text of the text parts.

    Messages without text are left out, replies that failed before their first word
    among them, and so are those that their source app hides.

    """
    return [
        {"role": node.role, "content": text}
        for node in path
        if node.data is not UNSET and not _is_hidden(node) and (text := text_of(node.data))
    ]


def _is_hidden(node: Node) -> bool:
    assert node.data is not UNSET
    source = _decode(node.data).source
    return isinstance(source, dict) and source.get("hidden") is True
