"""The command line, `di-store`: demo, status, top, dashboard, inspect, check, hold, serve, and more.

Each command is one file, a thin layer over the public API. No command needs a server, or the process that created the
store, and none starts anything in the background. Exit status: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from di_store.base.errors import StoreError

COMMANDS = (
    "demo",
    "status",
    "top",
    "why",
    "dashboard",
    "inspect",
    "check",
    "hold",
    "serve",
    "checkpoint",
    "restore",
    "plan",
    "bench",
    "rm",
)


class Commands(click.Group):
    """The commands.

    A command's file is imported when the command is used, so that `status` does not wait for `bench`.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if there is no command of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"di_store.cli.{cmd_name}"), cmd_name)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse arguments that are no text before any command sees them: the core takes names and paths as UTF-8."""
        for each in args:
            try:
                each.encode()
            except UnicodeEncodeError:
                raise click.UsageError(f"{each!a} is not valid UTF-8", ctx) from None
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Wrong values and system errors end the command with one line."""
        from di_store.cli.common import stops_between_calls  # the commands import it anyway, `--help` need not

        try:
            with stops_between_calls():
                return super().invoke(ctx)
        except ValueError as error:
            raise click.UsageError(str(error), _context(self, ctx)) from None
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{where}{error.strerror or error}") from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="di-store", prog_name="di-store")
def group() -> None:
    """One store for everything a reinforcement-learning job moves.

    Stores live in shared memory as long as some process holds them. These commands show the stores of this machine.
    """


def _context(commands: Commands, ctx: click.Context) -> click.Context:
    """The context of the command that ran in `ctx`, for its usage text."""
    name = ctx.invoked_subcommand or ""
    command = commands.get_command(ctx, name)
    return ctx if command is None else click.Context(command, ctx, name)


def _line(said: str) -> str:
    """The message on one line, without terminal control codes."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in said)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. `arguments` default to those of the process."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # the caller closed it; a store must not get its descriptor
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    try:
        # With standalone_mode=False, click returns the status given to `context.exit`.
        status = group.main(args=arguments, prog_name="di-store", standalone_mode=False)
    except click.ClickException as error:
        vars(error)["message"] = _line(error.message)  # it may hold what the user gave
        error.show()
        return error.exit_code
    except StoreError as error:
        print(f"di-store: {error}", file=sys.stderr)
        return 1
    except (click.Abort, KeyboardInterrupt):
        print("di-store: interrupted", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output has ended (`| head`). Without stdout, Python does not report the same error at exit.
        sys.stdout = None
        return 1
    return status if isinstance(status, int) else 0
