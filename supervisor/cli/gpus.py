"""`supervisorctl gpus`: every card as it stands, once or live; it reads the cards itself and needs no daemon."""

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
from supervisor.cli.explain_smi import reading_object
from supervisor.cli.gpus_table import lines
from supervisor.core.harmless import sanitized
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpus import SOURCES, GpuWatch, SourceStatus
from supervisor.sources.kfd_processes import merged, read_fdinfo

WAIT_S = 12.0
"""For the first answer of sources that spend a process; sysfs answers within milliseconds."""
KEPT = 40
"""Readings in a sparkline."""
_CLEAR, _HIDE, _SHOW = "\x1b[H\x1b[J", "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@click.command("gpus")
@click.option("--watch", is_flag=True, help="Read again and again, until interrupted.")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS")
@click.option("--count", type=click.IntRange(1), help="With --watch: end after so many readings.", metavar="N")
@json_option
@pass_app
def command(app: App, interval: float, count: int | None, *, watch: bool) -> None:
    """Show every AMD and NVIDIA card: use, memory, temperatures, power, errors, and who is on it.

    Cards that sleep are named and left asleep. With --json one object {"gpus": [...]}; with --watch one a line.
    """
    cards = Cards(app)
    try:
        if not watch:
            _print_once(app, *cards.read())
        elif app.json:
            for found, _ in cards.rounds(interval, count):
                click.echo(json.dumps(sanitized(_plain(found)), ensure_ascii=False))
        else:
            _watch(app, cards, interval, count)
    except KeyboardInterrupt:
        return
    finally:
        cards.close()


class Cards:
    """The machine's cards with what they said lately."""

    def __init__(self, app: App) -> None:
        self._now = app.now
        self._watch = GpuWatch(tuple(SOURCES), app.sys_root)
        self.use: dict[str, deque[float | None]] = {}

    def read(self) -> tuple[tuple[GpuReading, ...], tuple[SourceStatus, ...]]:
        """Read the cards and who is on them; wait for a slow source where no other answers."""
        end = time.perf_counter() + WAIT_S
        found = self._watch.read(self._moment())
        while not found and time.perf_counter() < end and any(one.cost_s is None for one in self._watch.status()):
            time.sleep(0.1)
            found = self._watch.read(self._moment())
        found = _with_clients(found)
        for one in found:
            self.use.setdefault(one.gpu, deque(maxlen=KEPT)).append(one.gpu_busy_percent)
        return found, self._watch.status()

    def rounds(self, interval_s: float, count: int | None) -> Iterator[tuple[tuple[GpuReading, ...], float]]:
        """Return readings with the time of each, `interval_s` apart."""
        made = 0
        while count is None or made < count:
            if made:
                time.sleep(interval_s)
            yield self.read()[0], self._now()
            made += 1

    def close(self) -> None:
        """Let the sources go."""
        self._watch.close()

    def _moment(self) -> Moment:
        return Moment(time.perf_counter(), self._now())


def _with_clients(found: tuple[GpuReading, ...]) -> tuple[GpuReading, ...]:
    """Return the readings with every client of the amdgpu driver that this user may look into."""
    if all(one.source != "sysfs" for one in found):
        return found
    pids = (int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())
    clients = read_fdinfo(pids)
    return tuple(replace(one, processes=merged(one.processes, clients.get(one.gpu, ()))) for one in found)


def _print_once(app: App, found: tuple[GpuReading, ...], sources: tuple[SourceStatus, ...]) -> None:
    if app.json:
        app.print_json(_plain(found))
    elif found:
        app.print("\n".join(lines(found, app.pen, {})))
    else:
        why = [f"  {one.name}: {one.detail}" for one in sources]
        app.print("\n".join(["no card answers", *why]))


def _watch(app: App, cards: Cards, interval: float, count: int | None) -> None:
    screen = sys.stdout.isatty()
    if screen:
        click.echo(_HIDE, nl=False)
    try:
        for found, now in cards.rounds(interval, count):
            text = lines(found, app.pen, cards.use) if found else ["no card answers"]
            clock = time.strftime("%H:%M:%S", time.localtime(now))
            app.print((_CLEAR if screen else "") + "\n".join([clock, *text]))
    finally:
        if screen:
            click.echo(_SHOW, nl=False)


def _plain(found: Sequence[GpuReading]) -> dict[str, object]:
    return {"schema": 1, "gpus": [reading_object(one) for one in found]}
