"""`supervisorctl history`: the recorded incidents and the outages of the daemon, a few lines each."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.formatting import ago, clock_time, epoch, span
from supervisor.cli.name_completion import complete_job
from supervisor.cli.since import Given, since_option, since_unix_s
from supervisor.cli.table import Pen, cut
from supervisor.core.checkpoints.checkpoint import describe_paths
from supervisor.core.sanitize import one_line

LABEL = 12
FILES_SHOWN = 4
DONE = {
    "stop": "stopped",
    "kill": "killed",
    "retry": "process exited",
    "give_up": "given up",
}
NOT_LAUNCHED = "launch"
"""The rule of an attempt that could not be started (`core.job.LAUNCH`, whose module takes long to import)."""
OUTCOME_STYLES = {
    "gave_up": "red",
    "open": "yellow",
    "resumed": "green",
    "restarted": "yellow",
    "checkpoint_ignored": "red",
    "resumed_later": "green",
}


@click.command("history")
@click.argument("job", required=False, shell_complete=complete_job)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Incidents shown, at most."
)
@click.option("--shadow", is_flag=True, help='Flags of rules with act = "shadow", which take no action.')
@since_option
@json_option
@pass_app
def command(app: App, job: str | None, limit: int, since: Given | None, *, shadow: bool) -> None:
    """List the incidents of every job or of JOB, the newest first: what was detected, done and lost.

    Outages are listed among them: times of 5 s and more in which a training ran without the daemon. The time after
    a stop of the daemon is none, since its trainings end with it; `account` counts it as stopped by the user.
    """
    from_unix_s = since_unix_s(since, app.now())
    if shadow:
        _print_shadows(app, job, limit, from_unix_s)
        return
    answer = app.get_recorded("/v1/incidents", job=job, limit=limit)
    answer["outages"] = answer.get("outages", [])
    for kind in ("incidents", "outages"):  # the newest come first, so this filter keeps the newest since then
        answer[kind] = [entry for entry in answer[kind] if _is_since(entry, from_unix_s)]
    if app.json:
        app.print_json(answer)
        return
    found = sorted((*answer["incidents"], *answer["outages"]), key=lambda entry: float(entry["at"]), reverse=True)
    if not found:
        when = "" if from_unix_s is None else f" since {clock_time(from_unix_s)}"
        app.print("no incident" + (f" of {one_line(job)}" if job else "") + f" is recorded{when}")
    for index, entry in enumerate(found[:limit]):
        format_entry = outage_story if "until" in entry else story
        app.print("\n".join(([""] if index else []) + format_entry(entry, app.now(), app.pen)))


def _is_since(entry: dict[str, Any], from_unix_s: float | None) -> bool:
    return from_unix_s is None or entry["at"] >= from_unix_s


def outage_story(outage: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return an outage of the daemon as lines: when, and from when to when it did not run."""
    began, ended = clock_time(outage["at"]), clock_time(outage["until"])
    same_day = began.split(" ")[0] == ended.split(" ")[0]
    times = f"{began.split(' ')[-1]} - {ended.split(' ')[-1]}" if same_day else f"{began.split(' ')[-1]} - {ended}"
    head = f"{ago(outage['at'], now)} ({began})  {_name_job(outage)}, attempt {outage['attempt']}"
    text = f"daemon not running {times} ({span(outage['until'] - outage['at'])})"
    if pen.width is not None:
        head, text = cut(head, pen.width), cut(text, pen.width - LABEL)
    return [pen.paint(head, "bold"), f"{'outage':>{LABEL - 2}}  {pen.paint(text, 'yellow')}"]


