"""`di-store check`: look for damage in a store."""

from __future__ import annotations

import click

from di_store.cli.common import attached, json_option, print_json, store_names, time_limit, timeout_option
from di_store.cli.progress import progress_bar


@click.command(short_help="Look for damage in a store.")
@click.argument("store", shell_complete=store_names)
@click.option("--repair", is_flag=True, help="Rebuild what can be derived.")
@timeout_option(60.0)
@json_option
@click.pass_context
def check(context: click.Context, store: str, repair: bool, timeout_seconds: float, as_json: bool) -> None:
    """Compare everything in STORE that is kept twice: counts, trees, lists, sums. Exit status 1 if something is wrong.

    Other processes can use the store meanwhile. A call on a table waits while that table is checked.
    """
    waits = f"checking store {store!r}"
    with attached(store) as handle, progress_bar("checking", as_json), time_limit(handle, timeout_seconds, waits):
        findings = list(handle.check(repair=repair))
        left = list(handle.check()) if repair and findings else findings
    if as_json:
        print_json(
            {"name": store, "findings": findings, "repaired": bool(repair and findings and not left), "left": left}
        )
    else:
        for finding in findings:
            click.echo(finding)
        click.echo(verdict(store, findings, left, repair))
    context.exit(1 if left else 0)


def verdict(store: str, findings: list[str], left: list[str], repair: bool) -> str:
    """The last line of the output."""
    if not findings:
        return f"store {store!r} is sound"
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    if not repair:
        return f"store {store!r}: {count}; --repair rebuilds what can be derived"
    if left:
        return f"store {store!r}: {count}, {len(left)} of them could not be repaired; save what you need and remove it"
    return f"store {store!r}: {count}, all repaired"
