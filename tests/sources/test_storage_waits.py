"""Who in a process tree waits for a file system, and for which: by files as of /proc, and with one that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from reader_by_hand import read_until, reader_of

from supervisor.core.moments import Moment
from supervisor.core.readings import KernelWait, StorageWait
from supervisor.sources.processes import TreeWatch
from supervisor.sources.storage_waits import BY_SHIM, StorageWatch, find_place, is_blind_to, read_shown
from tests.rigs.hanging_fs import HangingFs, hanging

MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
31 22 0:40 / /data rw,relatime shared:9 - nfs4 server:/export rw,vers=4.2
32 22 0:41 / /my\\040models rw - fuse.gcsfuse gcs\\134bucket rw
33 22 0:42 / /home rw - nfs4 server:/home rw
not a mount
"""


def write_thread(
    proc: Path, pid: int, thread: int, channel: str, *, state: str = "S", syscall: str = "running"
) -> None:
    """Lay down what the kernel shows of one thread; the main one is that of the process as well."""
    folders = [proc / str(pid) / "task" / str(thread), *([proc / str(pid)] if pid == thread else [])]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "wchan").write_text(channel)
        (folder / "stat").write_text(f"{thread} (py (x) n) {state} 1 1")
        (folder / "syscall").write_text(syscall)
    (proc / str(pid) / "mountinfo").write_text(MOUNTS)


def open_file(proc: Path, pid: int, descriptor: int, mount: int) -> None:
    folder = proc / str(pid) / "fdinfo"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(descriptor)).write_text(f"pos:\t0\nflags:\t0100000\nmnt_id:\t{mount}\nino:\t7\n")


def in_kernel(pid: int, channel: str, *, thread: int | None = None, stack: tuple[str, ...] = ()) -> KernelWait:
    return KernelWait(pid=pid, name="python", thread=thread or pid, channel=channel, stack=stack)


def storage_wait(pid: int, channel: str, *, thread: int | None = None, place: str | None = None) -> StorageWait:
    return StorageWait(pid=pid, name="python", thread=thread or pid, channel=channel, place=place)


def test_who_is_in_state_d_waits_for_a_file_system_or_for_a_gpu(tmp_path: Path) -> None:
    watch = StorageWatch(tmp_path)
    found = watch.read([in_kernel(7, "rpc_wait_bit_killable"), in_kernel(8, "amdgpu_fence_wait_any")], {})
    assert found == (storage_wait(7, "rpc_wait_bit_killable"),)
    mixed = [in_kernel(9, "folio_wait_bit_common", thread=11), in_kernel(9, "amdgpu_ctx_wait")]
    assert watch.read(mixed, {}) == (), "a thread of it waits for a GPU"
    read_by_driver = in_kernel(9, "folio_wait_bit_common", stack=("io_schedule", "amdgpu_ttm_tt_get_user_pages"))
    assert watch.read([read_by_driver], {}) == ()
    assert watch.read([in_kernel(9, "do_wait")], {}) == ()


def test_of_who_sleeps_the_function_distinguishes_a_server_from_a_pipe_and_a_gpu(tmp_path: Path) -> None:
    for pid, channel in ((7, "request_wait_answer"), (8, "pipe_read"), (9, "kfd_wait_on_events")):
        write_thread(tmp_path, pid, pid, channel)
    watch = StorageWatch(tmp_path)
    assert watch.read([], dict.fromkeys((7, 8, 9, 10), "python")) == (storage_wait(7, "request_wait_answer"),)
    assert watch.gpu_wait_pids == (9,)
    assert watch.read([], {}) == ()
    assert not watch.gpu_wait_pids


def test_a_thread_waits_for_its_process(tmp_path: Path) -> None:
    write_thread(tmp_path, 7, 7, "futex_wait_queue")
    write_thread(tmp_path, 7, 8, "request_wait_answer")
    write_thread(tmp_path, 7, 9, "nfs_wait_bit_killable", state="D")
    write_thread(tmp_path, 7, 10, "folio_wait_bit_common")
    watch = StorageWatch(tmp_path)
    threads = {wait.thread for wait in watch.read([], {7: "python"})}
    assert threads == {8, 9}, "one that is not in state D reads ahead, say"
    write_thread(tmp_path, 7, 11, "amdgpu_fence_wait", state="D")
    assert watch.read([], {7: "python"}) == ()


def test_the_place_is_that_of_the_file_of_the_system_call_once_the_wait_lasts(tmp_path: Path) -> None:
    write_thread(tmp_path, 7, 7, "rpc_wait_bit_killable", state="D", syscall="0 0x5 0x7f00 0x1000 0x0")
    open_file(tmp_path, 7, 5, 31)
    watch, waits = StorageWatch(tmp_path), [in_kernel(7, "rpc_wait_bit_killable")]
    assert [wait.place for wait in watch.read(waits, {})] == [None]
    assert [wait.place for wait in watch.read(waits, {})] == ["/data (nfs4 of server:/export)"]
    open_file(tmp_path, 7, 5, 33)
    assert [wait.place for wait in watch.read(waits, {})] == ["/data (nfs4 of server:/export)"], "looked up once"
    watch.read([], {})
    watch.read(waits, {})
    assert [wait.place for wait in watch.read(waits, {})] == ["/home (nfs4 of server:/home)"]


