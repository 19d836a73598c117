"""`supervisorctl account JOB`: how a job spent its time, from the record."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.formatting import span
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell
from supervisor.control.client import quoted
from supervisor.core.sanitize import one_line

WORDS = {
    "train": "training",
    "data_wait": "waiting for data",
    "validate": "validating",
    "checkpoint": "saving checkpoints",
    "setup": "setting up",
    "compile": "kernel search, compilation, warm-up",
    "lost": "work to redo after a resume",
    "down": "down: stalled, or between two attempts",
    "triage": "triage: replaying a bad step",
    "waiting": "stopped by the user",
    "unseen": "running without reports from the agent",
}
STYLES = {"train": "green", "lost": "red", "down": "red", "triage": "red"}


@click.command("account")
@click.argument("job", shell_complete=complete_job)
@json_option
@pass_app
def command(app: App, job: str) -> None:
    """Show how JOB spent its time, in total and over the last hour, and what each cause cost."""
    answer = app.get_recorded(f"/v1/jobs/{quoted(job)}/account")
    if app.json:
        app.print_json(answer)
        return
    if not app.fleet:
        _print_account(app, job, answer)
        return
    for index, account in enumerate(answer["nodes"]):
        app.print(("\n" if index else "") + app.pen.paint(one_line(account["node"]), "bold"))
        _print_account(app, job, account)


def _print_account(app: App, job: str, answer: dict[str, Any]) -> None:
    total, hour = answer["lifetime"], answer["last_hour"]
    if total["began"] is None:
        app.print(f"{one_line(job)} has never been launched")
        return
    app.print(
        f"{one_line(job)}: {span(sum(total['seconds'].values()))} since its first launch; effective training time "
        f"{_describe_effective(total['ettr'], hour['ettr'])}"
    )
    app.print(app.pen.table(("TIME", "SHARE", "LAST HOUR", "SPENT"), _list_uses(total, hour)))
    if answer.get("outages"):
        app.print(f"\n{_describe_outages(answer['outages'], answer['outages_s'])}")
    if total["cost_s"]:
        app.print("")
        app.print(app.pen.table(("COST", "TIMES", "CAUSE"), _list_causes(total)))


def _list_uses(life: dict[str, Any], hour: dict[str, Any]) -> list[list[Cell]]:
    total_s = sum(life["seconds"].values())
    return [
        [
            Cell(span(life["seconds"][use]), right=True),
            Cell(f"{life['seconds'][use] / total_s:.1%}" if total_s else "-", right=True),
            Cell(span(hour["seconds"][use]), right=True),
            Cell(words, STYLES.get(use)),
        ]
        for use, words in WORDS.items()
        if life["seconds"][use] > 0
    ]


def _list_causes(life: dict[str, Any]) -> list[list[Cell]]:
    costliest = sorted(life["cost_s"].items(), key=lambda item: item[1], reverse=True)
    return [
        [Cell(span(cost), right=True), Cell(str(life["faults"].get(cause, 0)), right=True), Cell(one_line(cause))]
        for cause, cost in costliest
    ]


def _describe_outages(times: int, total_s: float) -> str:
    """Return how long the daemon did not run while the job had a living attempt."""
    often = "" if times == 1 else f" in {times} outages"
    return f"The daemon did not run for {span(total_s)} of it{often}: see supervisorctl history."


def _describe_effective(total: float | None, last_hour: float | None) -> str:
    """Return the effective training time since the first launch and in the last hour; where neither is known, once."""
    if total is None and last_hour is None:
        return "not available"
    whole, hour = ("not available" if value is None else f"{value:.1%}" for value in (total, last_hour))
    return f"{whole}, in the last hour {hour}"
