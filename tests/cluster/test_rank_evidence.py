"""What the process of a rank shows: a wait in the kernel counts where it lasts, not where a disk is read.

And what a training writes to harm its node: numbers that nothing has, ranks without end, frames of a megabyte.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_by_hand import until

from supervisor.cluster.rank_evidence import Taken, collect_ranks, read_training_step, read_waits
from supervisor.cluster.ranks import RankProcess, await_reports, find_ended, find_ranks, freeze, note_end
from supervisor.core import attempt_files as names
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.clock_offset import ClockOffset
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.evidence import UNREAD_END
from supervisor.core.fleet.link import MESSAGE_BYTES_MAX
from supervisor.runner.process_table import descendants, read_process, read_processes

VFORK = """
import ctypes, os
# The parent of a vfork waits in state D until its child ends or becomes another program.
if ctypes.CDLL(None).vfork() == 0:
    os.write(1, b"up")
    os.read(0, 1)
    os._exit(0)
"""
OFFSET = ClockOffset(seconds=0.0, error_s=0.0)
KERNEL = tuple(int(number) for number in os.uname().release.split(".")[:2])


@pytest.fixture(name="waiting")
def process_that_waits_in_the_kernel() -> Iterator[subprocess.Popen[bytes]]:
    parent = subprocess.Popen([sys.executable, "-c", VFORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.stdout.read(2) == b"up"
    while not read_waits([parent.pid]):
        assert parent.poll() is None
    yield parent
    parent.stdin.close()
    parent.wait(120)
    parent.stdout.close()


def state_of(pid: int, folder: Path, waited: dict[int, tuple[str, ...]]) -> str | None:
    process = read_process(pid)
    assert process is not None
    rank = RankProcess(rank=0, process=process, launcher=None, local_rank=0, local_size=1, handle=-1)
    (found,) = collect_ranks("n0", Taken(folder=folder, stacks=folder, waited=waited), [rank], OFFSET)
    return found.process_state


def test_a_rank_that_has_not_run_since_it_was_looked_at_is_stuck(
    waiting: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    waited = dict(read_waits([waiting.pid, os.getpid()]))
    assert list(waited) == [waiting.pid]
    assert state_of(waiting.pid, tmp_path, waited) == "D"


def test_a_rank_that_ran_in_between_is_not(waiting: subprocess.Popen[bytes], tmp_path: Path) -> None:
    counted = read_waits([waiting.pid])[waiting.pid]
    earlier = tuple(f"{line}0" for line in counted)
    assert state_of(waiting.pid, tmp_path, {waiting.pid: earlier}) is None
    assert state_of(waiting.pid, tmp_path, {}) is None, "it began to wait while evidence was taken"


def test_any_other_state_is_reported_as_it_is(tmp_path: Path) -> None:
    assert state_of(os.getpid(), tmp_path, {}) == "R"


LOOKS = 20

CLAIMING = """
import os, subprocess, sys, time
for rank in sys.argv[1:]:
    env = {**os.environ, "RANK": rank, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    subprocess.Popen(["sleep", "600"], env=env)
print("up", flush=True)
time.sleep(600)
"""


@contextmanager
def processes_that_claim(*ranks: str) -> Iterator[int]:
    """Processes that each say of themselves which rank they are; yield the pid of their parent."""
    parent = subprocess.Popen([sys.executable, "-S", "-c", CLAIMING, *ranks], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        yield parent.pid
    finally:
        below = descendants(parent.pid, read_processes())
        for pid in (parent.pid, *(process.pid for process in below)):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()


def look_below(parent: int, expected: int, environments: Path = Path("/proc")) -> list[tuple[int, int]]:
    """Return rank and pid of each that the first look finds which finds as many, or the last of LOOKS.

    A look leaves out an environment that is not read in half a second, be it for want of a core; a later one has it.
    """
    places: list[tuple[int, int]] = []
    for _ in range(LOOKS):
        found = find_ranks(parent, set(), environments)
        for rank in found:
            rank.close()
        places = [(rank.rank, rank.process.pid) for rank in found]
        if len(places) >= expected:
            break
    return places


def test_a_process_that_claims_a_rank_of_5000_digits_hides_no_other() -> None:
    with processes_that_claim("9" * 5000, "3", "\u0662") as parent:
        assert [rank for rank, _ in look_below(parent, 1)] == [3]


def test_a_training_that_claims_more_ranks_than_a_node_can_have_takes_no_more_descriptors_for_them() -> None:
    with processes_that_claim(*map(str, range(ms.RANKS_MAX + 10))) as parent:
        assert len(look_below(parent, ms.RANKS_MAX)) == ms.RANKS_MAX


def test_a_process_whose_environment_is_never_answered_hides_no_other(tmp_path: Path) -> None:
    with processes_that_claim("0", "1") as parent:
        stuck, other = sorted(process.pid for process in descendants(parent, read_processes()))
        for pid in (stuck, other):
            (tmp_path / str(pid)).mkdir()
        os.mkfifo(tmp_path / str(stuck) / "environ")  # as while somebody changes the memory of that process
        (tmp_path / str(other) / "environ").write_text("RANK=1\0LOCAL_RANK=1\0LOCAL_WORLD_SIZE=2\0")
        for _ in range(2):
            assert look_below(parent, 1, tmp_path) == [(1, other)]


def test_a_recorder_whose_last_record_lies_where_no_file_reaches_has_made_no_step(tmp_path: Path) -> None:
    page = bytearray(names.HEADER_BYTES)
    names.IDENTITY.pack_into(page, 0, names.MAGIC, 2**32 - 1, 2**32 - 1, 2**32 - 1, 0)
    names.HEAD.pack_into(page, names.HEAD_OFFSET, 2**32 - 1)
    path = tmp_path / names.RECORDER
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(page)
    assert read_training_step(tmp_path, 0) is None


def test_evidence_that_a_training_has_made_long_still_reaches_the_leader(tmp_path: Path) -> None:
    process = read_process(os.getpid())
    assert process is not None
    frames = f'  File "train.py", line 1 in {chr(0x10FFFF) * 20_000}\n' * 3
    (tmp_path / f"stacks-{process.pid}.txt").write_text(f"Current thread 0x1 (most recent call first):\n{frames}")
    ranks = [
        RankProcess(rank=number, process=process, launcher=None, local_rank=number, local_size=300, handle=-1)
        for number in range(300)
    ]
    found = collect_ranks("n0", Taken(folder=tmp_path, stacks=tmp_path, waited={}), ranks, OFFSET)
    sent = ms.encode(ms.EvidenceTaken(epoch=Epoch("run", 0, 1), took_s=0.1, ranks=found))
    assert len(sent) <= MESSAGE_BYTES_MAX
    taken = ms.decode(sent)
    assert isinstance(taken, ms.EvidenceTaken)
    assert [rank.rank for rank in taken.ranks] == list(range(ms.RANKS_MAX))
    assert all(rank.stack for rank in taken.ranks)


@pytest.mark.skipif(KERNEL < (6, 15), reason="the kernel does not keep the status of a process that was reaped")
@pytest.mark.parametrize(("ended_by", "found"), [("kill -KILL $$", ("SIGKILL", None)), ("exit 3", (None, 3))])
def test_the_status_that_a_launcher_has_taken_is_read_from_the_kernel(
    ended_by: str, found: tuple[str | None, int | None]
) -> None:
    """Also where the launcher reports nothing of it."""
    rank = subprocess.Popen(["sh", "-c", f"read line; {ended_by}"], stdin=subprocess.PIPE)
    process = read_process(rank.pid)
    assert process is not None
    ended = RankProcess(
        rank=3, process=process, launcher=None, local_rank=1, local_size=2, handle=os.pidfd_open(rank.pid)
    )
    rank.communicate(b"\n")
    note_end(ended, 5.0)
    ended.close()
    assert (ended.killed_by, ended.exit_code) == found


@pytest.fixture(name="unread")
def rank_whose_launcher_took_its_status() -> Iterator[RankProcess]:
    launcher = subprocess.Popen(["sleep", "600"])
    rank = subprocess.Popen(["sleep", "600"])
    process, parent = read_process(rank.pid), read_process(launcher.pid)
    assert process is not None
    assert parent is not None
    rank.kill()
    rank.wait()
    yield RankProcess(rank=3, process=process, launcher=parent, local_rank=1, local_size=2, handle=-1, ended_s=5.0)
    launcher.kill()
    launcher.wait()


def state_of_launcher(rank: RankProcess) -> str | None:
    assert rank.launcher is not None
    now = read_process(rank.launcher.pid)
    return None if now is None else now.state


def test_a_launcher_that_took_a_status_goes_on_until_it_has_reported_it(unread: RankProcess) -> None:
    """It was stopped between the two: what it knows of the rank, nothing else does."""
    freeze([unread])
    until(lambda: state_of_launcher(unread) == "T", "the launcher is stopped")
    reported: dict[int, int] = {}

    def go_on(_: float) -> None:
        until(lambda: state_of_launcher(unread) == "S", "the launcher goes on")
        reported[unread.process.pid] = -9

    await_reports([unread], lambda: reported, go_on)
    assert unread.killed_by == "SIGKILL"
    until(lambda: state_of_launcher(unread) == "T", "it is stopped: it would end the ranks that are left")


def test_a_launcher_that_never_reports_is_not_waited_for_beyond_a_fifth_of_the_time(
    unread: RankProcess, tmp_path: Path
) -> None:
    waits: list[float] = []
    await_reports([unread], dict, waits.append)
    assert 0 < sum(waits) <= 0.2 + 1e-9
    until(lambda: state_of_launcher(unread) == "T", "it is stopped all the same")
    (found,) = collect_ranks("n0", Taken(folder=tmp_path, stacks=tmp_path, waited={}), [unread], OFFSET)
    assert (found.exception, found.ended_at_s) == (UNREAD_END, 5.0)


def test_a_rank_that_ended_before_it_was_found_is_known_by_its_launchers_report(unread: RankProcess) -> None:
    """Ranks are looked for every fifth of a second; one that was killed before that is only a pid."""
    other = unread.process.pid + 1
    (ended,) = find_ended([unread], {unread.process.pid: -15, other: -9})
    assert (ended.rank, ended.killed_by, ended.exit_code) == (2, "SIGKILL", None)
    assert find_ended([unread], {other: 0}) == [], "it was done"
    assert find_ended([unread], {other: -9, other + 1: -9}) == [], "one of them was no rank"
    assert find_ended([], {other: -9}) == []
    assert find_ended([unread, ended], {other + 1: 1}) == [], "all ranks are known"
