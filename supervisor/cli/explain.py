"""`supervisorctl explain`: says what a saved tool output means, without a daemon and without a card."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.explain_smi import print_smi


@click.command("explain")
@click.option(
    "--smi",
    "source",
    metavar="FILE",
    required=True,
    help="What rocm-smi, amd-smi or nvidia-smi printed; - reads standard input.",
)
@json_option
@pass_app
def command(app: App, source: str) -> None:
    """Print the readings in a saved output of a vendor's tool, one card after the other, in our names and units."""
    print_smi(app, source)
