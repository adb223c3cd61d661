"""The command line as a whole: its commands, its help, and what a failure looks like."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

import click

from ..config import ConfigError, wants_tracebacks
from .bot import bot
from .check import check
from .importing import import_files
from .say import say
from .serve import serve
from .tail import tail
from .token import token
from .topics import topics

__all__ = ["program", "run"]

SECTIONS: Final = {
    "The server": (serve, token, check),
    "Conversations": (topics, say, tail, import_files),
    "Bots": (bot,),
}

FAILED: Final = 1
INTERRUPTED: Final = 130
"""As a shell counts a process that SIGINT ended."""


class _Program(click.Group):
    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by what they are about."""
        for title, commands in SECTIONS.items():
            rows = [(command.name or "", command.get_short_help_str(68)) for command in commands]
            with formatter.section(title):
                formatter.write_dl(rows)


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"livetree {version('livetree')}")
        context.exit()


@click.group(
    cls=_Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""
    \b
    Try it:
      livetree serve --demo
      livetree tail welcome
      livetree say welcome "Hello" --model echo
    """,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def program() -> None:
    """A real-time server for branching AI conversations, and what goes with it."""


for _commands in SECTIONS.values():
    for _command in _commands:
        program.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """
    Run a command and return the exit status: 0, or what kind of failure it was.

    A failure is told in one sentence on standard error. Ctrl-C and a reader that has gone
    are told by the status alone.

    """
    _write_whatever_comes()
    try:
        # Not `main`, which has words of its own for Ctrl-C.
        with program.make_context("livetree", [*arguments]) as context:
            status = program.invoke(context)
        sys.stdout.flush()
        return int(status or 0)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        return asked.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BaseException as raised:
        error = _only(raised)
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        if isinstance(error, BrokenPipeError):
            _drop_output()
            return FAILED
        if wants_tracebacks():
            traceback.print_exception(raised)
        with contextlib.suppress(OSError):
            click.echo(f"livetree: {sentence(error)}", err=True)
        return error.exit_code if isinstance(error, click.ClickException) else FAILED


def sentence(error: BaseException) -> str:
    """Say what went wrong, and where it is known what to do."""
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "livetree"
        return f"{error.format_message().rstrip('.')}: see {path} --help"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if getattr(error, "code", None) == "UNAUTHENTICATED":
        return f"{error} (in LIVETREE_TOKEN; livetree token makes one)"
    if isinstance(error, ConfigError) or _is_told_by_itself(error):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or str(error) or type(error).__name__}"
    return (
        f"this is a fault of livetree's own ({type(error).__name__}: {error}): "
        "LIVETREE_DEBUG=1 shows where"
    )


def _is_told_by_itself(error: BaseException) -> bool:
    # Whoever raises such an error has imported its module already.
    known = {
        "livetree.core.errors": "LivetreeError",
        "livetree.formats.faults": "FormatError",
        "livetree_server.topics.ports": "StoreError",
    }
    for module, name in known.items():
        kind: Any = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return True
    return False


def _only(error: BaseException) -> BaseException:
    """Return the first failure of a group: what its tasks met."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _write_whatever_comes() -> None:
    """Let a terminal that knows fewer characters show their numbers instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Keep the interpreter from flushing, as it ends, into a pipe that nobody reads."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
