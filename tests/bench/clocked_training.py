"""A training that only says when: began, stepped, told to end; it runs under any supervisor, and computes nothing.

    PYTHON clocked_training.py SAID [--every-s 0.05] [--hang-after N] [--beat agent|nvrx] [--save FILE] [--import NAME]

Each line of SAID: word, pid, monotonic ns, Unix ns, number (the step; of a beat: how long it took in ns).
"""

# ruff: noqa: E402 - the first line is the first time stamp

from __future__ import annotations

import time

BEGAN_NS = time.monotonic_ns(), time.time_ns()

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("said", type=Path)
parser.add_argument("--every-s", type=float, default=0.05)
parser.add_argument("--hang-after", type=int, help="steps of this process")
parser.add_argument("--beat", choices=("agent", "nvrx"), help="whom to tell of each step; as a rule nobody")
parser.add_argument("--save", type=Path, help="save a checkpoint here once, at the fifth step; with --beat agent")
parser.add_argument("--import", dest="imports", action="append", default=[], help="before all else, as trainings do")
asked = parser.parse_args()
for module in asked.imports:
    import_module(module)


def say(word: str, number: int = 0, at: tuple[int, int] | None = None) -> None:
    """Append one line, whole."""
    monotonic_ns, unix_ns = at or (time.monotonic_ns(), time.time_ns())
    os.write(output, f"{word} {os.getpid()} {monotonic_ns} {unix_ns} {number}\n".encode())


def reported(number: int, _: object) -> None:
    """Say when the signal arrived, and end as the signal alone would have ended it."""
    say("told", number)
    os._exit(128 + number)


def beat() -> Callable[[int], object]:
    """Return what tells the supervisor of a step."""
    if asked.beat == "agent":
        agent = import_module("rocm_agent")
        return lambda step: agent.step(loss=1 / step, step=step)
    if asked.beat == "nvrx":
        client = import_module("nvidia_resiliency_ext.fault_tolerance").RankMonitorClient()
        client.init_workload_monitoring()
        return lambda _: client.send_heartbeat()
    return lambda _: None


def save(path: Path, step: int) -> None:
    """Write one float as safetensors and say so to the agent."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    part = path.with_suffix(".part")
    part.write_bytes(len(header).to_bytes(8, "little") + header + b"\x00\x00\x80\x3f")
    part.rename(path)
    import_module("rocm_agent").checkpoint_saved(str(path), step=step)


output = os.open(asked.output, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o644)
say("began", at=BEGAN_NS)
signal.signal(signal.SIGTERM, reported)
# It goes on where the one before it ended: progress clears the budget of restarts.
first = asked.output.read_text().count("step ") + 1
tell = beat()
for made in range(1, sys.maxsize):
    step = first + made - 1
    before_ns = time.perf_counter_ns()
    tell(step)
    took_ns = time.perf_counter_ns() - before_ns
    say("step", step)
    say("beat", took_ns)
    if asked.save and made == 5:
        save(asked.save, step)
    while made == asked.hang_after:
        time.sleep(3600)
    time.sleep(asked.every_s)