def test_a_place_that_is_not_known_yet_is_looked_for_again(tmp_path: Path) -> None:
    write_thread(tmp_path, 7, 7, "rpc_wait_bit_killable", state="D")
    watch, waits = StorageWatch(tmp_path), [in_kernel(7, "rpc_wait_bit_killable")]
    watch.read(waits, {})
    assert [wait.place for wait in watch.read(waits, {})] == [None]
    write_thread(tmp_path, 7, 7, "rpc_wait_bit_killable", state="D", syscall="0 0x5 0x7f00 0x1000 0x0")
    open_file(tmp_path, 7, 5, 31)
    assert [wait.place for wait in watch.read(waits, {})] == ["/data (nfs4 of server:/export)"]


def test_without_such_a_file_it_is_the_only_mount_that_fits(tmp_path: Path) -> None:
    write_thread(tmp_path, 7, 7, "request_wait_answer", syscall="257 0xffffffffffffff9c 0x7f00 0x0")
    fuse = "/my models (fuse.gcsfuse of gcs\\bucket)"
    assert find_place(storage_wait(7, "request_wait_answer"), tmp_path) == fuse
    assert find_place(storage_wait(7, "nfs_wait_on_request"), tmp_path) is None, "of two NFS it is not known which"
    open_file(tmp_path, 7, 3, 22)
    write_thread(tmp_path, 7, 7, "request_wait_answer", syscall="0 0x3 0x7f00")
    assert find_place(storage_wait(7, "request_wait_answer"), tmp_path) == fuse, "the file of the call lies elsewhere"
    write_thread(tmp_path, 7, 7, "folio_wait_bit_common", state="D", syscall="0 0x3 0x7f00")
    assert find_place(storage_wait(7, "folio_wait_bit_common"), tmp_path) == "/ (ext4 of /dev/sda1)"


def test_who_waits_in_the_close_of_a_file_has_it_open_no_more(tmp_path: Path) -> None:
    """The kernel frees its number first; a number that is none of a file may be the argument of other calls, too."""
    write_thread(tmp_path, 7, 7, "request_wait_answer", state="D", syscall="3 0x5 0x0 0x0")
    watch, waits = StorageWatch(tmp_path), [in_kernel(7, "request_wait_answer")]
    watch.read(waits, {})
    assert [wait.place for wait in watch.read(waits, {})] == ["/my models (fuse.gcsfuse of gcs\\bucket)"]
    waits = [in_kernel(7, "rpc_wait_bit_killable")]
    watch.read([], {})
    watch.read(waits, {})
    assert [wait.place for wait in watch.read(waits, {})] == [None], "of two NFS it is not known which"


def test_of_a_process_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    assert StorageWatch(tmp_path).read([], {7: "python"}) == ()
    assert find_place(storage_wait(7, "rpc_wait"), tmp_path) is None


def test_many_waits_are_cut_and_main_threads_kept(tmp_path: Path) -> None:
    threads = [in_kernel(7, "rpc_wait", thread=number) for number in range(100, 140)]
    found = StorageWatch(tmp_path).read([*threads, in_kernel(8, "rpc_wait")], {})
    assert len(found) == 16
    assert found[0] == storage_wait(8, "rpc_wait")


# --- of another user --------------------------------------------------------------------------------------------------


def test_of_another_users_tree_it_is_what_the_shim_shows() -> None:
    names = {7: "fs 9", 8: "bash", 9: "python", 10: "pt_data_worker"}
    assert read_shown(names, 7, ()) == (storage_wait(9, BY_SHIM),)
    assert [wait.pid for wait in read_shown(names, 7, (9, 10))] == [9, 10], "whatever is in state D"
    for shown in ("python3", "fs 99", "fs", "fs x9", "fs 9 "):
        assert read_shown({**names, 7: shown}, 7, (9, 10)) == ()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="reads as another user, for which it must be root")
def test_a_user_who_is_not_shown_where_processes_wait_reads_the_shims_name() -> None:
    code = "import os; open('/proc/self/comm', 'w').write(f'fs {os.getpid()}'); print(1, flush=True); input()"
    shim = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert shim.stdin is not None
    assert shim.stdout is not None
    with shim:
        shim.stdout.readline()
        assert not is_blind_to(shim.pid)
        assert TreeWatch(shim.pid).read(Moment(0.0, 0.0)).storage_waits == ()
        reader = os.fork()
        if reader == 0:
            os.setuid(65534)
            seen = TreeWatch(shim.pid).read(Moment(0.0, 0.0)).storage_waits
            os._exit(0 if is_blind_to(shim.pid) and [wait.pid for wait in seen] == [shim.pid] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0
        shim.stdin.close()


# --- with one that hangs ----------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingFs]:
    with hanging(tmp_path / "at", tmp_path / "behind") as served:
        yield served


@pytest.mark.mounts
@pytest.mark.slow
def test_one_that_waits_for_fuse_is_seen_with_its_mount_until_it_answers(disk: HangingFs) -> None:
    (disk.at / "file").write_text("x")
    # What a path is of is not known where others are mounted.
    with reader_of(disk.at / "file", at_end=disk.go_on, opened=True) as reader:
        watch = TreeWatch(reader.pid)
        disk.hang()
        reader.begin()
        reading, at_s = read_until(
            watch, 0.0, lambda reading: any(wait.place for wait in reading.storage_waits), "to wait"
        )
        (wait,) = reading.storage_waits
        assert (wait.pid, wait.thread) == (reader.pid, reader.pid)
        assert wait.place == f"{disk.at} (fuse.hanging of hanging)"
        disk.go_on()
        reader.wait_until_read()
        assert watch.read(Moment(at_s, at_s)).storage_waits == ()
