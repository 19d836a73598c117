"""Looks at the supervisor once a second while it is attacked, and says which invariant does not hold.

What is asked for is written as `Limits`; the strict ones hold on an idle machine, the suite's allow for a busy one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from supervisor.control.client import Client, ControlError
from supervisor.daemon.thread_kinds import count_most
from tests.rigs.core_waits import OwnTime

HEALTHY, HOSTILE = "healthy", "hostile"
STALL_LIMIT_S = 3.0
RULES = {"kill": "crash", "exit": "crash", "hang": "stall", "deaf": "stall", "nan": "non_finite_loss"}
"""By the kind of wound, the rule that has to find it."""
LIMIT_IN_FORCE_S = {"hang": STALL_LIMIT_S, "deaf": STALL_LIMIT_S}
MB = 1 << 20
BODY_CHARACTERS = 300
LEAST_S = 0.001
SETTLED_S = 5.0
"""A daemon that was away has caught up after so long; what a slow machine takes more is within the limits."""
LATE_S = 2.0
"""Whatever takes longer has the thread looked at that it waits for, each time after so long again."""
FRAMES_SHOWN = 8
CROWDED = 24
"""Of more threads than so many it is noted of which kinds they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is tolerated."""

    status_s: float = 0.1
    door_s: float = 5.0
    """The page may have to be started first."""
    found_s: float = 0.5
    """Beyond the limit in force, from the wound to the incident."""
    recorded_s: float = 5.0
    """From a step to its row in the database."""
    ready_s: float = 10.0
    """From the start of a daemon to its first answer."""
    still_s: float = 15.0
    """The healthy training may stand still for so long while it is resumed."""
    rss_bytes: int = 250 * MB
    descriptors: int = 256
    log_bytes_per_s: int = 100_000
    log_bytes: int = 4 * MB
    database_bytes: int = 96 * MB

    def slackened(self, factor: float) -> Limits:
        """Return these with the limits of time multiplied."""
        times = ("status_s", "door_s", "found_s", "recorded_s", "ready_s", "still_s")
        return replace(self, **{name: getattr(self, name) * factor for name in times})


SUITE = Limits(status_s=1.5, door_s=10.0, found_s=4.0, recorded_s=12.0, ready_s=25.0, still_s=40.0)
"""Two shared cores on which other tests run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    detail: str
    actions: int
    """How many actions had been begun."""

    begun: tuple[int, ...] = ()
    """How many of them by each training."""

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.invariant}: {self.detail} (after {self.actions} actions)"


class Site(Protocol):
    """One installation under attack."""

    client: Client
    folder: Path
    """Where the trainings keep their notes."""
    state: Path
    hostile: tuple[str, ...]
    """The names of the hostile trainings."""

    @property
    def one_user(self) -> bool:
        """Whether daemon, trainings and this observer are one user."""
        ...

    @property
    def outside(self) -> Path:
        """What nobody may change."""
        ...

    @property
    def secret(self) -> str:
        """What may turn up nowhere."""
        ...

    def daemon_process(self) -> psutil.Process | None:
        """Return the daemon's process, None while there is none."""
        ...

    def log_size_bytes(self) -> int:
        """Return how much the daemon has logged."""
        ...

    def database_size_bytes(self) -> int:
        """Return the size of the database with its journal."""
        ...

    def steps_recorded(self, name: str) -> int:
        """Return how many steps of a job the database holds."""
        ...

    def strangers(self) -> list[str]:
        """Return processes that run as another user than they should."""
        ...

    def doors(self) -> list[tuple[str, Path, str]]:
        """Return what else has to answer: its name, its socket and what to GET there."""
        ...

    def door_process(self, name: str) -> int | None:
        """Return the pid of the process behind one of the doors; None while there is none."""
        ...

    def intrusions(self) -> dict[str, int]:
        """Return how many actions each user has begun who owns no training."""
        ...


