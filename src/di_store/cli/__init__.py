"""The command line: `di-store demo | status | top | inspect | check | hold | checkpoint | restore | plan | bench | rm`.

One file per command, each a thin layer over the public API. No command needs a server, or the process that created the
store, and none starts anything in the background. Exit status: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

import click

from di_store.base.errors import StoreError
from di_store.cli.bench import bench
from di_store.cli.check import check
from di_store.cli.checkpoint import checkpoint
from di_store.cli.demo import demo
from di_store.cli.hold import hold
from di_store.cli.inspect import inspect
from di_store.cli.plan import plan
from di_store.cli.restore import restore
from di_store.cli.rm import rm
from di_store.cli.status import status
from di_store.cli.top import top


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("di-store"), prog_name="di-store")
def group() -> None:
    """One store for everything a reinforcement-learning job moves.

    Stores live in shared memory for as long as some process holds them; these commands look at those of this machine.
    """


for _command in (demo, status, top, inspect, check, hold, checkpoint, restore, plan, bench, rm):
    group.add_command(_command)


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
