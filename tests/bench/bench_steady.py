"""Figures of a training that goes well: what a step, the memory and the processor time of being supervised cost."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from bench_house import JOB, job_of, supervised, supervising, with_card
from bench_peers import Peers, nvrx, torchrun
from clocked import NotMeasuredError, cpu_s, memory_mb
from figure_table import Figure
from house import TRAINING as BY_HAND

STEP_COST = Path(__file__).with_name("step_cost.py")
STEP_COST_RUNS = 3
STEP_COST_LINES = {
    "recorder": re.compile(r"^recorder: one whole record\s+(?P<value>[\d.]+) (?P<unit>\w+)", re.MULTILINE),
    "ultralytics": re.compile(r"^ultralytics: all hooks of one batch\s+(?P<value>[\d.]+) (?P<unit>\w+)", re.MULTILINE),
}
UNITS_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3}
SETTLE_S = 3.0
WINDOWS = 3
WINDOW_S = 11.0
STEP_EVERY_S = 1 / 18


def step(peers: Peers) -> tuple[Figure, ...]:
    """One recorded step inside the training."""
    values: dict[str, list[float]] = {name: [] for name in STEP_COST_LINES}
    for _ in range(STEP_COST_RUNS):
        command = [str(peers.train_python), str(STEP_COST)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        for name, line in STEP_COST_LINES.items():
            found = line.search(done.stdout)
            if found is None:
                raise NotMeasuredError(f"{STEP_COST.name} tells nothing of {name}: {done.stderr[-200:]}")
            values[name].append(float(found["value"]) * UNITS_US[found["unit"]])
    beat = peers.asked("NVRx, one heartbeat", nvrx, lambda found: found.beats_us)
    return (
        Figure(name="one step, recorder", unit="us", values=values["recorder"], limit=2, peers=(beat,)),
        Figure(
            name="one step, all ultralytics hooks", unit="us", values=values["ultralytics"], limit=20, peers=(beat,)
        ),
    )


def load(peers: Peers) -> tuple[Figure, ...]:
    """Memory of everything that supervises one job, and its processor time at one reading a second.

    No checkpoint is saved meanwhile: proving one is work of its own, in a process of its own, as long as the file is.
    """
    folder = peers.folder / "load"
    training = [peers.train_python, BY_HAND, "--folder", folder / JOB, "--every-s", STEP_EVERY_S]
    log = "[kernel_log]\nenabled = true\n"
    memory: list[float] = []
    percent: list[float] = []
    with supervised(folder, log + job_of([*training, "--save-every", 1_000_000]), with_card()) as house:
        pid = house.phase(JOB, "running")["pid"]
        time.sleep(SETTLE_S)
        for _ in range(WINDOWS):
            began_s, began_ns = cpu_s(supervising(house, pid)), time.monotonic_ns()
            time.sleep(WINDOW_S)
            ours = supervising(house, pid)
            percent.append((cpu_s(ours) - began_s) / (time.monotonic_ns() - began_ns) * 1e11)
            memory.append(memory_mb(ours))
    theirs = (
        peers.asked("NVRx, launcher and monitor", nvrx, lambda found: [found.memory_mb]),
        peers.asked("torchrun, its agent", torchrun, lambda found: [found.memory_mb]),
    )
    return (
        Figure(name="memory, daemon and shim (PSS)", unit="MB", values=memory, limit=90, peers=theirs),
        Figure(name="one core's time at 1 Hz, 18 steps/s", unit="%", values=percent, limit=2),
    )
