"""Finds the first failure among the processes of an attempt: launchers and surviving ranks raise only its consequences.

Each rank reports the exception that ends it, and so does its launcher, last of all and about nothing of its own. A rank
that a signal killed reports nothing: the launcher's report names it, its process and the signal. Neither does a rank
that exits with a status (a wrong argument, `sys.exit`): the report names the status.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from signal import SIGINT, SIGTERM, Signals

from supervisor.core.moments import Moment

ELASTIC = "ChildFailedError"
"""torch.distributed.elastic's: torchrun, accelerate's launcher, and what ultralytics starts for several GPUs."""
LAUNCHERS = frozenset({ELASTIC, "ProcessRaisedException", "ProcessExitedException", "CalledProcessError"})
"""Exceptions about another process. torch.multiprocessing.spawn raises the second and the third."""
_FAILURE = re.compile(r"rank\s*:\s*(\d{1,6})\b[^\n]*\n\s*exitcode\s*:\s*(-?\d{1,3}) \(pid: (\d{1,7})\)")
_ROOT = "Root Cause (first observed failure)"
"""As torch.distributed.elastic.multiprocessing.errors words it, 1.9 to 2.12; what comes above failed later."""
_BY_SIGNAL = re.compile(r"terminated with signal (SIG[A-Z0-9]{1,9})\b|died with <Signals\.(SIG[A-Z0-9]{1,9})")
_CONSEQUENCE = re.compile(
    r"gloo/transport|pair closure|connectFullMesh|failed to pass monitoredBarrier"
    r"|closed by peer|reset by peer|broken pipe|remote process (?:exited|has)|ncclRemoteError|ncclSystemError"
    r"|unhandled system error|Watchdog caught collective|collective operation timeout|Socket ?Timeout|TCPStore"
    r"|rank \d+ is gone"
    r"|Dist(?:Backend|Store|Network)Error|store->get|wait timeout|heartbeat|Aborted|communicator was aborted",
    re.I,
)
"""What a rank raises because another one is gone; gloo's and NCCL's words, RCCL's are NCCL's."""
_PIPE_BROKE = frozenset({"EOFError", "BrokenPipeError", "ConnectionResetError", "ConnectionAbortedError"})
"""What a process raises that reads from, or writes to, another one that is gone."""
_INNER = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)): ?(.*)$", re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}m")
"""A notebook's traceback is coloured, between the type and the message as well."""
_ENDING = (SIGTERM, SIGINT)
"""What launchers send to the ranks that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One exception that ended a process, as the agent in it reported."""

    at: Moment
    facts: dict[str, object]
    pid: int | None = None
    rank: int | None = None

    @property
    def kind(self) -> str:
        """Its type, without module."""
        return str(self.facts.get("type") or "")

    @property
    def text(self) -> str:
        """Its message and the traceback, which ends with the message in full."""
        return f"{self.facts.get('message') or ''}\n{self.facts.get('traceback') or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKilled:
    """A rank that a signal killed, as its launcher reported."""

    signal: int
    rank: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited:
    """A rank that ended with a status and raised nothing, as its launcher reported."""

    code: int
    rank: int
    pid: int


def first_failure(raised: Sequence[Raised]) -> Raised | RankKilled | RankExited | None:
    """Return what failed first among the exceptions near the end of an attempt, oldest first; None where none was."""
    own = [item for item in raised if item.kind not in LAUNCHERS]
    reports = [item for item in raised if item.kind in LAUNCHERS]
    if not reports and not any(item.rank for item in own):
        return _find_newest(own)
    root, killed = _find_killed(reports)
    by_rank = {item.pid: item for item in own if item.pid is not None}
    if root is not None and root.pid not in by_rank:
        return root
    first = next((item for item in own if not is_consequence(item.kind, str(item.facts.get("message")))), None)
    if first is not None:
        return first
    unreported = next((rank for rank in killed if rank.pid not in by_rank), None)
    return unreported or (own[0] if own else _find_reported(reports))


