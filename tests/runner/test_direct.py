"""Shims that are nobody's children: they outlive whoever started them, and are found again by their folder alone."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, gone, pids_in, until

from supervisor.core import attempt_files as names
from supervisor.runner import process_table, shim
from supervisor.runner.attempt_folder import read_shim
from supervisor.runner.direct import DirectLauncher
from supervisor.runner.launcher import LaunchError, SilentShimError, shortage_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Attempts]:
    with Attempts(tmp_path / "state") as made:
        yield made


def own_children() -> list[process_table.Process]:
    return [process for process in process_table.read_processes() if process.parent == os.getpid()]


def test_a_launch_leaves_no_child_and_no_zombie(runs: Attempts) -> None:
    before = {child.pid for child in own_children()}
    folder = runs.launch(["sleep", "60"])
    assert {child.pid for child in own_children()} <= before
    note = runs.note(folder)
    found = process_table.read_process(note.pid)
    assert found is not None
    assert found.session == note.pid


def test_a_first_process_that_is_killed_after_it_forked_is_a_launch_all_the_same(
    runs: Attempts, tmp_path: Path
) -> None:
    """As by the kernel, for want of memory: the shim runs, and nobody else could be started beside it."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nkill -KILL $$\n')
    python.chmod(0o755)
    folder = runs.prepare(["sleep", "60"])
    DirectLauncher(str(python)).launch("job", folder)
    assert runs.launcher.alive("job", folder)


def slowness() -> float:
    """Return how many times as long as its own work a start of Python takes now: 1 on a machine that is idle."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    worked_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return max(1.0, took_s / worked_s)


@pytest.mark.alone(reason="compares a duration with a limit")
def test_a_launch_is_quick(runs: Attempts) -> None:
    """0.15 s of a machine that is idle, or as many times more as anything that starts there takes longer."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        folder = runs.launch(["sleep", "60"])
        times.append((time.perf_counter() - began) / slowness())
        runs.signal(folder, names.SHIM_KILL)
        until(lambda folder=folder: not runs.launcher.alive("job", folder), "its end")  # type: ignore[misc]  # the default binds the loop's value
    assert min(times) < 0.15


def test_the_shim_outlives_a_launcher_that_is_killed(runs: Attempts) -> None:
    folder = runs.prepare(["sleep", "60"])
    code = (
        "import sys, time; from pathlib import Path; from supervisor.runner.direct import DirectLauncher\n"
        "DirectLauncher().launch('job', Path(sys.argv[1])); print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait(120)
    assert runs.launcher.alive("job", folder)
    runs.signal(folder, names.SHIM_END)
    assert runs.exit(folder).signal == signal.SIGTERM
    until(lambda: not runs.launcher.alive("job", folder), "the shim's end")


def test_what_systemd_sends_the_daemon_is_not_passed_to_trainings(runs: Attempts) -> None:
    code = (
        "import sys; from pathlib import Path; from supervisor.runner.direct import DirectLauncher\n"
        "DirectLauncher().launch('job', Path(sys.argv[1]))"
    )
    folder = runs.prepare(["env"])
    env = {**os.environ, "NOTIFY_SOCKET": "/run/notify", "CREDENTIALS_DIRECTORY": "/run/secrets", "KEPT": "yes"}
    subprocess.run([sys.executable, "-c", code, str(folder)], env=env, cwd=ROOT, check=True, timeout=120)
    runs.exit(folder)
    output = (folder / names.OUTPUT).read_text()
    assert "KEPT=yes" in output
    assert "NOTIFY_SOCKET" not in output
    assert "/run/secrets" not in output


def test_a_reused_process_number_is_not_taken_for_the_shim(runs: Attempts) -> None:
    """Another process now has the number that shim.json names: it must neither be signalled nor count as alive."""
    folder = runs.prepare(["true"])
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        process = process_table.read_process(other.pid)
        assert process is not None
        word = {"pid": other.pid, "start_ticks": process.start_ticks - 1, "boot_id": process_table.boot_id()}
        (folder / names.SHIM).write_text(json.dumps(word))
        assert not runs.launcher.alive("job", folder)
        assert not runs.launcher.signal("job", folder, signal.SIGKILL)
        runs.launcher.kill_all("job", folder)
        assert other.poll() is None
        other.kill()


def test_a_shim_of_an_earlier_boot_is_not_alive(runs: Attempts) -> None:
    folder = runs.prepare(["true"])
    own = process_table.read_process(os.getpid())
    assert own is not None
    word = {"pid": own.pid, "start_ticks": own.start_ticks, "boot_id": "00000000-0000-0000-0000-000000000000"}
    (folder / names.SHIM).write_text(json.dumps(word))
    assert not runs.launcher.alive("job", folder)
    assert not runs.launcher.signal("job", folder, signal.SIGTERM)


def test_an_attempt_that_ended_is_not_alive_and_takes_no_signal(runs: Attempts) -> None:
    folder = runs.launch(["true"])
    runs.exit(folder)
    until(lambda: not runs.launcher.alive("job", folder), "the shim's end")
    assert not runs.launcher.signal("job", folder, signal.SIGTERM)
    runs.launcher.kill_all("job", folder)


def test_what_a_killed_shim_left_behind_counts_as_alive_and_can_be_killed(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "sleep 60 & echo $! >&1; sleep 60"])
    until(lambda: pids_in(folder / names.OUTPUT), "its children")
    note = runs.note(folder)
    os.kill(note.pid, signal.SIGKILL)
    until(lambda: gone(note.pid), "the shim's death")
    assert runs.launcher.alive("job", folder)
    runs.launcher.kill_all("job", folder)
    until(lambda: not runs.launcher.alive("job", folder), "the end of what was left")
    assert gone(pids_in(folder / names.OUTPUT)[0])
    assert note.training_pid is not None
    assert gone(note.training_pid)


