"""`supervisorctl status`: the state of every job and of the GPUs, from one request to the daemon."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.errors import WrongUsageError, raise_no_such_job
from supervisor.cli.formatting import ago, clock_time, epoch, number, part_of, size, span, until
from supervisor.cli.limits_view import gauge_lines
from supervisor.cli.name_completion import complete_job
from supervisor.cli.table import Cell, Pen
from supervisor.core.sanitize import one_line

MARKS = {"met": ("[x]", "green"), "not_met": ("[ ]", "red"), "unknown": ("[?]", "yellow")}
DOWN = ("failed", "stopped")
STYLES = {
    "running": "green",
    "starting": "cyan",
    "backoff": "yellow",
    "stopping": "yellow",
    "killing": "yellow",
    "failed": "red",
    "stopped": "dim",
}
JOB_HEAD = ("JOB", "PHASE", "STAGE", "ATTEMPT", "EPOCH", "STEP", "STEPS/S", "LOSS", "ETA", "RESTARTS", "WHY")
GPU_HEAD = ("GPU", "USE", "VRAM", "OF", "TEMP", "POWER", "READ", "NAME")
STALE_S = 30.0


@click.command("status")
@click.argument("job", required=False, shell_complete=complete_job)
@click.option("--all", "-a", "show_all", is_flag=True, help="With JOB: every gauge, not only those near their limit.")
@json_option
@pass_app
def command(app: App, job: str | None, *, show_all: bool) -> None:
    """Show the state of every job, or of one JOB, and the GPUs.

    With JOB also its gauges at 50 % of their limit or above; with --all every gauge.
    Exits with 3 if a job has failed or is stopped, with 4 if the daemon cannot be reached.
    """
    if show_all and job is None:
        raise WrongUsageError("--all needs a job", "supervisorctl status JOB --all")
    if app.fleet:
        from supervisor.cli.fleet.status import print_status  # noqa: PLC0415 - SQLAlchemy takes half a second to import

        end(exit_codes.NOT_RUNNING if print_status(app, job) else exit_codes.OK)
    status = app.get("/v1/status")
    if job is not None:
        names = [item["name"] for item in status["jobs"]]
        if job not in names:
            raise_no_such_job(job, names)
        status["jobs"] = [item for item in status["jobs"] if item["name"] == job]
    if app.json:
        app.print_json(status)
    else:
        text = lines(status, app.now(), app.pen)
        if job is not None:
            text += explain_in_full(status["jobs"][0], text, app.pen)
            text += gauge_lines(status["jobs"][0], app.pen, show_all=show_all)
        app.print("\n".join(text))
    if any(item["phase"] in DOWN for item in status["jobs"]):
        end(exit_codes.NOT_RUNNING)


def lines(status: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the answer to GET /v1/status as lines for people."""
    daemon = status["daemon"]
    text = [f"daemon {one_line(daemon['version'])}, pid {daemon['pid']}, up {span(daemon['uptime_s'])}"]
    if daemon["problem"]:
        text.append(pen.paint(f"problem: {one_line(daemon['problem'])}", "red"))
    text += [pen.paint(f"alerts: {one_line(why)}", "red") for why in daemon.get("alert_problems", ())]
    left = map(one_line, daemon.get("not_configured", ()))
    text += [pen.paint(f"{job}: runs unsupervised: [jobs.{job}] is not in the configuration", "red") for job in left]
    jobs = status["jobs"]
    text += ["", pen.table(JOB_HEAD, [_job_row(item, now) for item in jobs]) if jobs else "no job is configured"]
    for job in jobs:
        text += _list_remarks(job, now, pen)
        text += progress_lines(job, now, pen)
    if status["gpus"]:
        text += ["", pen.table(GPU_HEAD, [_gpu_row(item, now) for item in status["gpus"]])]
    if status["host"]:
        text += ["", *_host_lines(status["host"], pen)]
    return text


def explain_in_full(job: dict[str, Any], shown: list[str], pen: Pen) -> list[str]:
    """Return the reason of a job's phase where the table has cut it."""
    reason = one_line(job["reason"] or "")
    if not pen.width or not reason or any(reason in line for line in shown):
        return []
    return ["", *textwrap.wrap(f"{job['name']} {one_line(job['phase'])}: {reason}", pen.width)]


def _job_row(job: dict[str, Any], now: float) -> list[Cell]:
    phase = _describe_phase(job)
    return [
        Cell(one_line(job["name"]), "bold"),
        Cell(phase, STYLES.get(phase)),
        Cell(one_line(job["stage"] or "-")),
        Cell(str(job["attempt"]), right=True),
        Cell(part_of(epoch(job["epoch"]), job["epochs"]), right=True),
        Cell(_format_steps(job), right=True),
        Cell(number(job["steps_per_s"], "{:.2f}"), right=True),
        Cell(number(job["loss"], "{:.4g}"), right=True),
        Cell(until(job["eta"], now), right=True),
        Cell(str(job["restarts"]), right=True),
        Cell(one_line(job["reason"] or "")),
    ]


def _describe_phase(job: dict[str, Any]) -> str:
    """Return the phase, and what is not known of the steps of a training that runs."""
    if job["stage"] == "loop" and job["phase"] == "running":
        return "running, steps not seen"
    if job["phase"] == "running" and not job["hooked"] and job["step"] is job.get("attempt_steps") is None:
        return "running, steps not reported"
    return one_line(job["phase"])


