"""The evidence of the ranks of one node: how each ended, where its Python stands, how many steps it made.

The state of its process, the report of its agent, its flight recorder and the stack that it dumped; what cannot be read
is None.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.cluster.ranks import RankProcess
from supervisor.core import attempt_files as names
from supervisor.core.fleet.clock_offset import ClockOffset
from supervisor.core.fleet.evidence import STATUS_END, UNREAD_END, RankEvidence
from supervisor.core.foreign_values import COUNT_MAX, STEP_MAX, as_dict, as_int, as_message, as_text, read_json_object
from supervisor.core.rank_failure import is_consequence
from supervisor.rotated_output import read_output_end
from supervisor.runner import process_table

AGENT_TAIL_BYTES = 1 << 18
STACK_BYTES_MAX = 1 << 18
FRAMES_KEPT = 3
EXCEPTION_CHARS_MAX = 500
OUTPUT_TAIL_BYTES = 1 << 18
STEADY_NS = 2_000_000_000
STATUS_MAX, PID_DIGITS = 255, 7
_LAUNCHER_REPORT = re.compile(r"failed \(exitcode: (-?\d{1,3})\) local_rank: \d{1,5} \(pid: (\d{1,7})\) of binary")
"""torch.distributed.elastic.multiprocessing.api, of the rank that failed first on its node."""
_STEP = struct.Struct("<Qq")
"""Of a record: sequence and step."""
_FRAME = re.compile(r'^\s+File "(.*)", line \d+ in (.+)$')
COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "_all_gather_base",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "_reduce_scatter_base",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "monitored_barrier",
        "_engine_run_backward",
    }
)
"""Functions of torch in which a rank waits for its peers; in the last one DDP's reducer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What was taken of an attempt before its ranks are described."""

    folder: Path
    """Of the attempt: what its agents wrote."""
    stacks: Path
    """The folder with the stacks that were dumped."""
    waited: Mapping[int, tuple[str, ...]]
    """What `read_waits` returned before."""


