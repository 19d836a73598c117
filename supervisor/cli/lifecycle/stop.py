"""`supervisorctl stop JOB`: stop a job at the user's request; no rule starts it again."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.lifecycle.request import is_stopped, request, wait_options
from supervisor.cli.name_completion import complete_job


@click.command("stop")
@click.argument("job", shell_complete=complete_job)
@wait_options
@json_option
@pass_app
def command(app: App, job: str, timeout_s: float, *, wait: bool) -> None:
    """Have JOB save a checkpoint and end; with --wait return when no process of it is left."""
    request(app, job, "stop", is_stopped if wait else None, timeout_s)
