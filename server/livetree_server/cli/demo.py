"""What ``serve --demo`` adds: a bot that echoes, and a topic with branches to look at."""

from __future__ import annotations

from typing import Final

from livetree.bots import Bot
from livetree.client import Client, connect
from livetree.core import protocol as p

from ..auth import issue
from .echo import register

__all__ = ["NAME", "demonstrate"]

NAME: Final = "Welcome to livetree"
SUBJECT: Final = "demo"
DELAY_SECONDS: Final = 0.03
TOKEN_SECONDS: Final = 3600

_MODEL: Final = "guide"
_IN_SHORT = (
    "One true tree of messages in a database, and an exact live mirror of it in every client."
)
_AT_LENGTH = """\
A server for conversations that branch. Edit a prompt, ask again, let several models answer \
side by side: nothing is overwritten, everything becomes a branch of one tree. Whoever has the \
conversation open, on whatever device, sees the same tree at the same moment, and replies while \
they are being written."""
_BRANCHES = """\
Alternatives share a parent: this prompt has a sibling, and so has the answer above it. In \
Python, `await live.edit(message_id, "another prompt")` makes one, and \
`await live.answer(message_id, ["echo"])` asks for another answer."""
_TRY = """\
While this server runs with --demo, a bot answers as `echo`:

    livetree say welcome "Hello" --model echo

In a second terminal, `livetree tail welcome` shows what happens as it happens."""


async def demonstrate(url: str, secret: str | None) -> None:
    """Make the topic if there is none of its name, then serve the model until cancelled."""

    def token() -> str | None:
        if secret is None:
            return None
        return issue(secret, SUBJECT, [("*", "write")], seconds=TOKEN_SECONDS)

    async with connect(url, token=token, client="livetree demo") as client:
        await _make_topic(client)
    bot = Bot(url, token=token, client="livetree demo bot", grace_seconds=0)
    register(bot, ["echo"], delay=DELAY_SECONDS)
    await bot.serve()


async def _make_topic(client: Client) -> None:
    found = (await client.topics(NAME, limit=1)).topics
    if found:
        return
    topic = await client.create_topic(NAME)
    what, short, long, how, branches, try_it, tried = (client.new_id() for _ in range(7))
    await client.batch(
        topic.id,
        [
            _message(what, "ROOT", "user", "What is livetree?"),
            _message(short, what, "assistant", _IN_SHORT, group=1),
            _message(long, what, "assistant", _AT_LENGTH, group=1),
            _message(how, long, "user", "How do branches come about?", group=1),
            _message(branches, how, "assistant", _BRANCHES),
            _message(try_it, long, "user", "How do I try it?", group=1),
            _message(tried, try_it, "assistant", _TRY),
        ],
    )


def _message(
    message_id: str, parent: str, role: p.Role, text: str, *, group: int = 0
) -> p.MessageCreate:
    return p.MessageCreate(
        message_id=message_id,
        parent=parent,
        role=role,
        text=text,
        status="success",
        group=group,
        model=_MODEL if role == "assistant" else None,
    )
