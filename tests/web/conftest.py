"""One record of a training of two hours with a crash, and one page over it, for the tests of a module."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from browser import Chromium, chromium
from long_record import write_long_record
from served_page import ServedPage, serving_page


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, make_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    folder = tmp_path_factory.mktemp("state")
    made = make_once("long record", lambda path: write_long_record(path, hours=8.0, steps=200_000))
    shutil.copy(made, folder / "supervisor.db")
    return folder


@pytest.fixture(scope="session", name="chromium")
def chromium_of_all_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One for the tests of all files, which share a process: each has a page of its own in it."""
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as started:
        yield started


@pytest.fixture(scope="module")
def page(state: Path) -> Iterator[ServedPage]:
    with serving_page(state) as served:
        yield served
