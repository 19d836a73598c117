"""A pytest plugin that writes the processor time of each test: its process, and all that it starts.

Where the control groups of the machine can be written each process of pytest gets one of its own, and so a daemon
that left its parent counts as well. Where they cannot, children that were waited for count, at the end of their test.
What a fixture of a module or session takes is the first test's that asks for it. `--processor-to` names the folder that
gets a file of each process of pytest, a line a test:

    run_tests.py -p tests.processor_time --processor-to=FOLDER [PYTEST OPTION ...]
    python -m tests.processor_time FOLDER [COUNT]

The second prints all rooms, and the COUNT files and tests that took the most.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.rigs.outcomes import GROUP

V1, V2 = Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")
LEAVING_LIMIT_S = 5.0
"""How long what a test has just ended may take to leave the group."""


def of_children_s() -> float:
    """Return the processor time of this process and the children that it waited for."""
    return sum(os.times()[:4])


class Group:
    """A control group of this process and its descendants, of version 1 or 2."""

    def __init__(self, name: str) -> None:
        self._parent = V1 if V1.is_dir() else V2
        self.path = self._parent / name
        self.path.mkdir()
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def used_s(self) -> float:
        """Return the processor time that its processes have taken."""
        if self._parent == V1:
            return int((self.path / "cpuacct.usage").read_text()) / 1e9
        facts = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(facts["usage_usec"]) / 1e6

    def leave(self) -> None:
        """Put this process back and remove the group; a process that a test left running keeps it."""
        (self._parent / "cgroup.procs").write_text(str(os.getpid()))
        deadline = time.perf_counter() + LEAVING_LIMIT_S
        while self.path.exists() and time.perf_counter() < deadline:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            time.sleep(0.05)


_group: list[Group] = []


def _used_s() -> float:
    return _group[0].used_s() if _group else of_children_s()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of this plugin."""
    parser.addoption("--processor-to", type=Path, help="folder of the processor times")


def _write(config: pytest.Config, name: str, before_s: float) -> None:
    with Path(config.getoption("processor_to"), f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([name, round(_used_s() - before_s, 3)]) + "\n")


def read_processor_s(folder: Path) -> Counter[str]:
    """Return the processor time of each test in seconds, by its name; that of collecting is `(collection)`."""
    found: Counter[str] = Counter()
    for file in folder.glob("*.jsonl"):
        for name, used_s in map(json.loads, file.read_text().splitlines()):
            found[GROUP.sub("", name)] += used_s
    return found


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin to count."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        _begin()


@pytest.hookimpl(optionalhook=True)
def pytest_worker_began() -> None:
    """Count a fork that runs tests by itself."""
    _group.clear()
    _begin()


def _begin() -> None:
    with contextlib.suppress(OSError):
        _group.append(Group(f"rocm-supervisor-tests-{os.getpid()}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None]:
    """Note what collecting takes."""
    before_s = _used_s()
    try:
        return (yield)
    finally:
        _write(session.config, "(collection)", before_s)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Note what a test takes, its fixtures included."""
    before_s = _used_s()
    try:
        return (yield)
    finally:
        _write(item.config, item.nodeid, before_s)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the group."""
    for group in _group:
        group.leave()


def print_most(folder: Path, count: int) -> None:
    """Print which rooms, and which `count` files and tests, took the most processor time."""
    tests = read_processor_s(folder)
    files, rooms = Counter[str](), Counter[str]()
    for name, used_s in tests.items():
        file = name.partition("::")[0]
        files[file] += used_s  # type: ignore[assignment]  # a Counter of seconds
        rooms["/".join(file.split("/")[:2])] += used_s  # type: ignore[assignment]
    for what, table in (("rooms", rooms), ("files", files), ("tests", tests)):
        sys.stdout.write(f"{what}: {sum(table.values()):.0f} s\n")
        for name, used_s in table.most_common(None if table is rooms else count):
            sys.stdout.write(f"{used_s:>8.1f} s  {name}\n")


if __name__ == "__main__":
    print_most(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
