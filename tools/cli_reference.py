"""Makes docs/commands.md from the help of every command of `di-store`.

tools/cli_reference.py             prints the page
tools/cli_reference.py --write     writes it
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import click

from di_store.cli import COMMANDS, group

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """# Commands

<!-- Made by tools/cli_reference.py from the commands' help: edit that. -->

`di-store` looks at stores, keeps and serves them. No command needs a server, or the process that created the store.
Exit status: 0 success, 1 failure, 2 wrong usage. [operations.md](operations.md) says which command helps when.
"""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def section(name: str) -> str:
    """A command: its usage, its text, and a table of its options."""
    context = click.Context(group, info_name="di-store")
    command = group.get_command(context, name)
    assert command is not None
    inner = click.Context(command, parent=context, info_name=name)
    usage = " ".join(command.collect_usage_pieces(inner)).replace("[OPTIONS] ", "").replace("[OPTIONS]", "")
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    records = [each.get_help_record(inner) for each in command.params]
    rows = [
        f"| `{_cell(record[0])}` | {_cell(record[1])} |" for record in records if record and record[0].startswith("-")
    ]
    table = "\n\n| option | |\n|---|---|\n" + "\n".join(rows) if rows else ""
    return f"## `di-store {name} {usage}".rstrip() + f"`\n\n{text}{table}\n"


def page() -> str:
    """The text of docs/commands.md."""
    return "\n".join([HEAD, *map(section, COMMANDS)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page())
    else:
        print(page(), end="")
