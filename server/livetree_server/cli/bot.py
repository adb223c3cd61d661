"""``livetree bot``: bots that need no code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ..config import Config, key_of
from .server import connected, url_option
from .terminal import log_at

if TYPE_CHECKING:
    from livetree.bots import Bot

__all__ = ["bot"]

log = logging.getLogger("livetree.bot")


@click.group()
def bot() -> None:
    """
    Answer prompts.

    A bot offers itself for some models; each reply that is asked of one of them is
    written by one bot. It stays connected, and comes back when the server does.
    """


@bot.command(
    epilog="""
    \b
    Example:
      livetree bot echo
    """
)
@click.option(
    "--delay",
    type=click.FloatRange(min=0),
    default=0.03,
    show_default=True,
    metavar="SECONDS",
    help="How long it takes for a word.",
)
@click.option(
    "--as",
    "names",
    multiple=True,
    metavar="NAME",
    help="The models it answers as.  [default: echo]",
)
@url_option
def echo(delay: float, names: tuple[str, ...], url: str | None) -> None:
    """Answer with what was said, word by word."""
    from livetree.bots import Bot

    from .echo import register

    config = Config.read(url=url)
    worker = Bot(config.server, token=config.token, client="livetree bot echo")
    register(worker, names or ("echo",), delay=delay)
    _run(config, worker, f"echo answers as {', '.join(names or ('echo',))}")


@bot.command(
    epilog="""
    \b
    Examples:
      livetree bot openai --base-url https://api.openai.com/v1 --model gpt-5
      livetree bot openai --base-url http://127.0.0.1:11434/v1 --model llama3.2 --as llama
      livetree bot openai --base-url https://openrouter.ai/api/v1 --key-env OPENROUTER_KEY \\
          --model z-ai/glm-4.6 --as glm

    An answer that the endpoint refuses or breaks off ends as an error; why, the log says.
    """
)
@click.option(
    "--base-url", required=True, metavar="URL", help="What stands before /chat/completions."
)
@click.option("--model", required=True, help="The model, as the endpoint calls it.")
@click.option(
    "--as",
    "names",
    multiple=True,
    metavar="NAME",
    help="What it is called here; * is any run of characters.  [default: MODEL]",
)
@click.option(
    "--key-env",
    default="OPENAI_API_KEY",
    show_default=True,
    metavar="NAME",
    help="The variable that holds the endpoint's key, if it wants one.",
)
@url_option
def openai(
    base_url: str, model: str, names: tuple[str, ...], key_env: str, url: str | None
) -> None:
    """Answer through an OpenAI-compatible endpoint, hosted or local."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise click.UsageError(f"--base-url is no URL: {base_url!r}")
    key = key_of(key_env)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise click.ClickException(f"{key_env} holds what no key holds: copy the key anew")
    from livetree.bots import Bot

    from .openai import register

    config = Config.read(url=url)
    worker = Bot(config.server, token=config.token, client="livetree bot openai")
    register(worker, names or (model,), base_url=base_url, model=model, key=key)
    _run(config, worker, f"{model} of {base_url} answers as {', '.join(names or (model,))}")


def _run(config: Config, worker: Bot, what: str) -> None:
    log_at("info")
    asyncio.run(_serve(config, worker, what))


async def _serve(config: Config, worker: Bot, what: str) -> None:
    """Serve until SIGTERM, which ends it in peace, or Ctrl-C."""
    task = asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    with contextlib.suppress(NotImplementedError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        # A worker waits for its server; who starts one shall know that there is none.
        async with connected(config):
            pass
        log.info("%s at %s", what, config.server)
        await worker.serve()
    except asyncio.CancelledError:
        if not stopped:
            raise
