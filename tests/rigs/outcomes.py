"""A pytest plugin of `make test`: it puts the tests in order, and writes what became of each.

Of a stage whose tests run in workers it writes what these report.

Where TEST_AGAIN names a file with the names of tests, only these are run. Where TEST_FILES names one with paths of
files, no other is collected: importing the whole suite takes seconds. TEST_ELSEWHERE names the file to
which the paths of the files are written that have tests which this stage leaves out. Where TEST_BEGIN is the number of
an open pipe, no test is begun before something is written into it.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

GROUP = re.compile(r"@[^\]@]*$")
"""What pytest-xdist, where it runs tests, appends to the name of one of a group."""

BEGIN = pytest.StashKey[int]()

_counts: Counter[str] = Counter()
_passed: set[str] = set()
_failed: dict[str, str] = {}
_seconds: Counter[str] = Counter()
_elsewhere: set[str] = set()


@functools.cache
def _files() -> frozenset[str] | None:
    file = os.environ.get("TEST_FILES")
    return frozenset(json.loads(Path(file).read_text())) if file else None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Pass over files that have no test of this stage."""
    files = _files()
    if files is None or not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    return True if str(collection_path) not in files else None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note where the tests of other stages are."""
    _elsewhere.update(str(item.path) for item in items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write where they are."""
    if (file := os.environ.get("TEST_ELSEWHERE")) and (session.items or _elsewhere):
        part = Path(f"{file}.{os.getpid()}")
        part.write_text(json.dumps(sorted(_elsewhere)))
        part.rename(file)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the pipe from what tests start."""
    if begin := os.environ.pop("TEST_BEGIN", None):
        session.config.stash[BEGIN] = int(begin)
        os.set_inheritable(int(begin), False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Wait until tests may begin, or end where who runs the stages has ended."""
    begin = session.config.stash.get(BEGIN, None)
    if begin is not None:
        may_begin = os.read(begin, 1)
        os.close(begin)
        if not may_begin:
            pytest.exit("who ran the stages has ended", returncode=pytest.ExitCode.INTERRUPTED)
    return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not to be run again, and put the rest in the order of `spread`."""
    if file := os.environ.get("TEST_AGAIN"):
        names = set(json.loads(Path(file).read_text()))
        left = [item for item in items if item.nodeid not in names]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid in names]
    items[:] = spread(items)


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that mostly wait spread among the others, the long ones first, the last fifth without waits.

    A process that waits leaves its core to one that does not. Trainings, which compute, are spread among what starts
    processes, of which much waits too: behind the last training the cores would be idle. No long test is begun last:
    units fill what is left of the cores at the end.
    """
    ranked: dict[int, list[pytest.Item]] = {rank: [] for rank in range(len(COSTS))}
    waiting: list[pytest.Item] = []
    ranks = {item: _rank(item) for item in items}
    for item in sorted(items, key=ranks.__getitem__):
        (ranked[ranks[item]] if item.get_closest_marker("waits") is None else waiting).append(item)
    mixed = _merge(_place(ranked[TRAINS], TRAINED), _place(ranked[STARTS], 1.0))
    working = [*ranked[LONG], *mixed, *ranked[UNIT]]
    ends = list(itertools.accumulate(COSTS[ranks[item]] for item in working))
    placed = [(end / ends[-1], item) for end, item in zip([0.0, *ends], working, strict=False)]
    return _merge(_place(waiting, WAITED), placed)


def _place(items: list[pytest.Item], until: float) -> list[tuple[float, pytest.Item]]:
    """Return tests with their places between 0 and `until`, at equal distances."""
    return [(until * at / len(items), item) for at, item in enumerate(items)]


def _merge(*placed: list[tuple[float, pytest.Item]]) -> list[pytest.Item]:
    return [item for _, item in sorted(itertools.chain(*placed), key=lambda pair: pair[0])]


WAITED, TRAINED = 0.8, 0.9
"""By which part of a stage the last test that waits, and by which of what is no unit the last training, is begun."""
LONG, TRAINS, STARTS, UNIT = range(4)
"""First those of which one alone may last as long as its stage, last those that take next to nothing."""
COSTS = (1.6, 1.6, 0.3, 0.03)
"""Seconds of a processor that one of each takes, about: by these, and not by their number, the others are spread."""


def _rank(item: pytest.Item) -> int:
    if item.get_closest_marker("long") is not None:
        return LONG
    if item.get_closest_marker("train") is not None:
        return TRAINS
    return STARTS if item.get_closest_marker("slow") is not None else UNIT


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test by its call, or by the set-up or tear-down that failed or skipped it."""
    _seconds[_name(report)] += report.duration  # type: ignore[assignment]  # a Counter of seconds
    if report.failed:
        _fail(report)
    elif report.when == "call" or report.skipped:
        _counts[report.outcome] += 1
        if report.passed:
            _passed.add(_name(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported has failed as a test has."""
    if report.failed:
        _fail(report)


def _name(report: pytest.TestReport | pytest.CollectReport) -> str:
    return GROUP.sub("", report.nodeid)


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    lines = report.longreprtext.strip().splitlines()
    reported = [line[1:].strip() for line in lines if line.startswith("E ")] or lines[-1:]
    _failed.setdefault(_name(report), reported[0] if reported else "")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes; a worker leaves that to the process that forked it."""
    if hasattr(session.config, "workerinput"):
        return
    slowest = [[name, round(seconds, 2)] for name, seconds in _seconds.most_common()]
    outcomes = {
        "counts": {**_counts, "failed": len(_failed)},
        "passed": sorted(_passed - set(_failed)),
        "failed": _failed,
        "seconds": slowest,
    }
    Path(os.environ["TEST_OUTCOMES"]).write_text(json.dumps(outcomes))
