"""Shims that are children of the daemon: as a task of an engine it must leave nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, gone, pids_in, until

from supervisor.core import attempt_files as names
from supervisor.daemon.launch.launchers import is_task_of_engine, launcher_of
from supervisor.runner import process_table, shim
from supervisor.runner.direct import DirectLauncher
from supervisor.runner.held import HeldLauncher
from tests.rigs.hanging_fs import hanging

ROOT = Path(__file__).resolve().parents[2]
DAEMON = """
import sys, time
from pathlib import Path
from supervisor.children.start import keep_apart
from supervisor.runner.held import HeldLauncher
keep_apart()
HeldLauncher().launch("job", Path(sys.argv[1]))
print("up", flush=True)
time.sleep(600)
"""
FAMILY = 'setsid sh -c "echo $$ >> pids; exec sleep 600" & echo $$ >> pids; wait'
"""A training whose child left its session, as torchrun's ranks do."""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        made.launcher = HeldLauncher()
        yield made


def test_the_shim_is_a_child_in_a_session_of_its_own(runs: Attempts) -> None:
    found = process_table.read_process(runs.note(runs.launch(["sleep", "600"])).pid)
    assert found is not None
    assert (found.parent, found.session) == (os.getpid(), found.pid)


def test_a_shim_that_ended_is_reaped_and_its_record_is_read(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "exit 3"])
    assert runs.exit(folder).code == 3
    pid = runs.note(folder).pid
    until(lambda: process_table.read_process(pid) is None, "the shim is reaped")


@pytest.mark.parametrize("launched_as", ["as it is", "with its threads gone"])
def test_with_a_daemon_that_is_killed_every_process_of_the_training_ends(
    runs: Attempts, tmp_path: Path, launched_as: str
) -> None:
    """The thread that launched has ended long before: the kernel must not take its end for the daemon's."""
    folder = runs.prepare(["sh", "-c", FAMILY], cwd=str(tmp_path))
    in_thread = (
        "from threading import Thread\nt = Thread(target=HeldLauncher().launch, args=('job', Path(sys.argv[1])))\n"
    )
    code = DAEMON.replace('HeldLauncher().launch("job", Path(sys.argv[1]))\n', in_thread + "t.start(); t.join()\n")
    with subprocess.Popen(
        [sys.executable, "-c", DAEMON if launched_as == "as it is" else code, str(folder)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        until(lambda: (tmp_path / "pids").exists() and len(pids_in(tmp_path / "pids")) == 2, "the training's start")
        family = pids_in(tmp_path / "pids")
        assert not any(gone(pid) for pid in family)
        daemon.kill()
        daemon.wait(60)
    until(lambda: all(gone(pid) for pid in family), "the end of the training's processes")
    assert runs.exit(folder).signal == signal.SIGKILL


def test_a_shim_whose_daemon_died_before_it_began_starts_nothing(runs: Attempts, tmp_path: Path) -> None:
    folder = runs.prepare(["touch", str(tmp_path / "trained")])
    program = str(folder / names.CODE / "runner" / "shim.py")
    nobody = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True, timeout=60).stdout
    command = [sys.executable, "-I", "-S", program, "--held", nobody.strip(), str(folder)]
    assert subprocess.run(command, check=False, timeout=60).returncode == shim.START_FAILED
    assert not (tmp_path / "trained").exists()
    assert not (folder / names.SHIM).exists()


def test_a_command_that_cannot_start_is_an_error_with_its_reason(runs: Attempts) -> None:
    with pytest.raises(RuntimeError, match="no-such-program"):
        runs.launch(["/no-such-program"])


def test_in_an_allocation_and_as_the_first_process_shims_are_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_task_of_engine({"SLURM_JOB_ID": "7"}, 4711)
    assert is_task_of_engine({}, 1)
    assert not is_task_of_engine({"SLURM_JOB_ID": ""}, 4711)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert isinstance(launcher_of("auto", tmp_path).launcher, HeldLauncher)
    assert not isinstance(launcher_of("direct", tmp_path).launcher, HeldLauncher)
    assert isinstance(launcher_of("direct", tmp_path).launcher, DirectLauncher)


@pytest.mark.mounts
def test_what_was_started_is_found_and_ended_while_the_attempts_folder_hangs(tmp_path: Path) -> None:
    with (
        hanging(tmp_path / "far", tmp_path / "behind", asked_on_close=False) as far,
        Attempts(far.at / "state") as runs,
    ):
        runs.launcher = HeldLauncher()
        folder = runs.launch(["sleep", "600"])
        note = runs.note(folder)
        far.hang()
        killing = threading.Thread(target=runs.launcher.kill_all, args=("job", folder), daemon=True)
        killing.start()
        killing.join(30.0)
        hung = killing.is_alive()
        far.go_on()
        assert not hung
        assert note.training_pid is not None
        until(lambda: gone(note.pid) and gone(note.training_pid or 0), "the end of shim and training")
