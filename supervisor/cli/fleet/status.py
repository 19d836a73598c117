"""`supervisorctl --fleet status`: the jobs of every node, as last copied."""

from __future__ import annotations

from typing import Any

from supervisor.cli.app import App
from supervisor.cli.fleet.answers import Fleet, explained
from supervisor.cli.formatting import ago
from supervisor.cli.table import Cell
from supervisor.core.sanitize import one_line
from supervisor.fleet.reading import Node

HEAD = ("NODE", "COPIED", "JOB", "PHASE", "ATTEMPT", "SINCE", "WHY")
SILENT_S = 300.0
"""Without a copy for so long, what is shown of a node is old."""


def print_status(app: App, job: str | None) -> bool:
    """Print the jobs of all nodes, or those named `job`; return whether one of them is down."""
    fleet = Fleet(app)
    with explained():
        found = [entry for node in fleet.nodes for entry in _describe_jobs(fleet, node) if job in (None, entry["job"])]
    if app.json:
        app.print_json({"jobs": found})
    elif not found:
        app.print("no node has sent its record" if not fleet.nodes else "no node has such a job")
    else:
        app.print(app.pen.table(HEAD, [_make_row(entry, app.now()) for entry in found]))
    return any(entry["phase"] in ("failed", "stopped") for entry in found)


def _describe_jobs(fleet: Fleet, node: Node) -> list[dict[str, Any]]:
    return [
        {
            "node": node.name,
            "copied_at": node.copied_unix_s,
            "job": job.name,
            "phase": job.phase.value,
            "attempt": job.number,
            "since": job.since.unix_s,
            "reason": job.reason,
        }
        for job in fleet.open(node).jobs()
    ]


def _make_row(entry: dict[str, Any], now: float) -> list[Cell]:
    copied = entry["copied_at"]
    silent = copied is None or now - copied > SILENT_S
    return [
        Cell(one_line(entry["node"]), "bold"),
        Cell("never" if copied is None else ago(copied, now), "red" if silent else None),
        Cell(one_line(entry["job"])),
        Cell(entry["phase"], "red" if entry["phase"] == "failed" else None),
        Cell(str(entry["attempt"]), right=True),
        Cell(ago(entry["since"], now)),
        Cell(one_line(entry["reason"] or "")),
    ]
