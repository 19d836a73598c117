"""`supervisorctl status`: where every job stands, and the cards; one question to the daemon, answered at a glance."""

from __future__ import annotations

from typing import Any

import click

from supervisor.cli import exits
from supervisor.cli.app import App, CliError, WrongUsageError, end, json_option, pass_app
from supervisor.cli.progress import progress_lines
from supervisor.cli.table import Cell, Pen
from supervisor.cli.watched import watched_lines
from supervisor.cli.words import ago, epoch, number, part_of, size, span, until
from supervisor.core.harmless import one_line

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
@click.argument("job", required=False)
@click.option("--all", "-a", "whole", is_flag=True, help="Of JOB: everything that is watched, not only what is near.")
@json_option
@pass_app
def command(app: App, job: str | None, *, whole: bool) -> None:
    """Show where every job stands, or one JOB, and the cards.

    Of one JOB also how near it is to its limits: those that are half way or further, with --all every one.
    Exits with 3 where a job has failed or is stopped, with 4 where the daemon cannot be reached.
    """
    if whole and job is None:
        raise WrongUsageError("--all is of one job", "name it: supervisorctl status JOB --all")
    status = app.get("/v1/status")
    if job is not None:
        names = [one["name"] for one in status["jobs"]]
        if job not in names:
            raise CliError(f"no job {job!r} is configured", f"configured: {', '.join(names) or 'none'}", "no_such_job")
        status["jobs"] = [one for one in status["jobs"] if one["name"] == job]
    if app.json:
        app.print_json(status)
    else:
        text = lines(status, app.now(), app.pen)
        if job is not None:
            text += watched_lines(status["jobs"][0], app.pen, whole=whole)
        app.print("\n".join(text))
    if any(one["phase"] in DOWN for one in status["jobs"]):
        end(exits.NOT_RUNNING)


def lines(status: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return the answer to GET /v1/status as lines for people."""
    daemon = status["daemon"]
    text = [f"daemon {one_line(daemon['version'])}, pid {daemon['pid']}, up {span(daemon['uptime_s'])}"]
    if daemon["problem"]:
        text.append(pen.paint(f"problem: {one_line(daemon['problem'])}", "red"))
    jobs = status["jobs"]
    text += ["", pen.table(JOB_HEAD, [_job(one, now) for one in jobs]) if jobs else "no job is configured"]
    for job in jobs:
        text += _remarks(job, now, pen)
        text += progress_lines(job, now, pen)
    if status["gpus"]:
        text += ["", pen.table(GPU_HEAD, [_gpu(one, now) for one in status["gpus"]])]
    if status["host"]:
        text += ["", *_host(status["host"], pen)]
    return text


def _job(job: dict[str, Any], now: float) -> list[Cell]:
    phase = one_line(job["phase"])
    return [
        Cell(one_line(job["name"]), "bold"),
        Cell(phase, STYLES.get(phase)),
        Cell(one_line(job["stage"] or "-")),
        Cell(str(job["attempt"]), right=True),
        Cell(part_of(epoch(job["epoch"]), job["epochs"]), right=True),
        Cell(part_of(job["step"], job["steps_total"]), right=True),
        Cell(number(job["steps_per_s"], "{:.2f}"), right=True),
        Cell(number(job["loss"], "{:.4g}"), right=True),
        Cell(until(job["eta"], now), right=True),
        Cell(str(job["restarts"]), right=True),
        Cell(one_line(job["reason"] or "")),
    ]


def _remarks(job: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return what a table has no room for and nobody may overlook."""
    name = one_line(job["name"])
    found = [pen.paint(f"  {name}: {one_line(flag)}", "red") for flag in job["flags"]]
    if job["shadows"]:
        count = f"{job['shadows']} flag{'s' if job['shadows'] != 1 else ''}"
        found.append(pen.paint(f"  {name}: {count} of rules in shadow: supervisorctl history --shadow {name}", "dim"))
    found += [pen.paint(f"  {name}: remedy {one_line(one)}", "yellow") for one in job["remedies"]]
    if job["unkillable"]:
        found.append(pen.paint(f"  {name}: SIGKILL does not end it; only a reset of its card or a reboot does", "red"))
    if job["phase"] == "running" and job["last_step_at"] is not None and now - job["last_step_at"] > STALE_S:
        found.append(pen.paint(f"  {name}: last step {ago(job['last_step_at'], now)}", "yellow"))
    if job["phase"] in ("starting", "running") and job["pid"] is not None and not job["hooked"]:
        found.append(pen.paint(f"  {name}: nothing inside the training reports; only its process is watched", "yellow"))
    return found


def _gpu(gpu: dict[str, Any], now: float) -> list[Cell]:
    hottest = max((one for one in (gpu["edge_c"], gpu["junction_c"], gpu["memory_c"]) if one is not None), default=None)
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


def _host(host: dict[str, Any], pen: Pen) -> list[str]:
    memory = f"memory {size(host['memory_available_bytes'])} free of {size(host['memory_total_bytes'])}"
    load = f"load {number(host['load_1m'], '{:.1f}')}"
    disks = [f"{one_line(one['path'])} {size(one['free_bytes'])} free" for one in host["disks"]]
    return [pen.paint("host", "bold") + "  " + ", ".join([memory, load, *disks])]
