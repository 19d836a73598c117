"""The checks that `doctor` makes itself, one function per subject; each returns lines with findings and hints."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor import __version__
from supervisor.children.path_looks import Found, PathLooks, SilentPathError
from supervisor.cli.doctor.rocm import known_issues, presets
from supervisor.cli.paths import other_supervisor
from supervisor.cli.setup.plan import SYSTEM_UNITS
from supervisor.config import Settings, check
from supervisor.config.derive import rules_of
from supervisor.config.load import find_silent_part
from supervisor.control.types import DoctorLine, Level
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, cap_inodes
from supervisor.core.rules.disk_low import DiskLow

if TYPE_CHECKING:
    from supervisor.sources.gpu.gpus import SourceStatus

OLDEST_PYTHON = (3, 10)
FIXED_SQLITE = (3, 51, 3)
"""Before it, two connections that write and checkpoint at once can corrupt a WAL database (sqlite.org, 2026-03-13)."""
NOTE_OF_STOP = "/run/stop_asked"
"""What ExecStop= of the present unit writes."""
GPUS_WAIT_S = 3.0
DEVICES = (Path("/dev/kfd"), Path("/dev/dri"))


def interpreter() -> Iterator[DoctorLine]:
    """Check Python and this package."""
    good = sys.version_info >= OLDEST_PYTHON
    yield DoctorLine(
        name="python",
        level="ok" if good else "fail",
        found=f"{platform.python_version()}, {sys.executable}",
        remedy=None if good else "install Python 3.10 or newer for the daemon; trainings may use an older version",
    )
    other = other_supervisor()
    yield DoctorLine(
        name="package",
        level="ok" if other is None else "warn",
        found=f"rocm-supervisor {__version__}"
        + ("" if other is None else f"; {other.name} in this environment has the same package and command names"),
        remedy=None if other is None else "install one of them in a separate environment (pipx or a venv)",
    )


def sqlite(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> Iterator[DoctorLine]:
    """Check the SQLite library that Python uses."""
    fixed, text = version >= FIXED_SQLITE, ".".join(map(str, version))
    yield DoctorLine(
        name="sqlite",
        level="ok" if fixed else "warn",
        found=text if fixed else f"{text} can corrupt a database in WAL mode (WAL-reset bug, fixed in 3.51.3)",
        remedy=None
        if fixed
        else "the daemon avoids this with a single connection; do not let another program write to the database",
    )


def configuration(path: Path, looks: PathLooks) -> tuple[list[DoctorLine], Settings]:
    """Check the configuration; also return its settings, or the defaults if it is invalid."""
    if (silent := find_silent_part(path, looks)) is not None:
        return [silent_line("config", f"{path} cannot be read", silent)], Settings()
    if not path.exists():
        remedy = "run `supervisorctl setup`, which writes it"
        return [DoctorLine(name="config", level="fail", found=f"{path} does not exist", remedy=remedy)], Settings()
    checked = check(path)
    lines = [
        DoctorLine(
            name="config",
            level="fail" if problem.level.value == "error" else "warn",
            found=f"{problem.file}: {problem.key or 'file'} {problem.problem}",
            remedy=problem.allowed,
        )
        for problem in checked.problems
    ]
    if checked.settings is None:
        return lines, Settings()
    jobs = ", ".join(checked.settings.jobs) or "none"
    level: Level = "ok" if checked.settings.jobs else "warn"
    missing = None if checked.settings.jobs else f"add [jobs.NAME] to {path}"
    lines.append(DoctorLine(name="config", level=level, found=f"{path}, jobs: {jobs}", remedy=missing))
    return lines, checked.settings


def engine(environment: Mapping[str, str]) -> Iterator[DoctorLine]:
    """Say of an engine, where this is a part of one, how far it was tried."""
    if environment.get("KUBERNETES_SERVICE_HOST"):
        yield DoctorLine(
            name="kubernetes",
            level="warn",
            found="`--engine kubernetes` was tried against a written API server; it was not run on a cluster",
            remedy="try a stop of the leader's pod and the loss of a node before a long training depends on it",
        )


def silent_line(name: str, what: str, silent: str) -> DoctorLine:
    """Return the line of a check that was not made because a file system does not answer."""
    remedy = "check the server or device of that file system, and dmesg"
    return DoctorLine(name=name, level="fail", found=f"{what}: {silent}", remedy=remedy)


def disk(settings: Settings, looks: PathLooks) -> Iterator[DoctorLine]:
    """Check the free space for the state directory against the limits of the rule `disk_low`."""
    state = Path(settings.supervisor.state_dir).absolute()
    for existing in (state, *state.parents):
        try:
            found = looks.look(existing)
        except SilentPathError as silent:
            yield silent_line("disk", f"{state} cannot be checked", silent.explanation)
            return
        except OSError:
            continue
        if stat.S_ISDIR(found.mode) and found.read_only:
            remedy = f"see dmesg for the reason, then `mount -o remount,rw` the file system of {existing}"
            yield DoctorLine(name="disk", level="fail", found=f"{existing} is mounted read-only", remedy=remedy)
            return
        if stat.S_ISDIR(found.mode):
            rule, reading = _strictest(settings), _read_disk(existing, found)
            yield _disk_line(rule, state, reading)
            yield from _inodes_line(rule, reading)
            return


def _read_disk(path: Path, found: Found) -> DiskReading:
    """Return the reading that the rule would have of the file system of a path."""
    return DiskReading(
        path=str(path),
        free_bytes=found.free_bytes,
        total_bytes=found.total_bytes,
        free_inodes=found.free_inodes,
        total_inodes=found.total_inodes,
    )


def _strictest(settings: Settings) -> DiskLow:
    """Return the rule with the highest limits that it has for a job; its own where no job has it."""
    rules = (rule for job in settings.jobs.values() for rule in rules_of(job))
    having = [rule for rule in rules if isinstance(rule, DiskLow) and rule.enabled] or [DiskLow()]
    return DiskLow(
        warn_bytes=max(rule.warn_bytes for rule in having),
        warn_fraction=max(rule.warn_fraction for rule in having),
        limit_bytes=max(rule.limit_bytes for rule in having),
        warn_inodes=max(rule.warn_inodes for rule in having),
        limit_inodes=max(rule.limit_inodes for rule in having),
    )


def _disk_line(rule: DiskLow, state: Path, disk: DiskReading) -> DoctorLine:
    free, warn_bytes = disk.free_bytes, rule.find_warn_bytes(disk)
    level: Level = "fail" if free < rule.limit_bytes else "warn" if free < warn_bytes else "ok"
    found = f"{free / 1e9:.1f} GB free for {state}" + ("" if disk.path == str(state) else ", which does not exist yet")
    if level != "ok":
        found += f" (limit {(rule.limit_bytes if level == 'fail' else warn_bytes) / 1e9:.1f} GB)"
    remedy = None if level == "ok" else f"delete files on the disk of {disk.path}, or move supervisor.state_dir"
    return DoctorLine(name="disk", level=level, found=found, remedy=remedy)


def _inodes_line(rule: DiskLow, disk: DiskReading) -> Iterator[DoctorLine]:
    """Check the free inodes where the file system has a fixed number of them; enough of them are not worth a line."""
    fails = disk.has_few_inodes(rule.limit_inodes)
    if not (fails or disk.has_few_inodes(rule.warn_inodes)):
        return
    level: Level = "fail" if fails else "warn"
    limit = cap_inodes(disk.total_inodes or 0, rule.limit_inodes if fails else rule.warn_inodes)
    found = f"{disk.free_inodes} of {disk.total_inodes} inodes free on the disk of {disk.path} (limit {limit:.0f})"
    remedy = f"`du -x --inodes --max-depth=2 {disk.path}` names the folders with most files: remove or pack them"
    yield DoctorLine(name="disk", level=level, found=found, remedy=remedy)


def devices(roots: tuple[Path, ...] = DEVICES) -> Iterator[DoctorLine]:
    """Check whether this user may open the GPUs: ROCm needs /dev/kfd and /dev/dri/renderD*."""
    kfd, dri = roots
    nodes = [path for path in (kfd, *sorted(dri.glob("renderD*"))) if path.exists()]
    if not nodes:
        remedy = "load the amdgpu driver (`sudo modprobe amdgpu`); trainings on the CPU do not need it"
        yield DoctorLine(name="devices", level="warn", found=f"neither {kfd} nor {dri}/renderD* exists", remedy=remedy)
    for node in nodes:
        is_open = os.access(node, os.R_OK | os.W_OK)
        join = None if is_open else f"sudo usermod -aG {_group_of(node)} $USER, then log in again"
        yield DoctorLine(
            name="devices",
            level="ok" if is_open else "fail",
            found=f"{node} is {'accessible' if is_open else 'not accessible'} to this user",
            remedy=join,
        )


def kernel_log(settings: Settings) -> Iterator[DoctorLine]:
    """Check whether this user can read the kernel log."""
    path, name = Path(settings.kernel_log.path), "kernel log"
    if not settings.kernel_log.enabled:
        yield DoctorLine(name=name, level="warn", found="disabled", remedy="set kernel_log.enabled = true")
        return
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        remedy = "run as root or with CAP_SYSLOG, which the daemon's unit has; or set `sysctl kernel.dmesg_restrict=0`"
        instead = "; the journal is read instead, which needs the group systemd-journal"
        found = f"{path}: {error.strerror}" + (instead if shutil.which("journalctl") else "")
        yield DoctorLine(name=name, level="warn", found=found, remedy=remedy)
    else:
        yield DoctorLine(name=name, level="ok", found=f"{path} can be read")


def _source_line(source: SourceStatus) -> DoctorLine:
    """Return the line of a telemetry source; one that was not queried is a fallback, which is no problem."""
    level: Level = "ok" if source.answering or source.cost_s is None else "warn"
    known = source.answering and source.cost_s is not None
    cost = f", {(source.cost_s or 0.0) * 1000:.2f} ms per reading" if known else ""
    return DoctorLine(name=f"source {source.name}", level=level, found=(source.detail or "answers") + cost)


def gpus(settings: Settings, sys_root: Path = Path("/sys")) -> Iterator[DoctorLine]:
    """Check the telemetry sources and the GPUs that they report."""
    from supervisor.sources.gpu.gpus import GpuWatch  # noqa: PLC0415  # not needed if the daemon reports

    watch = GpuWatch(settings.telemetry.sources, sys_root)
    try:
        end = time.perf_counter() + GPUS_WAIT_S
        found = watch.read(_read_clocks())
        while not found and time.perf_counter() < end and any(source.cost_s is None for source in watch.status()):
            time.sleep(0.1)
            found = watch.read(_read_clocks())
        yield from map(_source_line, watch.status())
    finally:
        watch.close()
    for reading in found:
        what = " ".join(text for text in (reading.name, reading.gfx_version) if text) or "GPU"
        yield DoctorLine(name=f"gpu {reading.gpu}", level="ok", found=f"{what}, source {reading.source}")
    yield from known_issues(found)
    yield from presets(found)
    if not found:
        remedy = "check `ls /sys/class/drm`: the amdgpu driver creates an entry for each GPU"
        yield DoctorLine(name="gpus", level="warn", found="no GPU reports readings", remedy=remedy)


def launcher(settings: Settings) -> Iterator[DoctorLine]:
    """Check how a daemon of this user would start trainings."""
    from supervisor.runner.units import available  # noqa: PLC0415  # not needed if the daemon reports

    wanted, state = settings.supervisor.launcher, Path(settings.supervisor.state_dir)
    if wanted == "held":
        yield DoctorLine(name="launcher", level="ok", found="held: each training ends with the daemon")
        return
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
        remedy = 'correct this, or set supervisor.launcher = "direct", which needs no systemd'
        yield DoctorLine(name="launcher", level="fail", found="; ".join(why_not), remedy=remedy)
        return
    why = f" ({'; '.join(dict.fromkeys(why_not))})" if why_not else ""
    yield DoctorLine(name="launcher", level="ok", found=f"direct: each training runs in its own session{why}")


def training_units(places: tuple[Path, ...] | None = None) -> Iterator[DoctorLine]:
    """Check whether the installed unit of trainings notes a stop by hand, which is its user's only then."""
    mine = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for place in places or (SYSTEM_UNITS, mine / "systemd" / "user"):
        unit = place / "rocm-run@.service"
        try:
            text = unit.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if NOTE_OF_STOP not in text:
            found = (
                f"{unit} is from an earlier version: `systemctl stop rocm-run@JOB` is taken for a crash of the training"
            )
            yield DoctorLine(name="units", level="warn", found=found, remedy="run `supervisorctl setup` again")


def _read_clocks() -> Moment:
    return Moment(time.perf_counter(), time.time_ns() / 1e9)


def _group_of(path: Path) -> str:
    try:
        return path.group()
    except (KeyError, OSError):
        return "render"
