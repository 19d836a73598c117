"""A probed command does not outlive who probes it: it would take memory beside the training that begins or goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from supervisor.runner.attempt_folder import make_attempt_folder
from supervisor.runner.memory_probe import Command, end_process, start_process

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
TRAINING = """
import os, sys, time
reader, writer = os.pipe()
if os.fork() == 0:  # as a loader's worker
    with open(sys.argv[1], "a") as pids:
        print(os.getpid(), file=pids)
    os.write(writer, b"up")
    time.sleep(3600)
os.read(reader, 2)
with open(sys.argv[1], "a") as pids:
    print(os.getpid(), file=pids)
if "waits" in sys.argv:
    os.kill(int(open(sys.argv[1]).read().split()[0]), 9)
    os.wait()
    try:
        os.wait()  # of a child that it did not start it would wait for ever
    except ChildProcessError:
        sys.exit(3)
time.sleep(3600)
"""
CALLER = """
import sys
from pathlib import Path
from supervisor.runner.attempt_folder import make_attempt_folder
from supervisor.runner.memory_probe import Command, WhatIf, probe
from supervisor.runner.loaded_probe import LoadedProbe
command = Command(argv=sys.argv[2:], cwd="/", env={}, limit_s=600.0)
if sys.argv[1] == "loaded":
    with LoadedProbe(command) as probes:
        probes.probe(WhatIf())
else:
    probe(command, WhatIf())
"""


def read_pids(path: Path) -> list[int]:
    until_s = time.perf_counter() + LIMIT_S
    while not path.exists() or len(pids := path.read_text().split()) < 2:
        assert time.perf_counter() < until_s, "the command never began"
        time.sleep(0.02)
    return [int(pid) for pid in pids]


def wait_until_gone(pids: list[int]) -> None:
    until_s = time.perf_counter() + LIMIT_S
    while left := [pid for pid in pids if _is_alive(pid)]:
        assert time.perf_counter() < until_s, left
        time.sleep(0.02)


@pytest.mark.parametrize("way", ["loaded", "alone"])
def test_a_killed_caller_takes_the_probed_command_with_it(tmp_path: Path, way: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    # Where no writes are discarded, the folder is the command's own: its pids are read from there.
    pids = Path("/dev/shm") / f"{tmp_path.name}-{way}"  # /dev is not covered by a layer
    command = [sys.executable, str(script), str(pids)]
    try:
        caller = subprocess.Popen([sys.executable, "-c", CALLER, way, *command])
        with caller:
            found = read_pids(pids)
            caller.send_signal(signal.SIGKILL)
        wait_until_gone(found)
    finally:
        pids.unlink(missing_ok=True)


def test_the_command_has_no_child_that_it_did_not_start_and_an_end_leaves_nothing(tmp_path: Path) -> None:
    script, pids = tmp_path / "train.py", tmp_path / "pids"
    script.write_text(TRAINING)
    folder = tmp_path / "attempt"
    make_attempt_folder(folder, None)
    argv = [sys.executable, str(script), str(pids), "waits"]
    process = start_process(argv, {}, Command(argv=argv, cwd=str(tmp_path), env={}), folder)
    found = read_pids(pids)
    assert process.wait(LIMIT_S) == 3
    end_process(process)
    wait_until_gone(found)
    left = [item for item in psutil.process_iter() if _group_of(item.pid) == process.pid]
    wait_until_gone([item.pid for item in left])


def test_a_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").touch()
    for name, error in (("/no/such/program", FileNotFoundError), (str(tmp_path / "text"), PermissionError)):
        with pytest.raises(error) as raised:
            start_process([name], {}, Command(argv=[name], cwd="/", env={}), tmp_path)
        assert raised.value.filename == name


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