def forge_end(folder: Path) -> None:
    """Write as the training can: a shim that has ended, and how the attempt ended."""
    word = {"pid": 2**22 - 1, "start_ticks": 1, "boot_id": process_table.boot_id()}
    (folder / names.SHIM).write_text(json.dumps(word))
    (folder / names.EXIT).write_text(json.dumps({"version": 1, "exit_code": 0, "signal": None}))


@pytest.mark.parametrize("launcher", ["that launched it", "of a later daemon"])
def test_a_shim_is_found_whatever_the_training_writes_in_its_name(runs: Attempts, launcher: str) -> None:
    folder = runs.launch(["sleep", "60"])
    pid = runs.note(folder).pid
    if launcher == "of a later daemon":
        runs.launcher = DirectLauncher()
    forge_end(folder)
    assert runs.launcher.alive("job", folder)
    assert runs.launcher.signal("job", folder, signal.SIGINT)
    until(lambda: gone(pid), "the shim's end")
    until(lambda: not runs.launcher.alive("job", folder), "the end of all")


def test_what_a_killed_shim_left_counts_as_alive_although_its_end_was_forged(runs: Attempts) -> None:
    folder = runs.launch(["sleep", "60"])
    note = runs.note(folder)
    forge_end(folder)
    os.kill(note.pid, signal.SIGKILL)
    until(lambda: gone(note.pid), "the shim's death")
    assert runs.launcher.alive("job", folder)
    runs.launcher.kill_all("job", folder)
    until(lambda: not runs.launcher.alive("job", folder), "the end of what was left")
    assert note.training_pid is not None
    assert gone(note.training_pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_users_process_that_looks_like_a_shim_is_none(runs: Attempts) -> None:
    folder = runs.prepare(["true"])
    words = ["sh", "-c", "echo; read line", shim.AS_MODULE, str(folder)]
    for user in (os.geteuid(), 65534):
        with subprocess.Popen(words, user=user, start_new_session=True, stdin=-1, stdout=-1) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"\n"
            assert runs.launcher.alive("job", folder) == (user == os.geteuid())
            other.kill()


def test_kill_all_ends_even_a_stopped_shim_and_its_stubborn_tree(runs: Attempts) -> None:
    folder = runs.launch(["sh", "-c", "trap '' TERM INT; setsid sleep 60 & echo $!; while :; do sleep 60; done"])
    until(lambda: pids_in(folder / names.OUTPUT), "its children")
    note = runs.note(folder)
    os.kill(note.pid, signal.SIGSTOP)
    runs.launcher.kill_all("job", folder)
    until(lambda: not runs.launcher.alive("job", folder), "the end of all")
    until(lambda: gone(pids_in(folder / names.OUTPUT)[0]), "the end of the grandchild in its own session")


def test_an_interpreter_that_is_not_there_is_named(runs: Attempts) -> None:
    with pytest.raises(LaunchError, match=r"job: the shim could not be started: .*no-python"):
        DirectLauncher("/nowhere/no-python").launch("job", runs.prepare(["true"]))


def test_a_first_process_that_hangs_is_ended(runs: Attempts, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    folder = runs.prepare(["true"])
    with pytest.raises(LaunchError, match="did not report within"):
        DirectLauncher(str(slow), limit_s=0.2).launch("job", folder)
    assert read_shim(folder) is None


def test_a_shim_that_leaves_no_word_is_ended(runs: Attempts) -> None:
    """It hangs reading its launch.json, as on a file system that does not answer."""
    folder = runs.prepare(["true"])
    (folder / names.LAUNCH).unlink()
    os.mkfifo(folder / names.LAUNCH)
    with pytest.raises(SilentShimError, match="did not report within") as caught:
        DirectLauncher(limit_s=0.5).launch("job", folder)
    assert shortage_of(caught.value) == "a disk and a processor that start a program in time"
    until(lambda: not runs.launcher.alive("job", folder), "its end")
    (folder.parent / names.LOCK).unlink()
    again = runs.prepare(["true"])
    runs.launcher.launch("job", again)
    assert runs.exit(again).clean


def test_a_launch_that_fails_for_want_of_descriptors_says_so(runs: Attempts) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = runs.prepare(["true"])
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1, hard)
    )
    held: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        with pytest.raises(LaunchError) as caught:
            runs.launcher.launch("job", folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for item in held:
            os.close(item)
    assert shortage_of(caught.value) == "file descriptors for the daemon"


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk space or inodes (`df -h`, `df -i`)"),
        (LaunchError("job: /s/1: No space left on device"), "disk space or inodes (`df -h`, `df -i`)"),
        (LaunchError("job: [Errno 11] Resource temporarily unavailable"), "room for another process"),
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "room for another thread"),
        (OSError(errno.EROFS, "Read-only file system"), "a disk that can be written"),
        (OSError(errno.EIO, "Input/output error"), "a disk that works"),
        (OSError(errno.EACCES, "Permission denied"), None),
        (LaunchError("job: command 'train' of the job: not found"), None),
    ],
)
def test_what_a_machine_is_short_of_is_distinguished_from_what_a_job_lacks(error: Exception, short: str | None) -> None:
    assert shortage_of(error) == short


