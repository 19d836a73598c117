"""Collects the stacks of every process of an attempt: Python, native and GPU wavefronts."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.running_limit import RunningLimit
from supervisor.core import attempt_files as names
from supervisor.rotated_output import find_written
from supervisor.runner import process_table, shim, tools
from supervisor.runner.attempt_folder import LAUNCH_LIMIT_BYTES, is_hidden, is_shim_hidden, living_shim
from supervisor.runner.evidence_folder import EvidenceFolder
from supervisor.runner.launcher import Launcher
from supervisor.runner.process_table import Process

STACKS_LIMIT_S = 1.0
"""How long processes may take to dump their stacks."""
STACKS_PAUSE_S = 0.005
STACKS_SETTLED_S = 0.03
"""A dump that has not grown for this long is complete, since it is written at once."""
STACKS_LIMIT_BYTES = 1 << 20
PROCESSES_LIMIT = 256
"""Limit of processes whose stacks are requested, parents before children."""
DEBUG_AGENT = "rocm-debug-agent"
DUMP = re.compile(r"[1-9][0-9]{0,9}\.txt", re.ASCII)
NO_ANSWER = "DTtZX"
"""States in which a process does not react to the signal."""


def take_stacks(folder: Path, launcher: Launcher, slot: str, target: EvidenceFolder, *, native: bool) -> list[str]:
    """Collect the stacks that the processes dump themselves, then with `native` those that py-spy reads.

    py-spy stops the processes while it reads. Returns what is missing.
    """
    missing = _take_own(folder, launcher, slot, target)
    if native:
        missing += _take_wavefronts(folder, target)
        missing += tools.native_stacks([process.pid for process in tree_of(folder)[1:]], target)
    return missing


def _take_wavefronts(folder: Path, target: EvidenceFolder) -> list[str]:
    """Make ROCm's debug agent, if the training loads it, print the state of all wavefronts on the GPU.

    It prints them on SIGQUIT into the training's output (ROCR Debug Agent's documentation); the signal is sent only to
    processes that handle it.
    """
    if DEBUG_AGENT not in launch_env(folder).get("HSA_TOOLS_LIB", ""):
        return []
    output = find_written(folder)
    before = _size_of(folder, output)
    asked = [process.pid for process in tree_of(folder)[1:] if process_table.catches(process.pid, signal.SIGQUIT)]
    for pid in asked:
        os.kill(pid, signal.SIGQUIT)
    if not (asked and _wait_for_growth(folder, {0: output}, {0: before})):
        return ["wavefronts: the debug agent printed nothing"]
    added = untrusted_files.read_part(folder, output, before, STACKS_LIMIT_BYTES)
    target.write_bytes("wavefronts.txt", added)
    return []


def _take_own(folder: Path, launcher: Launcher, slot: str, target: EvidenceFolder) -> list[str]:
    """Make every process dump its stacks and copy the dumps; return what is missing."""
    tree = {process.pid: process for process in tree_of(folder)}
    if not tree and is_shim_hidden(folder):
        return _take_hidden(folder, launcher, slot, target)
    dumps = {pid: f"{names.STACKS}/{process_table.read_inner_pid(pid)}.txt" for pid in list(tree)[:PROCESSES_LIMIT]}
    asked = {
        pid: name
        for pid, name in dumps.items()
        if untrusted_files.exists(folder, name) and process_table.catches(pid, shim.STACKS_SIGNAL)
    }
    if not asked:
        return ["stacks: no process of the attempt has a stack dump handler"]
    before = {pid: _size_of(folder, name) for pid, name in asked.items()}
    if not launcher.signal(slot, folder, signal.Signals[names.SHIM_STACKS]):
        return ["stacks: the shim is not running"]
    silent = [f"stacks of {pid}: in state {tree[pid].state}" for pid in asked if tree[pid].state in NO_ANSWER]
    waited = {pid: name for pid, name in asked.items() if tree[pid].state not in NO_ANSWER}
    answered = _wait_for_growth(folder, waited, before)
    for pid in answered:
        added = untrusted_files.read_part(folder, asked[pid], before[pid], STACKS_LIMIT_BYTES)
        target.write_bytes(f"stacks-{pid}.txt", added)
    return silent + [f"stacks of {pid}: none within {STACKS_LIMIT_S:.0f} s" for pid in waited if pid not in answered]


def _take_hidden(folder: Path, launcher: Launcher, slot: str, target: EvidenceFolder) -> list[str]:
    """As `_take_own` of processes that /proc hides: their shim sees them, and asks those that dump their stacks."""
    found = (name for name in untrusted_files.list_names(folder, names.STACKS).names if DUMP.fullmatch(name))
    dumps = {int(name.partition(".")[0]): f"{names.STACKS}/{name}" for name in sorted(found)}
    asked = {pid: name for pid, name in dumps.items() if is_hidden(pid)}
    asked = dict(list(asked.items())[:PROCESSES_LIMIT])
    before = {pid: _size_of(folder, name) for pid, name in asked.items()}
    if not asked or not launcher.signal(slot, folder, signal.Signals[names.SHIM_STACKS]):
        return ["stacks: /proc hides the processes, and none of them dumps its stacks"]
    answered = _wait_for_growth(folder, asked, before)
    for pid in answered:
        added = untrusted_files.read_part(folder, asked[pid], before[pid], STACKS_LIMIT_BYTES)
        target.write_bytes(f"stacks-{pid}.txt", added)
    return [f"stacks of {pid}: none within {STACKS_LIMIT_S:.0f} s" for pid in asked if pid not in answered]


def _wait_for_growth(folder: Path, dumps: dict[int, str], before: dict[int, int]) -> list[int]:
    """Wait until all dumps have grown and are complete, or the limit; return the processes whose dump has grown.

    A process that ends meanwhile, as a rank does that has lost its peer, is not waited for.
    """
    sizes, changed_at = {pid: before[pid] for pid in dumps}, time.perf_counter()
    limit = RunningLimit(STACKS_LIMIT_S)
    while limit.next_wait_s() > 0:
        now = {pid: _size_of(folder, name) for pid, name in dumps.items()}
        if now != sizes:
            sizes, changed_at = now, time.perf_counter()
        awaited = any(sizes[pid] <= before[pid] and may_answer(folder, pid, name) for pid, name in dumps.items())
        if not awaited and time.perf_counter() - changed_at >= STACKS_SETTLED_S:
            break
        time.sleep(STACKS_PAUSE_S)
    return [pid for pid in dumps if sizes[pid] > before[pid]]


def may_answer(folder: Path, pid: int, name: str) -> bool:
    """Whether a process may still dump its stacks; 0 stands for the output of all.

    At a process's exit its agent removes the file of its dump first; what follows may take a second.
    """
    if pid == 0:
        return True
    process = process_table.read_process(pid)
    if process is None and is_hidden(pid):
        return untrusted_files.exists(folder, name)
    if (
        process is None
        or process.ending
        or process.state in "TtZX"
        or not process_table.catches(pid, shim.STACKS_SIGNAL)
    ):
        return False
    return untrusted_files.exists(folder, name)


def _size_of(folder: Path, name: str) -> int:
    found = untrusted_files.file_status(folder, name)
    return 0 if found is None else found.st_size


def tree_of(folder: Path) -> list[Process]:
    """Return the shim and its descendants; [] if no shim is running."""
    own = living_shim(folder)
    return [] if own is None else [own, *process_table.descendants(own.pid, process_table.read_processes())]


def launch_env(folder: Path) -> dict[str, str]:
    """Return the environment that an attempt was launched with. Raises OSError or ValueError."""
    env = json.loads(untrusted_files.read_bytes(folder, names.LAUNCH, LAUNCH_LIMIT_BYTES)).get("env", {})
    return {str(name): str(value) for name, value in env.items()}
