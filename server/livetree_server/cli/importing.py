"""``livetree import``: conversations of other apps, into a database or through its server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ..config import Config
from . import data as data_directory
from .report import Report
from .ways_in import Unreadable, way_in

__all__ = ["import_files"]


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
@click.option(
    "--url",
    metavar="URL",
    help="Import through this server, wherever its data is.  [env: LIVETREE_URL]",
)
@data_directory.option
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
    async with way_in(config) as way:
        for path in files:
            report = Report(path, strict)
            try:
                with report.shown():
                    async for outcome in way.bring_in(path, strict):
                        report.take(outcome)
            except Unreadable as error:
                report.failure = str(error)
            except BrokenPipeError:
                raise  # it is our reader who has gone
            except OSError as error:
                report.failure = error.strerror or str(error)
            report.end()
            sound = sound and report.sound
    return 0 if sound else 1
