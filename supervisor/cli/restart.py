"""`supervisorctl restart JOB`: save, end, and go on from there, as after a changed configuration."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.wishes import runs_anew, wait_options, wish


@click.command("restart")
@click.argument("job")
@wait_options
@json_option
@pass_app
def command(app: App, job: str, timeout_s: float, *, wait: bool) -> None:
    """Have JOB save a checkpoint and end, then start it from there; with --wait until its new process runs."""
    wish(app, job, "restart", runs_anew if wait else None, timeout_s)
