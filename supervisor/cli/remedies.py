"""`supervisorctl remedies [JOB]`: the remedies in force, their trials, and what was learned on this machine."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.formatting import ago, number
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

IN_FORCE = ("JOB", "REMEDY", "AGAINST", "SINCE", "WHAT IT DOES")
TRIED = ("JOB", "WHEN", "ATTEMPT", "AGAINST", "STEP", "REMEDY", "OUTCOME", "WHY")
LEARNED = ("AGAINST", "REMEDY", "HELPED", "FAILED")
STYLES = {"helped": "green", "failed": "red", "open": "yellow"}


@click.command("remedies")
@click.argument("job", required=False, shell_complete=complete_job)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Trials, at most.")
@json_option
@pass_app
def command(app: App, job: str | None, limit: int) -> None:
    """Show the remedies in force, their trials with the outcome, and what helped on this machine."""
    answer = app.get_recorded("/v1/remedies", job=job, limit=limit)
    if app.json:
        app.print_json(answer)
    else:
        app.print("\n".join(lines(answer, app.now(), app.pen)))


def lines(answer: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the answer to GET /v1/remedies as lines of text."""
    if not answer["in_force"] and not answer["tried"]:
        return ["no remedy is recorded"]
    text = ["in force: none"]
    if answer["in_force"]:
        text = [
            pen.paint("in force", "bold"),
            pen.table(IN_FORCE, [_in_force_row(item) for item in answer["in_force"]]),
        ]
    if answer["tried"]:
        text += ["", pen.paint("tried", "bold"), pen.table(TRIED, [_trial_row(item, now) for item in answer["tried"]])]
    if answer["learned"]:
        text += ["", pen.paint("learned on this machine", "bold")]
        text.append(pen.table(LEARNED, [_learned_row(item) for item in answer["learned"]]))
    return text


def _in_force_row(entry: dict[str, Any]) -> list[Cell]:
    what = one_line(entry["what"])
    return [
        Cell(one_line(entry["job"]), "bold"),
        Cell(one_line(entry["remedy"])),
        Cell(one_line(entry["cause"])),
        Cell(f"attempt {entry['attempt']}"),
        Cell(f"{what}: {one_line(entry['applied'])}" if entry["applied"] else what),
    ]


def _trial_row(entry: dict[str, Any], now: float) -> list[Cell]:
    outcome = one_line(entry["outcome"])
    return [
        Cell(one_line(entry["job"]), "bold"),
        Cell(ago(entry["at"], now), right=True),
        Cell(str(entry["attempt"]), right=True),
        Cell(one_line(entry["cause"])),
        Cell(number(entry["step"]), right=True),
        Cell(one_line(entry["remedy"])),
        Cell(outcome, STYLES.get(outcome)),
        Cell(one_line(entry["reason"] or "")),
    ]


def _learned_row(entry: dict[str, Any]) -> list[Cell]:
    return [
        Cell(one_line(entry["cause"])),
        Cell(one_line(entry["remedy"])),
        Cell(str(entry["helped"]), right=True),
        Cell(str(entry["failed"]), right=True),
    ]
