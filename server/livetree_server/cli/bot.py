"""``livetree bot``: writers of replies."""

from __future__ import annotations
import click

__all__ = ["bot"]


@click.group()
def bot() -> None:
    """Answer prompts."""
