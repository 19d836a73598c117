"""A pytest plugin: what `make test-quick` runs are units, so that a test of it which starts a process has failed."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from tests.rigs.run_tests import QUICK

NOT_QUICK = re.findall(r"not (\w+)", QUICK)
"""Markers of tests that are no units: `make test-quick` leaves them out."""
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")
"""Events by which the interpreter reports that it is about to start a process."""
WORDS_SHOWN = 120

_EARLIER = pytest.StashKey[set["int | None"]]()
"""Threads that ran before a test began; what they start is not the test's."""
_FOUND = pytest.StashKey["str | None"]()
"""What a test has started by its end."""
_started: list[tuple[int, str]] = []
"""Since the present test began: which thread, and what."""
_starting: dict[pytest.FixtureDef[Any], str] = {}
"""Fixtures that have started a process: a test that is given what an earlier one asked for is no unit either."""


def _note(event: str, args: tuple[object, ...]) -> None:
    if event in STARTS:
        what = f"{event} {args[1] if len(args) > 1 else ''}".strip()
        _started.append((threading.get_native_id(), what[:WORDS_SHOWN]))


sys.addaudithook(_note)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Forget what tests before this one have started."""
    _started.clear()
    item.stash[_EARLIER] = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    """Remember the fixtures that start a process."""
    before = len(_started)
    try:
        return (yield)
    finally:
        if len(_started) > before:
            _starting[fixturedef] = _started[-1][1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a quick test that, or whose fixture, started a process."""
    report = yield
    if call.when == "call":  # with the last test ends what many were given, such as a server
        item.stash[_FOUND] = next(_list_started(item), None)
    if call.when == "teardown" and report.passed and not any(map(item.get_closest_marker, NOT_QUICK)):
        started = item.stash.get(_FOUND, None)
        if started is not None:
            report.outcome = "failed"
            report.longrepr = f"E {item.nodeid} starts a process ({started}): mark it `slow`, or make it a unit"
    return report


def _list_started(item: pytest.Item) -> Iterator[str]:
    yield from (what for thread, what in _started if thread not in item.stash[_EARLIER])
    if isinstance(item, pytest.Function):
        given = (fixture for found in item._fixtureinfo.name2fixturedefs.values() for fixture in found)
        yield from (_starting[fixture] for fixture in given if fixture in _starting)