def _format_steps(job: dict[str, Any]) -> str:
    """Return the training's steps; if only the attempt's are known, these with a leading `+`."""
    of_attempt = job.get("attempt_steps")
    if job["step"] is None and of_attempt is not None:
        return f"+{of_attempt}"
    return part_of(job["step"], job["steps_total"])


def _describe_drawn(job: dict[str, Any]) -> str:
    """Return the samples and tokens a second, as far as they are known."""
    rates = ((job.get(f"{unit}_per_s"), unit) for unit in ("samples", "tokens"))
    return ", ".join(f"{rate:,.1f} {unit}/s" for rate, unit in rates if rate is not None)


def _list_remarks(job: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the warnings and notes that are shown below the table."""
    name = one_line(job["name"])
    found = [pen.paint(f"  {name}: {one_line(flag)}", "red") for flag in job["flags"]]
    found += [pen.paint(f"  {name}: supervision degraded: {one_line(why)}", "red") for why in job.get("degraded", ())]
    drawn = _describe_drawn(job)
    if drawn:
        found.append(pen.paint(f"  {name}: {drawn}", "dim"))
    if job["shadows"]:
        count = f"{job['shadows']} flag{'s' if job['shadows'] != 1 else ''}"
        found.append(pen.paint(f"  {name}: {count} of rules in shadow: supervisorctl history --shadow {name}", "dim"))
    found += [pen.paint(f"  {name}: remedy {one_line(remedy)}", "yellow") for remedy in job["remedies"]]
    if job.get("standby"):
        found.append(pen.paint(f"  {name}: standby interpreter for the next attempt: {job['standby']}", "dim"))
    if job["unkillable"]:
        found.append(pen.paint(f"  {name}: SIGKILL does not end its process; its reason says what it waits for", "red"))
    if job["step"] is None and job.get("attempt_steps") is not None:
        made = f"attempt {job['attempt']} has made {job['attempt_steps']} steps"
        found.append(pen.paint(f"  {name}: {made}; the step that it started from is not reported", "dim"))
    if job["stage"] == "loop" and job["phase"] == "running":
        text = "each call of its compiled loop makes many steps, which are not seen; a step is counted for each call"
        found.append(pen.paint(f"  {name}: {text}", "dim"))
    elif job["phase"] == "running" and job["last_step_at"] is not None and now - job["last_step_at"] > STALE_S:
        found.append(pen.paint(f"  {name}: last step {ago(job['last_step_at'], now)}", "yellow"))
    if job["phase"] == "running" and job["pid"] is not None and not job["hooked"]:  # a start that is silent is no news
        found.append(pen.paint(f"  {name}: no reports from the training; only its process is monitored", "yellow"))
    return found


def _gpu_row(gpu: dict[str, Any], now: float) -> list[Cell]:
    hottest = max(
        (item for item in (gpu["edge_c"], gpu["junction_c"], gpu["memory_c"]) if item is not None), default=None
    )
    asleep = gpu["runtime_status"] in ("suspended", "suspending")
    return [
        Cell(one_line(gpu["gpu"]), "bold"),
        Cell("asleep" if asleep else number(gpu["gpu_busy_percent"], "{:.0f} %"), right=True),
        Cell(size(gpu["vram_used_bytes"]), right=True),
        Cell(size(gpu["vram_total_bytes"]), right=True),
        Cell(number(hottest, "{:.0f} C"), right=True),
        Cell(number(gpu["power_w"], "{:.0f} W"), right=True),
        Cell(ago(gpu["at"], now), right=True),
        Cell(one_line(gpu["name"] or gpu["source"] or "-")),
    ]


def _host_lines(host: dict[str, Any], pen: Pen) -> list[str]:
    memory = f"memory {size(host['memory_available_bytes'])} free of {size(host['memory_total_bytes'])}"
    load = f"load {number(host['load_1m'], '{:.1f}')}"
    disks = [f"{one_line(disk['path'])} {size(disk['free_bytes'])} free" for disk in host["disks"]]
    return [pen.paint("host", "bold") + "  " + ", ".join([memory, load, *disks])]


def progress_lines(job: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return when the job will be done, with bounds, and each criterion with its verdict.

    A daemon of an older version reports neither: then there are no lines.
    """
    criteria = [_criterion_line(item, pen) for item in job.get("expectations") or []]
    end = _describe_end(job, now)
    name = one_line(job["name"])
    if end is None and not criteria:
        return []
    return ["", pen.paint(name, "bold") + (f"  {end}" if end else ""), *criteria]


def _describe_end(job: dict[str, Any], now: float) -> str | None:
    eta, early, late = (job.get(field) for field in ("eta", "eta_early", "eta_late"))
    if eta is None or early is None or late is None:
        return None
    text = f"done {clock_time(eta)[:16]} (in {span(early - now)} to {span(late - now)})"
    epoch_s, expected, step = job.get("epoch_s"), job.get("steps_expected"), job.get("step")
    if epoch_s is not None:
        text += f", an epoch takes {span(epoch_s)}"
    if expected is not None and step is not None:
        text += f", {step} of {expected} steps expected by now"
    return text


def _criterion_line(entry: dict[str, Any], pen: Pen) -> str:
    mark, colour = MARKS.get(entry["verdict"], MARKS["unknown"])
    return f"  {pen.paint(mark, colour)} {one_line(entry['name'])}: {one_line(entry['text'])}"
