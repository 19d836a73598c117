"""`supervisorctl triage INCIDENT`: replay a bad step to find whether data, numerics or hardware caused it."""

from __future__ import annotations

import contextlib
import grp
import json
import math
import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor import untrusted_files
from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError, RefusedError
from supervisor.cli.lifecycle.request import is_training
from supervisor.cli.name_completion import complete_incident
from supervisor.cli.unneeded_root import refuse_root, user_name
from supervisor.control.client import quoted
from supervisor.core import attempt_files as names
from supervisor.core.sanitize import one_line

RECORDS_LIMIT_BYTES = 1 << 20
"""The evidence holds the last 200 steps."""

if TYPE_CHECKING:
    from supervisor.runner.evidence_folder import EvidenceFolder
    from supervisor.runner.triage import Case


@click.command("triage")
@click.argument("incident", shell_complete=complete_incident)
@click.option(
    "--step", type=click.IntRange(1), help="The bad step (default: the first non-finite one of the evidence)."
)
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Folder for the results (default: the incident's evidence)."
)
@click.option(
    "--limit-s", type=click.FloatRange(1), default=1800.0, show_default=True, help="Time limit of each replay, seconds."
)
@click.option("--while-training", is_flag=True, help="Run even while the job trains; both then share GPU and memory.")
@json_option
@pass_app
def command(  # noqa: PLR0913, PLR0917 - one an option
    app: App,
    incident: str,
    step: int | None,
    folder: Path | None,
    limit_s: float,
    while_training: bool,  # noqa: FBT001
) -> None:
    """Replay the step at which loss or gradients of INCIDENT became non-finite, and report the cause.

    The job's own command resumes from the newest proven state before that step and ends right after it: first
    unchanged, then as needed without mixed precision, on the CPU, and with another batch. A script that writes its own
    files writes them during a replay too.
    """
    from supervisor.runner import triage  # noqa: PLC0415  # other commands do not need it
    from supervisor.runner.code_copy import temporary_copy  # noqa: PLC0415  # as above
    from supervisor.runner.evidence_folder import EvidenceFolder  # noqa: PLC0415  # as above

    found = _get_incident(app, incident)
    evidence = Path(found["evidence"] or "")
    if not found["evidence"]:
        raise CliError(f"no evidence of {one_line(incident)} was collected", "see supervisorctl show", "no_evidence")
    attempt = evidence.parent.parent
    refuse_root(app, f"triage {incident}", _as_its_user(attempt, incident))
    _refuse_while_training(app, found["job"], allowed=while_training)
    _refuse_stranger(attempt, incident)
    target = EvidenceFolder(*((folder.parent, folder.name) if folder else (evidence, names.TRIAGE)))
    case = _plan_case(app, found, step, target, limit_s)
    try:
        with temporary_copy() as code:  # replays take long; an upgrade meanwhile must not change their code
            finding, replays = triage.triage(case, lambda name: click.echo(f"replaying: {name}", err=True), code)
    except (OSError, ValueError) as error:
        raise CliError(f"cannot be replayed: {error}", "give a writable folder: --folder DIR") from error
    if app.json:
        app.print_json({"schema": 1, "finding": asdict(finding), "replays": [asdict(replay) for replay in replays]})
    else:
        app.print("\n".join(one_line(line) for line in triage.lines(finding, replays)))


def _plan_case(app: App, found: dict[str, Any], step: int | None, target: EvidenceFolder, limit_s: float) -> Case:
    """Return what is to be replayed of an incident; `step` is the bad one, None: the first of its evidence."""
    from supervisor.runner.triage import Case  # noqa: PLC0415  # as above

    evidence = Path(found["evidence"])
    attempt, gradients = evidence.parent.parent, found["rule"] == "non_finite_grad"
    bad = step or _bad_step(evidence, "grad_norm" if gradients else "loss")
    checkpoint, checkpoint_step = _find_state_before(app, found["job"], bad)
    return Case(
        attempt=attempt,
        step=bad,
        looked_for="gradients" if gradients else "loss",
        losses=_read_losses(attempt, bad),
        checkpoint=checkpoint,
        checkpoint_step=checkpoint_step,
        target=target,
        limit_s=limit_s,
    )


