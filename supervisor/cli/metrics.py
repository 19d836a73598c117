"""`supervisorctl metrics`: what `GET /metrics` answers, or the rule file for Prometheus."""

from __future__ import annotations

from importlib.resources import files

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import explained
from supervisor.control.client import Client, ControlError

RULES = "prometheus-rules.yml"
BOARD = "grafana-board.json"


@click.command("metrics")
@click.option("--openmetrics", is_flag=True, help="In the OpenMetrics format.")
@click.option("--rules", is_flag=True, help="Print the recording and alerting rules for Prometheus instead.")
@click.option("--board", is_flag=True, help="Print a dashboard for Grafana instead.")
@pass_app
def command(app: App, *, openmetrics: bool, rules: bool, board: bool) -> None:
    """Print the daemon's metrics in the text format of Prometheus.

    A value that is not known, or whose reading is too old, has no line. --rules and --board need no daemon.
    """
    if rules or board:
        name = RULES if rules else BOARD
        click.echo(files("supervisor.metrics").joinpath(name).read_text(encoding="utf-8"), nl=False)
        return
    accept = "application/openmetrics-text" if openmetrics else "text/plain"
    try:
        text = Client(app.socket).get_text("/metrics", accept)
    except ControlError as error:
        raise explained(error) from error
    click.echo(text, nl=False)
