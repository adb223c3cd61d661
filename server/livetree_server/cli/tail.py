"""``livetree tail``: one topic as it is and as it changes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import click

from ..config import Config
from .server import connected, find_topic, url_option
from .terminal import clipped

if TYPE_CHECKING:
    from livetree.changes import Change
    from livetree.live_topic import LiveTopic

    from .transcript import Transcript

__all__ = ["tail"]


@click.command(
    epilog="""
    \b
    Examples:
      livetree tail 0190b5f0-7c1e-7d3a-8000-000000000001
      livetree tail "trip" --once
    """
)
@click.argument("topic")
@click.option("--once", is_flag=True, help="Show the conversation as it is, and end.")
@url_option
def tail(topic: str, once: bool, url: str | None) -> None:
    """
    Follow TOPIC: an id, or a part of a name that no other topic has.

    First comes the selected branch, then each change as it happens: who did what, and
    replies while they are being written. Ctrl-C ends it.
    """
    asyncio.run(_tail(Config.read(url=url), topic, once))


async def _tail(config: Config, wanted: str, once: bool) -> None:
    from livetree.changes import Reset, Skipped

    from .transcript import Transcript

    async with connected(config) as client:
        found = await find_topic(client, wanted)
        async with client.open(found.id) as live:
            transcript = Transcript(live)
            anew = True
            while anew:
                await _fetch(live)
                # No await in between: what is shown here is not told again.
                changes = live.changes()
                _show(live, transcript)
                anew = False
                if once:
                    transcript.end()
                    return
                async for change in changes:
                    if isinstance(change, (Reset, Skipped)):
                        anew = True
                        break
                    _tell(transcript, change)


async def _fetch(live: LiveTopic) -> None:
    from livetree.core.errors import NotFound

    # Of a message that is deleted meanwhile nothing is to be shown.
    with contextlib.suppress(NotFound):
        await live.content([node.id for node in live.path()])


def _show(live: LiveTopic, transcript: Transcript) -> None:
    """Write the selected branch."""
    transcript.restart()
    title = clipped(live.name, 70) or live.id
    transcript.line(f"== {title} ({len(live.tree)} messages, commit {live.seq})")
    for node in live.path():
        transcript.message(node)


def _tell(transcript: Transcript, change: Change) -> None:
    from livetree import changes as c

    match change:
        case c.Committed(delta=delta):
            transcript.delta(delta)
        case c.Streamed():
            transcript.grown(change.message_id, change.ops, reset=change.reset)
        case c.Offline():
            transcript.offline()
        case c.Synced():
            transcript.online()
        case c.Gone(reason=reason):
            transcript.line(f"-- the topic is gone: {clipped(reason, 100)}")
