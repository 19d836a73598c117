"""What start, stop and restart have in common: telling the daemon, and, when asked to, waiting for it to come true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from supervisor.cli.app import App, CliError
from supervisor.control.client import quoted
from supervisor.core.harmless import one_line

PACE_S = 0.1
ENDED = ("finished", "failed", "stopped")
Job = dict[str, Any]
Verdict = Callable[[Job, Job], bool]
"""Of the job as it was and as it is: whether the wish has come true."""


def wait_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --wait and --timeout to a command."""
    command = click.option(
        "--timeout", "timeout_s", type=click.FloatRange(min=0), default=300.0, show_default=True, metavar="S",
        help="With --wait: seconds after which it is given up.",
    )(command)  # fmt: skip
    return click.option("--wait", is_flag=True, help="Return only when it is done.")(command)


def wish(app: App, job: str, ask: str, come_true: Verdict | None, timeout_s: float, **body: object) -> None:
    """Tell the daemon; with `come_true` wait for it, and raise CliError where it turns out otherwise."""
    before = job_now(app, job)
    answer = app.post(f"/v1/jobs/{quoted(job)}/{ask}", **body)
    after = before if come_true is None else _wait(app, before, come_true, timeout_s)
    if app.json:
        app.print_json({**answer, "job_status": after} if come_true else answer)
    elif come_true is None:
        app.print(f"{one_line(job)}: {ask} asked for")
    else:
        app.print(f"{one_line(job)}: {one_line(after['phase'])}")


def job_now(app: App, job: str) -> Job:
    """Return the job's part of the status."""
    jobs: list[Job] = app.get("/v1/status")["jobs"]
    found = next((one for one in jobs if one["name"] == job), None)
    if found is None:
        names = ", ".join(one["name"] for one in jobs) or "none"
        raise CliError(f"no job {job!r} is configured", f"configured: {names}", "no_such_job")
    return found


def runs(before: Job, after: Job) -> bool:
    """Whether the training's process is there; a job that failed anew will not come to it."""
    if after["phase"] in ENDED and _moved(before, after):
        if after["phase"] == "finished":
            return True
        reason = one_line(after["reason"] or "no reason given")
        raise CliError(
            f"{after['name']} is {after['phase']}: {reason}", f"supervisorctl logs {after['name']}", "failed"
        )
    return after["phase"] in ("starting", "running") and after["pid"] is not None


def runs_anew(before: Job, after: Job) -> bool:
    """Whether a later attempt's process is there."""
    return runs(before, after) and (after["attempt"] > before["attempt"] or after["phase"] in ENDED)


def rests(_before: Job, after: Job) -> bool:
    """Whether nothing of it runs any more."""
    return after["phase"] in ENDED


def _moved(before: Job, after: Job) -> bool:
    return any(before[key] != after[key] for key in ("phase", "since", "attempt"))


def _wait(app: App, before: Job, come_true: Verdict, timeout_s: float) -> Job:
    deadline = time.perf_counter() + timeout_s
    while True:
        after = job_now(app, before["name"])
        if come_true(before, after):
            return after
        if time.perf_counter() >= deadline:
            text = f"{after['name']} is still {after['phase']} after {timeout_s:g} s"
            raise CliError(text, "it goes on; see supervisorctl status", "timeout")
        time.sleep(PACE_S)
