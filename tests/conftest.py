"""What every room's tests share: where environments and outputs of other machines are, and that CI skips nothing."""

from __future__ import annotations

import fcntl
import functools
import gc
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import units
from tests.examples import Sampling, load_profile, sampling
from tests.rigs import forked_daemon
from tests.rigs.hanging_fs import HangingFs, hanging

load_profile()
os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Of every training that a test starts: the threads of several trainings on a few cores mostly wait for each other."""
os.environ["TESTS_QUICK_EXIT"] = "1"
"""Of interpreters of our training environments (Makefile): 0.7 s of processor time for each that imported torch."""
LEAN_TORCH = Path(__file__).parents[1] / "supervisor/agent/path/rocm_agent/memory/lean_torch.py"
"""What has these interpreters leave away of torch what a training does not use; not in tests marked `whole_torch`."""
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
"""As on a user's machine; without byte code every process of the suite compiles each module that it imports, and every
collection rewrites the assertions of all tests."""

os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).resolve().parent), os.environ.get("PATH", os.defpath)])
"""Tools written in Python (rocm-smi) begin with `env python3`: what a version manager has there is a shell script that
takes longer than the tool, and each incident of a test runs some."""

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"current": "ROCM_SUPERVISOR_TRAIN_PYTHON", "owner": "ROCM_SUPERVISOR_OWNER_PYTHON"}
COLLECTED = ROOT.parent / "shared" / "corpus"
LONGEST_NAME = 200
"""Characters of a parameter that are its test's name; escaping megabytes takes seconds in each process of a run."""
LEFT_AWAY = pytest.StashKey[int]()
LOOK_APART = "look_apart of the product"
"""Name under which a module keeps what units replace."""
FOREIGN = "ROCM_SUPERVISOR_FOREIGN_PYTHON"
EXPORT = "ROCM_SUPERVISOR_EXPORT_PYTHON"
NOT_TO_BE_HAD = re.compile(r"torch sees no GPU here|torch 1\.13\.\S+ has no |(promtool|axe-core) could not be fetched")
"""Reasons that stand under CI too: hardware, what a fixed version of torch does not have, and a registry that fails.

What judges our files from outside is fetched by `make test` and `.ci/run`, which say so where they cannot."""
ONE_OF = "kernel"
"""Marker of tests that use what a machine has one of: the kernel's log; they are run one after another."""
WITH_REASON = ("alone", "calm", "whole_torch")
"""Markers that say why."""
SLOW_ROOMS = ("agent", "attacks", "children", "cluster", "daemon", "e2e", "fleet", "laws", "runner", "suite", "systemd")
"""Rooms whose tests start processes and threads and wait for them."""
HOUSES = "e2e"
"""Its tests call supervisorctl as well."""
DAEMON_ROOMS = ("cluster", HOUSES)
COMPUTING_ROOMS = ("cli", "config", "core", "replay", "simulation", "sources")
"""Its tests compute, and are held to no time, unless they are marked so."""


def pytest_configure(config: pytest.Config) -> None:
    """Have each run hold its units to starting no process."""
    if not config.pluginmanager.is_registered(units):
        config.pluginmanager.register(units)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None]:
    """Collect without a look for garbage, and let none pass over what stays to the end: that took a fifth of the time.

    Thousands of tests and their modules are made at once, by each process of a run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the trainings of a test that is not about the parts themselves import of torch what they use."""
    if item.get_closest_marker("whole_torch") is None:
        os.environ["TESTS_LEAN_TORCH"] = str(LEAN_TORCH)
    else:
        os.environ.pop("TESTS_LEAN_TORCH", None)
    _let_units_look_at_files_themselves(item)


def _let_units_look_at_files_themselves(item: pytest.Item) -> None:
    """Have the command line look at a configuration without a fork in a test that may start no process.

    It is no fixture: one that each of nine thousand tests has takes a fifth of what a unit takes.
    """
    paths: Any = sys.modules.get("supervisor.cli.paths")
    if paths is not None:
        apart = vars(paths).setdefault(LOOK_APART, paths.look_apart)
        is_unit = not any(map(item.get_closest_marker, units.NOT_QUICK))
        paths.look_apart = (lambda work: work()) if is_unit else apart


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a test that is skipped for a missing part has failed: CI installs the parts."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not NOT_TO_BE_HAD.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: {reason} (nothing may be skipped under CI)"
    return report


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name a test after the beginning of a long parameter."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_NAME:
        return f"{argname} of {len(val)} beginning with {val[:40]!a}"
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of a booted systemd share its machine, and those of one kernel take turns: each share a process.

    pytest-xdist asks before any order is made.
    """
    if item.get_closest_marker(ONE_OF) is not None:
        item.add_marker(pytest.mark.xdist_group("kernel"))
    elif item.get_closest_marker("systemd") is not None:
        night = item.path.stem == "test_systemd_night"
        item.add_marker(pytest.mark.xdist_group("systemd night" if night else "systemd"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the extra pass where its outputs are not here; say of each other test in which stage it runs.

    Tests of a whole daemon mostly wait.
    """
    left = [] if COLLECTED.is_dir() else [item for item in items if "corpus" in getattr(item, "fixturenames", ())]
    config.stash[LEFT_AWAY] = len(left)
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]
    for item in items:
        names = set()  # in one pass: to ask an item for each of them takes a tenth of the collection
        for mark in item.iter_markers():
            names.add(mark.name)
            assert mark.name not in WITH_REASON or mark.kwargs.get("reason"), f"{item.nodeid}: {mark.name}: no reason"
        is_held = not names.isdisjoint(("alone", "calm"))
        if ONE_OF in names and not is_held:
            item.add_marker(pytest.mark.calm(reason="uses what a machine has one of"))
            names.add("calm")
        elif "systemd" in names and not is_held:
            item.add_marker("waits")
            names.add("waits")
        room = room_of(item.path)
        if room == "e2e":
            item.add_marker("waits")
        if room in SLOW_ROOMS:
            item.add_marker("slow")
        if room in COMPUTING_ROOMS and names.isdisjoint(units.NOT_QUICK):
            item.add_marker("fills")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin the imports of daemons once for all workers; what each test takes is measured with its worker's own."""
    measured = session.config.getoption("processor_to", None) is not None
    runs = session.config.getoption("forks", 0) and not session.config.option.collectonly
    rooms = {room_of(item.path) for item in session.items} if runs and not measured else set()
    if not rooms.isdisjoint(DAEMON_ROOMS):
        forked_daemon.share()
    if HOUSES in rooms:
        forked_daemon.share(forked_daemon.COMMAND)


