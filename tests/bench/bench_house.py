"""A whole installation for the benchmark: the House of the end-to-end tests with one job; it measures nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from amdgpu_tree import AmdgpuTree
from clocked import family
from house import House

JOB = "toy"


class HouseWithCard(House):
    """The daemon sees a simulated card under /sys, so that a reading is as much work as with a real one; needs root."""

    def command(self) -> list[str]:
        """The daemon in a mount namespace of its own."""
        return AmdgpuTree.build(self.folder / "card").command(super().command())


def job_of(command: Sequence[object], tables: str = "") -> str:
    """Return a job's configuration; its restarts are not limited, for the benchmark hurts it again and again."""
    words = json.dumps([str(item) for item in command])
    budget = "restarts = 1000\nrestarts_per_period = 1000\n"
    plain = f"[jobs.{JOB}.remedies]\nenabled = false\n"
    return f"[jobs.{JOB}]\ncommand = {words}\n{tables}\n{plain}[jobs.{JOB}.budget]\n{budget}"


@contextmanager
def supervised(folder: Path, job: str, kind: type[House] = House) -> Iterator[House]:
    """Run the daemon with one job; nothing of it is left afterwards."""
    folder.mkdir()
    house = kind(folder)
    house.write(job)
    try:
        house.start()
        yield house
    finally:
        house.leave()


def with_card() -> type[House]:
    """Return the house with a card where that can be."""
    return HouseWithCard if os.geteuid() == 0 else House


def supervising(house: House, training_pid: int) -> list[psutil.Process]:
    """Return all processes that supervise the job: daemon, its children, shim."""
    assert house.daemon is not None
    shim = psutil.Process(training_pid).ppid()
    return [*family(house.daemon.pid), *family(shim, without=[training_pid])]


def proven_step(house: House) -> int:
    """Return the step of the newest checkpoint if it is proven, else -1."""
    found = house.client.get(f"/v1/jobs/{JOB}/checkpoints")["checkpoints"]
    return int(found[0]["step"]) if found and found[0]["verdict"] == "proven" else -1
