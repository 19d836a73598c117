"""`supervisorctl show INCIDENT`: one trouble with what led to it, what came of it, and where the evidence lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.history import story
from supervisor.cli.table import Cell, Pen
from supervisor.cli.words import clock_time, size, span
from supervisor.control.client import quoted
from supervisor.core.harmless import one_line

TRIAGE_LINES = 40


@click.command("show")
@click.argument("incident")
@json_option
@pass_app
def command(app: App, incident: str) -> None:
    """Show one INCIDENT (its name is in `history`): its story, and the files of its evidence."""
    answer = app.get_or(f"/v1/incidents/{quoted(incident)}", lambda: _left(app, incident))
    if app.json:
        app.print_json(answer)
    else:
        app.print("\n".join(lines(answer, app.now(), app.pen)))


def lines(answer: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the answer to GET /v1/incidents/ID as lines for people."""
    incident = answer["incident"]
    text = story(incident, now, Pen(color=pen.color))[:-1]
    text.append(f"{'severity':>10}  {one_line(incident['severity'])}")
    text += _diagnosis(incident.get("diagnosis") or {})
    if incident["last_step"] is not None:
        text.append(f"{'last step':>10}  {incident['last_step']}")
    if answer["story"]:
        rows = [_told(one, incident["at"]) for one in answer["story"]]
        text += ["", pen.table(("TIME", "AFTER", "WHAT", "DETAIL"), rows)]
    return text + _evidence(incident["evidence"], pen)


def _diagnosis(diagnosis: dict[str, list[str]]) -> list[str]:
    """Return what it is not, what it may be, and what to do, a line each."""
    labels = (("not", "ruled_out"), ("likely", "causes"), ("try", "advice"))
    return [f"{label:>10}  {one_line(said)}" for label, key in labels for said in diagnosis.get(key, ())]


def _told(line: dict[str, Any], began: float) -> list[Cell]:
    after = line["at"] - began
    sign = "-" if after < 0 else "+"
    return [
        Cell(clock_time(line["at"])),
        Cell(f"{sign}{span(abs(after))}", right=True),
        Cell(one_line(line["what"]), "bold"),
        Cell(one_line(line["detail"])),
    ]


def _evidence(folder: str | None, pen: Pen) -> list[str]:
    if folder is None:
        return ["", "no evidence was taken"]
    text = ["", pen.paint(f"evidence in {one_line(folder)}", "bold")]
    text += _triage(Path(folder))
    try:
        files = sorted(one for one in Path(folder).rglob("*") if one.is_file())
        return text + [f"  {size(one.stat().st_size):>8}  {one_line(str(one.relative_to(folder)))}" for one in files]
    except OSError as error:
        return [*text, f"  {error.strerror}"]


def _triage(folder: Path) -> list[str]:
    """Return what `supervisorctl triage` found, where it was asked."""
    try:
        words = (folder / "triage" / "report.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return ["", "triage:", *(f"  {one_line(one)}" for one in words.splitlines()[:TRIAGE_LINES]), ""]


def _left(app: App, incident: str) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.incident(app, incident)
