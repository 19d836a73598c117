"""Work on files in another process: answers come back as from a call, whatever hangs or ends there."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from supervisor.children.file_asks import FileServer, NoAnswerError
from supervisor.daemon.checkpoints.candidates import fingerprint
from supervisor.runner.folder_checkpoints import TreeError, fingerprint_of

LIMIT_S = 60.0
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[FileServer]:
    item = FileServer()
    yield item
    if item.pid is not None:
        os.kill(item.pid, signal.SIGKILL)


def test_an_answer_is_what_the_call_returns_or_raises(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"12345")
    assert server.do(fingerprint_of, tmp_path / "last.pt") == fingerprint_of(tmp_path / "last.pt")
    assert server.do(os.statvfs, tmp_path).f_blocks == os.statvfs(tmp_path).f_blocks
    with pytest.raises(FileNotFoundError) as absent:
        server.do(fingerprint_of, tmp_path / "absent")
    assert (absent.value.errno, absent.value.filename) == (errno.ENOENT, str(tmp_path / "absent"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("nowhere")
    with pytest.raises(TreeError, match="is a link"):
        server.do(fingerprint_of, tmp_path / "folder")


def test_what_hangs_delays_nothing_that_is_asked_later_and_is_answered_in_the_end(
    server: FileServer, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # to open it is to wait for who writes it
    found: list[bytes] = []
    waiting = [
        threading.Thread(target=lambda: found.append(server.do(Path.read_bytes, tmp_path / "pipe"))) for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    for _ in range(20):
        assert server.do(os.path.isdir, tmp_path)
    assert found == []
    (tmp_path / "pipe").write_bytes(b"x")
    while any(thread.is_alive() for thread in waiting):
        # One of them may have taken all of it; the others go on with the end of the next writer.
        try:
            os.close(os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            continue
    assert sum(map(len, found)) == 1


def test_what_is_asked_within_a_limit_is_given_up_and_not_asked_again_while_it_hangs(
    server: FileServer, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match=r"does not answer within 0\.1 s"):
        server.do_within(0.1, Path.read_bytes, tmp_path / "pipe")
    assert server.do_within(LIMIT_S, os.path.isdir, tmp_path)
    assert server.pid is not None
    threads = psutil.Process(server.pid).num_threads()
    for _ in range(10):
        with pytest.raises(TimeoutError):
            server.do_within(LIMIT_S, Path.read_bytes, tmp_path / "pipe")
    assert psutil.Process(server.pid).num_threads() == threads
    (tmp_path / "pipe").write_bytes(b"x")
    (tmp_path / "pipe").unlink()
    (tmp_path / "pipe").write_bytes(b"again")
    found = None
    while found is None:
        with suppress(TimeoutError):
            found = server.do_within(LIMIT_S, Path.read_bytes, tmp_path / "pipe")
    assert found == b"again"


def test_one_that_was_killed_is_replaced_and_asked_again(server: FileServer, tmp_path: Path) -> None:
    assert server.do(os.path.isdir, tmp_path)
    first = server.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert server.do(os.path.isdir, tmp_path)
    assert server.pid != first


UPGRADED = """
import logging, os, pathlib, sys
from supervisor.children import shared_files
from supervisor.children.file_asks import FileServer
from supervisor.runner import folder_checkpoints

logging.basicConfig(stream=sys.stdout, format="%(message)s")
server, place = FileServer(), pathlib.Path(sys.argv[1])
server.do(shared_files.stat_each, [place])
first = server.pid
os.rename(place / "supervisor", place / "before")
print(server.do(shared_files.stat_each, [place])[0].st_ino == place.stat().st_ino)
(place / "supervisor").mkdir()
(place / "supervisor" / "__init__.py").touch()
print(server.do(folder_checkpoints.fingerprint_of, place / "last.pt").size_bytes, server.pid == first)
os.kill(first, 9)
print(server.do(folder_checkpoints.fingerprint_of, place / "last.pt").size_bytes, server.pid)
"""


def test_after_an_upgrade_nothing_of_the_other_version_is_imported_or_started_for_it(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "supervisor", tmp_path / "supervisor", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "last.pt").write_bytes(b"12345")
    command, env = [sys.executable, "-c", UPGRADED, str(tmp_path)], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.stdout.splitlines() == ["True", "files.not_apart", "5 True", "files.not_apart", "5 None"], done.stderr


def test_what_ends_it_each_time_has_no_answer(server: FileServer) -> None:
    with pytest.raises(NoAnswerError):
        server.do(os._exit, 1)


def test_it_ends_with_whoever_asked() -> None:
    code = (
        "import os\nfrom supervisor.children.file_asks import FileServer\n"
        "server = FileServer()\nserver.do(os.path.isdir, '/')\nprint(server.pid)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    while psutil.pid_exists(int(asked.stdout)):
        os.sched_yield()


def test_several_end_with_a_daemon_that_is_killed_though_others_hold_its_descriptors() -> None:
    """What a killed process has left in the kernel, or forked, keeps its ends of the pipes open."""
    code = (
        "import os, time\nfrom supervisor.children.file_asks import FileServer\n"
        "servers = [FileServer() for _ in range(5)]\n"
        "for server in servers:\n    server.do(os.path.isdir, '/')\n"
        "if (sibling := os.fork()) == 0:\n    time.sleep(1000)\n"
        "print(sibling, *(server.pid for server in servers), flush=True)\ntime.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        sibling, *servers = map(int, asking.stdout.readline().split())
        handles = [os.pidfd_open(pid) for pid in servers]
        asking.kill()
        try:
            for handle in handles:
                assert select.select([handle], [], [], LIMIT_S)[0], "it outlives who asked"
                os.close(handle)
        finally:
            os.kill(sibling, signal.SIGKILL)


def test_without_it_the_work_is_done_here(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "absent") is None


def test_a_question_that_a_stopped_process_does_not_take_is_late_and_holds_up_no_other(server: FileServer) -> None:
    """Written under the lock, it kept everybody who asked within a time, once the pipe was full."""
    assert server.do(len, b"") == 0
    pid = server.pid or 0
    os.kill(pid, signal.SIGSTOP)
    for size in (200_000, 200_001):
        with pytest.raises(TimeoutError):
            server.do_within(0.2, len, b"x" * size)
    os.kill(pid, signal.SIGCONT)
    assert server.do(len, b"x" * 300_000) == 300_000
    assert server.pid == pid
