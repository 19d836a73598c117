"""The shim against real trainings: ones that obey, ones that do not, and ones that leave children behind."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, gone, pids_in, until

from supervisor.core import attempt_files as names
from supervisor.runner import process_table, shim, shim_files
from supervisor.runner.launcher import LaunchError
from tests.rigs import small_disk
from tests.rigs.failing_disk import failing
from tests.rigs.hanging_fs import HangingFs

PTRACE_ATTACH, PTRACE_DETACH = 16, 17
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready','w'); time.sleep(60)"
OBEDIENT = "import time; open('ready','w'); time.sleep(60)"

DAEMONS = """
import os, sys, time
def daemonise():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        with open('pids', 'a') as file:
            file.write(f'{os.getpid()}\\n')
        time.sleep(60)
        os._exit(0)
    os.wait()
open('pids', 'w').close()
for _ in range(3):
    daemonise()
while len(open('pids').read().split()) < 3:
    time.sleep(0.01)
open('ready', 'w')
"""

CLAIMING = """
import os, struct, sys, time
path = 'run/recorder.bin'
file = os.open(path, os.O_RDWR)
os.pwrite(file, struct.pack('<Iiq', os.getpid(), 0, 0), 24)
open('ready', 'w')
while struct.unpack('<II', os.pread(file, 8, 128))[0] != 2:
    time.sleep(0.002)
