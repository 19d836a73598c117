"""`supervisorctl restart JOB`: save a checkpoint, end, and start from it."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.lifecycle.request import is_restarted, request, wait_options
from supervisor.cli.name_completion import complete_job


@click.command("restart")
@click.argument("job", shell_complete=complete_job)
@wait_options
@json_option
@pass_app
def command(app: App, job: str, timeout_s: float, *, wait: bool) -> None:
    """Have JOB save a checkpoint and end, then start it from there; with --wait return when its new process runs."""
    request(app, job, "restart", is_restarted if wait else None, timeout_s)
