"""``livetree serve``: the server, with its database in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import click

from ..config import DEFAULT_PORT, Config
from . import data
from .terminal import log_at

__all__ = ["serve"]

log = logging.getLogger("livetree.demo")


@click.command(
    epilog="""
    \b
    Examples:
      livetree serve --demo
      livetree serve --data ./chats --port 9000
      LIVETREE_SECRET=… livetree serve --host 0.0.0.0 --origin https://chat.example.org

    SIGTERM or Ctrl-C stops it: what was accepted is finished first.
    """
)
@data.option
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="The port; 0 takes any that is free.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="A site whose pages may connect, besides the server's own. May be repeated.",
)
@click.option("--demo", is_flag=True, help="Add a bot that echoes, and a topic to look at.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="What to log, on standard error.",
)
def serve(log_level: str, demo: bool, **options: Any) -> None:
    """
    Start the server.

    It prints one line when it is ready. Without LIVETREE_SECRET it listens for this
    machine only, and whoever connects is the one local user; with it, everyone needs a
    token (see livetree token).
    """
    # What is imported stays: looking through it for garbage would delay the start.
    gc.disable()
    config = Config.read(**options)
    sock = _listen(config.host, config.port)
    data.prepare(config.data)
    from ..app import run

    log_at(log_level)
    run(_serve(config, sock, demo))


async def _serve(config: Config, sock: socket.socket, demo: bool) -> None:
    from ..app import Application
    from ..app import serve as serve_on

    store = await data.open_store(config.data)
    application = Application(store, secret=config.secret, origins=config.origins)
    started = asyncio.Event()
    serving = asyncio.create_task(serve_on(application, sock, started=started))
    ready = asyncio.create_task(started.wait())
    await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    if not serving.done():
        port = sock.getsockname()[1]
        own_url = _url(_reachable(config.host), port)
        with data.announced(config.data, own_url):
            url = _url(config.host, port)
            click.echo(f"livetree {application.version} serves {url} with data in {config.data}")
            gc.freeze()
            gc.enable()
            async with _beside(_demo(config, own_url) if demo else None):
                await serving
    await serving


async def _demo(config: Config, url: str) -> None:
    from .demo import demonstrate

    try:
        await demonstrate(url, config.secret)
    except Exception as error:
        log.warning("the demo has stopped: %s", error)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None] | None) -> AsyncIterator[None]:
    """Run something while the block runs, and end it with the block."""
    task = None if work is None else asyncio.create_task(work)
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _listen(host: str, port: int) -> socket.socket:
    from ..app import listen

    try:
        return listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise click.ClickException(
                f"port {port} of {host} is in use: stop what listens there, or take another --port"
            ) from None
        reason = error.strerror or str(error)
        raise click.ClickException(f"can't listen at {host}, port {port}: {reason}") from None


def _reachable(host: str) -> str:
    """Return where programs on this machine reach a server that listens at `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
