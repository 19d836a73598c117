"""`supervisorctl gpus`: the readings of every GPU, once or live, read without a daemon."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.explain.smi import reading_object
from supervisor.cli.gpus.table import lines
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.sanitize import sanitized
from supervisor.sources.gpu.gpus import SOURCES, GpuWatch, SourceStatus
from supervisor.sources.gpu.kfd_processes import merged, read_fdinfo

WAIT_S = 12.0
"""How long to wait for the first reading of sources that start a process; sysfs takes milliseconds."""
SPARKLINE_READINGS = 40
"""Readings shown in a sparkline."""
_CLEAR, _HIDE, _SHOW = "\x1b[H\x1b[J", "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@click.command("gpus")
@click.option("--watch", is_flag=True, help="Repeat until interrupted.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS")
@click.option("--count", type=click.IntRange(1), help="With --watch: end after this many readings.", metavar="N")
@json_option
@pass_app
def command(app: App, interval: float, count: int | None, *, watch: bool) -> None:
    """Show every AMD and NVIDIA GPU: use, memory, temperatures, power, errors and processes.

    Suspended GPUs are listed but not woken. With --json one object {"gpus": [...]}; with --watch one per line.
    """
    reader = GpuReader(app)
    try:
        if not watch:
            _print_once(app, *reader.read())
        elif app.json:
            for found, _ in reader.rounds(interval, count):
                click.echo(json.dumps(sanitized(_as_object(found)), ensure_ascii=False))
        else:
            _print_rounds(app, reader, interval, count)
    except KeyboardInterrupt:
        return
    finally:
        reader.close()


class GpuReader:
    """Reads the machine's GPUs and keeps their recent use."""

    def __init__(self, app: App) -> None:
        self._now = app.now
        self._watch = GpuWatch(tuple(SOURCES), app.sys_root)
        self.use: dict[str, deque[float | None]] = {}

    def read(self) -> tuple[tuple[GpuReading, ...], tuple[SourceStatus, ...]]:
        """Read the GPUs and their processes; wait for a slow source if no other reports."""
        end = time.perf_counter() + WAIT_S
        found = self._watch.read(self._read_clocks())
        while (
            not found
            and time.perf_counter() < end
            and any(source_status.cost_s is None for source_status in self._watch.status())
        ):
            time.sleep(0.1)
            found = self._watch.read(self._read_clocks())
        found = _with_clients(found)
        for reading in found:
            self.use.setdefault(reading.gpu, deque(maxlen=SPARKLINE_READINGS)).append(reading.gpu_busy_percent)
        return found, self._watch.status()

    def rounds(self, interval_s: float, count: int | None) -> Iterator[tuple[tuple[GpuReading, ...], float]]:
        """Yield the readings with their time, `interval_s` apart."""
        made = 0
        while count is None or made < count:
            if made:
                time.sleep(interval_s)
            yield self.read()[0], self._now()
            made += 1

    def close(self) -> None:
        """Close the sources."""
        self._watch.close()

    def _read_clocks(self) -> Moment:
        return Moment(time.perf_counter(), self._now())


def _with_clients(found: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
    """Return the readings with every client of the amdgpu driver that this user may inspect."""
    if all(reading.source != "sysfs" for reading in found):
        return found
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    clients = read_fdinfo(pids)
    return tuple(
        replace(reading, processes=merged(reading.processes, clients.get(reading.gpu, ()))) for reading in found
    )


def _print_once(app: App, found: tuple[GpuReading, ...], sources: tuple[SourceStatus, ...]) -> None:
    if app.json:
        app.print_json(_as_object(found))
    elif found:
        app.print("\n".join(lines(found, app.pen, {})))
    else:
        why = [f"  {source_status.name}: {source_status.detail}" for source_status in sources]
        app.print("\n".join(["no GPU reports readings", *why]))


def _print_rounds(app: App, reader: GpuReader, interval: float, count: int | None) -> None:
    screen = sys.stdout.isatty()
    if screen:
        click.echo(_HIDE, nl=False)
    try:
        for found, now in reader.rounds(interval, count):
            text = lines(found, app.pen, reader.use) if found else ["no GPU reports readings"]
            clock = time.strftime("%H:%M:%S", time.localtime(now))
            app.print((_CLEAR if screen else "") + "\n".join([clock, *text]))
    finally:
        if screen:
            click.echo(_SHOW, nl=False)


def _as_object(found: Sequence[GpuReading]) -> dict[str, object]:
    return {"schema": 1, "gpus": [reading_object(reading) for reading in found]}
