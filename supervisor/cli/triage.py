"""`supervisorctl triage INCIDENT`: data, numerics or hardware? It replays a bad step and changes no training."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from supervisor.cli.app import App, CliError, RefusedError, json_option, pass_app
from supervisor.control.client import quoted
from supervisor.core import folder as names
from supervisor.core.harmless import one_line

ALIVE = frozenset({"starting", "running", "stopping", "killing", "backoff"})
"""Phases in which something is on the card, or may be at any moment."""


@click.command("triage")
@click.argument("incident")
@click.option("--step", type=click.IntRange(1), help="The bad step; else the first of the evidence that is no number.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to write (default: the incident's evidence).")
@click.option("--limit-s", type=click.FloatRange(1), default=1800.0, show_default=True, help="For each replay.")
@click.option("--beside", is_flag=True, help="Even while the job trains: both share card and memory then.")
@json_option
@pass_app
def command(  # noqa: PLR0913, PLR0917 - one an option
    app: App,
    incident: str,
    step: int | None,
    folder: Path | None,
    limit_s: float,
    beside: bool,  # noqa: FBT001
) -> None:
    """Replay the step at which loss or gradients of INCIDENT ceased to be numbers, and say what was to blame.

    The job's own command resumes from the newest proven state before that step and ends right after it: as it was,
    then, as far as that tells more, without mixed precision, on the CPU, and with another batch. A script that writes
    files of its own writes them here too.
    """
    from supervisor.runner import triage  # noqa: PLC0415  # other commands need none of it

    found = _incident(app, incident)
    evidence = Path(found["evidence"] or "")
    if not found["evidence"] or not evidence.is_dir():
        raise CliError(f"no evidence of {one_line(incident)} was taken", "supervisorctl show tells why", "no_evidence")
    _refuse_beside(app, found["job"], beside=beside)
    attempt = evidence.parent.parent
    _refuse_stranger(attempt)
    gradients = found["rule"] == "non_finite_grad"
    bad = step or _bad_step(evidence, "grad_norm" if gradients else "loss")
    case = triage.Case(
        attempt=attempt,
        step=bad,
        looked_for="gradients" if gradients else "loss",
        losses=_losses(attempt, bad),
        checkpoint=_before(app, found["job"], bad),
        target=folder or evidence / "triage",
        limit_s=limit_s,
    )
    try:
        finding, replays = triage.triage(case, lambda name: click.echo(f"replaying: {name}", err=True))
    except (OSError, ValueError) as error:
        raise CliError(f"cannot be replayed: {error}", "where it may not be written: --folder DIR") from error
    if app.json:
        app.print_json({"schema": 1, "finding": asdict(finding), "replays": [asdict(one) for one in replays]})
    else:
        app.print("\n".join(one_line(one) for one in triage.lines(finding, replays)))


def _incident(app: App, incident: str) -> dict[str, Any]:
    from supervisor.cli import left  # noqa: PLC0415  # the database is for when nobody answers

    answer = app.get_or(f"/v1/incidents/{quoted(incident)}", lambda: left.incident(app, incident))
    found: dict[str, Any] = answer["incident"]
    return found


def _refuse_beside(app: App, job: str, *, beside: bool) -> None:
    try:
        jobs = app.get("/v1/status")["jobs"]
    except CliError:
        return
    if not beside and any(one["name"] == job and one["phase"] in ALIVE for one in jobs):
        raise RefusedError(f"{job} is training", f"supervisorctl stop {job} first, or add --beside", "refused")


def _refuse_stranger(attempt: Path) -> None:
    """Refuse to run a training's command as anybody but the user who ran it."""
    try:
        owner = (attempt / names.SHIM).stat().st_uid
    except OSError as error:
        raise CliError(
            f"{attempt}: {error.strerror}", "its folder is needed: run this as the training's user"
        ) from error
    if owner != os.geteuid():
        raise RefusedError("the training ran as another user", f"run this as uid {owner}", "refused")


def _losses(attempt: Path, bad: int) -> dict[int, float]:
    """Return what this attempt and those before it recorded, by which a replay is known for the same training."""
    from supervisor.daemon.clock import SystemClock  # noqa: PLC0415  # as above
    from supervisor.daemon.old_curve import old_losses  # noqa: PLC0415

    number = int(attempt.name) if attempt.name.isdigit() else 0
    folders = [attempt.parent / str(one) for one in range(number, 0, -1)]
    return old_losses(folders, bad, SystemClock().now())


def _bad_step(evidence: Path, what: str) -> int:
    try:
        rows = (evidence / "records.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        rows = []
    for row in map(json.loads, rows):
        value = row.get(what)
        number = float(value) if isinstance(value, str | float | int) else 0.0
        if not math.isfinite(number):
            return int(row["step"])
    raise CliError(f"no {what} among the evidence that is no number", "name the step: --step N", "no_step")


def _before(app: App, job: str, step: int) -> Path | None:
    """Return the newest proven state before a step, None where the replay has to begin at the beginning."""
    from supervisor.cli import left  # noqa: PLC0415  # as above

    answer = app.get_or(f"/v1/jobs/{quoted(job)}/checkpoints", lambda: left.checkpoints(app, job))
    good = [
        one
        for one in answer["checkpoints"]
        if one["verdict"] == "proven" and one["step"] is not None and one["step"] < step and Path(one["path"]).exists()
    ]
    # From a snapshot the steps are made again as they were; a framework's own checkpoint may draw other batches.
    return Path(max(good, key=lambda one: (one["kind"] == "snapshot", one["step"]))["path"]) if good else None