@dataclass(slots=True)
class Lines:
    """A file of lines that only grows, read on from where it was read last."""

    path: Path
    count: int = 0
    _at: int = 0

    def read(self) -> list[str]:
        """Return the whole lines that were added; none while there is no such file."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._at)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._at += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        self.count += len(lines)
        return lines


@dataclass(slots=True)
class Observer:
    """Keeps what was seen, and the worst figure of each invariant."""

    site: Site
    limits: Limits
    worst: dict[str, float] = field(default_factory=dict)
    crowd: str = ""
    """How many threads of each name the daemon had when it had most."""
    held_in: str = ""
    """Where the deciding thread was when a status was last late."""
    late: list[str] = field(default_factory=list)
    """What a restart or another door that was late was waiting for."""
    _away: list[tuple[float, float]] = field(default_factory=list)
    _began_s: float = field(default_factory=time.time)  # noqa: TID251 - see _now_s
    _planted: dict[str, str] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _begun: list[Lines] = field(default_factory=list)
    _steps_log: Lines | None = None
    _made: list[tuple[int, float]] = field(default_factory=list)

    def plant(self) -> None:
        """Remember what may not change, after everything is laid out."""
        self._planted = dict(_hashes(self.site.outside))

    def away(self, since_s: float) -> None:
        """Be told that the daemon was away on purpose from `since_s` until now."""
        self._away.append((since_s, _now_s()))

    @property
    def begun(self) -> tuple[int, ...]:
        """How many actions each hostile training has begun."""
        if not self._begun:
            self._begun = [Lines(self.site.folder / f"{name}.progress") for name in self.site.hostile]
        for lines in self._begun:
            lines.read()
        return tuple(lines.count for lines in self._begun)

    @property
    def actions(self) -> int:
        """How many actions the hostile trainings have begun."""
        return sum(self.begun)

    def look(self) -> list[Violation]:
        """Return the invariants that do not hold now and have not been reported yet."""
        found = [*self._status(), *self._doors(), *self._resources(), *self._steps(), *self._wounds(), *self._outside()]
        fresh = [violation for violation in found if violation.invariant not in self._reported]
        self._reported |= {violation.invariant for violation in fresh}
        return fresh

    def _violated(self, invariant: str, detail: str) -> Violation:
        begun = self.begun
        return Violation(invariant=invariant, detail=detail, actions=sum(begun), begun=begun)

    def _measure(self, invariant: str, value: float, limit: float, detail: str = "") -> Iterator[Violation]:
        self.worst[invariant] = max(self.worst.get(invariant, 0.0), value)
        if not value <= limit:
            yield self._violated(invariant, f"{value:.6g}, limit {limit:.6g} {detail}".rstrip())

    # --- the daemon -----------------------------------------------------------------------------------------------

    def _status(self) -> Iterator[Violation]:
        answering = self.site.daemon_process()
        latency = OwnTime(answering.pid if answering is not None else os.getpid())
        late = threading.Timer(min(2 * self.limits.status_s, LATE_S), self._find_what_holds)
        late.start()
        try:
            status = self.site.client.get("/v1/status")
        except ControlError as error:
            # Where all are one user, the attack may use up the connections that this user gets.
            if not (self.site.one_user and error.code == "busy"):
                yield self._violated("status is answered", f"{error}; the deciding thread is in {self.held_in}")
            return
        finally:
            late.cancel()
        yield from self._measure("status latency s", latency.read_s(), self.limits.status_s)
        names = {job["name"] for job in status["jobs"]}
        if names != {HEALTHY, *self.site.hostile}:
            yield self._violated("status shows every job", str(sorted(names)))
        for name in self.site.hostile:
            try:
                reported = json.dumps(self.site.client.get(f"/v1/jobs/{name}/output", lines=200))
            except ControlError:
                continue  # an output that cannot be read is told as that
            if self.site.secret in reported:
                yield self._violated("no secret is shown", f"output of {name} has the content of a file outside")

    def _find_what_holds(self) -> None:
        if (process := self.site.daemon_process()) is not None:
            self.held_in = find_main_frames(process.pid)

    def _doors(self) -> Iterator[Violation]:
        now_s = _now_s()
        for name, path, place in self.site.doors():
            if up_s(self._away, now_s - SETTLED_S, now_s) < SETTLED_S:
                continue
            began = time.perf_counter()
            try:
                with watched(lambda name=name: self.site.door_process(name)) as seen:  # type: ignore[misc]
                    status, body = _get(path, place, self.limits.door_s)
            except OSError as error:
                yield self._violated(f"{name} answers", f"{type(error).__name__}: {error} {' '.join(seen)}")
                continue
            finally:
                self.late += [f"{name} {look}" for look in seen]
            yield from self._measure(f"{name} latency s", time.perf_counter() - began, self.limits.door_s)
            if status != "200" and not (self.site.one_user and status == "503"):
                yield self._violated(f"{name} answers", f"GET {place} has status {status!r}: {body}")

    def _resources(self) -> Iterator[Violation]:
        process = self.site.daemon_process()
        if process is None:
            yield self._violated("the daemon runs", "there is no process of it")
            return
        try:
            with process.oneshot():
                memory, descriptors = process.memory_info().rss, process.num_fds()
                threads = process.num_threads() - len(process.children())  # each child has one that waits for its end
        except psutil.Error:
            return  # it went between the question and the answer: the next look tells
        yield from self._measure("daemon memory bytes", memory, self.limits.rss_bytes)
        threads_limit = count_most(jobs=len(self.site.hostile) + 1, receivers=0)
        if threads > self.worst.get("daemon threads", CROWDED):
            self.crowd = list_threads(process.pid)
        yield from self._measure("daemon threads", threads, threads_limit, self.crowd)
        yield from self._measure("daemon descriptors", descriptors, self.limits.descriptors)
        budget = self.limits.log_bytes + self.limits.log_bytes_per_s * (_now_s() - self._began_s)
        yield from self._measure("log bytes", self.site.log_size_bytes(), budget)
        yield from self._measure("database bytes", self.site.database_size_bytes(), self.limits.database_bytes)

    # --- the healthy training ----------------------------------------------------------------------------------------

    def steps_made(self) -> list[tuple[int, float]]:
        """Return (step, Unix time) of each step that the healthy training made, over all its attempts."""
        if self._steps_log is None:
            self._steps_log = Lines(self.site.folder / HEALTHY / "steps.log")
        self._made += [(int(step), float(at_s)) for step, at_s in map(str.split, self._steps_log.read())]
        return self._made

    def _steps(self) -> Iterator[Violation]:
        made, now_s = self.steps_made(), _now_s()
        if not made:
            return
        due = bisect_right(made, since_up_s(self._away, self.limits.recorded_s, now_s), key=lambda step: step[1])
        yield from self._measure("steps not recorded in time", due - self.site.steps_recorded(HEALTHY), 0)
        still_s = up_s(self._away, made[-1][1], now_s)
        yield from self._measure("healthy training stands still s", still_s, self.limits.still_s)

    def _wounds(self) -> Iterator[Violation]:
        now_s = _now_s()
        try:
            incidents = self.site.client.get("/v1/incidents", job=HEALTHY, limit=1000)["incidents"]
        except ControlError:
            return
        wounds = self.wounds()  # after the answer: a wound may strike, and be found, while it is waited for
        incidents.sort(key=lambda incident: incident["at"])
        for wound in wounds:
            in_force_s = LIMIT_IN_FORCE_S.get(wound["kind"], 0.0)
            mine = [item for item in incidents if item["at"] >= wound["unix_s"] - 0.05]
            if not mine:
                if up_s(self._away, wound["unix_s"], now_s) > in_force_s + self.limits.found_s + 2:
                    yield self._violated(f"fault {wound['kind']} is found", f"step {wound['step']}")
                continue
            first = mine[0]
            incidents.remove(first)
            if first["rule"] != RULES[wound["kind"]]:
                detail = f"{wound['kind']} at step {wound['step']} was found as {first['rule']}: {first['message']}"
                yield self._violated("faults are found as what they are", detail)
            late_s = up_s(self._away, wound["unix_s"], first["at"]) - in_force_s
            yield from self._measure("fault found late s", late_s, self.limits.found_s, wound["kind"])
        for item in incidents:
            yield self._violated("no false kill", f"{item['rule']}: {item['message']}")

    def wounds(self) -> list[dict[str, Any]]:
        """Return the wounds that struck so far."""
        try:
            lines = (self.site.folder / HEALTHY / "wounds.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    # --- everything else ---------------------------------------------------------------------------------------------

    def _outside(self) -> Iterator[Violation]:
        now = dict(_hashes(self.site.outside))
        for name in sorted(now.keys() | self._planted.keys()):
            if now.get(name) != self._planted.get(name):
                detail = f"{name}: {self._planted.get(name)}, now {now.get(name)}"
                yield self._violated("files outside are unchanged", detail)
        if (self.site.folder / "unpickled").exists():
            yield self._violated("no pickle is run", "a checkpoint's code ran")
        for stranger in self.site.strangers():
            yield self._violated("no process as another user", stranger)

    def at_the_end(self) -> list[Violation]:
        """Return what is only looked for once: the secret in any file that the supervisor wrote."""
        secret, found = self.site.secret.encode(), []
        for path in _files(self.site.state):
            # Where all are one user the file is the training's own, and a link to it a checkpoint like any other.
            own = self.site.one_user and "generations" in path.parts
            if not own and _contains(path, secret):
                found.append(self._violated("no secret is copied", str(path)))
        return found


@contextmanager
def watched(process_of: Callable[[], int | None]) -> Iterator[list[str]]:
    """Yield what a block that takes longer than `LATE_S` waits for, as it comes: the load, and a process's threads.

    `process_of` returns the pid to look at, None while there is none.
    """
    seen: list[str] = []
    over = threading.Event()
    began_s = time.perf_counter()

    def watch() -> None:
        while not over.wait(LATE_S):
            pid = process_of()
            threads = "no process" if pid is None else _dump(pid)
            seen.append(f"after {time.perf_counter() - began_s:.1f} s, load {os.getloadavg()[0]:.0f}: {threads}")

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield seen
    finally:
        over.set()
        watching.join()


def _dump(pid: int) -> str:
    """Return what py-spy shows of a process's threads; nothing where it cannot."""
    command = [str(Path(sys.executable).with_name("py-spy")), "dump", "--nonblocking", "--pid", str(pid)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def find_main_frames(pid: int) -> str:
    """Return where the main thread of a process is, the innermost frame first."""
    frames = _dump(pid).partition('"MainThread"\n')[2].partition("Thread ")[0].splitlines()
    return " < ".join(frame.strip() for frame in frames[:FRAMES_SHOWN])


def list_threads(pid: int) -> str:
    """Return how many threads of each name a process has; a number or a job in the name counts as any other."""
    names = re.findall(r'^Thread .*: "([^"]*)"', _dump(pid), re.MULTILINE)
    counted = Counter(re.sub(rf"[ -]({HEALTHY}|{HOSTILE})?[0-9]*$|/.*", "", name) for name in names)
    return ", ".join(f"{count} {name}" for name, count in counted.most_common())


def up_s(away: Sequence[tuple[float, float]], since_s: float, until_s: float) -> float:
    """Return for how much of that time the daemon was not away on purpose, and had settled since."""
    gone_s = (max(0.0, min(until_s, end_s + SETTLED_S) - max(since_s, begin_s)) for begin_s, end_s in away)
    return until_s - since_s - sum(gone_s)


def since_up_s(away: Sequence[tuple[float, float]], wanted_s: float, until_s: float) -> float:
    """Return the time since which the daemon was up for `wanted_s` in all."""
    since_s = until_s - wanted_s
    while (missing_s := wanted_s - up_s(away, since_s, until_s)) > LEAST_S:
        since_s -= missing_s
    return since_s


def _now_s() -> float:
    return time.time()  # noqa: TID251 - compared with what the trainings noted


def _get(path: Path, place: str, limit_s: float) -> tuple[str, str]:
    """Return the status of a GET at a unix socket and how the body begins; raises OSError where none is answered."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(limit_s)
        asking.connect(str(path))
        with suppress(BrokenPipeError, ConnectionResetError):  # it may be answered as one too many, and ended
            asking.sendall(f"GET {place} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        head, _, body = asking.recv(4096).decode("latin-1").partition("\r\n\r\n")
        return head.partition(" ")[2][:3], body[:BODY_CHARACTERS]


def _files(top: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(top):
        for name in names:
            path = Path(folder) / name
            there = path.lstat() if path.exists() else None
            if there and stat.S_ISREG(there.st_mode) and there.st_nlink == 1 and there.st_blocks * 512 < 256 * MB:
                yield path


def _contains(path: Path, wanted: bytes) -> bool:
    before = b""
    try:
        with path.open("rb") as file:
            # Holes are skipped: a file may say that it has 8 TB.
            while (at := _data_after(file.fileno(), file.tell())) is not None:
                file.seek(at)
                chunk = file.read(MB)
                if not chunk:
                    return False
                if wanted in before + chunk:
                    return True
                before = chunk[-len(wanted) :]
    except OSError:
        return False
    return False


def _data_after(fd: int, offset: int) -> int | None:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError:
        return None


def _hashes(top: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(top):
        for name in sorted([*folders, *names]):
            path = Path(folder) / name
            there = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(there.st_mode) else ""
            about = f"{there.st_mode:o} {there.st_uid} {there.st_gid} {there.st_size if content else ''}"
            yield str(path.relative_to(top)), f"{about} {content}"


def until(question: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `question` is answered yes; return whether it was in time."""
    end = time.perf_counter() + limit_s
    while not question():
        if time.perf_counter() > end:
            return False
        time.sleep(0.05)
    return True
