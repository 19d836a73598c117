"""The ranks of a launch as processes of this node: found in /proc, watched, frozen with their launcher, and killed.

torchrun ends the surviving ranks within 0.1 s of a rank's end: their stacks would be lost. So its agent is stopped as
soon as a rank ends, before anything else; it stays so until the launch is ended.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.children.file_asks import NoAnswerError
from supervisor.children.files_apart import apart_within
from supervisor.core.fleet.messages import RANKS_MAX
from supervisor.core.foreign_values import RANK_MAX, as_int
from supervisor.runner import process_table
from supervisor.runner.process_table import Process

ENVIRONMENT_BYTES_MAX = 4 << 20
ENVIRONMENT_LIMIT_S = 0.5
"""How long the kernel may take to read an environment: it waits for whoever changes that process's memory."""
REPORT_EVERY_S, REPORT_LOOKS = 0.02, 10
"""How often a launcher's own report of an end is looked for: a fifth of the time for evidence."""
EXIT_CODE_FIELD = 52
"""Of /proc/PID/stat; of a zombie it is what waitpid will return."""
PIDFD_GET_INFO, PIDFD_INFO_EXIT = 0xC040FF0B, 1 << 3
"""Of linux/pidfd.h: since Linux 6.15 it answers with the status of a process that has been reaped."""
_PIDFD_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info in its first form: mask, cgroup, eleven identities, exit code."""
_DIGITS = re.compile(rb"[0-9]{1,9}")


@dataclass(slots=True, kw_only=True)
class RankProcess:
    """One rank on this node."""

    rank: int
    process: Process
    launcher: Process | None
    """torchrun's agent; None where the rank is the attempt's own process."""
    local_rank: int
    local_size: int
    handle: int
    """Its pidfd; -1 for one that had ended before it was found."""
    ended_s: float | None = None
    stopped_at_step: int | None = None
    """The training's step when this daemon continued it after a signal had stopped it; None once there was another."""
    status: int | None = None
    """As waitpid has it; None while it runs, and where its launcher was quicker."""

    @property
    def killed_by(self) -> str | None:
        """The signal that ended it."""
        number = (self.status or 0) & 0x7F
        try:
            return signal.Signals(number).name if number else None
        except ValueError:
            return f"signal {number}"

    @property
    def exit_code(self) -> int | None:
        """Its exit status; None where a signal ended it, or it is not known."""
        return None if self.status is None or self.status & 0x7F else self.status >> 8 & 0xFF

    @property
    def failed(self) -> bool:
        """Whether it is known to have ended in another way than by status 0."""
        return self.ended_s is not None and self.status is not None and self.status != 0

    @property
    def is_unread(self) -> bool:
        """Whether it has ended, and its launcher took its status before it could be read."""
        return self.ended_s is not None and self.status is None

    def close(self) -> None:
        """Close its pidfd."""
        os.close(self.handle)


def find_ranks(shim_pid: int, known: set[int], environments: Path = Path("/proc")) -> list[RankProcess]:
    """Return the ranks below a shim whose pids are not known yet, with those at most RANKS_MAX; no loaders' workers.

    What a rank is, its environment says, which the training's own processes can write: each found costs a descriptor.
    `environments` has them as /proc has: PID/environ.
    """
    processes = process_table.read_processes()
    by_pid = {process.pid: process for process in processes}
    below = process_table.descendants(shim_pid, processes)
    found: list[RankProcess] = []
    ranks: set[int] = set(known)
    for process in below:
        if process.pid in known or process.parent in ranks:
            ranks.add(process.pid)  # a child of a rank inherits its environment
            continue
        place = _ask_place(environments / f"{process.pid}/environ") if len(known) + len(found) < RANKS_MAX else None
        if place is None:
            continue
        ranks.add(process.pid)
        launcher = by_pid.get(process.parent) if process.parent != shim_pid else None
        opened = _open(process)
        if opened is not None:
            found.append(
                RankProcess(
                    rank=place[0],
                    local_rank=place[1],
                    local_size=place[2],
                    process=process,
                    launcher=launcher,
                    handle=opened,
                )
            )
    return found


def _open(process: Process) -> int | None:
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    now = process_table.read_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks:
        os.close(handle)
        return None
    return handle


def _ask_place(environment: Path) -> tuple[int, int, int] | None:
    """Return what `read_place` does; None also where that is not answered: a later look may have it."""
    try:
        return apart_within(ENVIRONMENT_LIMIT_S, read_place, environment)
    except (TimeoutError, NoAnswerError):
        return None


def read_place(environment: Path) -> tuple[int, int, int] | None:
    """Return (rank, its number on this node, ranks on this node) of a process that a launcher started as a rank.

    None for any other process.
    """
    try:
        with environment.open("rb") as file:
            entries = file.read(ENVIRONMENT_BYTES_MAX).split(b"\0")
    except OSError:
        return None
    values = dict(entry.partition(b"=")[::2] for entry in entries)
    names = (b"RANK", b"LOCAL_RANK", b"LOCAL_WORLD_SIZE")
    rank, local, size = (_read_number(values.get(name, b"")) for name in names)
    return None if rank is None or local is None or size is None else (rank, local, size)


