"""A server, a viewer, and a bot that answers as the test says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from livetree.bots import Bot, Prompt, Writer
from livetree.client import Client
from livetree.core import protocol as p
from livetree.live_topic import LiveTopic
from livetree.testing import MemoryConnection

from tests.sdk.kit import World

Answer = Callable[[Prompt, Writer], Awaitable[None]]


class Stage:
    """A server, a viewer and a bot that answers model `echo` as the test says."""

    def __init__(self, world: World, client: Client, live: LiveTopic) -> None:
        self.world = world
        self.client = client
        self.live = live
        self.prompts: list[Prompt] = []
        self.writers: list[Writer] = []
        self.ended: list[BaseException | None] = []

    def bot(self, answer: Answer, *, models: list[str] | None = None, **options: Any) -> Bot:
        resume = options.pop("resume", False)
        bot = self.world.bot(**options)

        @bot.reply(models=models or ["echo"], resume=resume)
        async def handler(prompt: Prompt, writer: Writer) -> None:
            self.prompts.append(prompt)
            self.writers.append(writer)
            try:
                await answer(prompt, writer)
            except BaseException as error:
                self.ended.append(error)
                raise
            self.ended.append(None)

        return bot

    async def ask(self, text: str = "Where to?", *models: str) -> str:
        turn = await self.live.submit(text, models=models or ["echo"])
        return turn.placeholder_ids[0]

    def requests(self, kind: type[p.Command]) -> list[Any]:
        """Return what was asked of the server, on all connections."""
        return [
            request
            for connection in self.world.server.connections
            for request in connection.requests
            if isinstance(request, kind)
        ]

    @property
    def bot_connection(self) -> MemoryConnection:
        return next(
            each
            for each in reversed(self.world.server.connections)
            if each.hello is not None and each.hello.client == "livetree-bot"
        )

    def status(self, reply: str) -> str:
        return self.live.node(reply).status


@contextlib.asynccontextmanager
async def stage(world: World | None = None) -> AsyncIterator[Stage]:
    world = world or World()
    async with world.open() as (client, live):
        yield Stage(world, client, live)


async def echo(prompt: Prompt, writer: Writer) -> None:
    for word in prompt.text.split():
        await writer.write(word)


class Held:
    """An answer that goes on when the test says."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.go = asyncio.Event()

    async def __call__(self, _: Prompt, writer: Writer) -> None:
        for text in self.texts:
            await writer.write(text)
        await self.go.wait()
        await writer.write("end")
