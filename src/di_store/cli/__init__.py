"""The command line, `di-store`: demo, status, top, inspect, check, hold, serve, checkpoint, restore, plan, bench, rm.

One file per command, each a thin layer over the public API. No command needs a server, or the process that created the
store, and none starts anything in the background. Exit status: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import click

from di_store.base.errors import StoreError

COMMANDS = (
    "demo",
    "status",
    "top",
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
    """The commands; the file of one is imported when it is asked for, so that `status` does not wait for `bench`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all of them, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one; None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"di_store.cli.{cmd_name}"), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="di-store", prog_name="di-store")
def group() -> None:
    """One store for everything a reinforcement-learning job moves.

    Stores live in shared memory for as long as some process holds them; these commands look at those of this machine.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status. `arguments` default to those of the process."""
    try:
        # With standalone_mode=False, click returns the status given to `context.exit`.
        status = group.main(args=arguments, prog_name="di-store", standalone_mode=False)
    except click.ClickException as error:
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
