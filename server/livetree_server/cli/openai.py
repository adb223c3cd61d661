"""A bot that passes prompts on to an OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from livetree.bots import Bot, Prompt, Writer

from .upstream import Upstream, UpstreamError

__all__ = ["register"]

_ROLES: Final = ("system", "user", "assistant")


def register(
    bot: Bot, models: Sequence[str], *, base_url: str, model: str, key: str | None
) -> None:
    """Let a bot answer for these models with what the endpoint's `model` says."""
    logging.getLogger("livetree.bots").addFilter(_in_a_sentence)

    @bot.reply(models=models)
    async def answer(prompt: Prompt, writer: Writer) -> None:
        # A tool's result without the call that it answers is refused everywhere.
        messages = [each for each in prompt.messages if each["role"] in _ROLES]
        # One connection a reply: cancelling the reply ends what it has asked for.
        async with (
            Upstream(base_url, key) as upstream,
            contextlib.aclosing(upstream.answer(model, messages)) as pieces,
        ):
            async for kind, text in pieces:
                if kind == "reasoning":
                    await writer.reasoning(text)
                else:
                    await writer.write(text)


def _in_a_sentence(record: logging.LogRecord) -> bool:
    """Say what the endpoint did; where in our code it was noticed helps nobody."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, UpstreamError):
        record.msg, record.args = f"{record.getMessage()}: %s", (str(error),)
        record.exc_info = None
    return True