@functools.cache
def room_of(path: Path) -> str:
    """Return the folder of a file in `tests`, nothing for one that lies elsewhere."""
    return path.relative_to(ROOT / "tests").parts[0] if path.is_relative_to(ROOT / "tests") else ""


@pytest.fixture(name="sampling")
def samples_of_this_run() -> Sampling:
    """What a statistical law takes its samples from."""
    return sampling()


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that has a file made by the first test of the run that asks for it, in whichever process."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made once"
    folder.mkdir(exist_ok=True)

    def make(name: str, write: Callable[[Path], object]) -> Path:
        path, part = folder / name, folder / f"{name}.part"
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                write(part)
                part.rename(path)
        return path

    return make


@pytest.fixture(scope="session")
def make_folder_once(
    make_once: Callable[[str, Callable[[Path], object]], Path],
) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return a function that has a folder filled as `make_once` makes a file; what is in it may name its own place."""

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        def write(filled: Path) -> None:
            folder = filled.with_name(f"{name} folder")
            folder.mkdir()
            fill(folder)
            filled.touch()

        return make_once(name, write).with_name(f"{name} folder")

    return make


@pytest.fixture(scope="session")
def code_copies(make_folder_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The folder of a state directory in which this package has been copied and compiled for trainings."""
    from supervisor.runner.code_copy import FOLDER, CodeCopies  # noqa: PLC0415 - few tests need it

    return make_folder_once("code", lambda state: CodeCopies(state, same_user=True).current()) / FOLDER


@pytest.fixture
def far(tmp_path: Path) -> Iterator[HangingFs]:
    """A disk that can be slow, fail, or hang."""
    with hanging(tmp_path / "far", tmp_path / "behind") as served:
        yield served


def interpreter(environment: str) -> Path:
    """Return the interpreter of a training environment, or skip the test without it."""
    return _named(ENVIRONMENTS[environment])


def _named(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} names no interpreter of a training environment (make test sets it)")
    return Path(value)


@pytest.fixture(params=sorted(ENVIRONMENTS))
def train_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of each training environment in turn: the current one and the owner's (torch 1.13.1)."""
    return interpreter(str(request.param))


@pytest.fixture
def current_python() -> Path:
    """The interpreter of the current training environment."""
    return interpreter("current")


@pytest.fixture
def owner_python() -> Path:
    """The interpreter of the owner's training environment: Python 3.10, torch 1.13.1."""
    return interpreter("owner")


@pytest.fixture
def quickest_python() -> Path:
    """The interpreter of one environment, for what is the agent's alone, whatever torch.

    The owner's, whose torch takes a third of the time until its first step; the current one without a Python 3.10.
    """
    return interpreter("owner" if os.environ.get(ENVIRONMENTS["owner"]) else "current")


@pytest.fixture
def foreign_python() -> Path:
    """The interpreter of an environment with Lightning, transformers, accelerate, Keras, JAX, optax and flax."""
    return _named(FOREIGN)


@pytest.fixture(scope="session")
def export_python() -> Path:
    """The interpreter of the environment with the libraries that `export` writes for."""
    return _named(EXPORT)


@pytest.fixture(scope="session")
def corpus() -> Path:
    """What other people's kernels, tools and trainings printed: read beside the checkout by tests of an extra pass."""
    return COLLECTED


@pytest.fixture(scope="session")
def outputs() -> Path:
    """What a kernel printed that was made to fail for it; each folder's README says how."""
    return ROOT / "tests" / "outputs"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left away."""
    if count := config.stash.get(LEFT_AWAY, 0):
        terminalreporter.write_line(
            f"{count} tests are an extra pass over outputs collected in ../shared/corpus: not here"
        )