def _find_newest(raised: list[Raised]) -> Raised | None:
    """Return the exception that ended one process, which is its newest; None where there was none.

    Processes that it started may raise too: of two that are joined by a pipe, the other's only says that it broke, and
    one that runs a program in another process, as that of a notebook's cells, quotes what that raised.
    """
    others = [item for item in raised if item.kind not in _PIPE_BROKE]
    whose = {item.pid for item in others}
    newest = raised[-1] if raised else None
    if newest is None or newest.kind not in _PIPE_BROKE or whose <= {newest.pid}:
        return newest and (_find_quoted(newest, others) or newest)
    return others[-1]


def _find_quoted(report: Raised, others: Sequence[Raised]) -> Raised | None:
    """Return the newest exception of another process that a report quotes: by its type, and its message's first line.

    What a report adds may be the source that failed, in which any word may be.
    """
    if all(item.pid == report.pid for item in others):
        return None
    quoted = {(kind.rpartition(".")[2], text.strip()) for kind, text in _INNER.findall(COLOUR.sub("", report.text))}
    return next((item for item in reversed(others) if item.pid != report.pid and _title_of(item) in quoted), None)


def _title_of(raised: Raised) -> tuple[str, str]:
    return raised.kind, str(raised.facts.get("message") or "").partition("\n")[0].strip()


def is_consequence(kind: str, message: str) -> bool:
    """Whether an exception only reports that another rank is gone; `kind` is its type without module."""
    return _CONSEQUENCE.search(f"{kind}: {message}") is not None


def _find_reported(reports: Sequence[Raised]) -> Raised | RankExited:
    """Return what the launchers report where no rank reported anything: the exception that they quote, or a status."""
    quoted = _unwrap_quoted(reports[0])
    return quoted if quoted is not reports[0] else _find_exited(reports) or quoted


def _find_exited(reports: Sequence[Raised]) -> RankExited | None:
    """Return the root cause of the first report of torch's launcher where that is a status."""
    for report in reports:
        found = _FAILURE.search(report.text.partition(_ROOT)[2]) if report.kind == ELASTIC else None
        if found is not None and int(found.group(2)) > 0:
            return RankExited(code=int(found.group(2)), rank=int(found.group(1)), pid=int(found.group(3)))
    return None


def _find_killed(reports: Sequence[Raised]) -> tuple[RankKilled | None, list[RankKilled]]:
    """Return the root cause of the launchers' reports where that is a signal, and every rank that one killed."""
    root, killed = None, []
    for report in reports:
        text = report.text
        if report.kind != ELASTIC:
            killed += [RankKilled(signal=number) for number in _list_named_signals(text)]
            continue
        ranks = list(_list_killed_ranks(text))
        at_root = list(_list_killed_ranks(text.partition(_ROOT)[2]))
        root = root or (at_root[0] if at_root else None)
        killed += ranks
    return root or (killed[0] if killed and killed[0].rank is None else None), killed


def _list_killed_ranks(text: str) -> list[RankKilled]:
    found = [(int(rank), int(code), int(pid)) for rank, code, pid in _FAILURE.findall(text)]
    return [
        RankKilled(signal=-code, rank=rank, pid=pid) for rank, code, pid in found if code < 0 and -code not in _ENDING
    ]


def _list_named_signals(text: str) -> list[int]:
    names = [item or other for item, other in _BY_SIGNAL.findall(text)]
    return [Signals[name].value for name in names if name in Signals.__members__ and Signals[name] not in _ENDING]


def _unwrap_quoted(report: Raised) -> Raised:
    """Return a launcher's exception as the one that it quotes, where it quotes one."""
    quoted = _INNER.findall(str(report.facts.get("message") or ""))
    if not quoted:
        return report
    kind, message = quoted[-1]
    return replace(report, facts={**report.facts, "type": kind.rpartition(".")[2], "message": message})