def _get_incident(app: App, incident: str) -> dict[str, Any]:
    answer = app.get_recorded(f"/v1/incidents/{quoted(incident)}")
    found: dict[str, Any] = answer["incident"]
    return found


def _refuse_while_training(app: App, job: str, *, allowed: bool) -> None:
    if not allowed and is_training(app, job):
        raise RefusedError(
            f"{job} trains, or will be started again",
            f"supervisorctl stop {job} first, or add --while-training",
            "refused",
        )


def _as_its_user(attempt: Path, incident: str) -> str:
    """Return the command that replays as the training's user, with the group that lets it into the attempts' folders.

    If the folder is not readable, the user is not known, and USER is left to be filled in.
    """
    try:
        shim = untrusted_files.file_status(attempt, names.SHIM)
    except OSError:
        shim = None
    user = "USER" if shim is None else user_name(shim.st_uid)
    group = ""
    with contextlib.suppress(OSError, KeyError):
        jobs = attempt.parent.parent.stat()
        group = f" -g {grp.getgrgid(jobs.st_gid).gr_name}" if jobs.st_mode & stat.S_ISGID else ""
    return f"as the training's user: sudo -u {user}{group} supervisorctl triage {one_line(incident)} --folder DIR"


def _refuse_stranger(attempt: Path, incident: str) -> None:
    """Refuse to run a training's command as anybody but the user who ran it."""
    try:
        status = untrusted_files.file_status(attempt, names.SHIM)
    except OSError as error:
        raise CliError(f"{attempt}: {error.strerror}", _as_its_user(attempt, incident)) from error
    if status is None:
        raise CliError(f"{attempt}: no shim was started there", "see supervisorctl show", "no_attempt")
    if status.st_uid != os.geteuid():
        raise RefusedError("the training ran as another user", _as_its_user(attempt, incident), "refused")


def _read_losses(attempt: Path, bad: int) -> dict[int, float]:
    """Return the losses recorded by this attempt and earlier ones, to check that a replay equals the training."""
    from supervisor.daemon.checkpoints.past_losses import past_losses  # noqa: PLC0415
    from supervisor.daemon.clock import SystemClock  # noqa: PLC0415  # as above

    number = int(attempt.name) if attempt.name.isdigit() else 0
    folders = [attempt.parent / str(index) for index in range(number, 0, -1)]
    return past_losses(folders, bad, SystemClock().now())


def _bad_step(evidence: Path, what: str) -> int:
    try:
        name = f"{evidence.parent.name}/{evidence.name}/records.jsonl"
        rows = untrusted_files.read_bytes(evidence.parent.parent, name, RECORDS_LIMIT_BYTES).splitlines()
    except OSError:
        rows = []
    for row in map(json.loads, rows):
        value = row.get(what)
        number = float(value) if isinstance(value, str | float | int) else 0.0
        if not math.isfinite(number):
            return int(row["step"])
    raise CliError(f"no non-finite {what} in the evidence", "give the step: --step N", "no_step")


def _find_state_before(app: App, job: str, step: int) -> tuple[Path | None, int | None]:
    """Return the newest proven state before a step, and its step; (None, None): replay from the beginning."""
    answer = app.get_recorded(f"/v1/jobs/{quoted(job)}/checkpoints")
    good = [
        checkpoint
        for checkpoint in answer["checkpoints"]
        if checkpoint["verdict"] == "proven"
        and checkpoint["step"] is not None
        and checkpoint["step"] < step
        and Path(checkpoint["path"]).exists()
    ]
    # From a snapshot the steps are repeated exactly; after a framework's own checkpoint the batches may differ.
    newest = max(good, key=lambda item: (item["kind"] == "snapshot", item["step"]), default=None)
    return (None, None) if newest is None else (Path(newest["path"]), newest["step"])
