"""`supervisorctl start JOB`: the user's word that a job shall run; it clears what was spent of the restart budget."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.wishes import runs, wait_options, wish


@click.command("start")
@click.argument("job")
@click.option("--fresh", is_flag=True, help="From the beginning, whatever was saved.")
@wait_options
@json_option
@pass_app
def command(app: App, job: str, timeout_s: float, *, fresh: bool, wait: bool) -> None:
    """Start JOB from its newest proven checkpoint; with --wait until its process runs."""
    wish(app, job, "start", runs if wait else None, timeout_s, fresh=fresh)