number = struct.unpack('<II', os.pread(file, 8, 128))[1]
"""
SAVING = CLAIMING + "open('saved', 'w')\nos.pwrite(file, struct.pack('<II', 2, number), 192)\ntime.sleep(60)\n"
SAVING_SLOWLY = SAVING.replace("open('saved'", "while not os.path.exists('go'): time.sleep(0.01)\nopen('saved'")
SAVING_AND_LEAVING = CLAIMING + "open('saved', 'w')\nsys.exit(0)\n"
NEVER_ANSWERING = CLAIMING + "time.sleep(60)\n"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


def ready(folder: Path) -> None:
    until((folder / "ready").exists, "the training has set up")


def test_its_numbers_are_those_of_core() -> None:
    identity = names.IDENTITY.pack(names.MAGIC, names.HEADER_BYTES, names.RECORD.size, names.CAPACITY_DEFAULT, 0)
    size = names.HEADER_BYTES + names.CAPACITY_DEFAULT * names.RECORD.size
    assert (identity, size) == (shim_files.RECORDER_IDENTITY, shim_files.RECORDER_BYTES)
    assert (shim_files.CLAIM_OFFSET, shim_files.COMMAND_OFFSET, shim_files.ANSWER_OFFSET) == (
        names.CLAIM_OFFSET,
        names.COMMAND_OFFSET,
        names.ANSWER_OFFSET,
    )
    assert f"{shim_files.RUN}/{shim.START_ASKED}" == names.START_ASKED
    assert shim_files.COMMAND_SAVE_AND_STOP == names.COMMAND_SAVE_AND_STOP
    assert shim_files.ANSWERS_THAT_END == (names.ANSWER_SAVED, names.ANSWER_CANNOT)
    assert signal.SIGRTMIN + names.STACKS_SIGNAL_OFFSET == shim.STACKS_SIGNAL
    assert {names.SHIM_SAVE_AND_END, names.SHIM_END, names.SHIM_KILL, names.SHIM_STACKS} <= {
        signal.Signals(number).name for number in shim.WATCHED
    }


@pytest.mark.parametrize("code", [0, 1, 3, 137])
def test_an_exit_code_is_the_trainings_own(runs: Attempts, code: int) -> None:
    folder = runs.launch(["sh", "-c", f"exit {code}"])
    status = runs.exit(folder)
    assert (status.code, status.signal, status.error) == (code, None, None)
    assert status.clean == (code == 0)


def test_a_death_by_signal_is_reported_as_a_signal(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "kill -SEGV $$"])
    status = runs.exit(folder)
    assert (status.code, status.signal) == (None, signal.SIGSEGV)


def test_output_goes_to_the_file_and_input_is_empty(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "cat; echo out; echo err >&2"])
    runs.exit(folder)
    assert (folder / names.OUTPUT).read_text() == "out\nerr\n"


def test_a_command_that_does_not_exist_is_named(runs: Attempts) -> None:
    folder = runs.prepare(["yolo-of-tomorrow", "train"])
    with pytest.raises(LaunchError, match="'yolo-of-tomorrow' of the job: not found"):
        runs.launcher.launch("job", folder)
    assert "yolo-of-tomorrow" in str(runs.exit(folder).error)
    assert not runs.launcher.alive("job", folder)


def test_a_command_that_may_not_be_executed_is_named(runs: Attempts, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o644)
    with pytest.raises(LaunchError, match=r"train\.sh' of the job: Permission denied"):
        runs.launch([str(script)])


def test_a_missing_working_directory_is_named(runs: Attempts) -> None:
    folder = runs.prepare(["true"], cwd="/nowhere/at/all")
    with pytest.raises(LaunchError, match="cwd '/nowhere/at/all' of the job: No such file"):
        runs.launcher.launch("job", folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"argv": []}', '{"argv":["true"],"cwd":1,"env":{},"save_s":1}'])
def test_a_damaged_launch_file_is_named(runs: Attempts, text: str) -> None:
    folder = runs.prepare(["true"])
    (folder / names.LAUNCH).write_text(text)
    with pytest.raises(LaunchError, match=r"launch\.json"):
        runs.launcher.launch("job", folder)


def test_the_environment_passes_bytes_that_are_no_text(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", 'printf %s "$ODD"'], env={"ODD": os.fsdecode(b"a\xff\xfeb")})
    runs.exit(folder)
    assert (folder / names.OUTPUT).read_bytes() == b"a\xff\xfeb"


def test_a_training_starts_with_default_signals_and_the_callers_umask(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "umask; grep -E '^(SigIgn|SigBlk)' /proc/self/status; ls /proc/self/fd"])
    runs.exit(folder)
    lines = (folder / names.OUTPUT).read_text().split()
    mask = os.umask(0o022)
    os.umask(mask)
    assert int(lines[0], 8) == mask
    # Signals 32 and 33 are the C library's own: its posix_spawn, by which make starts programs, ignores them for good.
    ours = [int(mask, 16) & ~(0b11 << 31) for mask in (lines[2], lines[4])]
    assert (lines[1], lines[3], ours) == ("SigBlk:", "SigIgn:", [0, 0])
    assert lines[5:] == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


def test_the_recorder_is_there_in_full_before_the_training(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "true"])
    runs.exit(folder)
    recorder = folder / names.RECORDER
    stat = recorder.stat()
    assert stat.st_size == shim_files.RECORDER_BYTES
    assert stat.st_mode & 0o777 == 0o660
    assert stat.st_blocks * 512 >= shim_files.RECORDER_BYTES
    assert names.IDENTITY.unpack(recorder.read_bytes()[: names.IDENTITY.size])[0] == names.MAGIC


def test_sigint_ends_the_tree_at_once(runs: Attempts) -> None:
    folder = runs.python(OBEDIENT)
    ready(folder)
    runs.signal(folder, names.SHIM_END)
    assert runs.exit(folder).signal == signal.SIGTERM


def test_sigterm_without_an_agent_ends_the_tree_at_once(runs: Attempts) -> None:
    folder = runs.python(OBEDIENT, save_s=60)
    ready(folder)
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    assert runs.exit(folder).signal == signal.SIGTERM


@pytest.mark.parametrize(("code", "ended_by"), [(SAVING, (None, signal.SIGTERM)), (SAVING_AND_LEAVING, (0, None))])
def test_sigterm_lets_the_training_save_first(
    runs: Attempts, code: str, ended_by: tuple[int | None, int | None]
) -> None:
    folder = runs.python(code, save_s=60)
    ready(folder)
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    status = runs.exit(folder)
    assert (folder / "saved").exists()
    assert (status.code, status.signal) == ended_by


def test_a_stopped_training_goes_on_to_save_first(runs: Attempts) -> None:
    folder = runs.python(SAVING, save_s=60)
    ready(folder)
    training = runs.note(folder).training_pid
    assert training is not None
    os.kill(training, signal.SIGSTOP)
    until(lambda: (item := process_table.read_process(training)) and item.state == "T", "stopped")
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    assert runs.exit(folder).signal == signal.SIGTERM
    assert (folder / "saved").exists()


def test_a_stopped_training_that_a_tool_still_reads_goes_on_to_save_first(runs: Attempts) -> None:
    """On a busy machine py-spy, which holds what it reads, may take longer than the evidence is waited for."""
    folder = runs.python(SAVING, save_s=20)
    ready(folder)
    training = runs.note(folder).training_pid
    assert training is not None
    os.kill(training, signal.SIGSTOP)
    until(lambda: (item := process_table.read_process(training)) and item.state == "T", "stopped")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_ATTACH, training, None, None):
        pytest.skip(f"this machine lets no process be traced: {os.strerror(ctypes.get_errno())}")
    until(lambda: (item := process_table.read_process(training)) and item.state == "t", "held")
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    until(lambda: read_command(folder) != (0, 0), "asked to save")
    libc.ptrace(PTRACE_DETACH, training, None, None)
    assert runs.exit(folder).signal == signal.SIGTERM
    assert (folder / "saved").exists()


@pytest.mark.waits
def test_time_in_which_the_machine_stood_still_is_none_that_a_save_has(runs: Attempts) -> None:
    """As of a virtual machine that is paused, or a unit that is frozen."""
    folder = runs.python(SAVING_SLOWLY, save_s=3)
    ready(folder)
    note = runs.note(folder)
    assert note.training_pid is not None
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    until(lambda: read_command(folder) != (0, 0), "asked to save")
    for sent in (signal.SIGSTOP, signal.SIGCONT):
        for pid in (note.pid, note.training_pid):
            os.kill(pid, sent)
        subprocess.run(["sleep", "4" if sent == signal.SIGSTOP else "0.5"], check=True)
    (folder / "go").touch()
    runs.exit(folder)
    assert (folder / "saved").exists()


def read_command(folder: Path) -> tuple[int, int]:
    with (folder / names.RECORDER).open("rb") as file:
        file.seek(names.COMMAND_OFFSET)
        kind, request = names.COMMAND.unpack(file.read(8))
        return kind, request


ON_A_TERMINAL = """
import os, pty, time
child, terminal = pty.fork()
if child == 0:
    os.write(1, b'up')
    time.sleep(60)
