"""Fixtures of the agent's room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent_by_hand import Attempt, interpreters, name_of

from tests.rigs.warm import TORCH, Warm, WarmInterpreter, warm_interpreter


def pytest_itemcollected(item: pytest.Item) -> None:
    """The tests of a file that begin warm in one environment share a process, and so the interpreter."""
    if isinstance(item, pytest.Function) and "warm" in item.fixturenames and not _is_grouped(item):
        environment = item.callspec.params.get("train_python", "once") if hasattr(item, "callspec") else "once"
        item.add_marker(pytest.mark.xdist_group(f"warm {item.path.stem} {environment}"))


def _is_grouped(item: pytest.Item) -> bool:
    return item.get_closest_marker("xdist_group") is not None


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Return a function that has an interpreter import torch, or what is named, once a process of the suite."""
    started: dict[tuple[Path, tuple[str, ...]], WarmInterpreter] = {}
    with ExitStack() as stack:

        def start(python: Path, *modules: str) -> WarmInterpreter:
            key = (python, modules or TORCH)
            if key not in started:
                started[key] = stack.enter_context(warm_interpreter(*key))
            return started[key]

        yield start


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path / "attempt")


@pytest.fixture(params=interpreters(), ids=name_of)
def python(request: pytest.FixtureRequest) -> Path:
    """Each bare interpreter in turn: no torch, no packages."""
    return Path(str(request.param))
