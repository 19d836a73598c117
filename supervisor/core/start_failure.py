"""Identifies an end before the first step that comes from the program or its command line, so that it is known again.

A missing module, a syntax error, a wrong argument and a missing file are there at the next try too. What another try
may find changed has no identity here: memory, GPU and driver, network, a full disk, a signal.
"""

from __future__ import annotations

import re

from supervisor.core.history import History
from supervisor.core.rank_failure import COLOUR, Raised, RankExited
from supervisor.core.readings import ExitStatus, Stage

YOUNG_S = 120.0
"""A process whose steps are not reported may have made some if it ran longer than this."""
TEXT_CHARACTERS = 300
RAISED_IN_PROGRAM, STATUS, COMMAND = frozenset({"exception", "non_finite"}), "exit_code", "command_missing"
"""Faults of a crash that may come from the program itself, or from its first numbers."""
UNRUNNABLE_STATUSES = frozenset({126, 127})
"""A shell, and env, end with these where they cannot run the command."""
USAGE_STATUSES = frozenset({2}) | UNRUNNABLE_STATUSES
"""argparse, click and getopt end with 2."""
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
_QUOTED = re.compile(_EXCEPTION.pattern + r"(?::|\s*\Z)")
_PLACE = re.compile(r"\bFile \"[^\"\n]{0,4096}?(?:\"|; last output: |\Z)")
"""Where an exception was raised, in whose path `rocm` or `lib/http` says nothing; a long message cuts it short."""
_LINK = re.compile(r"\bhttps?://[^\s\"'<>]{1,400}")
"""Many messages end with the address of their documentation; what a network says of its failure has other words."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|/tmp/\S+|\d{4}-\d\d-\d\d[T ][\d:.,]+|\d\d:\d\d:\d\d[.,\d]*|\bpid \d+", re.I)
NOT_STARTED = "could not be started"
"""Begins what identifies a command that was not executed at all."""
UNMOUNTED = "(is its disk mounted?)"
"""Part of the shim's message where a folder is missing, or empty, in which a disk may be mounted later."""
_NOT_EXECUTED = re.compile(r"\b(?:command|cwd) .{1,4000}? of the job: (?P<reason>.*)", re.S)
_LASTING = (
    "not found",
    "No such file or directory",
    "Not a directory",
    "Permission denied",
    "Exec format error",
    "Is a directory",
    "Too many levels of symbolic links",
    "File name too long",
    "Argument list too long",
    "embedded null byte",
    "illegal environment variable name",
)
"""How the shim's reason begins where another try finds nothing changed, unless a person or a mount changes it."""
_NO_SCRIPT = re.compile(r".{1,400}: can't (?:open file .{1,4000}\[Errno 2\]|find '__main__' module in )")
"""How Python says that its program is not there; it ends with status 2 or 1."""
ABOUT_NO_CHECKPOINT = re.compile(
    r"(?:\w+\.)*(?:ModuleNotFound|Import|Syntax|Indentation|Tab|Name)Error\b|status|could not be started"
)
"""Failures that no other checkpoint repairs: the program does not run, or does not understand its command line."""
ABOUT_MODULE = re.compile(r"(?:\w+\.)*(?:ModuleNotFound|Import)Error\b")
"""Failures of these that a person may be repairing: packages are removed before others are installed in their place."""
_REFUSED_LOAD = "Weights only load failed"
"""torch.load of torch 2.6 or later, of a file with objects of classes, such as the arguments of the command line."""


def start_failure(history: History, status: ExitStatus, fault: str, raised: Raised | RankExited | None) -> str | None:
    """Return what identifies an end before the first step; None where it stepped, or another try may do better.

    `raised` is the exception that came first, or the status that a rank ended with.
    """
    if may_have_stepped(history, status):
        return None
    text = None
    if fault == COMMAND and status.error is not None:
        text = status.words
    elif fault == COMMAND and status.code is not None:
        text = _identify_missing(status.code, history.last_line)
    elif isinstance(raised, RankExited):
        # The rank's output comes before its launcher's report, which is the last output; the statuses are the same.
        text = f"rank ended with status {raised.code}" if raised.code in USAGE_STATUSES else None
    elif fault in RAISED_IN_PROGRAM:
        text = None if raised is None else _identify_exception(raised)
    elif fault == STATUS and status.code is not None:
        text = _identify_output(status.code, history.last_line)
    return None if text is None else _identify_text(text)