os.read(terminal, 2)
with open('child', 'w') as file:
    file.write(str(child))
open('ready', 'w')
time.sleep(60)
"""


def test_sigcont_continues_what_a_signal_has_stopped_and_leaves_a_terminals_job_control_alone(runs: Attempts) -> None:
    folder = runs.python(ON_A_TERMINAL)
    ready(folder)
    training, child = runs.note(folder).training_pid, int((folder / "child").read_text())
    assert training is not None
    for pid in (child, training):
        os.kill(pid, signal.SIGSTOP)
        until(lambda pid=pid: (item := process_table.read_process(pid)) and item.state == "T", "stopped")  # type: ignore[misc]  # the default binds the loop's value
    runs.signal(folder, names.SHIM_CONTINUE)
    until(lambda: (item := process_table.read_process(training)) and item.state != "T", "continued")
    held = process_table.read_process(child)
    assert held is not None
    assert (held.state, held.terminal != 0) == ("T", True)
    runs.signal(folder, names.SHIM_KILL)
    assert runs.exit(folder).signal == signal.SIGKILL


def test_a_training_that_never_answers_is_waited_for_no_longer_than_save_s(runs: Attempts) -> None:
    folder = runs.python(NEVER_ANSWERING, save_s=0.3)
    ready(folder)
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    assert runs.exit(folder).signal == signal.SIGTERM


def test_sigint_outruns_a_save(runs: Attempts) -> None:
    folder = runs.python(NEVER_ANSWERING, save_s=60)
    ready(folder)
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    runs.signal(folder, names.SHIM_END)
    assert runs.exit(folder).signal == signal.SIGTERM


def test_a_claim_of_a_process_outside_the_tree_is_not_asked(runs: Attempts) -> None:
    folder = runs.python(OBEDIENT, save_s=60)
    ready(folder)
    with (folder / names.RECORDER).open("r+b") as file:
        file.seek(names.CLAIM_OFFSET)
        file.write(struct.pack("<I", os.getpid()))
    runs.signal(folder, names.SHIM_SAVE_AND_END)
    assert runs.exit(folder).signal == signal.SIGTERM
    assert read_command(folder) == (0, 0)


def test_a_training_that_ignores_sigterm_is_left_until_it_is_killed(runs: Attempts) -> None:
    folder = runs.python(STUBBORN)
    ready(folder)
    note = runs.note(folder)
    runs.signal(folder, names.SHIM_END)
    runs.signal(folder, names.SHIM_STACKS)  # answered after the former, and it changes nothing
    assert note.training_pid is not None
    assert not gone(note.training_pid)
    assert not (folder / names.EXIT).exists()
    runs.signal(folder, names.SHIM_KILL)
    assert runs.exit(folder).signal == signal.SIGKILL


def test_a_stopped_training_can_be_ended_and_killed(runs: Attempts) -> None:
    for word, expected in ((names.SHIM_END, signal.SIGTERM), (names.SHIM_KILL, signal.SIGKILL)):
        folder = runs.python(OBEDIENT)
        ready(folder)
        training = runs.note(folder).training_pid
        assert training is not None
        os.kill(training, signal.SIGSTOP)
        until(lambda pid=training: (item := process_table.read_process(pid)) and item.state == "T", "stopped")  # type: ignore[misc]  # the default binds the loop's value
        runs.signal(folder, word)
        assert runs.exit(folder).signal == expected
        until(lambda: not runs.launcher.alive("job", folder), "the shim's end")  # noqa: B023 - asked within the turn


def test_daemonised_grandchildren_end_with_the_training(runs: Attempts) -> None:
    folder = runs.python(DAEMONS)
    facts = runs.exit_facts(folder)
    assert facts["exit_code"] == 0
    assert facts["leftovers"] == 3
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_a_leftover_that_ignores_sigterm_is_killed_after_its_grace(runs: Attempts) -> None:
    stubborn = DAEMONS.replace(
        "time.sleep(60)", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    )
    folder = runs.python(stubborn.replace("file.write", "import signal; signal.signal(15, signal.SIG_IGN); file.write"))
    facts = runs.exit_facts(folder)
    assert facts["leftovers"] == 3
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_sigquit_reaches_daemonised_grandchildren(runs: Attempts) -> None:
    folder = runs.python(DAEMONS + "time.sleep(60)\n")
    ready(folder)
    runs.signal(folder, names.SHIM_KILL)
    assert runs.exit(folder).signal == signal.SIGKILL
    assert all(gone(pid) for pid in pids_in(folder / "pids"))


def test_a_second_shim_is_refused_and_touches_nothing_of_the_first(runs: Attempts) -> None:
    first = runs.launch(["sleep", "60"])
    before = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    second = runs.prepare(["sleep", "60"])
    with pytest.raises(LaunchError, match="another attempt of this job is still running"):
        runs.launcher.launch("job", second)
    assert "lock" in str(runs.exit(second).error)
    assert not (second / names.SHIM).exists()
    assert {path.name: path.stat().st_mtime_ns for path in first.iterdir()} == before
    assert runs.launcher.alive("job", first)


def test_a_second_shim_in_the_same_folder_exits_75_without_a_word_into_it(runs: Attempts) -> None:
    folder = runs.launch(["sleep", "60"])
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = subprocess.run(
        [sys.executable, "-I", "-S", shim.__file__, str(folder)], capture_output=True, check=False, timeout=120
    )
    assert again.returncode == shim.CLAIMED_BY_ANOTHER
    assert b"has already been started" in again.stdout
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_an_attempt_that_is_over_is_not_run_again_and_the_next_is_asked_for(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "echo once"])
    ended = runs.exit(folder)
    command = [sys.executable, "-I", "-S", shim.__file__, str(folder)]
    again = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert (again.returncode, b"is asked to start the next" in again.stdout) == (0, True)
    assert (folder / names.START_ASKED).read_bytes() == b""
    assert (runs.exit(folder), (folder / names.OUTPUT).read_text()) == (ended, "once\n")


def test_the_current_link_is_read_once(runs: Attempts) -> None:
    folder = runs.prepare(["sleep", "60"])
    current = folder.parent / names.CURRENT
    runs.launcher.launch("job", current)
    current.unlink()
    current.symlink_to("elsewhere")
    runs.signal(folder, names.SHIM_END)
    assert runs.exit(folder).signal == signal.SIGTERM


def test_stacks_are_asked_of_those_alone_that_can_answer(runs: Attempts) -> None:
    """A process without the handler would die of the signal, whatever a file says."""
    code = """
