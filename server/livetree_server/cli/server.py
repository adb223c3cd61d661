"""A running server, as commands talk to it: where it is, and which topic is meant."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

from ..config import Config
from .terminal import clipped

if TYPE_CHECKING:
    from livetree.client import Client
    from livetree.core.protocol import TopicInfo

__all__ = ["connected", "find_topic", "no_server", "url_option"]

CONNECT_SECONDS: Final = 5.0
NAMED: Final = 5
"""How many topics a refusal names."""

url_option = click.option(
    "--url",
    metavar="URL",
    help="The server.  [env: LIVETREE_URL; default: http://127.0.0.1:8400]",
)


def no_server(url: str) -> str:
    """Say that nobody is there."""
    return f"no server answers at {url}: start one with livetree serve, or name another with --url"


@contextlib.asynccontextmanager
async def connected(config: Config) -> AsyncIterator[Client]:
    """Connect to the server; at once it is known whether there is one."""
    from livetree.client import connect

    await _knock(config.server)
    client = connect(
        config.server, token=config.token, client="livetree", open_timeout=CONNECT_SECONDS
    )
    async with client:
        yield client


async def _knock(url: str) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # a TimeoutError is one too
        raise click.ClickException(no_server(url)) from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def find_topic(client: Client, wanted: str) -> TopicInfo:
    """Return the topic that has this id, or whose name alone has this part."""
    from livetree.core.errors import Forbidden, NotFound
    from livetree.core.ids import is_id

    if is_id(wanted):
        with contextlib.suppress(NotFound, Forbidden):
            return await client.topic(wanted)
    found = (await client.topics(wanted, limit=NAMED + 1)).topics if wanted else []
    exact = [topic for topic in found if topic.name == wanted]
    if len(found) == 1 or len(exact) == 1:
        return (exact or found)[0]
    if not found:
        raise click.ClickException(
            f"there is no topic {clipped(wanted, 60)!r}: livetree topics lists those that there are"
        )
    names = ", ".join(f"{topic.id} ({clipped(topic.name, 40)})" for topic in found[:NAMED])
    more = ", …" if len(found) > NAMED else ""
    raise click.ClickException(
        f"several topics are called like {clipped(wanted, 60)!r}: give the id of one, {names}{more}"
    )