def _read_number(digits: bytes) -> int | None:
    return as_int(int(digits), maximum=RANK_MAX) if _DIGITS.fullmatch(digits) else None


def note_end(rank: RankProcess, now_s: float) -> None:
    """Stop the launcher of a rank that has ended, then read how it ended, which the launcher would take away."""
    if rank.launcher is not None:
        process_table.send(rank.launcher, signal.SIGSTOP)
    rank.ended_s, rank.status = now_s, _read_status(rank.process)
    if rank.status is None:
        rank.status = _read_reaped_status(rank.handle)


def note_report(ranks: list[RankProcess], exit_codes: Mapping[int, int]) -> None:
    """Take from its launcher's own report how a rank ended whose status was gone before it could be read."""
    for rank in ranks:
        code = exit_codes.get(rank.process.pid)
        if rank.status is None and code is not None:
            rank.status = -code if code < 0 else (code & 0xFF) << 8


def find_ended(ranks: list[RankProcess], exit_codes: Mapping[int, int]) -> list[RankProcess]:
    """Return the rank of this node that failed before it was found, by its launcher's report; [] where there is none.

    A report has only pids: where several ranks were not found, which of them it was is not known.
    """
    found = {rank.process.pid for rank in ranks}
    failed = [pid for pid, code in exit_codes.items() if code != 0 and pid not in found]
    first, size = (ranks[0].rank - ranks[0].local_rank, ranks[0].local_size) if ranks else (0, 0)
    missing = {*range(first, first + min(size, RANKS_MAX))} - {rank.rank for rank in ranks}
    if len(failed) != 1 or len(missing) != 1:
        return []
    number = missing.pop()
    ended = RankProcess(
        rank=number,
        local_rank=number - first,
        local_size=size,
        process=Process(failed[0], "X", parent=0, session=0, start_ticks=-1),
        launcher=ranks[0].launcher,
        handle=-1,
    )
    note_report([ended], exit_codes)
    return [ended]


def await_reports(
    ranks: list[RankProcess], read_report: Callable[[], Mapping[int, int]], wait: Callable[[float], None]
) -> None:
    """Stop the launchers of all ranks, once those have reported that have taken a status away, or had time to.

    One that is stopped between the two would never report, and nothing else has that status.
    """
    for _ in range(REPORT_LOOKS):
        unread = [rank for rank in ranks if rank.is_unread and _has_launcher(rank)]
        if not unread:
            break
        freeze([rank for rank in ranks if rank not in unread])
        for rank in unread:
            release(rank)
        note_report(unread, read_report())
        if any(rank.is_unread for rank in unread):
            wait(REPORT_EVERY_S)
    freeze(ranks)


def _has_launcher(rank: RankProcess) -> bool:
    return rank.launcher is not None and process_table.read_living(rank.launcher) is not None


def forget_stops(ranks: list[RankProcess], step: int | None) -> None:
    """Forget that ranks were stopped once the training has gone on: a later fault is not theirs."""
    for rank in ranks:
        if rank.stopped_at_step is not None and step is not None and step > rank.stopped_at_step:
            rank.stopped_at_step = None


def release(rank: RankProcess) -> None:
    """Let the launcher of a rank go on."""
    if rank.launcher is not None:
        process_table.send(rank.launcher, signal.SIGCONT)


def freeze(ranks: list[RankProcess]) -> None:
    """Stop the launchers of all ranks, so that they end none while evidence is taken."""
    for launcher in {rank.launcher.pid: rank.launcher for rank in ranks if rank.launcher is not None}.values():
        process_table.send(launcher, signal.SIGSTOP)


def kill(ranks: list[RankProcess]) -> None:
    """Send SIGKILL to the ranks themselves, before their tree is looked for."""
    for rank in ranks:
        try:
            signal.pidfd_send_signal(rank.handle, signal.SIGKILL)
        except OSError:
            continue  # it has ended


def _read_reaped_status(handle: int) -> int | None:
    """Return the status of a process that its launcher has reaped; None where the kernel does not keep it."""
    info = bytearray(_PIDFD_INFO.size)
    _PIDFD_INFO.pack_into(info, 0, PIDFD_INFO_EXIT, *[0] * 13)
    try:
        fcntl.ioctl(handle, PIDFD_GET_INFO, info)
    except (OSError, ValueError):
        return None
    mask, *_, status = _PIDFD_INFO.unpack(info)
    return int(status) if mask & PIDFD_INFO_EXIT else None


def read_failure(process: Process) -> int | None:
    """Return the status, as waitpid will have it, of a process that has begun to end by anything but status 0."""
    return _read_status(process) or None


def _read_status(process: Process) -> int | None:
    now = process_table.read_process(process.pid)
    if now is None or now.start_ticks != process.start_ticks or not (now.ending or now.state == "Z"):
        return None
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(text.rpartition(")")[2].split()[EXIT_CODE_FIELD - 3])
    except (OSError, ValueError, IndexError):
        return None
