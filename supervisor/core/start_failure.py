"""Identifies an end before the first step that comes from the program or its command line, so that it is known again.

A missing module, a syntax error, a wrong argument and a missing file are there at the next try too. What another try
may find changed has no identity here: memory, GPU and driver, network, a full disk, a signal.
"""

from __future__ import annotations

import re

from supervisor.core.history import History
from supervisor.core.rank_failure import Raised, RankExited
from supervisor.core.readings import ExitStatus, Stage

YOUNG_S = 120.0
"""A process whose steps are not reported may have made some if it ran longer than this."""
TEXT_CHARACTERS = 300
RAISED_IN_PROGRAM, STATUS, COMMAND = frozenset({"exception", "non_finite"}), "exit_code", "command_missing"
"""Faults of a crash that may come from the program itself, or from its first numbers."""
USAGE_STATUSES = frozenset({2, 126, 127})
"""argparse, click and getopt end with 2; a shell with 126 or 127 where it cannot run the command."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)\b")
_WRONG_ARGUMENT = re.compile(r"(?:usage: |[\w./-]+: error: )")
"""As argparse words it; the name of a device in it is the owner's, not the driver's."""
_PASSING = re.compile(
    r"connect|timeout|timed out|network|name resolution|name or service|gaierror|\bssl|http|\burl|socket|broken pipe"
    r"|address already in use|Dist(?:Network|Store|Backend)Error|rendezvous|\b(?:cuda|hip|hsa|rocm|nccl|rccl|gloo)"
    r"|miopen|[ck]u?dnn|\bGPUs?\b|driver|nvml|out of memory|cannot allocate|no space left|quota|read-only file system"
    r"|input/output error|stale file|transport endpoint|resource temporarily|device or resource busy"
    r"|too many open files|\block(?:ed)?\b|try again|temporar|rate limit|interrupted",
    re.I,
)
"""Words of what may be over at the next try."""
_LINK = re.compile(r"\bhttps?://[^\s\"'<>]{1,400}")
"""Many messages end with the address of their documentation; what a network says of its failure has other words."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|/tmp/\S+|\d{4}-\d\d-\d\d[T ][\d:.,]+|\d\d:\d\d:\d\d[.,\d]*|\bpid \d+", re.I)
ABOUT_NO_CHECKPOINT = re.compile(
    r"(?:\w+\.)*(?:ModuleNotFound|Import|Syntax|Indentation|Tab|Name)Error\b|status|could not be started"
)
"""Failures that no other checkpoint repairs: the program does not run, or does not understand its command line."""


def start_failure(history: History, status: ExitStatus, fault: str, raised: Raised | RankExited | None) -> str | None:
    """Return what identifies an end before the first step; None where it stepped, or another try may do better.

    `raised` is the exception that came first, or the status that a rank ended with.
    """
    if _may_have_stepped(history, status):
        return None
    text = None
    if fault == COMMAND and status.error is not None:
        text = status.words
    elif isinstance(raised, RankExited):
        # The rank's output comes before its launcher's report, which is the last output; the statuses are the same.
        text = f"rank ended with status {raised.code}" if raised.code in USAGE_STATUSES else None
    elif fault in RAISED_IN_PROGRAM:
        text = None if raised is None else _identify_exception(raised)
    elif fault == STATUS and status.code is not None:
        text = _identify_output(status.code, history.last_line)
    return None if text is None else " ".join(_VARYING.sub("*", text).split())[:TEXT_CHARACTERS]


def _may_have_stepped(history: History, status: ExitStatus) -> bool:
    if history.steps or history.last_step_at is not None:
        return True
    if history.hooked and history.stage is not Stage.LOOP:
        return False
    return history.output_step is not None or status.at.seconds_since(history.launched_at) > YOUNG_S


def _identify_exception(raised: Raised) -> str | None:
    kind, message, trace = (str(raised.facts.get(field) or "") for field in ("type", "message", "traceback"))
    lines = trace.splitlines()
    # An exception that was raised from another says less than that: the unindented lines name them all.
    chain = [line for line in lines if line[:1].strip() and _EXCEPTION.match(line)]
    passing = any(_is_passing(line) for line in (f"{kind}: {message}", *chain))
    if passing and not ABOUT_NO_CHECKPOINT.match(kind):
        return None
    frames = [line.strip() for line in lines if line.lstrip().startswith("File ") and " line " in line]
    return f"{kind}: {message} ({frames[-1]})" if frames else f"{kind}: {message}"


def _is_passing(line: str) -> bool:
    return _PASSING.search(_LINK.sub("", line)) is not None


def _identify_output(code: int, line: str) -> str | None:
    if _is_passing(line) and not _WRONG_ARGUMENT.match(line) and not ABOUT_NO_CHECKPOINT.match(line):
        return None
    if code in USAGE_STATUSES:
        return f"status {code}: {line}"
    return line if _EXCEPTION.match(line) else None