def read_waits(pids: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    """Return the context switches so far of each process whose main thread waits in the kernel (state D)."""
    waits = {pid: _read_wait(pid) for pid in pids}
    return {pid: switches for pid, switches in waits.items() if switches}


def _read_wait(pid: int) -> tuple[str, ...]:
    """Return the counters of a process in state D as the kernel writes them; () in any other state, or without any."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    waits = any(line.startswith("State:\tD") for line in lines)
    return tuple(line for line in lines if "voluntary_ctxt_switches:" in line) if waits else ()


def collect_ranks(
    node: str, taken: Taken, ranks: Sequence[RankProcess], offset: ClockOffset
) -> tuple[RankEvidence, ...]:
    """Return the evidence of each rank.

    State D counts only where a rank has not run since it was first seen in it: every read of a disk is such a wait.
    """
    raised, waits = read_exceptions(taken.folder), read_waits(rank.process.pid for rank in ranks)
    stuck = {pid for pid, switches in waits.items() if taken.waited.get(pid) == switches}
    described = [_describe(node, taken.stacks, rank, offset, stuck) for rank in ranks]
    return tuple(_complete(known, taken.folder, rank, raised) for known, rank in zip(described, ranks, strict=True))


def shift_end(rank: RankEvidence, seconds: float) -> RankEvidence:
    """Return evidence with the time of its end moved, as to the clock of another leader."""
    return rank if rank.ended_at_s is None else replace(rank, ended_at_s=rank.ended_at_s + seconds)


def _describe(node: str, evidence: Path, rank: RankProcess, offset: ClockOffset, stuck: Set[int]) -> RankEvidence:
    """Return what its process shows."""
    now = (
        process_table.read_living(rank.process) if rank.ended_s is None else None
    )  # else its memory may still be freed
    frames = () if now is None else read_frames(evidence, now.pid)
    state = now.state if now is not None and (now.state != "D" or now.pid in stuck) else None
    return RankEvidence(
        node=node,
        rank=rank.rank,
        killed_by=rank.killed_by,
        ended_at_s=None if rank.ended_s is None else rank.ended_s + offset.seconds,
        offset_error_s=offset.error_s,
        # A rank that was stopped until a moment ago is why the others wait, though it runs by now.
        process_state="T" if now is not None and rank.stopped_at_step is not None else state,
        in_collective=any(name.rpartition(":")[2] in COLLECTIVES for name in frames) if frames else None,
        stack=" < ".join(frames[:FRAMES_KEPT]) or None,
    )


def _complete(
    known: RankEvidence, folder: Path, rank: RankProcess, raised: Mapping[int, tuple[str, str]]
) -> RankEvidence:
    """Return it with what its agent wrote."""
    own = raised.get(rank.process.pid)
    exception = None if own is None else f"{own[0]}: {own[1]}"[:EXCEPTION_CHARS_MAX]
    if exception is None and rank.exit_code:
        exception = f"{STATUS_END} {rank.exit_code}"
    if exception is None and rank.is_unread:
        exception = UNREAD_END
    ended_by_launcher = known.killed_by in ("SIGTERM", "SIGINT")
    return replace(
        known,
        exception=exception,
        communication=ended_by_launcher or (own is not None and is_consequence(*own)),
        sequence=read_sequence(folder, rank.rank),
        collective=read_steps(folder, rank.rank),
    )


def _name_recorder(rank: int) -> str:
    """Return the name of a rank's recorder in the attempt's folder, as the agent gives it."""
    return names.RECORDER if rank == 0 else names.RECORDER.replace("recorder", f"recorder.rank{rank}")


def read_sequence(folder: Path, rank: int) -> int | None:
    """Return the number of the last collective that a rank has begun; None where it has none, or it still grows."""
    name = _name_recorder(rank)
    try:
        data = untrusted_files.read_part(folder, name, names.COLLECTIVE_OFFSET, names.COLLECTIVE.size)
        number, since_ns = names.COLLECTIVE.unpack(data)
    except (OSError, struct.error, ValueError):
        return None
    steady = time.monotonic_ns() - since_ns >= STEADY_NS  # ranks are looked at at different moments of a second
    return as_int(number, 1, COUNT_MAX) if steady else None


def read_steps(folder: Path, rank: int) -> int | None:
    """Return how many steps a rank has recorded in this launch; None where it has no recorder."""
    name = _name_recorder(rank)
    try:
        data = untrusted_files.read_part(folder, name, names.HEAD_OFFSET, names.HEAD.size)
        (head,) = names.HEAD.unpack(data)
    except (OSError, struct.error, ValueError):
        return None
    return as_int(head, maximum=COUNT_MAX)


def read_training_step(folder: Path, rank: int) -> int | None:
    """Return the newest step that a rank has recorded; None where it has no recorder, or has made none.

    A training that was resumed counts on where it can: more than its highest step before is progress.
    """
    name = _name_recorder(rank)
    try:
        page = untrusted_files.read_part(folder, name, 0, names.HEAD_OFFSET + names.HEAD.size)
        _, header, size, capacity, _ = names.IDENTITY.unpack_from(page)
        (head,) = names.HEAD.unpack_from(page, names.HEAD_OFFSET)
        if not 0 < head <= COUNT_MAX or capacity < 1:
            return None
        data = untrusted_files.read_part(folder, name, header + (head - 1) % capacity * size, _STEP.size)
        sequence, step = _STEP.unpack(data)
    except (OSError, struct.error, ValueError):
        return None
    return as_int(step, maximum=STEP_MAX) if sequence >= head else None


def read_steps_made(folder: Path, ranks: Sequence[int]) -> int | None:
    """Return the newest step that all of these ranks have recorded; None where none has recorded any."""
    found = [read_training_step(folder, rank) for rank in ranks]
    return min((step for step in found if step is not None), default=None)


def read_exceptions(folder: Path) -> Mapping[int, tuple[str, str]]:
    """Return the exception that ended each process of the attempt, as (type, message), by its pid."""
    found: dict[int, tuple[str, str]] = {}
    for facts in _read_reports(folder, "exception"):
        pid, kind = as_int(facts.get("pid")), as_text(facts.get("type"))
        if pid is not None and kind is not None:
            found.setdefault(pid, (kind, as_message(facts.get("message"), EXCEPTION_CHARS_MAX) or ""))
    return found


def read_launcher_report(folder: Path) -> Mapping[int, int]:
    """Return the exit code of each rank that torchrun has reaped, by its pid: as its agent reports, or as it printed.

    Where this daemon had no processor in the 0.1 s before torchrun reaped a rank, nothing else has its status.
    """
    found: dict[int, int] = {}
    for facts in _read_reports(folder, "reaped"):
        for pid, code in as_dict(facts.get("codes")).items():
            status = as_int(code, -STATUS_MAX, STATUS_MAX)
            if pid.isdecimal() and len(pid) <= PID_DIGITS and status is not None:
                found.setdefault(int(pid), status)
    try:
        text = read_output_end(folder, OUTPUT_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return found
    for match in _LAUNCHER_REPORT.finditer(text):
        found.setdefault(int(match[2]), int(match[1]))
    return found


def _read_reports(folder: Path, event: str) -> Iterator[Mapping[str, object]]:
    """Return what the agents of an attempt wrote last of an event, oldest first."""
    try:
        content = untrusted_files.read_tail(folder, names.AGENT, AGENT_TAIL_BYTES).content
    except OSError:
        return
    quoted = f'"{event}"'.encode()
    for line in content.splitlines():
        facts = read_json_object(line) if quoted in line else None
        if facts is not None and facts.get("event") == event:
            yield facts


def read_frames(evidence: Path, pid: int) -> tuple[str, ...]:
    """Return where the main thread of a process stands, innermost first, as FILE:FUNCTION; () where it dumped none."""
    try:
        text = untrusted_files.read_bytes(evidence, f"stacks-{pid}.txt", STACK_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return ()
    return parse_frames(text)


def parse_frames(text: str) -> tuple[str, ...]:
    """Return the frames of the main thread in a dump of faulthandler, innermost first.

    The kernel gives a signal to a process's main thread where that does not block it, so the "current" thread is it.
    """
    sections = re.split(r"^(?=(?:Current thread|Thread) )", text, flags=re.M)
    current = next((part for part in sections if part.startswith("Current thread")), sections[-1])
    found = (_FRAME.match(line) for line in current.splitlines())
    return tuple(f"{frame[1].rpartition('/')[2]}:{frame[2]}" for frame in found if frame is not None)
