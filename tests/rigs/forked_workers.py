"""A pytest plugin: one process collects the tests and runs them in forks of itself, as many as keep its cores busy.

    pytest -p tests.rigs.forked_workers --forks N

What pytest-xdist has each of its processes do, to import and collect all tests, is done once: 7 s of processor time a
process. A fork is a worker as those of pytest-xdist are: its number is in PYTEST_XDIST_WORKER, its folder lies in that
of the run.

Tests are handed out one share at a time: those of an `xdist_group`, in one worker and in their order; units of a file,
a few at a time; any other test by itself. None waits behind another in a worker: which test is next is asked for
where it decides which fixtures stay, before a tear-down. Two shares more than there are cores are always running; up
to N where processor time is left idle, since most tests that start processes wait for them: each time the cores are
looked at one more than run may run, or one less than might.

Tests marked `fills` take what the others leave of the cores: their workers, one less than there are cores while others
run, have the lowest priority, by which they yield at once to whatever else wants to run. They have it until the others
are finished, they and what they have started, and only where this process may raise it again.

A worker that ends in the middle of a test has failed that test; another one takes its place. A run in which a test was
not reported does not pass.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import random
import selectors
import signal
import sys
import traceback
import uuid
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from time import perf_counter
from typing import Any, NoReturn

import psutil
import pytest

from tests.units import NOT_QUICK

ALWAYS = 2
"""Shares that are running more than there are cores, however busy these are."""
UNITS_AT_ONCE = 8
IDLE = 0.15
"""Of one core: where more of it was idle, one share more may run."""
BUSY = 0.05
"""Of one core: where less of it was idle, one share less may run."""
LOOK_S = 0.3
"""For how long the cores are looked at: what the start of a share takes is seen by then."""
NEAR = 8
"""Shares among which one is looked for that needs what a worker has set up."""
CAP_SYS_NICE = 23
DEATHS_AT_MOST = 20
ENDING_LIMIT_S = 60.0
"""How long workers may take to tear down what they share."""
PRINTING_LIMIT_S = 5.0
"""How long one that did not may take to print where it is."""


@dataclass(slots=True)
class Share:
    """Tests that one worker runs in order, by their places in the session; only those of units may be divided."""

    tests: deque[int] = field(default_factory=deque)
    divided: bool = False
    fills: bool = False


def divide(items: list[pytest.Item]) -> deque[Share]:
    """Return the shares of these tests, in the order of the first of each."""
    shares: dict[object, Share] = {}
    for number, item in enumerate(items):
        group = item.get_closest_marker("xdist_group")
        unit = not any(map(item.get_closest_marker, NOT_QUICK))
        fills = item.get_closest_marker("fills") is not None
        key: object = (item.path, fills) if unit else number
        if group is not None:
            key = str(group.args[0] if group.args else group.kwargs["name"])
        shares.setdefault(key, Share(divided=unit and group is None, fills=fills)).tests.append(number)
    return deque(shares.values())


class Level:
    """How many shares may run at a time: one more than run whenever cores were idle, one less where none was."""

    def __init__(self, at_most: int) -> None:
        self._names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        self.cores = len(self._names)
        self._least, self._at_most = min(at_most, self.cores + ALWAYS), at_most
        self.shares = self._least
        self._began_s, self._before = perf_counter(), self._idle_ticks()

    def look(self, running: int) -> None:
        """Take in what the cores did since the last look, while so many shares were running."""
        now_s = perf_counter()
        took_s = now_s - self._began_s
        if took_s < LOOK_S:
            return
        ticks = self._idle_ticks()
        idle = (ticks - self._before) / os.sysconf("SC_CLK_TCK") / took_s
        self._began_s, self._before = now_s, ticks
        self.follow(idle, running)

    def follow(self, idle: float, running: int) -> None:
        """Change how many may run, after so much of one core was idle while so many were running."""
        if idle > IDLE and running >= self.shares:  # otherwise it is not for the level that they were idle
            # More than run: where a burst has taken the level far below these, it would reach them only seconds later.
            self.shares = min(running + 1, self._at_most)
        elif idle < BUSY:
            self.shares = max(min(self.shares, running) - 1, self._least)

    def _idle_ticks(self) -> int:
        lines = map(str.split, Path("/proc/stat").read_text().splitlines())
        # What runs with a lower priority (2) leaves the cores to whoever wants them, as one that is idle (4, 5).
        return sum(int(words[2]) + int(words[4]) + int(words[5]) for words in lines if words[0] in self._names)


def may_raise_priorities() -> bool:
    """Return whether this process may give another one a higher priority."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(effective >> CAP_SYS_NICE & 1)


