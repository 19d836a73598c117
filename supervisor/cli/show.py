"""`supervisorctl show INCIDENT`: one incident with its timeline, its outcome and its evidence."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.evidence.files import Evidence
from supervisor.cli.formatting import clock_time, size, span
from supervisor.cli.history import story
from supervisor.cli.name_completion import complete_incident
from supervisor.cli.table import GAP, Cell, Pen, cells
from supervisor.control.client import quoted
from supervisor.core.sanitize import one_line

STORY = ("TIME", "AFTER", "WHAT", "DETAIL")
DAY = len("2026-01-31")
LEAST_DETAIL = 20
"""Columns that a detail has at least."""
TRIAGE_LINES = 40
REPORT = "triage/report.txt"
REPORT_LIMIT_BYTES = 65536


@click.command("show")
@click.argument("incident", shell_complete=complete_incident)
@json_option
@pass_app
def command(app: App, incident: str) -> None:
    """Show one INCIDENT (its name is in `history`): its timeline, and the files of its evidence."""
    answer = app.get_recorded(f"/v1/incidents/{quoted(incident)}")
    if app.json:
        app.print_json(answer)
    else:
        folder = answer["incident"]["evidence"]
        here = folder is not None and not app.fleet
        evidence = Evidence(app=app, incident=incident, folder=folder) if here else None
        app.print("\n".join(lines(answer, app.now(), app.pen, evidence)))


def lines(answer: dict[str, Any], now: float, pen: Pen, evidence: Evidence | None) -> list[str]:
    """Return the answer to GET /v1/incidents/ID, and the incident's evidence, as lines of text."""
    incident = answer["incident"]
    text = story(incident, now, Pen(color=pen.color))[:-1]
    text.append(f"{'severity':>10}  {one_line(incident['severity'])}")
    text += _diagnosis_lines(incident.get("diagnosis") or {})
    if incident["last_step"] is not None:
        text.append(f"{'last step':>10}  {incident['last_step']}")
    if answer["story"]:
        rows = [_story_row(line, incident["at"]) for line in answer["story"]]
        text += ["", pen.table(STORY, rows if pen.width is None else _fit_story(rows, incident["at"], pen.width))]
    if "node" in incident and incident["evidence"] is not None:
        return [*text, "", f"evidence on {one_line(incident['node'])} in {one_line(incident['evidence'])}"]
    return text + _evidence_lines(evidence, pen)


def _diagnosis_lines(diagnosis: dict[str, list[str]]) -> list[str]:
    """Return the ruled-out causes, the likely ones, and hints, one line each."""
    labels = (("ruled out", "ruled_out"), ("likely", "causes"), ("try", "advice"))
    return [f"{label:>10}  {one_line(text)}" for label, key in labels for text in diagnosis.get(key, ())]


def _story_row(line: dict[str, Any], began: float) -> list[Cell]:
    after = line["at"] - began
    sign = "-" if after < 0 else "+"
    return [
        Cell(clock_time(line["at"])),
        Cell(f"{sign}{span(abs(after))}", right=True),
        Cell(one_line(line["what"]), "bold"),
        Cell(one_line(line["detail"])),
    ]


def _fit_story(rows: list[list[Cell]], began: float, width: int) -> list[list[Cell]]:
    """Return the rows of a story with each detail in full, in as many rows as it needs.

    The day is left out where all of it is that of the incident, which is above the table.
    """
    day = clock_time(began)[:DAY]
    if all(row[0].text.startswith(day) for row in rows):
        rows = [[Cell(time.text[DAY:].strip()), *rest] for time, *rest in rows]
    others = [max(cells(row[column].text) for row in (*rows, list(map(Cell, STORY)))) for column in range(3)]
    room = max(width - sum(others) - len(GAP) * 3, LEAST_DETAIL)
    fitted = []
    for *before, detail in rows:
        first, *more = textwrap.wrap(detail.text, room) or [""]
        fitted += [[*before, Cell(first)], *([Cell(""), Cell(""), Cell(""), Cell(part)] for part in more)]
    return fitted


def _evidence_lines(evidence: Evidence | None, pen: Pen) -> list[str]:
    if evidence is None:
        return ["", "no evidence was collected"]
    text = ["", pen.paint(f"evidence in {one_line(evidence.folder)}", "bold")]
    try:
        files = evidence.files()
        text += _triage_lines(evidence, [entry["name"] for entry in files])
    except CliError as error:
        return [*text, f"  {one_line(str(error))}"]
    return text + [f"  {size(entry['size_bytes']):>8}  {one_line(entry['name'])}" for entry in files]


def _triage_lines(evidence: Evidence, names: list[str]) -> list[str]:
    """Return the report of a triage; empty if there was none."""
    if REPORT not in names:
        return []
    report = evidence.read(REPORT, REPORT_LIMIT_BYTES).decode("utf-8", "replace")
    return ["", "triage:", *(f"  {one_line(line)}" for line in report.splitlines()[:TRIAGE_LINES]), ""]