def story(incident: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return one incident as lines: when and where, what was detected, what was done, what it cost."""
    when = f"{ago(incident['at'], now)} ({clock_time(incident['at'])})"
    head = f"{when}  {_name_job(incident)}, attempt {incident['attempt']}"
    rule = one_line(incident["rule"]) + (f" ({one_line(incident['fault'])})" if incident["fault"] else "")
    rows: list[tuple[str, str, str | None]] = [("seen", f"{rule}: {one_line(incident['message'])}", None)]
    rows.append(("done", done(incident), OUTCOME_STYLES.get(incident["outcome"])))
    rows += _finding_rows(incident.get("finding"))
    if incident["remedy"] is not None:
        why = one_line(incident["remedy_why"] or "")
        rows.append(("remedy", f"{one_line(incident['remedy'])} against {one_line(incident['cause'])}: {why}", None))
    aside = [one_line(path) for path in incident.get("set_aside", ())]
    if aside:
        rows.append(("aside", f"newer checkpoints moved: {describe_paths(aside, FILES_SHOWN)}", None))
    cost = lost(incident)
    if cost:
        rows.append(("cost", cost, None))
    program = "supervisorctl --fleet" if "node" in incident else "supervisorctl"
    rows.append(("more", f"{program} show {one_line(incident['id'])}", "dim"))
    width = None if pen.width is None else pen.width - LABEL
    body = [
        f"{label:>{LABEL - 2}}  {pen.paint(text if width is None else cut(text, width), style)}"
        for label, text, style in rows
    ]
    return [pen.paint(head if pen.width is None else cut(head, pen.width), "bold"), *body]


def _name_job(entry: dict[str, Any]) -> str:
    """Return the job of an incident or an outage, with --fleet behind its node."""
    job = one_line(entry["job"])
    return f"{one_line(entry['node'])}: {job}" if "node" in entry else job


def _finding_rows(finding: dict[str, Any] | None) -> list[tuple[str, str, str | None]]:
    """Return the finding of a triage, and the files to look at."""
    if finding is None:
        return []
    verdict = one_line(finding["verdict"]).replace("_", " ")
    files = [one_line(file) for file in finding["files"]]
    rows: list[tuple[str, str, str | None]] = [("triage", f"{verdict}: {one_line(finding['words'])}", None)]
    if files:
        rows.append(("look at", describe_paths(files, FILES_SHOWN), None))
    return rows


def done(incident: dict[str, Any]) -> str:
    """Return what was done and where the training resumed, as a sentence."""
    did = DONE.get(incident["decision"], one_line(incident["decision"]))
    if incident["rule"] == NOT_LAUNCHED and incident["decision"] == "retry":
        did = "not started"
    match incident["outcome"]:
        case "resumed":
            return f"{did}, {_describe_resume(incident)}"
        case "checkpoint_ignored":
            where = point(incident["resumed_from"])
            return f"{did}, relaunched to resume from {where}, but the training started from the beginning"
        case "resumed_later":
            where = point(incident["resumed_from"])
            return f"{did}, its program trained again what comes before, then resumed from {where}"
        case "restarted":
            return f"{did}, {_describe_restart(incident)}"
        case "gave_up":
            why = one_line(incident["reason"] or "no reason recorded")
            return f"given up: {why}" if did == "given up" else f"{did}, given up: {why}"
        case "stopped":
            return f"{did}, then stopped by the user"
        case "overtaken":
            return f"{did}, restarted, and ended before its first step (see the next incident)"
        case "open":
            return f"{did}, still open"
        case other:
            return f"{did}, {one_line(other)}"


def _describe_resume(incident: dict[str, Any]) -> str:
    """Return from which checkpoint a training was to go on, and whether it did."""
    where = point(incident["resumed_from"])
    if own := incident.get("own_file"):
        loaded = point({"epoch": None, "step": incident.get("went_on_step"), "source": None, "path": own})
        return f"relaunched to resume from {where}, but the training loaded {loaded} by itself"
    if incident.get("confirmed") is False:
        return f"relaunched to resume from {where}; not confirmed by its steps or losses"
    if incident["resumed_at"] is None:
        return f"relaunched to resume from {where}; not running again yet"
    return f"resumed from {where}"


def _describe_restart(incident: dict[str, Any]) -> str:
    """Return where a training went on that was given no checkpoint, as far as its steps show it."""
    if incident.get("went_on_step"):
        return f"restarted; went on from step {incident['went_on_step']} by itself"
    if not incident.get("loads_itself") or incident.get("went_on_step") == 0:
        return "restarted from the beginning"
    if incident["resumed_at"] is None:
        return "restarted to load its own checkpoint; not running again yet"
    return "restarted to load its own checkpoint; the step that it went on from is not known"


def point(resumed_from: dict[str, Any] | None) -> str:
    """Return a checkpoint as epoch, step and the last two parts of its path."""
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
    """Return what the incident cost; empty while it is not known."""
    parts = []
    if incident["lost_steps"] is not None:
        steps = incident["lost_steps"]
        parts.append("no step lost" if steps == 0 else f"{steps} step{'s' if steps != 1 else ''} to redo")
    if incident["downtime_s"] is not None:
        parts.append(f"{span(incident['downtime_s'])} down")
    return ", ".join(parts)


def _print_shadows(app: App, job: str | None, limit: int, from_unix_s: float | None) -> None:
    answer = app.get_recorded("/v1/shadows", job=job, limit=limit)
    answer["flags"] = [entry for entry in answer["flags"] if _is_since(entry, from_unix_s)]
    if app.json:
        app.print_json(answer)
        return
    if not answer["flags"]:
        app.print("no rule in shadow has raised a flag" + (f" for {one_line(job)}" if job else ""))
    for flag in answer["flags"]:
        when = f"{ago(flag['at'], app.now())} ({clock_time(flag['at'])})"
        app.print(app.pen.paint(f"{when}  {one_line(flag['job'])}, attempt {flag['attempt']}", "bold"))
        app.print(f"{'would act':>{LABEL - 2}}  {one_line(flag['rule'])}: {one_line(flag['message'])}")
