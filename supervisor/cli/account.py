"""`supervisorctl account JOB`: where every second of its life went; it shows what the record adds up to."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.table import Cell
from supervisor.cli.words import span
from supervisor.control.client import quoted
from supervisor.core.harmless import one_line

WORDS = {
    "train": "training",
    "data_wait": "waiting for data",
    "validate": "validating",
    "checkpoint": "saving checkpoints",
    "setup": "setting up",
    "compile": "kernel search, compilation, warm-up",
    "lost": "work that had to be made again",
    "down": "down: stalled, or between two attempts",
    "triage": "replaying a bad step, to know why it was bad",
    "waiting": "stopped at somebody's wish",
    "unseen": "running unseen, without the agent",
}
STYLES = {"train": "green", "lost": "red", "down": "red", "triage": "red"}


@click.command("account")
@click.argument("job")
@json_option
@pass_app
def command(app: App, job: str) -> None:
    """Tell where every second of JOB's life went, whole and over the last hour, and what each cause has cost."""
    answer = app.get_or(f"/v1/jobs/{quoted(job)}/account", lambda: _left(app, job))
    if app.json:
        app.print_json(answer)
        return
    whole, hour = answer["whole"], answer["last_hour"]
    if whole["began"] is None:
        app.print(f"{one_line(job)} was never launched, as far as is recorded")
        return
    app.print(
        f"{one_line(job)}: {span(sum(whole['seconds'].values()))} since its first launch; effective training time "
        f"{_ratio(whole['ettr'])}, in the last hour {_ratio(hour['ettr'])}"
    )
    app.print(app.pen.table(("TIME", "SHARE", "LAST HOUR", "SPENT"), _uses(whole, hour)))
    if whole["cost_s"]:
        app.print("")
        app.print(app.pen.table(("COST", "TIMES", "CAUSE"), _causes(whole)))


def _uses(whole: dict[str, Any], hour: dict[str, Any]) -> list[list[Cell]]:
    total = sum(whole["seconds"].values())
    return [
        [
            Cell(span(whole["seconds"][use]), right=True),
            Cell(f"{whole['seconds'][use] / total:.1%}" if total else "-", right=True),
            Cell(span(hour["seconds"][use]), right=True),
            Cell(words, STYLES.get(use)),
        ]
        for use, words in WORDS.items()
        if whole["seconds"][use] > 0
    ]


def _causes(whole: dict[str, Any]) -> list[list[Cell]]:
    costliest = sorted(whole["cost_s"].items(), key=lambda one: one[1], reverse=True)
    return [
        [Cell(span(cost), right=True), Cell(str(whole["troubles"].get(cause, 0)), right=True), Cell(one_line(cause))]
        for cause, cost in costliest
    ]


def _ratio(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _left(app: App, job: str) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.account(app, job)
