"""Evidence is taken of real processes, and within its time whatever hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, pids_in, until

from supervisor.core import attempt_files as names
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading, StepRecord
from supervisor.daemon.inner_pids import InnerPids
from supervisor.runner import process_table
from supervisor.runner.evidence import EvidenceFacts, read_output_tail, take
from tests.rigs.no_threads import no_threads

NOW = Moment(1.0, 2.0)
LOOKED_FOR = ("checkpoints.jsonl", "core dumps", "stacks", "processes.txt")
NOTHING_RUNS = "processes.txt: no process of the attempt is running"

DUMPING = """
import faulthandler, os, signal, sys, threading, time
def wedged_in_the_loader():
    time.sleep(60)
def dump_here():
    file = open(f'run/stacks/{os.getpid()}.txt', 'w')
    faulthandler.register(signal.SIGRTMIN + 7, file, all_threads=True)
    open('pids', 'a').write(f'{os.getpid()}\\n')
    return file
kept = dump_here()
for _ in range(WORKERS):
    if os.fork() == 0:
        kept = dump_here()
        time.sleep(60)
threading.Thread(target=wedged_in_the_loader, daemon=True).start()
print('one\\rtwo\\rthree\\x1b[K', flush=True)
while len(open('pids').read().split()) <= WORKERS:
    time.sleep(0.01)
open('ready', 'w')
def the_step_that_hangs():
    time.sleep(60)
the_step_that_hangs()
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


def dumping(runs: Attempts, workers: int = 0) -> Path:
    folder = runs.python(DUMPING.replace("WORKERS", str(workers)))
    until((folder / "ready").exists, "the training has set up")
    return folder


