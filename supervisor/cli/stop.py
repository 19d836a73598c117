"""`supervisorctl stop JOB`: the user's word that a job shall rest; no rule starts it again."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.wishes import rests, wait_options, wish


@click.command("stop")
@click.argument("job")
@wait_options
@json_option
@pass_app
def command(app: App, job: str, timeout_s: float, *, wait: bool) -> None:
    """Have JOB save a checkpoint and end; with --wait until nothing of it runs."""
    wish(app, job, "stop", rests if wait else None, timeout_s)
