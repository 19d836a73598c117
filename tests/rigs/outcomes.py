"""A pytest plugin of `make test`: it writes what became of each test, under pytest-xdist what the workers report.

Where TEST_AGAIN names a file with the names of tests, only these are run.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

GROUP = re.compile(r"@[^\]@]*$")
"""What pytest-xdist appends to the name of a test of a group."""

_counts: Counter[str] = Counter()
_passed: set[str] = set()
_failed: dict[str, str] = {}
_seconds: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not to be run again."""
    if file := os.environ.get("TEST_AGAIN"):
        names = set(json.loads(Path(file).read_text()))
        left = [item for item in items if item.nodeid not in names]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid in names]


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
    told = [line[1:].strip() for line in lines if line.startswith("E ")] or lines[-1:]
    _failed.setdefault(_name(report), told[0] if told else "")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes; a worker of pytest-xdist leaves that to the process that started it."""
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
