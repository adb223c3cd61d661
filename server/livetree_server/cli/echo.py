"""A bot that says what was said."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final

from livetree.bots import Bot, Prompt, Writer

__all__ = ["register"]

_WORDS: Final = re.compile(r"\s*\S+|\s+$")


def register(bot: Bot, models: Sequence[str], *, delay: float) -> None:
    """Let a bot echo for these models, with a delay in seconds after each word."""

    @bot.reply(models=models)
    async def answer(prompt: Prompt, writer: Writer) -> None:
        for word in _WORDS.findall(prompt.text):
            await writer.write(word)
            if delay:
                await asyncio.sleep(delay)
