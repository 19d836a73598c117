"""Figures of the daemon itself: what its own death costs, and how long its command line takes to answer."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench_house import JOB, job_of, supervised
from bench_peers import Peers, supervisord, there
from clocked import NotMeasuredError
from figure_table import Figure, Peer
from house import BIN
from house import TRAINING as BY_HAND

KILLS = 10
STEPS = 1200
STEP_EVERY_S = 0.02
ANSWERS = 20


def deaths(peers: Peers) -> tuple[Figure, ...]:
    """SIGKILL to the daemon at random moments, its start included, and a new one each time; then what is missing."""
    folder = peers.folder / "death"
    training = [peers.train_python, BY_HAND, "--folder", folder / JOB, "--every-s", STEP_EVERY_S, "--steps", STEPS]
    with supervised(folder, job_of(training)) as house:
        house.phase(JOB, "running")
        for _ in range(KILLS):
            time.sleep(random.uniform(0.0, 2.0))
            house.kill()
            house.start(wait=False)
        house.until(lambda: house.status() is not None, 20, "the daemon to answer")
        attempts = house.phase(JOB, "finished", "failed", "stopped", limit_s=60)["attempt"]
        house.stop()
        made = house.steps_made(JOB)
        rows = house.query("SELECT steps, step_first, step_last FROM step_metrics WHERE rank = 0")
    # A step made twice, or by a second attempt, was lost once; one that is recorded twice is as wrong as one missing.
    lost = len(set(range(1, STEPS + 1)) - set(made)) + len(made) - len(set(made)) + attempts - 1
    recorded = {step for _, first, last in rows for step in range(first, last + 1)}
    wrong = len(recorded ^ set(made)) + sum(abs(steps - (last - first + 1)) for steps, first, last in rows)
    name = f"daemon killed {KILLS} times"
    return (
        Figure(name=f"{name}: steps not made", unit=f"of {STEPS}", values=[lost], limit=0),
        Figure(name=f"{name}: steps wrong in the record", unit=f"of {STEPS}", values=[wrong], limit=0),
    )


def answers(peers: Peers) -> tuple[Figure, ...]:
    """`supervisorctl status` as a whole process, in turn with Supervisor's own."""
    folder = peers.folder / "status"
    training = [peers.train_python, BY_HAND, "--folder", folder / JOB]
    ours: list[float] = []
    theirs: list[float] = []
    with (
        supervised(folder, job_of(training)) as house,
        supervisord(peers, "theirs") as (config, _),
    ):
        house.phase(JOB, "running")
        tool = there(peers.installed / "supervisor" / "bin" / "supervisorctl")
        for _ in range(ANSWERS + 2):
            ours.append(_took_ms([BIN / "supervisorctl", "--config", house.config, "status"]))
            theirs.append(_took_ms([tool, "-c", config, "status"]))
    # The first ones write byte code and fill caches.
    peer = Peer(name="Supervisor's supervisorctl status", values=theirs[2:])
    return (Figure(name="supervisorctl status", unit="ms", values=ours[2:], limit_ratio=2, peers=(peer,)),)


def _took_ms(command: Sequence[str | Path]) -> float:
    began_ns = time.monotonic_ns()
    done = subprocess.run([str(item) for item in command], capture_output=True, text=True, timeout=60, check=False)
    took_ms = (time.monotonic_ns() - began_ns) / 1e6
    if done.returncode != 0:
        raise NotMeasuredError(f"{command[0]} said: {done.stderr.strip() or done.stdout.strip()}")
    return took_ms