def raise_priority(pid: int) -> None:
    """Give a process and its descendants the priority of any other process; what they start from now on has it too."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process = psutil.Process(pid)
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread.id, os.SCHED_OTHER, os.sched_param(0))
                os.setpriority(os.PRIO_PROCESS, thread.id, 0)
        for child in process.children():
            raise_priority(child.pid)


@dataclass(slots=True)
class Worker:
    """A fork, as the process sees it that has forked it."""

    number: int
    pid: int
    connection: Connection
    fills: bool
    """Whether its tests are those that fill."""
    low: bool
    """Whether it has the lowest priority."""
    ended: int
    """A descriptor that can be read from once it has ended."""
    share: Share | None = None
    file: Path | None = None
    """Of the last test that it was given."""
    given: deque[int] = field(default_factory=deque)
    """Of its share, what was handed out to it and is not finished; the first may be running."""

    def is_busy(self) -> bool:
        """Return whether it has tests to finish."""
        return self.share is not None or bool(self.given)


class Pool:
    """The workers of a session and the shares that are left."""

    def __init__(self, session: pytest.Session, at_most: int) -> None:
        self._session, self._config, self._at_most = session, session.config, at_most
        shares = divide(session.items)
        self._waiting = {fills: deque(share for share in shares if share.fills is fills) for fills in (False, True)}
        self._level = Level(at_most)
        self._workers: list[Worker] = []
        self._sources = selectors.DefaultSelector()
        """Of each worker its connection and its end."""
        self._resting: list[Worker] = []
        self._unfinished = set(range(len(session.items)))
        self._reported: set[str] = set()
        self._run = uuid.uuid4().hex
        self._numbers = self._deaths = 0

    def run(self) -> None:
        """Run every test; raise where a worker ended otherwise, or a test was not reported."""
        try:
            while self._is_running() and not self._session.shouldfail and not self._session.shouldstop:
                self._begin_shares()
                if not self._are_others_left():
                    self._raise_priorities()
                self._hear(0.1 if any(self._waiting.values()) else None)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
            if self._session.shouldstop:
                raise self._session.Interrupted(self._session.shouldstop)
        except BaseException:
            self._end_workers()
            raise
        if wrong := self._end_workers():
            raise RuntimeError(f"workers that failed when they ended: {', '.join(wrong)}")
        if self._unfinished:
            lost = [self._session.items[number].nodeid for number in sorted(self._unfinished)]
            raise RuntimeError(f"{len(lost)} tests were not reported: {', '.join(lost[:5])}")

    def _is_running(self) -> bool:
        return any(self._waiting.values()) or any(map(Worker.is_busy, self._workers))

    def _begin_shares(self) -> None:
        self._level.look(sum(worker.is_busy() and not worker.fills for worker in self._workers))
        for fills, shares in self._waiting.items():
            while shares and self._may_begin(fills):
                resting = [worker for worker in self._resting if worker.fills is fills]
                worker = resting[0] if resting else self._fork(fills)
                self._give(worker, self._next_share(worker))

    def _may_begin(self, fills: bool, instead_of: Worker | None = None) -> bool:
        others = [worker for worker in self._workers if worker.is_busy() and worker is not instead_of]
        busy = sum(not worker.fills for worker in others)
        if fills:
            at_most = self._level.cores - (1 if self._are_others_left() else 0)
            return len(others) - busy < min(self._at_most, max(1, at_most))
        return busy < self._level.shares

    def _are_others_left(self) -> bool:
        """Return whether there are tests to finish that others fill."""
        return bool(self._waiting[False]) or any(worker.is_busy() and not worker.fills for worker in self._workers)

    def _raise_priorities(self) -> None:
        """Give what filled the priority of any process: on a machine that others use too it would take hours."""
        for worker in self._workers:
            if worker.low:
                raise_priority(worker.pid)
                worker.low = False

    def _give(self, worker: Worker, share: Share) -> None:
        """Hand out the first tests of a share; of units few at once, since another worker may take the rest."""
        if worker in self._resting:
            self._resting.remove(worker)
        worker.share = share
        count = min(UNITS_AT_ONCE, len(share.tests)) if share.divided else len(share.tests)
        given = [share.tests.popleft() for _ in range(count)]
        worker.given.extend(given)
        worker.file = self._session.items[given[-1]].path
        with contextlib.suppress(BrokenPipeError):  # that it has ended is seen next
            worker.connection.send(given)

    def _answer(self, worker: Worker) -> None:
        """Give a worker that has begun its last test the next ones; it rests where there are none for it now."""
        if worker.share is not None and worker.share.tests:
            self._give(worker, worker.share)
            return
        worker.share = None
        share: Share | None = None
        if not self._waiting[worker.fills]:
            share = self._part(worker.fills)
        elif self._may_begin(worker.fills, worker):
            share = self._next_share(worker)
        if share is not None:
            self._give(worker, share)
            return
        with contextlib.suppress(BrokenPipeError):
            worker.connection.send(None)

    def _next_share(self, worker: Worker) -> Share:
        """Take the first of the shares that wait, or one soon after it of the file whose fixtures the worker has."""
        waiting = self._waiting[worker.fills]
        for place, share in enumerate(itertools.islice(waiting, NEAR)):
            if self._session.items[share.tests[0]].path == worker.file:
                del waiting[place]
                return share
        return waiting.popleft()

    def _part(self, fills: bool) -> Share | None:
        """Return the second half of what is left of the largest share that may be divided."""
        shares = [worker.share for worker in self._workers if worker.share is not None and worker.fills is fills]
        largest = max((share for share in shares if share.divided), key=lambda share: len(share.tests), default=None)
        if largest is None or not largest.tests:
            return None
        kept = len(largest.tests) // 2
        parted = Share(deque(list(largest.tests)[kept:]), divided=True, fills=fills)
        largest.tests = deque(list(largest.tests)[:kept])
        return parted

    def _hear(self, timeout_s: float | None) -> None:
        ready: dict[int, tuple[Worker, bool]] = {}
        for key, _ in self._sources.select(timeout_s):
            worker = key.data
            _, has_ended = ready.get(worker.number, (worker, False))
            ready[worker.number] = worker, has_ended or key.fileobj == worker.ended
        for worker, has_ended in ready.values():
            is_cut = False
            for kind, fact in _receive(worker.connection, all_of_it=has_ended):
                if kind is None:
                    is_cut = True
                else:
                    self._take(worker, kind, fact)
            if has_ended or is_cut:
                self._replace(worker)

    def _take(self, worker: Worker, kind: str, fact: Any) -> None:
        match kind:
            case "asks":
                self._answer(worker)
            case "done":
                assert worker.given.popleft() == fact
                if self._session.items[fact].nodeid in self._reported:
                    self._unfinished.remove(fact)
                if worker.share is None:
                    self._resting.append(worker)
            case "stopped":
                self._session.shouldstop = f"{fact} (in worker gw{worker.number})"
            case _:
                self._pass_on(kind, fact)

    def _pass_on(self, kind: str, fact: Any) -> None:
        """Have pytest take what a worker reported as its own."""
        hook = self._config.hook
        match kind:
            case "report":
                report = hook.pytest_report_from_serializable(config=self._config, data=fact)
                hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    self._reported.add(report.nodeid)
            case "start":
                hook.pytest_runtest_logstart(nodeid=fact[0], location=fact[1])
            case "finish":
                hook.pytest_runtest_logfinish(nodeid=fact[0], location=fact[1])
            case "warning":
                hook.pytest_warning_recorded.call_historic(kwargs=fact)

    def _replace(self, worker: Worker) -> None:
        """Report the test in which a worker ended as failed, and leave the rest of its share to another one."""
        self._workers.remove(worker)
        if worker in self._resting:
            self._resting.remove(worker)
        for source in (worker.connection, worker.ended):
            self._sources.unregister(source)
        os.close(worker.ended)
        worker.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        self._deaths += 1
        if worker.given:
            number = worker.given.popleft()
            self._unfinished.remove(number)
            item = self._session.items[number]
            text = f"worker gw{worker.number} ended with status {status} while it ran {item.nodeid}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._config.hook.pytest_runtest_logreport(report=report)
        left = deque([*worker.given, *(worker.share.tests if worker.share else ())])
        if left:
            divided = worker.share is not None and worker.share.divided
            self._waiting[worker.fills].appendleft(Share(left, divided, worker.fills))
        if self._deaths > DEATHS_AT_MOST:
            self._session.shouldstop = f"{self._deaths} workers have ended, the last with status {status}"

    def _fork(self, fills: bool) -> Worker:
        ours, theirs = Pipe()
        number, self._numbers = self._numbers, self._numbers + 1
        low = fills and self._are_others_left() and may_raise_priorities()
        base = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._sources.close()
            ours.close()
            for other in self._workers:
                other.connection.close()
                os.close(other.ended)
            if low:
                os.nice(19)
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            become_worker(self._session, theirs, f"gw{number}", self._run, base / f"popen-gw{number}")
        theirs.close()
        worker = Worker(number, pid, ours, fills, low, os.pidfd_open(pid))
        self._workers.append(worker)
        for source in (worker.connection, worker.ended):
            self._sources.register(source, selectors.EVENT_READ, worker)
        return worker

    def _end_workers(self) -> list[str]:
        """Have all workers tear down what they share, and wait for their ends; return those that ended badly."""
        wrong = []
        self._raise_priorities()  # with the lowest one a tear-down ends never on a machine that others use too
        for worker in self._workers:
            worker.connection.close()
        deadline_s = perf_counter() + ENDING_LIMIT_S
        for worker in self._workers:
            if not wait([worker.ended], max(0.0, deadline_s - perf_counter())):
                os.kill(worker.pid, signal.SIGABRT)  # pytest's fault handler prints where each of its threads is
                if not wait([worker.ended], PRINTING_LIMIT_S):
                    os.kill(worker.pid, signal.SIGKILL)
            os.close(worker.ended)
            if status := os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]):
                wrong.append(f"gw{worker.number} with status {status}")
        return wrong


def _receive(connection: Connection, *, all_of_it: bool) -> Iterator[tuple[Any, Any]]:
    """Yield the next that a worker has sent, or all; last (None, None) where it ended, maybe in the middle of it."""
    try:
        if not all_of_it:
            yield from connection.recv()
        while all_of_it and connection.poll():
            yield from connection.recv()
    except (EOFError, OSError, pickle.UnpicklingError):
        yield None, None


class Outbox:
    """In a worker: what it has to send, which goes with what is waited for.

    To take a message costs the process that forked it as much as a unit: that a test has begun and what became of its
    parts has time until the next test is asked for, or until this one is done.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._kept: list[tuple[str, Any]] = []

    def keep(self, kind: str, fact: Any) -> None:
        """Keep a fact until others are sent."""
        self._kept.append((kind, fact))

    def send(self, kind: str, fact: Any) -> None:
        """Send a fact, behind all that was kept."""
        kept, self._kept = self._kept, []
        self._connection.send([*kept, (kind, fact)])


