"""Two ways for a file to come in: into a database that is free, or through its server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import click

from ..config import Config
from . import data
from .lines import lines
from .server import no_server
from .terminal import clipped, one_line

__all__ = ["Outcome", "Unreadable", "Way", "way_in"]

CONNECT_SECONDS: Final = 10.0
CHUNK_BYTES: Final = 256 * 1024

Outcome: TypeAlias = dict[str, Any]
"""What became of one conversation, as `Importer.bring_in` tells it."""


class Unreadable(Exception):
    """The file as a whole can't be imported; the rest may be."""


class Way(Protocol):
    """Where files go."""

    def bring_in(self, path: Path, strict: bool) -> AsyncIterator[Outcome]:
        """Import a file; yields what `Importer.bring_in` does."""


@contextlib.asynccontextmanager
async def way_in(config: Config) -> AsyncIterator[Way]:
    """Go to the server that is named; else into the data directory, by its server if it has one."""
    if config.url is not None:
        async with _ThroughServer.open(config.url, config.token) as way:
            yield way
        return
    from ..app import Application
    from ..storage.files import StoreInUse

    data.prepare(config.data)
    try:
        store = await data.open_store(config.data)
    except StoreInUse:
        url = data.announced_url(config.data)
        if url is None:
            raise click.ClickException(
                f"the database in {config.data} is in use, but not by a server that is ready: "
                "try again, or name the server with --url"
            ) from None
        async with _ThroughServer.open(url, config.token) as way:
            yield way
        return
    async with Application(store) as application:
        yield _Directly(application.importer)


class _Directly:
    """Into the database, which no server has open."""

    def __init__(self, importer: Any) -> None:
        self._importer = importer

    async def bring_in(self, path: Path, strict: bool) -> AsyncIterator[Outcome]:
        from livetree.formats import FormatError

        from ..app import FileChunks
        from ..auth import LOCAL

        _check(path)
        try:
            outcomes = self._importer.bring_in(
                FileChunks(path), path.name, LOCAL.subject, strict=strict
            )
            async for outcome in outcomes:
                yield outcome
        except FormatError as error:
            raise Unreadable(str(error)) from None


class _ThroughServer:
    """Over HTTP: the server takes the whole file first, then tells what becomes of it."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, token: str | None) -> AsyncIterator[Way]:
        import httpx2

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        async with httpx2.AsyncClient(headers=headers, timeout=timeout) as client:
            way = cls(client, url)
            await way._ask_whether_welcome()
            yield way

    async def _ask_whether_welcome(self) -> None:
        """
        Send no file at all, to be refused as for any other.

        A server refuses before it has read the file, and closes: while a file is being
        sent, its answer could be lost with the connection.

        """
        import httpx2

        try:
            response = await self._client.post(f"{self._url}/v1/import", content=b"")
        except httpx2.HTTPError:
            raise click.ClickException(no_server(self._url)) from None
        if response.status_code != 200:
            raise click.ClickException(self._refusal(response))

    async def bring_in(self, path: Path, strict: bool) -> AsyncIterator[Outcome]:
        import httpx2

        _check(path)
        parameters = {"name": path.name, "strict": "true" if strict else "false"}
        ended = False
        try:
            async with self._client.stream(
                "POST", f"{self._url}/v1/import", params=parameters, content=_chunks(path)
            ) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise click.ClickException(self._refusal(response))
                async for line in lines(response.aiter_bytes()):
                    outcome = json.loads(line)
                    if outcome["type"] == "error":
                        raise Unreadable(outcome["reason"])
                    ended = outcome["type"] == "end"
                    yield outcome
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise click.ClickException(_broken_off(self._url, why)) from None
        if not ended:
            raise click.ClickException(_broken_off(self._url, "its report has no end"))

    def _refusal(self, response: Any) -> str:
        text = response.content.decode(errors="replace")
        try:
            reason = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            reason = f"{response.status_code} {clipped(text, 200)}"
        if response.status_code == 401:
            reason = "it wants a valid token in LIVETREE_TOKEN; livetree token makes one"
        return f"the server at {self._url} takes no files from you: {one_line(reason)}"


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    from ..app import FileChunks

    for chunk in FileChunks(path, CHUNK_BYTES):
        yield chunk


def _check(path: Path) -> None:
    with path.open("rb") as file:
        file.read(1)


def _broken_off(url: str, why: str) -> str:
    return (
        f"the import through {url} broke off ({why}): "
        "run it again, what has come in already is not imported twice"
    )
