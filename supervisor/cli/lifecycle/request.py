"""What start, stop and restart share: sending the request, and with --wait polling until it is done."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from supervisor.cli.app import App
from supervisor.cli.errors import CliError, raise_no_such_job
from supervisor.control.client import quoted
from supervisor.core.sanitize import one_line

POLL_INTERVAL_S = 0.1
ENDED = ("finished", "failed", "stopped")
ALIVE = frozenset({"starting", "running", "stopping", "killing", "backoff"})
"""Phases in which a process uses the GPU, or may at any moment."""
Job = dict[str, Any]
Condition = Callable[[Job, Job], bool]
"""Of the job before the request and now: whether the request is done."""


def wait_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --wait and --timeout to a command."""
    command = click.option(
        "--timeout", "timeout_s", type=click.FloatRange(min=0), default=300.0, show_default=True, metavar="S",
        help="With --wait: give up after this many seconds.",
    )(command)  # fmt: skip
    return click.option("--wait", is_flag=True, help="Return when the request is done.")(command)


def request(app: App, job: str, ask: str, until: Condition | None, timeout_s: float, **body: object) -> None:
    """Send a request to the daemon; with `until` wait for that condition, and raise CliError if it is not met."""
    before = job_now(app, job)
    answer = app.post(f"/v1/jobs/{quoted(job)}/{ask}", **body)
    after = before if until is None else _wait_until(app, before, until, timeout_s)
    if app.json:
        app.print_json({**answer, "job_status": after} if until else answer)
    elif until is None:
        app.print(f"{one_line(job)}: {ask} requested")
    else:
        app.print(f"{one_line(job)}: {one_line(after['phase'])}")


def job_now(app: App, job: str) -> Job:
    """Return the job's entry of GET /v1/status."""
    jobs: list[Job] = app.get("/v1/status")["jobs"]
    found = next((entry for entry in jobs if entry["name"] == job), None)
    if found is None:
        raise_no_such_job(job, [entry["name"] for entry in jobs])
    return found


def is_running(before: Job, after: Job) -> bool:
    """Whether the training's process is running; raise CliError if the job has ended since the request."""
    if after["phase"] in ENDED and _has_changed(before, after):
        if after["phase"] == "finished":
            return True
        reason = one_line(after["reason"] or "no reason given")
        raise CliError(
            f"{after['name']} is {after['phase']}: {reason}", f"supervisorctl logs {after['name']}", "failed"
        )
    return after["phase"] in ("starting", "running") and after["pid"] is not None


def is_restarted(before: Job, after: Job) -> bool:
    """Whether the process of a later attempt is running."""
    return is_running(before, after) and (after["attempt"] > before["attempt"] or after["phase"] in ENDED)


def is_stopped(_before: Job, after: Job) -> bool:
    """Whether no process of the job is left."""
    return after["phase"] in ENDED


def _has_changed(before: Job, after: Job) -> bool:
    return any(before[key] != after[key] for key in ("phase", "since", "attempt"))


def _wait_until(app: App, before: Job, until: Condition, timeout_s: float) -> Job:
    deadline = time.perf_counter() + timeout_s
    while True:
        after = job_now(app, before["name"])
        if until(before, after):
            return after
        if time.perf_counter() >= deadline:
            text = f"{after['name']} is still {after['phase']} after {timeout_s:g} s"
            raise CliError(text, "the request stays in effect; see supervisorctl status", "timeout")
        time.sleep(POLL_INTERVAL_S)


def is_training(app: App, job: str) -> bool:
    """Whether a job may use its GPU now; False without a daemon that could tell."""
    try:
        jobs = app.get("/v1/status", watched=0)["jobs"]
    except CliError:
        return False
    return any(item["name"] == job and item["phase"] in ALIVE for item in jobs)
