"""`supervisorctl fleet nodes`: what each node has cost, and how often its machine failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.fleet.answers import Fleet, explained
from supervisor.cli.formatting import ago, span
from supervisor.cli.table import Cell
from supervisor.core.fleet.strikes import MACHINE_CAUSES, Strikes, estimate_rates
from supervisor.core.incident import Incident
from supervisor.core.rules import cause_of
from supervisor.core.sanitize import one_line
from supervisor.fleet.reading import Node
from supervisor.store.archive import Archive
from supervisor.store.records import AttemptRecord

HEAD = ("NODE", "COPIED", "TRAINED", "INCIDENTS", "OF MACHINE", "DOWN", "TO REDO", "PER 1000 H")
DAY_S, HOUR_S = 86_400.0, 3600.0
ALL = 1_000_000


@click.command("nodes", short_help="Show what each node has cost, the least reliable first.")
@click.option("--days", type=click.FloatRange(min=0.01, max=3660), default=30.0, show_default=True)
@json_option
@pass_app
def command(app: App, days: float) -> None:
    """Show what each node has cost, the one whose machine fails most often first.

    The last column is the rate of faults of the machine (GPU hung or lost, wrong numbers) in 1,000 hours of training,
    drawn towards the fleet's own rate while a node has few of them.
    """
    fleet, since = Fleet(app), app.now() - days * DAY_S
    with explained():
        found = [_describe(node, fleet.open(node), since, app.now()) for node in fleet.nodes]
    rates = estimate_rates([Strikes(faults=item["machine_incidents"], hours=item["hours"]) for item in found])
    for item, rate in zip(found, rates, strict=True):
        item["per_1000_h"] = rate
    found.sort(key=lambda item: (-(item["per_1000_h"] or 0.0), item["node"]))
    if app.json:
        app.print_json({"days": days, "nodes": found})
    elif not found:
        app.print("no node has sent its record")
    else:
        app.print(app.pen.table(HEAD, [_make_row(item, app.now()) for item in found]))


def _describe(node: Node, archive: Archive, since_unix_s: float, now: float) -> dict[str, Any]:
    incidents = [incident for incident in archive.incidents(limit=ALL) if incident.flag.at.unix_s >= since_unix_s]
    jobs = {job.name for job in archive.jobs()}
    attempts = [attempt for job in sorted(jobs) for attempt in archive.attempts(job, ALL)]
    return {
        "node": node.name,
        "copied_at": node.copied_unix_s,
        "hours": _sum_hours(attempts, since_unix_s, now),
        "incidents": len(incidents),
        "machine_incidents": sum(_is_of_machine(incident) for incident in incidents),
        "down_s": sum(incident.downtime_s or 0.0 for incident in incidents),
        "lost_steps": sum(incident.lost_steps or 0 for incident in incidents),
    }


def _sum_hours(attempts: Sequence[AttemptRecord], since_unix_s: float, now: float) -> float:
    """Return the hours in which attempts lived since a time; one without an end lives, or ended unseen."""
    lived_s = 0.0
    for attempt in attempts:
        if attempt.launched_unix_s is not None and attempt.ended_unix_s is not None:
            lived_s += max(0.0, attempt.ended_unix_s - max(attempt.launched_unix_s, since_unix_s))
        elif attempt.launched_unix_s is not None and attempt is _find_newest(attempts, attempt.job):
            lived_s += max(0.0, now - max(attempt.launched_unix_s, since_unix_s))
    return lived_s / HOUR_S


def _find_newest(attempts: Sequence[AttemptRecord], job: str) -> AttemptRecord:
    return max((attempt for attempt in attempts if attempt.job == job), key=lambda attempt: attempt.number)


def _is_of_machine(incident: Incident) -> bool:
    return (incident.cause or cause_of(incident.flag)) in MACHINE_CAUSES


def _make_row(item: dict[str, Any], now: float) -> list[Cell]:
    rate = item["per_1000_h"]
    return [
        Cell(one_line(item["node"]), "bold"),
        Cell("never" if item["copied_at"] is None else ago(item["copied_at"], now)),
        Cell(span(item["hours"] * HOUR_S), right=True),
        Cell(str(item["incidents"]), right=True),
        Cell(str(item["machine_incidents"]), "red" if item["machine_incidents"] else None, right=True),
        Cell(span(item["down_s"]), right=True),
        Cell(str(item["lost_steps"]), right=True),
        Cell("-" if rate is None else f"{rate:.2f}", right=True),
    ]
