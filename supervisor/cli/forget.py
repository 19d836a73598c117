"""`supervisorctl forget JOB`: remove the record and the folder of a job that is no longer configured."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.du import total_bytes
from supervisor.cli.errors import CliError, RefusedError
from supervisor.cli.formatting import size
from supervisor.control.client import quoted
from supervisor.control.refusals import NoSuchJob
from supervisor.core.sanitize import one_line


@click.command("forget")
@click.argument("job")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@json_option
@pass_app
def command(app: App, job: str, *, yes: bool) -> None:
    """Remove what is left of JOB: its history in the record, and its attempts, evidence, snapshots and generations.

    JOB must not be in the configuration any more. The training's own files are not touched.
    """
    found = next((entry for entry in app.get("/v1/disk")["jobs"] if entry["job"] == job), None)
    if not yes and (_is_recorded(app, job) if found is None else not found["configured"]):
        _confirm_removal(app, job, found)
    answer = app.post(f"/v1/jobs/{quoted(job)}/forget")
    if app.json:
        app.print_json(answer)
    else:
        app.print(f"{one_line(job)}: {answer['rows']} rows of the record deleted")
    if not answer["folder_removed"]:
        raise CliError(f"a part of the folder of {job} could not be removed", "see the daemon's log; remove it as root")


def _is_recorded(app: App, job: str) -> bool:
    """Whether the record knows a job; the daemon refuses another, or ends a removal that was interrupted."""
    try:
        app.get("/v1/incidents", job=job, limit=1)
    except CliError as error:
        if error.code == NoSuchJob.code:
            return False
        raise
    return True


def _confirm_removal(app: App, job: str, found: dict[str, Any] | None) -> None:
    """Print what will be removed and ask; raise RefusedError where the answer is no."""
    click.echo(f"{one_line(job)}: its history in the record (incidents, decisions, steps) will be deleted", err=True)
    if found is not None:
        parts = (
            f"{found['attempts']} attempts ({size(found['attempts_bytes'])})",
            f"evidence ({size(found['evidence_bytes'])})",
            f"snapshots ({size(found['snapshots_bytes'])})",
            f"generations ({size(found['generations_bytes'])})",
        )
        click.echo(f"{', '.join(parts)} will be removed: {size(total_bytes(found))}", err=True)
    if app.json or not click.confirm("Continue?", err=True):
        raise RefusedError("nothing was removed", "confirm it, or add --yes", "refused")
