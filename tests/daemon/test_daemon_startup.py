"""One daemon a state directory, also after the first was killed; and one heap, however many threads come and go."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.children.killed import was_killed
from supervisor.control.listen import bind
from supervisor.daemon.process.startup import (
    LOCK,
    StateLockedError,
    clear_places,
    keep_one_heap,
    lock_database,
    lock_state,
    wait_for_state,
)
from supervisor.daemon.process.systemd import Notifier
from tests.rigs.failing_disk import failing
from tests.rigs.hanging_fs import hanging

HOLD = """
import sys
from pathlib import Path
from supervisor.daemon.process.startup import lock_state
lock_state(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


WITHOUT_STANDARD_FILES = """
import os, sys
from supervisor.daemon.main import main
status = main(["--config", sys.argv[1]])
with open(sys.argv[2], "w") as answer:
    print(status, *(os.readlink(f"/proc/self/fd/{number}") for number in range(3)), file=answer)
"""


def test_a_daemon_that_is_started_without_standard_files_gives_their_numbers_to_no_other_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_STANDARD_FILES, str(tmp_path / "absent.toml"), str(tmp_path / "answer")]
    subprocess.run(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True, timeout=120)
    assert (tmp_path / "answer").read_text() == "78 /dev/null /dev/null /dev/null\n"