def _identify_missing(code: int, line: str) -> str | None:
    last = line.rpartition(": ")[2]  # what comes before it has a name, in which any word may be
    may_pass = is_passing(last) and _NO_SCRIPT.match(line.strip()) is None
    return None if may_pass else f"status {code}: {line}"


def launch_failure(error: str) -> str | None:
    """Return what identifies a command or a working directory that cannot be used, as the shim reports it.

    None where the launch failed by something else, or another try may do better.
    """
    found = _NOT_EXECUTED.search(error)
    if found is None or not found["reason"].startswith(_LASTING):
        return None
    return _identify_text(f"{NOT_STARTED}: {error}")


def is_command_missing(history: History, status: ExitStatus) -> bool:
    """Whether a shell or Python ended since what it was to run is not there or cannot be executed."""
    if status.code is None or may_have_stepped(history, status):
        return False
    return status.code in UNRUNNABLE_STATUSES or (
        status.code in (1, 2) and _NO_SCRIPT.match(history.last_line.strip()) is not None
    )


def _identify_text(text: str) -> str:
    return " ".join(_VARYING.sub("*", text).split())[:TEXT_CHARACTERS]


def hint_at_refused_load(failure: str | None) -> str | None:
    """Return what helps where torch refused to load what the training had saved itself; None for any other failure."""
    if failure is None or _REFUSED_LOAD not in failure:
        return None
    return (
        "torch 2.6 and later load tensors alone: where the checkpoints are the training's own, set "
        'env = { TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD = "1" } in the job, or pass weights_only=False where it loads them'
    )


def may_have_stepped(history: History, status: ExitStatus) -> bool:
    """Whether an attempt has made steps, or may have made some that nothing reported."""
    if history.steps or history.last_step_at is not None:
        return True
    if history.hooked and history.stage is not Stage.LOOP:
        return False
    return history.output_stepped or status.at.seconds_since(history.launched_at) > YOUNG_S


def _identify_exception(raised: Raised) -> str | None:
    kind, message, trace = (str(raised.facts.get(field) or "") for field in ("type", "message", "traceback"))
    lines = trace.splitlines()
    # An exception that was raised from another says less than that: the unindented lines name them all.
    chain = [line for line in lines if line[:1].strip() and _EXCEPTION.match(line)]
    first, *quoted = split_quoting(message)
    title = quoted[-1] if quoted else f"{kind}: {first}"
    passing = any(is_passing(line) for line in (f"{kind}: {first}", *quoted, *chain))
    if passing and not ABOUT_NO_CHECKPOINT.match(title):
        return None
    frames = [line.strip() for line in lines if line.lstrip().startswith("File ") and " line " in line]
    return f"{title} ({frames[-1]})" if frames else title


def split_quoting(message: str) -> list[str]:
    """Return a message, or the first line of one that quotes what another process raised, and what that was.

    With it comes the source that failed, and the number of that process: ray's, a loader's, a notebook's.
    """
    first, _, rest = COLOUR.sub("", message).partition("\n")
    quoted = [line for line in rest.splitlines() if _QUOTED.match(line)]
    return [first, *quoted] if quoted else [message]


def is_passing(line: str) -> bool:
    """Whether a message says what may be over at the next try; a file may lie below a folder of any name."""
    return _PASSING.search(_PLACE.sub("", _LINK.sub("", line))) is not None


def _identify_output(code: int, line: str) -> str | None:
    if is_passing(line) and not _WRONG_ARGUMENT.match(line) and not ABOUT_NO_CHECKPOINT.match(line):
        return None
    if code in USAGE_STATUSES:
        return f"status {code}: {line}"
    return line if _EXCEPTION.match(line) else None