class Reporter:
    """In a worker: sends what pytest reports to the process that forked it."""

    def __init__(self, config: pytest.Config, outbox: Outbox) -> None:
        self._config, self._outbox = config, outbox
        self._earlier = True
        config.pluginmanager.register(self)  # which reports the warnings of the collection once more
        self._earlier = False

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Send that a test begins."""
        self._outbox.keep("start", (nodeid, location))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Send that a test has ended."""
        self._outbox.keep("finish", (nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send what became of a phase of a test."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._outbox.keep("report", data)

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Send a warning, for the summary."""
        if self._earlier:
            return
        category = warning_message.category
        try:
            pickle.dumps(category)
        except (pickle.PicklingError, AttributeError):  # of a test's own
            category = UserWarning
        text = str(warning_message.message)
        sent = warnings.WarningMessage(text, category, warning_message.filename, warning_message.lineno)
        fact = {"warning_message": sent, "when": when, "nodeid": nodeid, "location": location}
        self._outbox.keep("warning", fact)


class Work:
    """In a worker: the tests that were handed to it; to pytest, the one after the present is whichever comes next."""

    def __init__(self, session: pytest.Session, connection: Connection, outbox: Outbox) -> None:
        self._session, self._connection, self._outbox = session, connection, outbox
        self._given: deque[int] = deque()
        self._asked = False

    def run(self) -> None:
        """Run tests until no more can come."""
        with contextlib.suppress(EOFError):
            while not (self._session.shouldfail or self._session.shouldstop):
                while not self._given:
                    self._given.extend(self._connection.recv() or ())
                number = self._given.popleft()
                item = self._session.items[number]
                self._asked = bool(self._given)
                after: Any = self._session.items[self._given[0]] if self._given else self
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if not self._asked:
                    self._ask()
                self._outbox.send("done", number)
            if self._session.shouldstop:
                self._outbox.send("stopped", self._session.shouldstop)

    def listchain(self) -> list[Any]:
        """Return what a tear-down is to leave: what the next test needs, or what the worker has until its end."""
        if not self._asked:
            self._ask()
        return self._session.items[self._given[0]].listchain() if self._given else [self._session]

    def _ask(self) -> None:
        self._asked = True
        self._outbox.send("asks", None)
        self._given.extend(self._connection.recv() or ())


def become_worker(session: pytest.Session, connection: Connection, name: str, run: str, base: Path) -> NoReturn:
    """In a fork: run what is handed to it, and end."""
    status = 1
    outbox = Outbox(connection)
    # What was registered before the fork is for the end of the forking process: there pytest removes folders of earlier
    # runs, for which a worker of a busy machine took longer than it may take to end.
    atexit._clear()
    try:
        _settle(session.config, name, run, base)
        Reporter(session.config, outbox)
        session.config.hook.pytest_worker_began(config=session.config)
        try:
            Work(session, connection, outbox).run()
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            outbox.send("stopped", f"{type(error).__name__}: {error}")
        session.config.hook.pytest_sessionfinish(session=session, exitstatus=0)
        session.config._ensure_unconfigure()
        status = 0
    except BrokenPipeError:  # who forked it has ended
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, nothing of the forking process may go on here
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _settle(config: pytest.Config, name: str, run: str, base: Path) -> None:
    """Give the fork its name, its folder, files of its own for what tests print, and nobody to print to."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    random.seed()
    os.environ |= {"PYTEST_XDIST_WORKER": name, "PYTEST_XDIST_TESTRUNUID": run}
    config.workerinput = {"workerid": name, "testrunuid": run}  # type: ignore[attr-defined]  # as pytest-xdist's
    config.option.basetemp = str(base)
    factory = pytest.TempPathFactory.from_config(config, _ispytest=True)
    config._tmp_path_factory = factory  # type: ignore[attr-defined]
    capture = config.pluginmanager.get_plugin("capturemanager")
    assert capture is not None
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.pluginmanager.unregister(name="terminalreporter")


class Hooks:
    """What other plugins may do in a worker."""

    @staticmethod
    @pytest.hookspec
    def pytest_worker_began(config: pytest.Config) -> None:
        """Called in each worker before its first test."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hook of this plugin."""
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of this plugin."""
    parser.addoption("--forks", type=int, default=0, help="workers that are forked at most; 0: tests run here")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in forks; leave it to pytest where nothing is to be run."""
    at_most = session.config.getoption("forks")
    if not at_most or session.testsfailed or session.config.option.collectonly:
        return None
    Pool(session, at_most).run()
    return True
