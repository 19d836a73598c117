"""`supervisorctl start JOB`: start a job at the user's request; this resets its restart budget."""

from __future__ import annotations

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.lifecycle.request import is_running, request, wait_options
from supervisor.cli.name_completion import complete_job


@click.command("start")
@click.argument("job", shell_complete=complete_job)
@click.option("--fresh", is_flag=True, help="Start from the beginning, ignoring saved checkpoints.")
@wait_options
@json_option
@pass_app
def command(app: App, job: str, timeout_s: float, *, fresh: bool, wait: bool) -> None:
    """Start JOB from its newest proven checkpoint; with --wait return when its process runs.

    One that has finished starts from the beginning, unless its end needs a look, as `status` says: that goes on from
    before its fault.
    """
    request(app, job, "start", is_running if wait else None, timeout_s, fresh=fresh)
