"""``livetree import``: conversations of other apps, into a database or through its server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import click

from ..config import Config
from . import data
from .lines import lines
from .server import no_server, url_option
from .terminal import clipped, one_line

__all__ = ["import_files"]

CONNECT_SECONDS = 10.0
CHUNK_BYTES = 256 * 1024

Outcome = dict[str, Any]


@click.command(
    "import",
    epilog="""
    \b
    Examples:
      livetree import conversations.json
      livetree import --strict conversations-*.json
      livetree import --url https://chat.example.org conversations.json

    A conversation that was imported before is not imported again. The exit status is 0
    if everything came in, and 1 if anything was refused.
    """,
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE…")
@click.option("--strict", is_flag=True, help="Of a file take everything, or nothing at all.")
@url_option
@data.option
def import_files(files: tuple[Path, ...], strict: bool, url: str | None, data: Path | None) -> int:
    """
    Import conversations of other apps.

    FILE is a conversations.json of a ChatGPT data export. Each conversation becomes a
    topic, whole or not at all; a refused one is named with its place and the reason.

    They go into the data directory, or through the server that has it open; with --url
    to that server.
    """
    config = Config.read(url=url, data=data)
    return asyncio.run(_import_all(config, files, strict))


async def _import_all(config: Config, files: tuple[Path, ...], strict: bool) -> int:
    sound = True
    async with _way_in(config) as way:
        for path in files:
            report = _Report(path, strict)
            try:
                with report.shown():
                    async for outcome in way.bring_in(path, strict):
                        report.take(outcome)
            except _Unreadable as error:
                report.failure = str(error)
            except OSError as error:
                report.failure = error.strerror or str(error)
            report.end()
            sound = sound and report.sound
    return 0 if sound else 1


class _Unreadable(Exception):
    """The file as a whole can't be imported; the rest may be."""


class _Way(Protocol):
    def bring_in(self, path: Path, strict: bool) -> AsyncIterator[Outcome]:
        """Import a file; yields what `Importer.bring_in` does."""


@contextlib.asynccontextmanager
async def _way_in(config: Config) -> AsyncIterator[_Way]:
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
            raise _Unreadable(str(error)) from None


class _ThroughServer:
    """Over HTTP: the server takes the whole file first, then tells what becomes of it."""

    def __init__(self, client: Any, url: str) -> None:
        self._client = client
        self._url = url

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, url: str, token: str | None) -> AsyncIterator[_Way]:
        import httpx2

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        async with httpx2.AsyncClient(headers=headers, timeout=timeout) as client:
            yield cls(client, url)

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
                    raise click.ClickException(await self._refusal(response))
                async for line in lines(response.aiter_bytes()):
                    outcome = json.loads(line)
                    if outcome["type"] == "error":
                        raise _Unreadable(outcome["reason"])
                    ended = outcome["type"] == "end"
                    yield outcome
        except httpx2.ConnectError:
            raise click.ClickException(no_server(self._url)) from None
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise click.ClickException(_broken_off(self._url, why)) from None
        if not ended:
            raise click.ClickException(_broken_off(self._url, "its report has no end"))

    async def _refusal(self, response: Any) -> str:
        text = (await response.aread()).decode(errors="replace")
        try:
            reason = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            reason = f"{response.status_code} {clipped(text, 200)}"
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


class _Report:
    """What became of one file: told while it is read, and summed up in the end."""

    def __init__(self, path: Path, strict: bool) -> None:
        self.failure: str | None = None
        self._path = path
        self._strict = strict
        self._refused: list[str] = []
        self._sums = {"imported": 0, "messages": 0, "skipped": 0}
        self._advance: Callable[[int], None] | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a bar on a terminal, else a line for each conversation."""
        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            yield
            return
        size = self._path.stat().st_size
        with click.progressbar(length=size, label=self._path.name, file=sys.stderr) as bar:
            self._advance = lambda offset: bar.update(offset - bar.pos)
            yield
            if self.failure is None:
                bar.update(size - bar.pos)

    def take(self, outcome: Outcome) -> None:
        """Count what became of a conversation, and show it."""
        kind = outcome["type"]
        if kind == "end":
            return
        if kind == "refused":
            self._refused.append(_place(outcome))
        elif kind == "skipped":
            self._sums["skipped"] += 1
        else:
            self._sums["imported"] += 1
            self._sums["messages"] += outcome["messages"]
        if self._advance is not None:
            self._advance(outcome["offset"])
        elif kind != "refused":  # those are named in the end
            done = "imported" if kind == "topic" else "already there:"
            click.echo(f"{done} {outcome['topic']} {clipped(outcome['name'], 60)}".rstrip())

    @property
    def sound(self) -> bool:
        """Whether all of the file has come in, now or before."""
        return self.failure is None and not self._refused

    def end(self) -> None:
        """Sum up."""
        if self.failure is not None:
            click.echo(f"livetree: {self._path}: {one_line(self.failure)}", err=True)
            if not self._sums["imported"]:
                return
        topics, messages = self._sums["imported"], self._sums["messages"]
        line = f"{self._path}: {_count(topics, 'topic')} imported"
        if topics:
            line += f" with {_count(messages, 'message')}"
        click.echo(
            f"{line}, {self._sums['skipped']:,} already there, {len(self._refused):,} refused"
        )
        for refusal in self._refused:
            click.echo(f"  refused: {refusal}", err=True)
        if self._refused and self._strict:
            click.echo("  nothing was imported: --strict takes a file whole", err=True)


def _place(outcome: Outcome) -> str:
    reason = one_line(outcome["reason"])
    if reason.startswith(("record ", "line ", "byte ")):
        return reason
    return f"record {outcome['index']}, byte {outcome['offset']}: {reason}"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
