"""`di-store demo`: actors and a learner train through a store, on a live screen."""

from __future__ import annotations

import click

from di_store.base.sizes import parse_size
from di_store.demo import DemoConfig, run
from di_store.demo.config import AUTORESET_MODES

DEFAULT = DemoConfig()


@click.command(short_help="Train a DQN through a store, on a live screen.")
@click.option("--seconds", type=float, default=DEFAULT.seconds, show_default=True, help="How long to train.")
@click.option("--actors", type=int, default=DEFAULT.actors, show_default=True, help="Actor processes.")
@click.option(
    "--env", default=DEFAULT.env, show_default=True, help="A Gymnasium environment; ALE/Qbert-v5 is an Atari game."
)
@click.option(
    "--autoreset",
    default=DEFAULT.autoreset,
    show_default=True,
    metavar="|".join(AUTORESET_MODES),
    help="How the vector environments start new episodes.",
)
@click.option(
    "--envs-per-actor", type=int, default=DEFAULT.envs_per_actor, show_default=True, help="Environments of each actor."
)
@click.option(
    "--memory", default=DEFAULT.memory, show_default=True, help='Memory limit of the store, such as "500MB" or "25%".'
)
@click.option("--out", default=str(DEFAULT.out), show_default=True, help="Where to write the PNG chart.")
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as JSON; the screen goes to stderr.")
@click.pass_context
def demo(context: click.Context, /, as_json: bool, **options: object) -> None:
    """Train a DQN through a store: actor processes, one learner, a live screen, a chart at the end.

    Ctrl-C ends it early and cleanly. Needs: pip install 'di-store[demo]'.
    """
    parse_size(str(options["memory"]), total=1 << 40, option="--memory")
    config = DemoConfig(**options, json=as_json)  # type: ignore[arg-type]  # click has converted them
    context.exit(run(config))