def test_a_state_directory_that_the_locale_has_no_letters_for_is_refused_in_a_line(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[supervisor]\nstate_dir = "{tmp_path}/stän"\n[jobs.a]\ncommand = ["train"]\n', encoding="utf-8")
    program = "import sys; from supervisor.daemon.main import main; sys.exit(main())"
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", program, "--config", str(config)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 69
    assert done.stderr.splitlines()[-1].endswith("is no name in the encoding of this locale; set LC_ALL=C.UTF-8")


def test_a_second_holder_is_refused_with_the_pid_of_the_first_until_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(StateLockedError, match=f"pid {first.pid}.*state_dir"):
            lock_state(tmp_path)
        first.kill()
        first.wait(120)
    held = lock_state(tmp_path)
    assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    os.close(held)


@pytest.mark.parametrize(
    "replace",
    [
        lambda path: path.symlink_to(path),
        lambda path: path.symlink_to(path.with_name("elsewhere")),
        os.mkfifo,
        Path.mkdir,
        lambda path: (path / "other").mkdir(parents=True),
    ],
    ids=["link to itself", "link to nothing", "pipe", "empty folder", "folder with content"],
)
def test_what_is_no_file_in_the_place_of_the_lock_is_moved_aside_and_keeps_no_daemon_from_it(
    tmp_path: Path, replace: Callable[[Path], object]
) -> None:
    replace(tmp_path / LOCK)
    kind = (tmp_path / LOCK).lstat().st_mode
    held = lock_state(tmp_path)
    assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
    with pytest.raises(StateLockedError, match="in use by another"):
        lock_state(tmp_path)
    os.close(held)
    assert (tmp_path / f"{LOCK}.found-1").lstat().st_mode == kind
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_of_another_kind_in_the_state_directory_is_moved_aside_with_its_content(tmp_path: Path) -> None:
    state = tmp_path / "state"
    files = ("supervisor.db", "supervisor.db-wal", "control.sock")
    for name in files:
        (state / name).mkdir(parents=True)
        (state / name / "other").touch()
    for name in ("jobs", "code"):
        (state / name).touch()
    (state / "supervisor.db-shm").symlink_to("nowhere")
    clear_places(state, state / "supervisor.db")
    assert sorted(path.name for path in state.iterdir()) == sorted(
        f"{name}.found-1" for name in (*files, "supervisor.db-shm", "jobs", "code")
    )
    assert all((state / f"{name}.found-1" / "other").exists() for name in files)


def test_what_is_right_in_the_state_directory_a_link_of_its_administrator_and_what_lies_elsewhere_stay(
    tmp_path: Path,
) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    for folder in (state / "code", elsewhere / "jobs", elsewhere / "data"):
        folder.mkdir(parents=True)
    (state / "jobs").symlink_to(elsewhere / "jobs")
    (state / "supervisor.db").symlink_to(elsewhere / "not mounted")
    (state / "supervisor.db-wal").touch()
    with closing(bind(state / "control.sock")):
        clear_places(state, state / "supervisor.db")
    clear_places(state, elsewhere / "data")
    assert not [path for path in (*state.iterdir(), *elsewhere.iterdir()) if "found" in path.name]


def test_a_database_that_is_no_file_is_not_locked_and_opening_it_says_why(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("in the way")
    held = lock_database(tmp_path / "loop")
    assert held is not None
    os.close(held)
    assert lock_database(tmp_path / "file" / "supervisor.db") is None


HOLD_AND_READ = """
import sys, threading
from pathlib import Path
from supervisor.daemon.process.startup import lock_state
lock_state(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
threading.Thread(target=Path(sys.argv[2]).stat).start()
sys.stdin.read()
"""


@pytest.mark.mounts
def test_the_lock_of_one_that_was_killed_while_a_trainings_disk_hung_is_taken_over(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    command = [sys.executable, "-c", HOLD_AND_READ, str(state), str(tmp_path / "far" / "file")]
    with (
        hanging(tmp_path / "far", tmp_path / "behind") as far,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first,
    ):
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        far.hang(beyond_sigkill=True)
        print(file=first.stdin, flush=True)
        wait_until(lambda: far.held > 0)
        with pytest.raises(StateLockedError, match=f"pid {first.pid}"):
            lock_state(state)  # it lives, and may be judging trainings
        first.kill()
        held = lock_state(state)  # also before it has begun to end
        with pytest.raises(StateLockedError, match=f"pid {os.getpid()}"):
            lock_state(state)
        far.go_on()
        first.wait(60)
        with pytest.raises(StateLockedError, match=f"pid {os.getpid()}"):
            lock_state(state)  # also when the file of the former lock was closed at last
        os.close(held)


HOLD_AND_WAIT = """
import sys
from pathlib import Path
from supervisor.daemon.process.startup import lock_state
lock_state(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
Path(sys.argv[2]).stat()
"""


@pytest.mark.mounts
def test_the_lock_of_one_that_was_killed_and_whose_main_thread_has_not_ended_is_taken_over(tmp_path: Path) -> None:
    """It waits in the kernel here; on a busy machine it waits for a processor, and is as dead."""
    state = tmp_path / "state"
    state.mkdir()
    command = [sys.executable, "-c", HOLD_AND_WAIT, str(state), str(tmp_path / "far" / "file")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first,
        hanging(tmp_path / "far", tmp_path / "behind") as far,  # unmounted before its end is waited for
    ):
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        far.hang(beyond_sigkill=True)
        print(file=first.stdin, flush=True)
        wait_until(lambda: far.waiting)
        assert not was_killed(first.pid)
        with pytest.raises(StateLockedError, match=f"pid {first.pid}"):
            lock_state(state)
        first.kill()
        os.close(lock_state(state))
        far.go_on()
        first.wait(60)


@pytest.mark.mounts
@pytest.mark.parametrize("kind", ["write state/daemon.lock", "set state/daemon.lock"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_without_room_for_the_pid_keeps_no_daemon_from_its_lock(tmp_path: Path, kind: str, error: int) -> None:
    with failing(tmp_path / "disk", tmp_path / "behind") as disk:
        (disk.at / "state").mkdir()
        os.close(lock_state(disk.at / "state"))
        disk.fails_at(kind, 1, error)
        held = lock_state(disk.at / "state")
        assert disk.failed_changes == [kind]
        with pytest.raises(StateLockedError, match="in use by another"):
            lock_state(disk.at / "state")
        os.close(held)


def wait_until(question: Callable[[], bool]) -> None:
    end = time.perf_counter() + 120
    while not question():
        assert time.perf_counter() < end
        time.sleep(0.01)


def test_the_lock_does_not_outlive_its_holder_in_a_child(tmp_path: Path) -> None:
    held = lock_state(tmp_path)
    assert not os.get_inheritable(held)
    os.close(held)


def test_a_directory_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        lock_state(tmp_path / "none")


THREADS = """
import sys, threading
from pathlib import Path
from supervisor.daemon.process.startup import keep_one_heap
if sys.argv[1] == "one":
    assert keep_one_heap()
ready, enough, kept = threading.Barrier(9), threading.Event(), []
def take():
    kept.append([bytearray(2000) for _ in range(200)])
    ready.wait()
    enough.wait()
for _ in range(8):
    threading.Thread(target=take).start()
ready.wait()
maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
starts = [int(fields[0].split("-")[0], 16) for fields in maps if len(fields) == 5 and fields[1] == "rw-p"]
print(sum(start % (64 << 20) == 0 for start in starts))
enough.set()
"""
"""glibc's further heaps begin at multiples of 64 MiB."""


def heaps_beside_the_first(kept: str) -> int:
    done = subprocess.run([sys.executable, "-c", THREADS, kept], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_threads_share_one_heap() -> None:
    if not keep_one_heap():
        pytest.skip("not glibc")
    assert heaps_beside_the_first("several") > 0
    assert heaps_beside_the_first("one") == 0


LARGE_BLOCKS = """
import ctypes
from supervisor.daemon.process.startup import keep_one_heap
class Known(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Known
keep_one_heap()
freed = bytearray(8_000_000)
del freed
before = libc.mallinfo2().hblkhd
large = bytearray(2_000_000)
print(libc.mallinfo2().hblkhd - before)
"""


def test_a_large_block_lies_outside_of_the_heap_also_after_a_larger_one_was_freed() -> None:
    if not keep_one_heap() or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("not glibc, or one before 2.33")
    done = subprocess.run([sys.executable, "-c", LARGE_BLOCKS], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) >= 2_000_000


HOLES = """
from pathlib import Path
from supervisor.daemon.process.startup import return_freed_memory
def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
freed = [bytearray(3000) for _ in range(10_000)]
last = bytearray(3000)
del freed
before = resident_bytes()
return_freed_memory()
print(before - resident_bytes())
"""
"""The last block keeps the heap from ending where the freed ones begin."""


def test_what_is_freed_within_the_heap_goes_back_to_the_kernel() -> None:
    if not keep_one_heap():
        pytest.skip("not glibc")
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) > 20_000_000


LOADED = """
import sys
import supervisor.daemon.main
from supervisor.daemon.alerts.alerting import read_receivers
read_receivers({})
print(*sorted({"urllib3", "smtplib", "supervisor.alerts.channels", "alembic", "torch"} & sys.modules.keys()))
"""


def test_a_daemon_without_receivers_loads_no_library_that_it_does_not_need() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.mounts
@pytest.mark.parametrize("hangs", ["state directory", "database"])
def test_a_start_waits_for_a_state_directory_or_database_that_hangs_and_says_so(tmp_path: Path, hangs: str) -> None:
    address = tmp_path / "notify"
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        hanging(tmp_path / "far", tmp_path / "behind") as far,
    ):
        manager.bind(str(address))
        manager.settimeout(120)
        state = (far.at if hangs == "state directory" else tmp_path) / "state"
        state.mkdir()
        places = (state, Notifier(str(address)), (state if hangs == "state directory" else far.at) / "supervisor.db")
        wait_for_state(*places)
        far.hang()
        waiting = threading.Thread(target=wait_for_state, args=places)
        waiting.start()
        assert manager.recv(4096).decode().startswith(f"STATUS=waits for its {hangs}: {far.at} does not answer")
        assert manager.recv(4096).startswith(b"EXTEND_TIMEOUT_USEC=")
        assert waiting.is_alive()
        far.go_on()
        waiting.join(120)
        assert not waiting.is_alive()
