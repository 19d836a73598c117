"""`supervisorctl history`: the night as a story, each trouble in a few lines; it reads the record and adds nothing."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.table import Pen, cut
from supervisor.cli.words import ago, clock_time, epoch, span
from supervisor.core.harmless import one_line

LABEL = 12
FILES_SHOWN = 4
DONE = {
    "stop": "stopped",
    "kill": "killed",
    "retry": "it had ended by itself",
    "give_up": "given up",
}
OUTCOME_STYLES = {"gave_up": "red", "open": "yellow", "resumed": "green", "restarted": "yellow"}


@click.command("history")
@click.argument("job", required=False)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many, at most.")
@click.option("--shadow", is_flag=True, help='What rules with act = "shadow" would have acted on.')
@json_option
@pass_app
def command(app: App, job: str | None, limit: int, *, shadow: bool) -> None:
    """Tell what went wrong, with every job or with JOB, the newest first: what was seen, done, and lost."""
    if shadow:
        _shadows(app, job, limit)
        return
    answer = app.get_or("/v1/incidents", lambda: _left(app, job, limit), job=job, limit=limit)
    if app.json:
        app.print_json(answer)
        return
    found = answer["incidents"]
    if not found:
        app.print("nothing went wrong" + (f" with {one_line(job)}" if job else "") + " as far as is recorded")
    for index, incident in enumerate(found):
        app.print("\n".join(([""] if index else []) + story(incident, app.now(), app.pen)))


def story(incident: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return one incident as lines: when and where, what was seen, what was done, what it cost."""
    when = f"{ago(incident['at'], now)} ({clock_time(incident['at'])})"
    head = f"{when}  {one_line(incident['job'])}, attempt {incident['attempt']}"
    rule = one_line(incident["rule"]) + (f" ({one_line(incident['fault'])})" if incident["fault"] else "")
    rows: list[tuple[str, str, str | None]] = [("seen", f"{rule}: {one_line(incident['message'])}", None)]
    rows.append(("done", done(incident), OUTCOME_STYLES.get(incident["outcome"])))
    rows += _finding(incident.get("finding"))
    if incident["remedy"] is not None:
        why = one_line(incident["remedy_why"] or "")
        rows.append(("remedy", f"{one_line(incident['remedy'])} against {one_line(incident['cause'])}: {why}", None))
    cost = lost(incident)
    if cost:
        rows.append(("cost", cost, None))
    rows.append(("more", f"supervisorctl show {one_line(incident['id'])}", "dim"))
    width = None if pen.width is None else pen.width - LABEL
    body = [
        f"{label:>{LABEL - 2}}  {pen.paint(text if width is None else cut(text, width), style)}"
        for label, text, style in rows
    ]
    return [pen.paint(head, "bold"), *body]


def _finding(finding: dict[str, Any] | None) -> list[tuple[str, str, str | None]]:
    """Return what a triage said, and the files to look at."""
    if finding is None:
        return []
    verdict = one_line(finding["verdict"]).replace("_", " ")
    files = [one_line(one) for one in finding["files"]]
    rows: list[tuple[str, str, str | None]] = [("triage", f"{verdict}: {one_line(finding['words'])}", None)]
    if files:
        more = f" and {len(files) - FILES_SHOWN} more" if len(files) > FILES_SHOWN else ""
        rows.append(("look at", ", ".join(files[:FILES_SHOWN]) + more, None))
    return rows


def done(incident: dict[str, Any]) -> str:
    """Return what was done and where it went on, as a sentence."""
    did = DONE.get(incident["decision"], one_line(incident["decision"]))
    match incident["outcome"]:
        case "resumed":
            return f"{did}, resumed from {point(incident['resumed_from'])}"
        case "restarted":
            return f"{did}, started again from the beginning"
        case "gave_up":
            why = one_line(incident["reason"] or "no reason recorded")
            return f"given up: {why}" if did == "given up" else f"{did}, given up: {why}"
        case "stopped":
            return f"{did}, then stopped by its user"
        case "overtaken":
            return f"{did}, started again, and that ended before its first step (see the next)"
        case "open":
            return f"{did}, not over yet"
        case other:
            return f"{did}, {one_line(other)}"


def point(resumed_from: dict[str, Any] | None) -> str:
    """Return a checkpoint as epoch, step and the end of its path."""
    if resumed_from is None:
        return "a checkpoint"
    path = "/".join(one_line(resumed_from["source"] or resumed_from["path"]).split("/")[-2:])
    known = []
    if resumed_from["epoch"] is not None:
        known.append(f"epoch {epoch(resumed_from['epoch'])}")
    if resumed_from["step"] is not None:
        known.append(f"step {resumed_from['step']}")
    return f"{', '.join(known)} ({path})" if known else path


def lost(incident: dict[str, Any]) -> str:
    """Return what it cost; empty where nothing of it is known yet."""
    parts = []
    if incident["lost_steps"] is not None:
        steps = incident["lost_steps"]
        parts.append("no step lost" if steps == 0 else f"{steps} step{'s' if steps != 1 else ''} to be made again")
    if incident["downtime_s"] is not None:
        parts.append(f"{span(incident['downtime_s'])} down")
    return ", ".join(parts)


def _shadows(app: App, job: str | None, limit: int) -> None:
    answer = app.get_or("/v1/shadows", lambda: _left_shadows(app, job, limit), job=job, limit=limit)
    if app.json:
        app.print_json(answer)
        return
    if not answer["flags"]:
        app.print("no rule in shadow would have acted" + (f" on {one_line(job)}" if job else ""))
    for flag in answer["flags"]:
        when = f"{ago(flag['at'], app.now())} ({clock_time(flag['at'])})"
        app.print(app.pen.paint(f"{when}  {one_line(flag['job'])}, attempt {flag['attempt']}", "bold"))
        app.print(f"{'would act':>{LABEL - 2}}  {one_line(flag['rule'])}: {one_line(flag['message'])}")


def _left_shadows(app: App, job: str | None, limit: int) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.shadows(app, job, limit)


def _left(app: App, job: str | None, limit: int) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    return left.incidents(app, job, limit)
