"""`supervisorctl doctor`: checks this machine, its configuration and the daemon, and prints a hint for each problem."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from supervisor.children.path_looks import PathLooks, find_silent
from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.doctor import checks, rocm
from supervisor.cli.doctor.shipping import shipping
from supervisor.cli.table import Pen, cells
from supervisor.config import Settings
from supervisor.config.load import find_silent_part
from supervisor.control.client import Client, ControlError
from supervisor.control.types import Doctor, DoctorLine
from supervisor.core.sanitize import one_line

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor")
@json_option
@pass_app
def command(app: App) -> None:
    """Check what the daemon needs, and query the daemon if it runs; exits with 1 if a check fails."""
    lines = run_checks(app)
    if app.json:
        app.print_json(msgspec.to_builtins(Doctor(lines=lines)))
    else:
        app.print("\n".join(_format_lines(lines, app.pen)))
    if any(doctor_line.level == "fail" for doctor_line in lines):
        end(exit_codes.FAILED)


def run_checks(app: App) -> list[DoctorLine]:
    """Return the result of every check: those made here, then the daemon's or the substitutes for them."""
    with PathLooks() as looks:
        about_config, settings = checks.configuration(app.config, looks)
        lines = [
            *checks.interpreter(),
            *checks.sqlite(),
            *about_config,
            *checks.disk(settings, looks),
            *checks.devices(),
            *checks.training_units(),
            *checks.engine(os.environ),
        ]
        lines += [*rocm.nvidia_devices(), *rocm.sensor_files(app.sys_root), *rocm.rocm()]
        lines += [*rocm.overrides(settings, os.environ), *rocm.variables(settings, os.environ)]
        if (silent := _find_silent_before_daemon(app, settings, looks)) is not None:
            return [*lines, checks.silent_line("daemon", "not asked", silent)]
    return [*lines, *shipping(settings, app.now()), *_check_daemon(app, settings)]


def _find_silent_before_daemon(app: App, settings: Settings, looks: PathLooks) -> str | None:
    """Return what does not answer of what the daemon is found by; its socket is looked for in the others."""
    return (
        find_silent_part(app.config, looks)
        or find_silent(looks, Path(settings.supervisor.state_dir))
        or find_silent(looks, app.socket.parent)
    )


def _check_daemon(app: App, settings: Settings) -> list[DoctorLine]:
    client = Client(app.socket)
    try:
        daemon = client.get("/v1/status", watched=0)["daemon"]
        reported = msgspec.convert(client.get("/v1/doctor"), Doctor).lines
    except (ControlError, KeyError, msgspec.ValidationError) as error:
        remedy = error.remedy if isinstance(error, ControlError) else "the daemon may be of another version: restart it"
        absent = DoctorLine(name="daemon", level="fail", found=str(error), remedy=remedy)
        substitutes = (
            *checks.launcher(settings),
            *checks.kernel_log(settings),
            *checks.gpus(settings, app.sys_root),
        )
        return [absent, *substitutes]
    problem = daemon["problem"]
    found = f"{daemon['version']}, pid {daemon['pid']}, at {app.socket}" + (f": {problem}" if problem else "")
    return [DoctorLine(name="daemon", level="fail" if problem else "ok", found=found), *reported]


def _format_lines(lines: Sequence[DoctorLine], pen: Pen) -> list[str]:
    width = max(cells(one_line(doctor_line.name)) for doctor_line in lines)
    text = []
    for doctor_line in lines:
        level = pen.paint(f"{doctor_line.level:<4}", STYLES.get(doctor_line.level))
        text.append(f"{level}  {one_line(doctor_line.name):<{width}}  {one_line(doctor_line.found)}")
        if doctor_line.remedy and doctor_line.level != "ok":
            text.append(f"{'':<{width + 6}}  try: {one_line(doctor_line.remedy)}")
    return text
