"""``livetree say``: a prompt, and the answer as it is written."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..config import Config
from .server import connected, find_topic, url_option
from .terminal import clipped

if TYPE_CHECKING:
    from livetree.client import Client

__all__ = ["say"]


@click.command(
    epilog="""
    \b
    Examples:
      livetree say welcome "What is a branch?" --model echo
      livetree say --new-topic "Trip plan" "Where to?" --model gpt-5 --model echo
      git diff | livetree say review - --model gpt-5
    """
)
@click.argument("topic", required=False, metavar="TOPIC")
@click.argument("text", required=False, metavar="TEXT")
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    help="Who shall answer. Several answer side by side; may be repeated.",
)
@click.option("--new-topic", metavar="NAME", help="Begin a topic of this name, in place of TOPIC.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0.1),
    default=20,
    show_default=True,
    metavar="SECONDS",
    help="How long a bot may take to begin.",
)
@url_option
def say(
    topic: str | None,
    text: str | None,
    models: tuple[str, ...],
    new_topic: str | None,
    wait: float,
    url: str | None,
) -> None:
    """
    Say TEXT in TOPIC and show the answer as it comes.

    TOPIC is an id, or a part of a name that no other topic has. TEXT goes below the
    selected message; - reads it from standard input. The exit status is 0 if every
    model has answered. Ctrl-C stops looking; the answer is written all the same.
    """
    if new_topic is not None:
        if text is not None:
            raise click.UsageError("with --new-topic there is only a TEXT, and no TOPIC")
        topic, text = None, topic
    if text is None:
        what = "TEXT" if new_topic is not None or topic is not None else "TOPIC and TEXT"
        raise click.UsageError(f"{what} is missing")
    if text == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError:
            raise click.ClickException("what comes in on standard input is no text") from None
    if not text.strip():
        raise click.UsageError("TEXT is empty: there is nothing to say")
    if not all(models):
        raise click.UsageError("a --model has no name")
    config = Config.read(url=url)
    asyncio.run(_say(config, topic, new_topic, text, models, wait))


async def _say(
    config: Config,
    wanted: str | None,
    new_topic: str | None,
    text: str,
    models: Sequence[str],
    wait: float,
) -> None:
    from .answers import Answers

    async with connected(config) as client:
        topic_id = await _topic(client, wanted, new_topic)
        async with client.open(topic_id) as live:
            changes = live.changes()
            turn = await live.submit(text, models=models)
            answers = Answers(live, turn.placeholder_ids)
            await answers.follow(changes, wait)
            await answers.check()


async def _topic(client: Client, wanted: str | None, new_topic: str | None) -> str:
    if new_topic is None:
        return (await find_topic(client, wanted or "")).id
    made = await client.create_topic(new_topic)
    click.echo(f"{made.id} {clipped(new_topic, 70)}", err=True)
    return made.id
