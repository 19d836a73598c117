"""Where every process of an attempt stands: its own stacks, native ones, the card's wavefronts; it waits briefly."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from supervisor.core import folder as names
from supervisor.runner import outside, shim
from supervisor.runner.attempt import living_shim
from supervisor.runner.launcher import Launcher
from supervisor.runner.shim import Process

STACKS_LIMIT_S = 1.0
"""How long processes may take to dump their stacks."""
STACKS_PAUSE_S = 0.005
STACKS_SETTLED_S = 0.03
"""A dump that has not grown for so long is complete: it is written in one go."""
STACKS_LIMIT_BYTES = 1 << 20
DEBUG_AGENT = "rocm-debug-agent"
NO_ANSWER = "DTtZX"
"""States in which a process dumps nothing."""


def take_stacks(folder: Path, launcher: Launcher, slot: str, target: Path, *, native: bool) -> list[str]:
    """Take the stacks that the processes dump themselves, then those that py-spy reads, which stops them meanwhile."""
    missing = _take_own(folder, launcher, slot, target)
    if native:
        missing += _take_wavefronts(folder, target / "wavefronts.txt")
        missing += outside.native_stacks([one.pid for one in tree_of(folder)[1:]], target)
    return missing


def _take_wavefronts(folder: Path, target: Path) -> list[str]:
    """Have ROCm's debug agent, where the training runs under it, print what every wavefront on the card executes.

    It does so on SIGQUIT, into the training's output (ROCR Debug Agent's documentation); no other process gets one.
    """
    if DEBUG_AGENT not in launch_env(folder).get("HSA_TOOLS_LIB", ""):
        return []
    output = folder / names.OUTPUT
    before = output.stat().st_size
    asked = [one.pid for one in tree_of(folder)[1:] if shim.catches(one.pid, signal.SIGQUIT)]
    for pid in asked:
        os.kill(pid, signal.SIGQUIT)
    if not (asked and _wait_for_growth({0: output}, {0: before})):
        return ["wavefronts: the debug agent printed nothing"]
    with output.open("rb") as file:
        file.seek(before)
        target.write_bytes(file.read(STACKS_LIMIT_BYTES))
    return []


def _take_own(folder: Path, launcher: Launcher, slot: str, target: Path) -> list[str]:
    """Have every process dump its stacks and copy what was added; return as soon as all have done so."""
    tree = {one.pid: one for one in tree_of(folder)}
    dumps = {int(one.stem): one for one in (folder / names.STACKS).glob("*.txt") if one.stem.isdigit()}
    asked = {pid: dump for pid, dump in dumps.items() if pid in tree and shim.catches(pid, shim.STACKS_SIGNAL)}
    if not asked:
        return ["stacks: no process of the attempt can dump its stacks"]
    before = {pid: dump.stat().st_size for pid, dump in asked.items()}
    if not launcher.signal(slot, folder, signal.Signals[names.SHIM_STACKS]):
        return ["stacks: no shim is there to ask for them"]
    silent = [f"stacks of {pid}: in state {tree[pid].state}" for pid in asked if tree[pid].state in NO_ANSWER]
    waited = {pid: dump for pid, dump in asked.items() if tree[pid].state not in NO_ANSWER}
    answered = _wait_for_growth(waited, before)
    for pid in answered:
        with asked[pid].open("rb") as file:
            file.seek(before[pid])
            (target / f"stacks-{pid}.txt").write_bytes(file.read(STACKS_LIMIT_BYTES))
    return silent + [f"stacks of {pid}: none within {STACKS_LIMIT_S:.0f} s" for pid in waited if pid not in answered]


def _wait_for_growth(dumps: dict[int, Path], before: dict[int, int]) -> list[int]:
    """Return the processes whose dump has grown, at once when all have grown and none grows any more."""
    sizes, changed_at = {pid: before[pid] for pid in dumps}, time.perf_counter()
    deadline = changed_at + STACKS_LIMIT_S
    while time.perf_counter() < deadline:
        now = {pid: dump.stat().st_size for pid, dump in dumps.items()}
        if now != sizes:
            sizes, changed_at = now, time.perf_counter()
        all_grown = all(sizes[pid] > before[pid] for pid in dumps)
        if all_grown and time.perf_counter() - changed_at >= STACKS_SETTLED_S:
            break
        time.sleep(STACKS_PAUSE_S)
    return [pid for pid in dumps if sizes[pid] > before[pid]]


def tree_of(folder: Path) -> list[Process]:
    """Return the shim and what is below it; without a shim's word, nothing."""
    own = living_shim(folder)
    return [] if own is None else [own, *shim.descendants(own.pid, shim.read_processes())]


def launch_env(folder: Path) -> dict[str, str]:
    """Return the variables that an attempt was launched with; raise OSError or ValueError where nobody can tell."""
    env = json.loads((folder / names.LAUNCH).read_text(encoding="ascii")).get("env", {})
    return {str(name): str(value) for name, value in env.items()}
