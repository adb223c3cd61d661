"""``livetree topics``: the list of conversations."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from ..config import Config
from .server import connected, url_option
from .terminal import clipped, local_time, width

if TYPE_CHECKING:
    from livetree.core.protocol import TopicInfo

__all__ = ["topics"]

PAGE: Final = 200
TIME_WIDTH: Final = len("2026-01-31 12:00")


@click.command(
    epilog="""
    \b
    Examples:
      livetree topics
      livetree topics --name trip --limit 5
    """
)
@click.option("--name", default="", help="Only topics whose name has this part, in any case.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many to list."
)
@url_option
def topics(name: str, limit: int, url: str | None) -> None:
    """
    List topics, the latest active first.

    The columns are the id, the last activity in local time, how many commits the topic
    has seen, and the name.
    """
    found, more = asyncio.run(_list(Config.read(url=url), name, limit))
    for line in _table(found):
        click.echo(line)
    if more:
        click.echo(f"there are more: --limit {limit * 2} shows them, --name narrows", err=True)
    if not found:
        click.echo("there are no topics" + (" of such a name" if name else ""), err=True)


async def _list(config: Config, name: str, limit: int) -> tuple[list[TopicInfo], bool]:
    found: list[TopicInfo] = []
    cursor: str | None = None
    async with connected(config) as client:
        while True:
            page = await client.topics(name, limit=min(PAGE, limit - len(found)), cursor=cursor)
            found += page.topics
            cursor = page.next
            if cursor is None or len(found) >= limit:
                return found, cursor is not None


def _table(found: list[TopicInfo]) -> list[str]:
    if not found:
        return []
    ids = max(2, *(len(topic.id) for topic in found))
    seqs = max(7, *(len(str(topic.seq)) for topic in found))
    room = max(20, width() - ids - seqs - TIME_WIDTH - 6)
    rows = [("ID", "LAST ACTIVITY", "COMMITS", "NAME")]
    rows += [
        (topic.id, local_time(topic.last_activity_at), str(topic.seq), clipped(topic.name, room))
        for topic in found
    ]
    return [
        f"{row[0]:{ids}}  {row[1]:{TIME_WIDTH}}  {row[2]:>{seqs}}  {row[3]}".rstrip()
        for row in rows
    ]