import faulthandler, os, signal, subprocess, sys, time
child = subprocess.Popen(['sleep', '60'])
open(f'run/stacks/{child.pid}.txt', 'w')
file = open(f'run/stacks/{os.getpid()}.txt', 'w')
faulthandler.register(signal.SIGRTMIN + 7, file, all_threads=True)
open('child', 'w').write(str(child.pid))
open('ready', 'w')
time.sleep(60)
"""
    folder = runs.python(code)
    ready(folder)
    runs.signal(folder, names.SHIM_STACKS)
    dump = folder / names.STACKS / f"{runs.note(folder).training_pid}.txt"
    until(lambda: "most recent call first" in dump.read_text(), "a stack dump")
    runs.signal(folder, names.SHIM_STACKS)
    until(lambda: dump.read_text().count("most recent call first") == 2, "a second dump")
    assert not gone(pids_in(folder / "child")[0])


def test_it_is_light(runs: Attempts) -> None:
    folder = runs.launch(["sleep", "60"])
    rollup = Path(f"/proc/{runs.note(folder).pid}/smaps_rollup").read_text()
    anonymous_kb = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon:"))
    assert anonymous_kb < 6000
    assert b"ctypes" not in Path(f"/proc/{runs.note(folder).pid}/maps").read_bytes()


def test_it_holds_no_descriptor_of_whoever_started_it(runs: Attempts) -> None:
    folder = runs.launch(["sleep", "60"])
    held = {str(path.readlink()) for path in Path(f"/proc/{runs.note(folder).pid}/fd").iterdir()}
    assert {Path(item).name for item in held} == {"null", "lock", "exit.json.tmp"}


def test_exit_json_has_every_field_of_the_contract(runs: Attempts) -> None:
    folder = runs.launch(["true"])
    facts = runs.exit_facts(folder)
    assert set(facts) == {
        "version",
        "exit_code",
        "signal",
        "error",
        "max_rss_bytes",
        "user_s",
        "system_s",
        "started_unix_s",
        "ended_unix_s",
        "ended_monotonic_ns",
        "leftovers",
        "in_background",
    }
    output = json.loads((folder / names.SHIM).read_text())
    assert {
        "version",
        "pid",
        "start_ticks",
        "boot_id",
        "training_pid",
        "training_start_ticks",
        "started_unix_s",
    } <= set(output)


@pytest.mark.mounts
def test_the_end_is_written_even_when_the_disk_is_full(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "small", megabytes=10) as small, Attempts(small / "state") as runs:
        folder = runs.launch(["sh", "-c", "head -c 20M /dev/zero; exit 3"])  # its output fills what is left
        status = runs.exit(folder)
        assert os.statvfs(small).f_bavail == 0
        assert status.code == 3


@pytest.mark.mounts
@pytest.mark.parametrize("change", ["write", "rename"])
def test_the_end_is_written_though_its_disk_refuses_that_at_first(tmp_path: Path, change: str) -> None:
    with failing(tmp_path / "disk", tmp_path / "behind") as disk, Attempts(disk.at / "state") as runs:
        disk.fails_at(f"{change} state/jobs/job/N/run/exit.json.tmp", 1, errno.EIO, times=2)
        status = runs.exit(runs.launch(["sh", "-c", "exit 3"]))
        assert len(disk.failed_changes) == 2
        assert status.code == 3


@pytest.mark.mounts
def test_a_training_runs_without_a_recorder_that_finds_no_room(tmp_path: Path) -> None:
    with small_disk.mounted(tmp_path / "small", megabytes=2) as small, Attempts(small / "state") as runs:
        folder = runs.launch(["true"])
        assert runs.exit(folder).clean
        assert "No space left" in str(runs.note(folder).problem)
        assert not (folder / names.RECORDER).exists()


@pytest.mark.mounts
def test_a_recorder_takes_few_requests_of_a_disk_that_cannot_allocate(far: HangingFs) -> None:
    """On a slow network 2,300 of them, one a block, took longer than a shim may take to report."""
    (far.at / names.RUN).mkdir()
    assert shim_files.Recorder(str(far.at)).make() is None
    found = far.real / names.RUN / "recorder.bin"
    assert found.stat().st_size == shim_files.RECORDER_BYTES
    assert found.stat().st_blocks * 512 >= shim_files.RECORDER_BYTES
    assert found.read_bytes().rstrip(b"\0") == shim_files.RECORDER_IDENTITY.rstrip(b"\0")
    assert far.written < 200
