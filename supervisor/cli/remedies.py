"""`supervisorctl remedies [JOB]`: what retries were given, what came of it, and what this machine has learned."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.table import Cell, Pen
from supervisor.cli.words import ago, number
from supervisor.core.harmless import one_line

IN_FORCE = ("JOB", "REMEDY", "AGAINST", "SINCE", "WHAT IT DOES")
TRIED = ("JOB", "WHEN", "ATTEMPT", "AGAINST", "STEP", "REMEDY", "OUTCOME", "WHY")
LEARNED = ("AGAINST", "REMEDY", "HELPED", "FAILED")
STYLES = {"helped": "green", "failed": "red", "open": "yellow"}


@click.command("remedies")
@click.argument("job", required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Trials, at most.")
@json_option
@pass_app
def command(app: App, job: str | None, limit: int) -> None:
    """Show the remedies in force, those tried with what came of them, and what helped on this machine."""
    answer = app.get_or("/v1/remedies", lambda: _left(app, job, limit), job=job, limit=limit)
    if app.json:
        app.print_json(answer)
    else:
        app.print("\n".join(lines(answer, app.now(), app.pen)))


def lines(answer: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the answer to GET /v1/remedies as lines for people."""
    if not answer["in_force"] and not answer["tried"]:
        return ["no remedy was needed as far as is recorded"]
    text = ["in force: none"]
    if answer["in_force"]:
        text = [pen.paint("in force", "bold"), pen.table(IN_FORCE, [_in_force(one) for one in answer["in_force"]])]
    if answer["tried"]:
        text += ["", pen.paint("tried", "bold"), pen.table(TRIED, [_tried(one, now) for one in answer["tried"]])]
    if answer["learned"]:
        text += ["", pen.paint("learned on this machine", "bold")]
        text.append(pen.table(LEARNED, [_learned(one) for one in answer["learned"]]))
    return text


def _in_force(one: dict[str, Any]) -> list[Cell]:
    what = one_line(one["what"])
    return [
        Cell(one_line(one["job"]), "bold"),
        Cell(one_line(one["remedy"])),
        Cell(one_line(one["cause"])),
        Cell(f"attempt {one['attempt']}"),
        Cell(f"{what}: {one_line(one['said'])}" if one["said"] else what),
    ]


def _tried(one: dict[str, Any], now: float) -> list[Cell]:
    outcome = one_line(one["outcome"])
    return [
        Cell(one_line(one["job"]), "bold"),
        Cell(ago(one["at"], now), right=True),
        Cell(str(one["attempt"]), right=True),
        Cell(one_line(one["cause"])),
        Cell(number(one["step"]), right=True),
        Cell(one_line(one["remedy"])),
        Cell(outcome, STYLES.get(outcome)),
        Cell(one_line(one["reason"] or "")),
    ]


def _learned(one: dict[str, Any]) -> list[Cell]:
    return [
        Cell(one_line(one["cause"])),
        Cell(one_line(one["remedy"])),
        Cell(str(one["helped"]), right=True),
        Cell(str(one["failed"]), right=True),
    ]


def _left(app: App, job: str | None, limit: int) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.remedies(app, job, limit)
