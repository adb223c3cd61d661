"""``livetree token``: tokens for a server with a secret."""

from __future__ import annotations

from typing import Final

import click

from ..config import Config

__all__ = ["token"]

DAY_SECONDS: Final = 24 * 60 * 60
_LEVELS: Final = ("read", "write", "admin")


class _Right(click.ParamType[tuple[str, str]]):
    name = "PATTERN=LEVEL"

    def convert(
        self,
        value: str | tuple[str, str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        pattern, _, level = value.rpartition("=")
        if not pattern or level not in _LEVELS:
            self.fail(f"{value!r} is not of the form PATTERN=read, PATTERN=write or PATTERN=admin")
        return pattern, level


@click.command(
    epilog="""
    \b
    Examples:
      livetree token ada
      livetree token bot-1 --topics '*=write' --days 365
      livetree token guest --topics 'demo-*=read' --topics 'lobby=write' --days 1
    """
)
@click.argument("subject")
@click.option(
    "--topics",
    type=_Right(),
    multiple=True,
    default=[("*", "write")],
    help="Which topics, by id, and what: read, write or admin (may delete them). "
    "A * is any run of characters. May be repeated.  [default: *=write]",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True),
    default=30,
    show_default=True,
    help="How long it is valid.",
)
def token(subject: str, topics: tuple[tuple[str, str], ...], days: float) -> None:
    """
    Make a token for SUBJECT, a person or a bot.

    It is signed with LIVETREE_SECRET, which has to be the server's. Whoever holds the
    token is SUBJECT until it expires; it can't be called back before.
    """
    secret = Config.read().secret
    if secret is None:
        raise click.ClickException("LIVETREE_SECRET is not set: set it to the server's secret")
    if not subject:
        raise click.ClickException("the subject is empty: name a person or a bot")
    from ..auth import issue

    click.echo(issue(secret, subject, topics, seconds=round(days * DAY_SECONDS)))