def test_a_shim_without_room_for_its_fork_says_so_in_a_line(tmp_path: Path) -> None:
    def refuse_forks() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)  # root may always
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))

    words = [sys.executable, "-I", "-S", str(Path(shim.__file__)), "--detach", str(tmp_path)]
    done = subprocess.run(words, preexec_fn=refuse_forks, capture_output=True, text=True, check=False)
    assert done.stderr == f"the shim could not be forked: [Errno {errno.EAGAIN}] {os.strerror(errno.EAGAIN)}\n"
    assert shortage_of(LaunchError(done.stderr)) == "room for another process"


def test_a_process_that_is_about_to_become_the_shim_counts_and_can_be_killed(runs: Attempts, tmp_path: Path) -> None:
    """Between fork and a session of its own it was not found, so that a second attempt could be started with it."""
    folder = runs.prepare(["touch", str(tmp_path / "trained")])
    program = folder / names.CODE / "runner/shim.py"
    os.mkfifo(tmp_path / "go")
    held_up = program.read_text().replace("os.setsid()", f"open({str(tmp_path / 'go')!r}).read(); os.setsid()")
    code = tmp_path / "code/runner"
    shutil.copytree(program.parent, code, copy_function=shutil.copyfile)
    (code / "shim.py").unlink()
    (code / "shim.py").write_text(held_up)
    (folder / names.CODE).unlink()
    (folder / names.CODE).symlink_to(tmp_path / "code")
    command = [sys.executable, "-I", "-S", str(program), "--detach", str(folder)]
    subprocess.run(command, check=True, start_new_session=True, timeout=120)
    assert runs.launcher.alive("job", folder)
    assert not runs.launcher.signal("job", folder, signal.SIGTERM), "it is not the shim yet"
    runs.launcher.kill_all("job", folder)
    until(lambda: not runs.launcher.alive("job", folder), "its end")
    with pytest.raises(OSError, match="No such device or address"):
        os.open(tmp_path / "go", os.O_WRONLY | os.O_NONBLOCK)
    assert not (tmp_path / "trained").exists()


def test_what_a_shell_runs_in_a_copy_of_an_attempts_environment_is_not_the_attempts(
    runs: Attempts, tmp_path: Path
) -> None:
    """As `env $(cat /proc/PID/environ) python`, to look for a fault by hand."""
    folder = runs.launch(["true"])
    runs.exit(folder)
    until(lambda: not runs.launcher.alive("job", folder), "the shim's end")
    env = {**os.environ, names.ENV_FOLDER: str(folder / names.RUN)}
    words = ["sh", "-c", f'env {names.ENV_FOLDER}={env[names.ENV_FOLDER]} sh -c "echo; read line"; true']
    with subprocess.Popen(words, start_new_session=True, stdin=-1, stdout=-1) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"\n"
        assert not runs.launcher.alive("job", folder)
        shell.kill()
    alone = subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
    assert runs.launcher.alive("job", folder)
    runs.launcher.kill_all("job", folder)
    assert alone.wait(60) == -signal.SIGKILL
