"""Fixtures of the agent's room."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, interpreters, name_of

from tests.rigs.warm import TORCH, TRAINERS, Warm, WarmInterpreter, start_interpreter

MakeOnce = Callable[[str, Callable[[Path], object]], Path]


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of a file that begin warm in one environment share a process, and so the interpreter."""
    if isinstance(item, pytest.Function) and {"warm", "plain"} & set(item.fixturenames) and not _is_grouped(item):
        environment = item.callspec.params.get("train_python", "once") if hasattr(item, "callspec") else "once"
        item.add_marker(pytest.mark.xdist_group(f"warm {item.path.stem} {environment}"))


def _is_grouped(item: pytest.Item) -> bool:
    return item.get_closest_marker("xdist_group") is not None


@pytest.fixture(scope="session")
def warm(make_once: MakeOnce, pytestconfig: pytest.Config) -> Warm:
    """Return a function that has an interpreter import torch, or what is named, once for all processes of the suite.

    Where the processor time of each test is measured, it is once for each process: a fork is its interpreter's.
    """
    shared = "PYTEST_XDIST_WORKER" in os.environ and pytestconfig.getoption("processor_to", None) is None
    owner_pid = os.getppid() if shared else os.getpid()

    @functools.cache
    def start(python: Path, *modules: str, supervised: bool = True) -> WarmInterpreter:
        def write(path: Path) -> None:
            started = start_interpreter(python, modules or TORCH, owner_pid, supervised=supervised)
            path.write_text(str(started.address))

        words = (str(owner_pid), str(python), str(supervised), *modules)
        named = hashlib.sha256("\n".join(words).encode()).hexdigest()
        return WarmInterpreter(python, Path(make_once(f"warm {named[:16]}", write).read_text()))

    return start


@pytest.fixture(scope="session")
def plain(warm: Warm) -> Warm:
    """As `warm`, for programs that nobody supervises: what they print is what a supervised one has to print."""
    return functools.partial(warm, supervised=False)


@pytest.fixture(name="unsupervised")
def interpreter_without_an_agent(foreign_python: Path, plain: Warm) -> WarmInterpreter:
    return plain(foreign_python, *TRAINERS)


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "attempt")


@pytest.fixture(params=interpreters(), ids=name_of)
def python(request: pytest.FixtureRequest) -> Path:
    """Each bare interpreter in turn: no torch, no packages."""
    return Path(str(request.param))
