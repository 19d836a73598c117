"""`supervisorctl du`: what the state directory takes on the disk, by job."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.formatting import size
from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

HEAD = ("JOB", "TOTAL", "ATTEMPTS", "EVIDENCE", "SNAPSHOTS", "GENERATIONS", "")
NOT_COUNTED = "not counted: what was moved aside next to the checkpoints (.rocm-supervisor-aside, *.aside-N)"
PARTS = ("attempts_bytes", "evidence_bytes", "snapshots_bytes", "generations_bytes")


@click.command("du")
@json_option
@pass_app
def command(app: App) -> None:
    """Show the disk use of every job's attempts, evidence, snapshots and generations, and of the database."""
    answer = app.get_recorded("/v1/disk")
    if app.json:
        app.print_json(answer)
    else:
        app.print("\n".join(lines(answer, app.pen)))


def lines(answer: dict[str, Any], pen: Pen) -> list[str]:
    """Return the answer to GET /v1/disk as lines of text."""
    jobs = answer["jobs"]
    text = [pen.table(HEAD, [_job_row(job) for job in jobs])] if jobs else ["no job has written anything"]
    total = answer["code_bytes"] + answer["database_bytes"] + sum(total_bytes(job) for job in jobs)
    return [
        *text,
        "",
        f"{size(answer['database_bytes'])} database, {size(answer['code_bytes'])} copies of the program",
        f"{size(total)} in {one_line(answer['state_dir'])}",
        *([NOT_COUNTED] if jobs else []),
    ]


def total_bytes(job: dict[str, Any]) -> int:
    """Return everything that a job's folder takes."""
    return sum(int(job[part]) for part in PARTS)


def _job_row(job: dict[str, Any]) -> list[Cell]:
    sizes = [total_bytes(job), *(job[part] for part in PARTS)]
    remark = "" if job["configured"] else f"not configured; supervisorctl forget {job['job']} removes it"
    return [
        Cell(one_line(job["job"]), "bold"),
        *(Cell(size(value), right=True) for value in sizes),
        Cell(one_line(remark), "yellow"),
    ]