class HangingLauncher:
    """A launcher whose every call hangs, as one that waits for a bus that does not answer."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def launch(self, slot: str, folder: Path) -> None:
        self.released.wait()

    def signal(self, slot: str, folder: Path, signal_number: int) -> bool:
        return self.released.wait()

    def kill_all(self, slot: str, folder: Path) -> None:
        self.released.wait()

    def alive(self, slot: str, folder: Path) -> bool:
        return self.released.wait()

    def stand_by(self, slot: str, folder: Path) -> None:
        self.released.wait()

    def go(self, slot: str, folder: Path) -> str | None:
        self.released.wait()
        return None

    def dismiss(self, slot: str, folder: Path) -> None:
        self.released.wait()

    def find_shim(self, slot: str, folder: Path) -> process_table.Process | None:
        self.released.wait()
        return None

    def find_unit(self, slot: str, folder: Path) -> str | None:
        self.released.wait()
        return None


def test_every_thread_of_every_process_shows_where_it_stands(runs: Attempts) -> None:
    folder = dumping(runs, workers=2)
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1", limit_s=60.0)
    assert result.missing == ()
    assert result.folder == folder / names.EVIDENCE / "job-1"
    stacks = {int(path.stem.split("-")[1]): path.read_text() for path in result.folder.glob("stacks-*.txt")}
    assert set(stacks) == set(pids_in(folder / "pids"))
    training = runs.note(folder).training_pid
    assert training is not None
    assert "the_step_that_hangs" in stacks[training]
    assert "wedged_in_the_loader" in stacks[training]


def test_a_training_with_numbers_of_its_own_shows_where_it_stands(runs: Attempts) -> None:
    """As in a container: it knows itself as process 1, and its dump is called so."""
    command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody take numbers of their own")
    folder = runs.python(DUMPING.replace("WORKERS", "0"), below=command)
    until((folder / "ready").exists, "the training has set up")
    assert pids_in(folder / "pids") == [1]
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1", limit_s=60.0)
    (dump,) = result.folder.glob("stacks-*.txt")
    assert dump.name != "stacks-1.txt"
    assert "the_step_that_hangs" in dump.read_text()
    numbers = InnerPids(folder)
    numbers.look()
    assert dump.name == f"stacks-{numbers.find(1)}.txt"


@pytest.mark.alone(reason="compares a duration with a limit")
def test_it_is_quick_when_all_answer(runs: Attempts) -> None:
    folder = dumping(runs, workers=2)
    took = [take(folder, runs.launcher, "job", EvidenceFacts(), f"job-{number}").took_s for number in range(5)]
    assert min(took) < 0.15


def test_a_second_incident_has_its_own_dump_alone(runs: Attempts) -> None:
    folder = dumping(runs)
    for name in ("first", "second"):
        result = take(folder, runs.launcher, "job", EvidenceFacts(), name)
        (dump,) = result.folder.glob("stacks-*.txt")
        assert dump.read_text().count("the_step_that_hangs") == 1


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_stopped_process_is_named_and_not_waited_for(runs: Attempts) -> None:
    folder = dumping(runs)
    training = runs.note(folder).training_pid
    assert training is not None
    os.kill(training, signal.SIGSTOP)
    until(lambda: (item := process_table.read_process(training)) and item.state == "T", "stopped")
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1")
    assert result.missing == (f"stacks of {training}: in state T",)
    assert result.took_s < 1.0


def _sleeps(pid: int) -> bool:
    """Whether a process has become the command `sleep 60`, and sleeps."""
    process = process_table.read_process(pid)
    is_command = Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0060\x00"
    return is_command and process is not None and process.state == "S"


def test_processes_are_described_without_their_environment(runs: Attempts) -> None:
    folder = runs.launch(["sleep", "60"], env={"WANDB_API_KEY": "hunter2hunter2"})
    note = runs.note(folder)
    pid = note.training_pid
    assert pid is not None
    until(lambda: _sleeps(pid), "it to sleep")
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1")
    text = (result.folder / "processes.txt").read_text()
    assert f"{note.training_pid} child of {note.pid}, state S" in text
    assert f"/proc/{note.training_pid}/cmdline\nsleep 60\n" in text
    assert f"/proc/{note.training_pid}/wchan" in text
    assert f"/proc/{note.training_pid}/task/{note.training_pid}" in text
    everything = b"".join(path.read_bytes() for path in result.folder.iterdir())
    assert b"hunter2" not in everything
    assert result.missing == ("stacks: no process of the attempt has a stack dump handler",)


def test_what_is_known_already_is_put_alongside(runs: Attempts, tmp_path: Path) -> None:
    folder = dumping(runs)
    saved = tmp_path / "last.pt"
    saved.write_bytes(b"12345")
    facts = EvidenceFacts(
        records=[StepRecord(at=NOW, step=number, loss=float("nan")) for number in range(250)],
        kernel_lines=["amdgpu: GPU reset begin!"],
        gpus=[GpuReading(at=NOW, gpu="0000:0a:00.0", source="sysfs", junction_c=88.0)],
        host=[HostReading(at=NOW, load_1m=3.0)],
        configuration=lambda: f"made by {threading.current_thread().name}",
        checkpoints=lambda: [saved, tmp_path / "gone.pt"],
    )
    result = take(folder, runs.launcher, "job", facts, "job-1")
    rows = [json.loads(line) for line in (result.folder / "records.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(50, 250))
    assert rows[0]["loss"] == "nan"
    assert rows[0]["at"] == {"monotonic_s": 1.0, "unix_s": 2.0}
    assert (result.folder / "kernel.txt").read_text() == "amdgpu: GPU reset begin!\n"
    assert json.loads((result.folder / "gpus.jsonl").read_text())["junction_c"] == 88.0
    assert json.loads((result.folder / "host.jsonl").read_text())["load_1m"] == 3.0
    assert (result.folder / "configuration.txt").read_text() == "made by evidence-records.jsonl"
    there, gone = [json.loads(line) for line in (result.folder / "checkpoints.jsonl").read_text().splitlines()]
    assert there["size_bytes"] == 5
    assert gone == {"path": str(tmp_path / "gone.pt"), "error": "No such file or directory"}
    assert (result.folder / "output.txt").read_text() == "three\n"


def test_the_tail_of_the_output_is_folded_and_bounded(tmp_path: Path) -> None:
    redraws = b"".join(b"\repoch 1: %d%%\x1b[K" % number for number in range(20000))
    (tmp_path / names.RUN).mkdir()
    (tmp_path / names.OUTPUT).write_bytes(b"start\n" + redraws + b"\r\n\xff\xfe\x00end\n")
    assert read_output_tail(tmp_path).splitlines() == ["epoch 1: 19999%", "\ufffd\ufffdend"]
    (tmp_path / names.OUTPUT).write_bytes(b"x" * 1_000_000)
    assert len(read_output_tail(tmp_path)) == 65536


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_part_that_hangs_costs_the_others_nothing(runs: Attempts) -> None:
    folder = dumping(runs)
    launcher = HangingLauncher()
    began = time.perf_counter()
    result = take(folder, launcher, "job", EvidenceFacts(), "job-1", limit_s=0.5)
    assert time.perf_counter() - began < 1.5
    assert result.missing == ("stacks: not collected in time",)
    assert "the attempt" not in (result.folder / "processes.txt").read_text()
    assert (result.folder / "output.txt").read_text() == "three\n"
    launcher.released.set()


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_part_that_hangs_has_one_thread_however_many_incidents_its_job_has(runs: Attempts) -> None:
    """Each incident of a job that is restarted all the time left another thread to wait."""
    folder = dumping(runs)
    go, hung = threading.Event(), threading.Semaphore(0)

    def hang() -> str:
        hung.release()
        assert go.wait(120)
        return ""

    try:
        for number in range(4):
            taken = take(folder, runs.launcher, "hostile", EvidenceFacts(configuration=hang), f"i{number}", limit_s=0.5)
            assert [line for line in taken.missing if line.startswith("configuration.txt: ")]
        assert hung.acquire(timeout=120)
        assert not hung.acquire(blocking=False)
        assert "configuration.txt: that of an earlier incident has not ended" in taken.missing
        other = take(folder, runs.launcher, "other", EvidenceFacts(), "i5", limit_s=30)
        assert not [line for line in other.missing if line.startswith("configuration.txt: ")], "another job's is taken"
    finally:
        go.set()


def test_a_pipe_in_place_of_the_output_is_named_and_costs_the_others_nothing(runs: Attempts) -> None:
    folder = runs.prepare(["true"])
    os.mkfifo(folder / names.OUTPUT)
    result = take(folder, runs.launcher, "job", EvidenceFacts(kernel_lines=["x"]), "job-1", limit_s=5)
    assert any(item.startswith("output.txt: ") and "is a named pipe" in item for item in result.missing)
    assert result.took_s < 4
    assert (result.folder / "kernel.txt").read_text() == "x\n"


def test_an_attempt_that_is_gone_leaves_what_can_be_had(runs: Attempts) -> None:
    folder = runs.launch(["echo", "last words"])
    runs.exit(folder)
    until(lambda: not runs.launcher.alive("job", folder), "the shim's end")
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1")
    assert (result.folder / "output.txt").read_text() == "last words\n"
    assert result.missing == ("stacks: no process of the attempt has a stack dump handler", NOTHING_RUNS)


def test_a_folder_that_cannot_be_written_is_a_reason_and_no_exception(runs: Attempts) -> None:
    folder = runs.prepare(["true"])
    (folder / names.EVIDENCE).write_text("a file is in the way")
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1")
    assert len(result.missing) == 1
    assert result.missing[0].startswith("folder: ")


def test_without_room_for_a_thread_what_is_in_the_state_directory_is_kept_and_the_rest_is_named(runs: Attempts) -> None:
    folder = runs.launch(["echo", "last words"])
    runs.exit(folder)
    facts = EvidenceFacts(kernel_lines=["amdgpu: reset"])
    with no_threads():
        result = take(folder, runs.launcher, "job", facts, "job-1")
    assert (result.folder / "output.txt").read_text() == "last words\n"
    assert (result.folder / "kernel.txt").read_text() == "amdgpu: reset\n"
    why = "no thread could be started: can't start new thread"
    assert result.missing == tuple(f"{part}: {why}" for part in LOOKED_FOR)


def test_an_incident_stays_in_its_folder_whatever_it_is_called(runs: Attempts) -> None:
    folder = runs.prepare(["true"])
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "../../../etc/x")
    assert result.folder.parent == folder / names.EVIDENCE


def test_the_debug_agent_of_rocm_prints_the_wavefronts_and_nobody_else_is_asked(runs: Attempts) -> None:
    code = DUMPING.replace("WORKERS", "0").replace(
        "kept = dump_here()\nfor",
        "signal.signal(signal.SIGQUIT, lambda *_: print('wave_1 pc=0x7f', flush=True))\nkept = dump_here()\nfor",
    )
    for agent, printed in (("/opt/rocm/lib/librocm-debug-agent.so.2", True), ("", False)):
        folder = runs.python(code, env={"HSA_TOOLS_LIB": agent})
        until((folder / "ready").exists, "the training has set up")
        result = take(folder, runs.launcher, "job", EvidenceFacts(stands_still=True), "job-1")
        assert result.missing == ()
        assert (result.folder / "wavefronts.txt").exists() is printed
        assert list(result.folder.glob("native-stacks-*.txt"))
        runs.launcher.kill_all("job", folder)
        until(lambda: not runs.launcher.alive("job", folder), "the end")  # noqa: B023 - awaited in its own turn


def test_the_bundle_holds_the_hardwares_variables_and_no_secret(runs: Attempts) -> None:
    env = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz"}
    folder = runs.launch(["sh", "-c", "echo token=$HF_TOKEN; sleep 60", "--password", "sesame-open"], env=env)
    until(lambda: (folder / names.OUTPUT).stat().st_size > 0, "its first words")
    result = take(folder, runs.launcher, "job", EvidenceFacts(), "job-1")
    assert (result.folder / "environment.txt").read_text() == "HSA_OVERRIDE_GFX_VERSION=10.3.0\n"
    for path in result.folder.iterdir():
        assert "hf_abc" not in path.read_text()
        assert "sesame" not in path.read_text()
