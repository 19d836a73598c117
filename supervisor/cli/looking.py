"""What `doctor` looks at by itself, one function a matter; each returns lines and repairs nothing."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from supervisor import __version__
from supervisor.cli.looking_rocm import known_troubles
from supervisor.cli.places import other_supervisor
from supervisor.config import Settings, check
from supervisor.control.types import DoctorLine, Level
from supervisor.core.moments import Moment

OLDEST_PYTHON = (3, 10)
SOUND_SQLITE = (3, 51, 3)
"""Below it two connections that write and checkpoint at once can corrupt a WAL database (sqlite.org, 2026-03-13)."""
DISK_FAIL_BYTES = 200_000_000
DISK_WARN_BYTES = 2_000_000_000
CARDS_WAIT_S = 3.0
DEVICES = (Path("/dev/kfd"), Path("/dev/dri"))


def interpreter() -> Iterator[DoctorLine]:
    """Look at Python and this package."""
    good = sys.version_info >= OLDEST_PYTHON
    yield DoctorLine(
        name="python",
        level="ok" if good else "fail",
        found=f"{platform.python_version()}, {sys.executable}",
        remedy=None if good else "the daemon needs Python 3.10 or newer; trainings may run on any",
    )
    other = other_supervisor()
    yield DoctorLine(
        name="package",
        level="ok" if other is None else "warn",
        found=f"rocm-supervisor {__version__}" + ("" if other is None else f", and {other.name} shares its names"),
        remedy=None if other is None else "install one of the two in an environment of its own (pipx, or a venv)",
    )


def sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> Iterator[DoctorLine]:
    """Look at the SQLite library that Python brought."""
    sound, text = version >= SOUND_SQLITE, ".".join(map(str, version))
    yield DoctorLine(
        name="sqlite",
        level="ok" if sound else "warn",
        found=text if sound else f"{text} has the WAL-reset bug (fixed in 3.51.3)",
        remedy=None if sound else "the daemon works round it by writing through one connection; let nothing else write",
    )


def configuration(path: Path) -> tuple[list[DoctorLine], Settings]:
    """Look at the configuration; return its settings too, or the defaults where it cannot be used."""
    if not path.exists():
        line = DoctorLine(
            name="config", level="fail", found=f"there is no {path}", remedy="supervisorctl setup writes one"
        )
        return [line], Settings()
    checked = check(path)
    lines = [
        DoctorLine(
            name="config",
            level="fail" if one.level.value == "error" else "warn",
            found=f"{one.file}: {one.key or 'file'} {one.problem}",
            remedy=one.allowed,
        )
        for one in checked.problems
    ]
    if checked.settings is None:
        return lines, Settings()
    jobs = ", ".join(checked.settings.jobs) or "none"
    level: Level = "ok" if checked.settings.jobs else "warn"
    remedy = None if checked.settings.jobs else f"write a [jobs.NAME] into {path}"
    return [
        *lines,
        DoctorLine(name="config", level=level, found=f"{path}, jobs: {jobs}", remedy=remedy),
    ], checked.settings


def disk(settings: Settings) -> Iterator[DoctorLine]:
    """Look at the room for the state, with the limits of the rule `disk_low`."""
    state = Path(settings.supervisor.state_dir)
    there = next((one for one in (state, *state.parents) if one.is_dir()), Path("/"))
    free = shutil.disk_usage(there).free
    level: Level = "fail" if free < DISK_FAIL_BYTES else "warn" if free < DISK_WARN_BYTES else "ok"
    found = f"{free / 1e9:.1f} GB free for {state}" + ("" if there == state else ", which is not made yet")
    yield DoctorLine(
        name="disk", level=level, found=found, remedy=None if level == "ok" else f"make room on the disk of {there}"
    )


def devices(roots: tuple[Path, ...] = DEVICES) -> Iterator[DoctorLine]:
    """Look at whether this user may use the cards: ROCm wants /dev/kfd and /dev/dri/renderD*."""
    kfd, dri = roots
    nodes = [one for one in (kfd, *sorted(dri.glob("renderD*"))) if one.exists()]
    if not nodes:
        remedy = "load the amdgpu driver; trainings on the CPU need none"
        yield DoctorLine(name="devices", level="warn", found=f"neither {kfd} nor {dri}/renderD*", remedy=remedy)
    for node in nodes:
        may = os.access(node, os.R_OK | os.W_OK)
        join = None if may else f"sudo usermod -aG {_group(node)} $USER, then log in again"
        yield DoctorLine(
            name="devices",
            level="ok" if may else "fail",
            found=f"{node} is {'open to' if may else 'closed to'} this user",
            remedy=join,
        )


def kernel_log(settings: Settings) -> Iterator[DoctorLine]:
    """Look at whether this user can read the kernel log."""
    path, name = Path(settings.kernel_log.path), "kernel log"
    if not settings.kernel_log.enabled:
        yield DoctorLine(name=name, level="warn", found="switched off", remedy="set kernel_log.enabled = true")
        return
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        remedy = "run as root or with CAP_SYSLOG, as the daemon's unit does; or sysctl kernel.dmesg_restrict=0"
        instead = "; the journal is read instead, by whoever is in group systemd-journal"
        found = f"{path}: {error.strerror}" + (instead if shutil.which("journalctl") else "")
        yield DoctorLine(name=name, level="warn", found=found, remedy=remedy)
    else:
        yield DoctorLine(name=name, level="ok", found=f"{path} can be read")


def cards(settings: Settings, sys_root: Path = Path("/sys")) -> Iterator[DoctorLine]:
    """Look at the sources of readings and at the cards that they see."""
    from supervisor.sources.gpus import GpuWatch  # noqa: PLC0415  # not needed where the daemon tells

    watch = GpuWatch(settings.telemetry.sources, sys_root)
    try:
        end = time.perf_counter() + CARDS_WAIT_S
        found = watch.read(_now())
        while not found and time.perf_counter() < end and any(one.cost_s is None for one in watch.status()):
            time.sleep(0.1)
            found = watch.read(_now())
        for one in watch.status():
            # A source that nobody had to ask stands in reserve; nothing is wrong with it.
            level: Level = "ok" if one.answering or one.cost_s is None else "warn"
            cost = f", {one.cost_s * 1000:.2f} ms a reading" if one.answering and one.cost_s is not None else ""
            yield DoctorLine(name=f"source {one.name}", level=level, found=(one.detail or "answers") + cost)
    finally:
        watch.close()
    for reading in found:
        what = " ".join(one for one in (reading.name, reading.gfx_version) if one) or "card"
        yield DoctorLine(name=f"card {reading.gpu}", level="ok", found=f"{what}, by {reading.source}")
    yield from known_troubles(found)
    if not found:
        remedy = "jobs are then judged by process, output, steps and machine alone"
        yield DoctorLine(name="cards", level="warn", found="no card answers", remedy=remedy)


def launcher(settings: Settings) -> Iterator[DoctorLine]:
    """Look at how trainings would be started, by a daemon of this user."""
    from supervisor.runner.units import available  # noqa: PLC0415  # not needed where the daemon tells

    wanted, state = settings.supervisor.launcher, Path(settings.supervisor.state_dir)
    tried = {"systemd": (False,), "systemd-user": (True,), "direct": (), "auto": (False, True)}[wanted]
    why_not = []
    for user in tried:
        reason = available(user=user, state=state)
        if reason is None:
            unit = "rocm-run@JOB.service" + (" of the user's systemd" if user else "")
            yield DoctorLine(name="launcher", level="ok", found=f"each training is a unit {unit}")
            return
        why_not.append(reason)
    if wanted.startswith("systemd"):
        remedy = 'mend that, or set supervisor.launcher = "direct", which always works'
        yield DoctorLine(name="launcher", level="fail", found="; ".join(why_not), remedy=remedy)
        return
    why = f" ({'; '.join(dict.fromkeys(why_not))})" if why_not else ""
    yield DoctorLine(name="launcher", level="ok", found=f"direct: each training is a session of its own{why}")


def _now() -> Moment:
    return Moment(time.perf_counter(), time.time_ns() / 1e9)


def _group(path: Path) -> str:
    try:
        return path.group()
    except (KeyError, OSError):
        return "render"
