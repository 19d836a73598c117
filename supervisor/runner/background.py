"""Finds the training that a command has left in the background: `nohup python train.py &` ends at once, with status 0.

Of several it finds the next where one has ended.

Used by shim.py in its process: imports only the standard library.
"""

# ruff: noqa: PTH115, PTH123 - as in shim.py: memory for life

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False  # typing is memory for life
if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.runner.process_table import Process, read_inner_pid, read_process
else:
    from process_table import read_inner_pid, read_process  # the shim's process has imported it

INTERPRETER = "python"
"""Begins the name of the program of every training that has an agent."""
LAUNCHERS = (
    "sh", "bash", "dash", "zsh", "fish", "busybox", "env", "nohup", "setsid", "nice", "ionice", "taskset", "numactl",
    "stdbuf", "timeout", "make", "time", "flock", "xargs", "perl", "sudo", "su", "runuser", "unshare", "tmux", "screen",
    "dtach", "script", "mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "hydra_pmi_proxy",
)  # fmt: skip
"""Programs that become another one, or start it, and train nothing themselves; a terminal's server is one of them."""
HELPERS = ("torch_shm_manager",)
"""Programs that put themselves into a session of their own and help the training: this one holds what workers share."""
EXEC_TRIES, EXEC_EVERY_S = 100, 0.02
"""How often, and how far apart, a forked shell is looked at until it has become the program that it runs."""
REPORTS = "run/agent.jsonl"
"""What the agents report, one a line, in an attempt's folder."""
TRAINS = b'"trains"'
NO_LINK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""The training can replace the file."""
REPORT_BYTES, REPORTS_BYTES = 1 << 16, 1 << 26
"""Of one line, and of all that are read: a training can write more than there is time to read."""
LOOKS_WITHOUT = 5
"""So many looks in a row have to show neither Python nor what may start one: a fork may begin during one of them."""


def find_training(list_tree: Callable[[], list[Process]], shim: int, claimed: int, command: str) -> int | None:
    """Return the child of the shim that goes on as the training; None where all that is left only helped it.

    That is what holds the recorder, the process `claimed`. Before any has claimed it (0) it is the newest Python, or a
    shell that has not come to one yet; of a `command` that is a Python none is, as that has trained itself.
    """
    if claimed:
        return _find_child_above(list_tree(), shim, claimed)
    if read_name(command).startswith(INTERPRETER):
        return None
    return _find_newest(list_tree, shim)


def find_further_training(list_tree: Callable[[], list[Process]], shim: int, folder: str, command: str) -> int | None:
    """Return the child of the shim below which a further program trains, as of `a.py & b.py &`, where one has ended.

    Its agent has reported that it trains, in the part of the attempt's folder that the training writes. What a
    `command` that is a Python has left belongs to that program, which is over.
    """
    if read_name(command).startswith(INTERPRETER):
        return None
    trainers = read_trainers(folder)
    tree = [process for process in list_tree() if not process.dead] if trainers else []
    for process in tree:
        inner = read_inner_pid(process.pid)
        if inner in trainers:
            return _find_child_above(tree, shim, inner)
    # One that has ended just now is still to be reaped, and has its status.
    ended = (found for pid in trainers if (found := read_process(pid)) is not None and found.dead)
    return next((found.pid for found in ended if found.parent == shim), None)


def count_apart(tree: list[Process]) -> int:
    """Return how many programs are in the background by their will: in sessions of their own, and no child of another.

    Of any language: a training that is not Python may put itself there as well.
    """
    found, shim = 0, os.getpid()
    for process in tree:
        try:
            is_apart = os.getsid(process.pid) != os.getsid(0)
        except OSError:
            continue  # it has ended
        if is_apart and process.parent == shim and not process.dead:
            found += read_program(process.pid) not in HELPERS
    return found


def read_trainers(folder: str) -> set[int]:
    """Return the pids of the processes that train without the recorder, as the agents of an attempt have reported."""
    found: set[int] = set()
    try:
        with open(os.open(f"{folder}/{REPORTS}", NO_LINK), "rb") as file:
            while file.tell() < REPORTS_BYTES and (line := file.readline(REPORT_BYTES)):
                if TRAINS in line:
                    _add_report(found, line)
    except OSError:
        pass  # what is not known to train is ended with the training
    return found


def _add_report(found: set[int], line: bytes) -> None:
    try:
        report = json.loads(line)
        pid = int(report.get("of") or report["pid"])
        is_training = report["event"] == "trains" and not report.get("ended")
    except (ValueError, TypeError, KeyError, AttributeError):
        return  # the training can write what it likes
    if is_training:
        found.add(pid)
    elif report["event"] == "trains":
        found.discard(pid)


def _find_child_above(tree: list[Process], shim: int, claimed: int) -> int | None:
    """Return the shim's child at or above the process that knows itself by the pid `claimed`."""
    parents = {process.pid: process.parent for process in tree}
    for process in tree:
        if not process.dead and claimed in (process.pid, read_inner_pid(process.pid)):
            pid = process.pid
            while parents.get(pid, shim) != shim:
                pid = parents[pid]
            return pid
    return None


def _find_newest(list_tree: Callable[[], list[Process]], shim: int) -> int | None:
    """Return the shim's child at or above the newest Python, or what may yet become or start one.

    Where that has ended before it was seen to become anything, its status is the training's: few helpers are as short.
    """
    becoming, without = None, 0
    for _ in range(EXEC_TRIES):
        tree = [process for process in list_tree() if not process.dead]
        names = {process.pid: read_program(process.pid) for process in tree}
        newest_first = sorted(tree, key=lambda process: process.start_ticks, reverse=True)
        pythons = [process.pid for process in newest_first if names[process.pid].startswith(INTERPRETER)]
        if pythons:
            return _find_child_above(tree, shim, pythons[0])
        launchers = [process.pid for process in newest_first if names[process.pid] in LAUNCHERS]
        if launchers:
            becoming, without = _find_child_above(tree, shim, launchers[0]), 0
        elif not tree and becoming is not None:
            return becoming
        else:
            without += 1
        if without == LOOKS_WITHOUT:
            return None
        time.sleep(EXEC_EVERY_S)
    return becoming


def read_program(pid: int) -> str:
    """Return the name of the file that a process runs; empty where it has ended or may not be read."""
    try:
        return read_name(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def read_name(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]
