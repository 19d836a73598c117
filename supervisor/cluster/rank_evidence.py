"""The evidence of the ranks of one node: how each ended, where its Python stands, how many steps it made.

The state of its process, the report of its agent, its flight recorder and the stack that it dumped; what cannot be read
is None.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import untrusted_files
from supervisor.cluster.ranks import RankProcess
from supervisor.core import attempt_files as names
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.foreign_values import COUNT_MAX, as_int, as_message, as_text, read_json_object
from supervisor.core.rank_failure import is_consequence
from supervisor.runner import shim

AGENT_TAIL_BYTES = 1 << 18
STACK_BYTES_MAX = 1 << 18
FRAMES_KEPT = 3
EXCEPTION_CHARS_MAX = 500
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
class ClockOffset:
    """What the leader's clock is ahead of this node's monotonic one, and how far that can be off."""

    seconds: float
    error_s: float


def collect_ranks(
    node: str, folder: Path, evidence: Path, ranks: Sequence[RankProcess], offset: ClockOffset
) -> tuple[RankEvidence, ...]:
    """Return the evidence of each rank; `evidence` is the folder with the stacks that were dumped."""
    raised = read_exceptions(folder)
    return tuple(_complete(_describe(node, evidence, rank, offset), folder, rank, raised) for rank in ranks)


def _describe(node: str, evidence: Path, rank: RankProcess, offset: ClockOffset) -> RankEvidence:
    """Return what its process shows."""
    now = shim.read_process(rank.process.pid)
    alive = now is not None and now.start_ticks == rank.process.start_ticks and not now.dead
    frames = read_frames(evidence, rank.process.pid) if alive else ()
    return RankEvidence(
        node=node,
        rank=rank.rank,
        killed_by=rank.killed_by,
        ended_at_s=None if rank.ended_s is None else rank.ended_s + offset.seconds,
        offset_error_s=offset.error_s,
        process_state=now.state if now is not None and alive else None,
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
        exception = f"exited with status {rank.exit_code}"
    ended_by_launcher = known.killed_by in ("SIGTERM", "SIGINT")
    return replace(
        known,
        exception=exception,
        communication=ended_by_launcher or (own is not None and is_consequence(*own)),
        collective=read_steps(folder, rank.rank),
    )


def read_steps(folder: Path, rank: int) -> int | None:
    """Return how many steps a rank has recorded in this launch; None where it has no recorder."""
    name = names.RECORDER if rank == 0 else names.RECORDER.replace("recorder", f"recorder.rank{rank}")
    try:
        data = untrusted_files.read_part(folder, name, names.HEAD_OFFSET, names.HEAD.size)
        (head,) = names.HEAD.unpack(data)
    except (OSError, struct.error, ValueError):
        return None
    return as_int(head, maximum=COUNT_MAX)


def read_exceptions(folder: Path) -> Mapping[int, tuple[str, str]]:
    """Return the exception that ended each process of the attempt, as (type, message), by its pid."""
    try:
        content = untrusted_files.read_tail(folder, names.AGENT, AGENT_TAIL_BYTES).content
    except OSError:
        return {}
    found: dict[int, tuple[str, str]] = {}
    for line in content.splitlines():
        facts = read_json_object(line) if b'"exception"' in line else None
        if facts is None or facts.get("event") != "exception":
            continue
        pid, kind = as_int(facts.get("pid")), as_text(facts.get("type"))
        if pid is not None and kind is not None:
            found.setdefault(pid, (kind, as_message(facts.get("message"), EXCEPTION_CHARS_MAX) or ""))
    return found


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
