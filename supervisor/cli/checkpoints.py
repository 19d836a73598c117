"""`supervisorctl checkpoints JOB`: what was saved, how far it goes, whether it is proven, and what keeps it."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.table import Cell
from supervisor.cli.words import ago, epoch, number, size
from supervisor.control.client import quoted
from supervisor.core.harmless import one_line

HEAD = ("EPOCH", "STEP", "SAVED", "SIZE", "KIND", "VERDICT", "KEPT BY", "PATH")
STYLES = {"proven": "green", "rejected": "red"}


@click.command("checkpoints")
@click.argument("job")
@json_option
@pass_app
def command(app: App, job: str) -> None:
    """List the checkpoints of JOB, the one with the most training first."""
    answer = app.get_or(f"/v1/jobs/{quoted(job)}/checkpoints", lambda: _left(app, job))
    if app.json:
        app.print_json(answer)
    elif answer["checkpoints"]:
        app.print(app.pen.table(HEAD, [_row(one, app.now()) for one in answer["checkpoints"]]))
    else:
        app.print(f"{one_line(job)} has saved no checkpoint yet")


def _row(one: dict[str, Any], now: float) -> list[Cell]:
    verdict = one_line(one["verdict"] or "not looked at")
    why = f" ({one_line(one['reason'])})" if one["reason"] else ""
    return [
        Cell(number(epoch(one["epoch"])), right=True),
        Cell(number(one["step"]), right=True),
        Cell(ago(one["saved_at"], now), right=True),
        Cell(size(one["size_bytes"]), right=True),
        Cell(one_line(one["kind"])),
        Cell(verdict, STYLES.get(verdict)),
        Cell(_kept_by(one)),
        Cell(one_line(one["path"]) + why),
    ]


def _kept_by(one: dict[str, Any]) -> str:
    """Return what keeps a generation; the training's own file is kept by nobody here."""
    if one["source"] is None:
        return "its training"
    return "let go" if one["kept_by"] == "" else one_line(one["kept_by"] or "")


def _left(app: App, job: str) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.checkpoints(app, job)
