"""The shim shows in its name who waits for what the kernel alone knows: a daemon of another user sees only names."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from attempts_by_hand import Attempts, until

from supervisor.core import attempt_files as names
from supervisor.core import readings
from supervisor.core.stats.storage_waits import OF_LOCKS as LOCKS
from supervisor.runner import storage_look
from supervisor.runner.storage_look import StorageLook
from supervisor.sources import processes
from supervisor.sources.storage_waits import SERVED_CHANNELS, SHOWN
from tests.rigs.hanging_fs import hanging

SHIM, RANK, WORKER, OTHER = 7, 8, 9, 10


def write(proc: Path, pid: int, state: str, channel: str, *children: int) -> None:
    """Lay down what the kernel shows of a process."""
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    (folder / "comm").write_text("python3\n")
    (folder / "stat").write_text(f"{pid} (py (x) n) {state} 1 1")
    (folder / "wchan").write_text(channel)
    (folder / "task" / str(pid) / "children").write_text(" ".join(map(str, children)))


def tree(
    proc: Path, rank: tuple[str, str], worker: tuple[str, str], other: tuple[str, str] = ("S", "0")
) -> StorageLook:
    """Return the look of a shim whose training has a rank with two workers."""
    write(proc, SHIM, "S", "do_sigtimedwait", RANK)
    write(proc, RANK, *rank, WORKER, OTHER)
    write(proc, WORKER, *worker)
    write(proc, OTHER, *other)
    return StorageLook(SHIM, str(proc))


def test_the_first_that_waits_for_a_file_system_is_shown_until_it_goes_on(tmp_path: Path) -> None:
    look = tree(tmp_path, ("S", "futex_wait_queue"), ("D", "rpc_wait_bit_killable"))
    comm = tmp_path / str(SHIM) / "comm"
    look.look()
    assert SHOWN.fullmatch(comm.read_text()) is not None
    assert comm.read_text() == f"fs {WORKER}"
    write(tmp_path, RANK, "S", "request_wait_answer", WORKER, OTHER)
    look.look()
    assert comm.read_text() == f"fs {RANK}", "parents before children"
    tree(tmp_path, ("R", "0"), ("S", "pipe_read"))
    look.look()
    assert comm.read_text() == "python3"


def test_what_waits_for_something_else_in_the_kernel_is_none(tmp_path: Path) -> None:
    waits = ("D", "nfs_wait_on_request")
    for other in (("D", "amdgpu_fence_wait"), ("D", "msleep"), ("D", "0")):
        assert tree(tmp_path, waits, ("S", "0"), other).find_waiting() is None
    assert tree(tmp_path, waits, ("S", "0"), ("D", "rwsem_down_read_slowpath")).find_waiting() == RANK
    assert tree(tmp_path, ("S", "rpc_wait"), ("S", "pipe_read")).find_waiting() is None, "asleep, and not in a server's"
    assert tree(tmp_path, ("D", "rwsem_down_read_slowpath"), ("S", "0")).find_waiting() is None


def test_who_sleeps_by_a_timer_is_shown_from_the_second_look_on_and_a_file_system_goes_first(tmp_path: Path) -> None:
    look = tree(tmp_path, ("S", "hrtimer_nanosleep"), ("S", "futex_wait_queue"))
    (tmp_path / f"{RANK}/task/{RANK}/status").write_text(
        "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t1\n"
    )
    comm = tmp_path / str(SHIM) / "comm"
    shown = []
    for channel in ("futex_wait_queue", "futex_wait_queue", "request_wait_answer", "pipe_read"):
        write(tmp_path, WORKER, "S", channel)
        look.look()
        shown.append(comm.read_text().strip())
    assert shown == ["python3", f"timer {RANK}", f"fs {WORKER}", f"timer {RANK}"]
    write(tmp_path, RANK, "S", "futex_wait_queue", WORKER, OTHER)
    look.look()
    assert comm.read_text() == "python3"


def test_of_a_tree_that_is_gone_nothing_is_shown(tmp_path: Path) -> None:
    look = StorageLook(SHIM, str(tmp_path))
    look.look()
    assert look.find_waiting() is None


@pytest.mark.mounts
@pytest.mark.slow
@pytest.mark.parametrize("owner", [65534, 0])
def test_a_shim_shows_who_waits_where_its_daemon_is_another_user(tmp_path: Path, owner: int) -> None:
    with Attempts(tmp_path / "state") as runs, hanging(tmp_path / "at", tmp_path / "behind") as disk:
        (disk.at / "data").write_text("x")
        reads = f"open('ready', 'w')\nwhile True: open({str(disk.at / 'data')!r}).read()"
        folder = runs.prepare([sys.executable, "-c", reads])
        launch = json.loads((folder / names.LAUNCH).read_text())
        (folder / names.LAUNCH).write_text(json.dumps({**launch, "cwd": str(folder)}))
        os.chown(folder, owner, -1)
        runs.launcher.launch("job", folder)
        until((folder / "ready").exists, "the training has set up")
        note = runs.note(folder)
        comm = Path(f"/proc/{note.pid}/comm")
        usual = comm.read_text()
        disk.hang()
        until(lambda: disk.held, "it to wait")
        if owner == 0:
            assert comm.read_text() == usual, "who is root sees it itself, and no shim wakes for that"
        else:
            until(lambda: comm.read_text() == f"fs {note.training_pid}\n", "the shim to show it")
        disk.go_on()
        until(lambda: comm.read_text() == usual, "the shim to have its own name")


@pytest.mark.slow
def test_a_shim_shows_a_pause_and_an_awaited_answer_where_its_daemon_is_another_user(tmp_path: Path) -> None:
    asks = (
        "import socket, time\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "open('port', 'w').write(str(server.getsockname()[1]) + ' ')\npeer, _ = server.accept()\nserver.close()\n"
        "peer.recv(1)\ntime.sleep(600)"
    )
    with Attempts(tmp_path / "state") as runs:
        folder = runs.prepare([sys.executable, "-c", asks])
        launch = json.loads((folder / names.LAUNCH).read_text())
        (folder / names.LAUNCH).write_text(json.dumps({**launch, "cwd": str(folder)}))
        os.chown(folder, 65534, -1)
        runs.launcher.launch("job", folder)
        until(lambda: (folder / "port").exists() and (folder / "port").read_text().endswith(" "), "it to listen")
        note = runs.note(folder)
        comm = Path(f"/proc/{note.pid}/comm")
        with socket.create_connection(("127.0.0.1", int((folder / "port").read_text()))) as peer:
            until(
                lambda: comm.read_text() == f"peer {note.training_pid}\n", "the shim to show who waits for the answer"
            )
            peer.sendall(b"x")
        until(lambda: comm.read_text() == f"timer {note.training_pid}\n", "the shim to show the pause")


def test_the_shims_words_are_those_of_the_daemon() -> None:
    assert f"{processes.SHOWN_TIMER} " == storage_look.SHOWN_TIMER
    assert f"{processes.SHOWN_PEER} " == storage_look.SHOWN_PEER
    known = readings._OF_FILE_SYSTEMS.pattern.partition("(")[2].rstrip(")").split("|")
    assert set(storage_look.OF_FILE_SYSTEMS) == set(known)
    assert all(SERVED_CHANNELS.match(name) for name in storage_look.OF_SERVERS)
    assert {name.lstrip("_") for name in LOCKS} == set(storage_look.OF_LOCKS)
