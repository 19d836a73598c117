"""`supervisorctl doctor`: what is in order here and what is not, with or without a daemon; it repairs nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
import msgspec

from supervisor.cli import exits, looking, looking_rocm
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.table import Pen, cells
from supervisor.config import Settings
from supervisor.control.client import Client, ControlError
from supervisor.control.types import Doctor, DoctorLine
from supervisor.core.harmless import one_line

STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor")
@json_option
@pass_app
def command(app: App) -> None:
    """Look at what the daemon needs, and ask the daemon where it runs; exits with 1 where something fails."""
    lines = examine(app)
    if app.json:
        app.print_json(msgspec.to_builtins(Doctor(lines=lines)))
    else:
        app.print("\n".join(_shown(lines, app.pen)))
    if any(one.level == "fail" for one in lines):
        end(exits.FAILED)


def examine(app: App) -> list[DoctorLine]:
    """Return everything that was looked at: by ourselves, then by the daemon or in its place."""
    about_config, settings = looking.configuration(app.config)
    lines = [*looking.interpreter(), *looking.sqlite(), *about_config, *looking.disk(settings), *looking.devices()]
    lines += [*looking_rocm.nvidia_devices(), *looking_rocm.sensor_files(app.sys_root), *looking_rocm.rocm()]
    lines += looking_rocm.overrides(settings, os.environ)
    return lines + _daemon(app, settings)


def _daemon(app: App, settings: Settings) -> list[DoctorLine]:
    client = Client(app.socket)
    try:
        daemon = client.get("/v1/status")["daemon"]
        told = msgspec.convert(client.get("/v1/doctor"), Doctor).lines
    except (ControlError, KeyError, msgspec.ValidationError) as error:
        remedy = error.remedy if isinstance(error, ControlError) else "is it of another version?"
        absent = DoctorLine(name="daemon", level="fail", found=str(error), remedy=remedy)
        looked = (*looking.launcher(settings), *looking.kernel_log(settings), *looking.cards(settings, app.sys_root))
        return [absent, *looked]
    problem = daemon["problem"]
    found = f"{daemon['version']}, pid {daemon['pid']}, at {app.socket}" + (f": {problem}" if problem else "")
    return [DoctorLine(name="daemon", level="fail" if problem else "ok", found=found), *told]


def _shown(lines: Sequence[DoctorLine], pen: Pen) -> list[str]:
    width = max(cells(one_line(one.name)) for one in lines)
    text = []
    for one in lines:
        level = pen.paint(f"{one.level:<4}", STYLES.get(one.level))
        text.append(f"{level}  {one_line(one.name):<{width}}  {one_line(one.found)}")
        if one.remedy and one.level != "ok":
            text.append(f"{'':<{width + 6}}  try: {one_line(one.remedy)}")
    return text
