"""Trainings that the estimator was not made with: their tensors counted on the CPU, against what a GPU reserves.

    python -m tests.bench.estimates_foreign [--jobs 4] [--only NAME ...]

Runs in the interpreter that it is started with, which has the packages of `estimates_foreign_models.py`. Each training
is probed without a GPU at 2 and 4 samples, as `supervisorctl estimate --without-gpu` does, and reckoned at its own
micro-batch and at twice that; where there is a GPU it is run for six steps at both.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import statistics
import subprocess
import sys
from pathlib import Path

from estimates_foreign_models import BATCHES

from supervisor.core.memory.estimate import estimate
from supervisor.core.memory.points import Point
from supervisor.runner.memory_probe import Command, WhatIf, probe

MODELS = Path(__file__).with_name("estimates_foreign_models.py")
PROBED = (2, 4)
TRUE_STEPS = "6"


def count(name: str) -> list[Point]:
    """Return the points at small micro-batches on the CPU; raise RuntimeError where there is none."""
    batch = BATCHES[name]
    argv = [sys.executable, str(MODELS), name, str(batch), "9"]
    command = Command(argv=argv, cwd="/tmp", env={"OMP_NUM_THREADS": "2"}, limit_s=600.0)
    points = []
    for small in PROBED:
        result = probe(command, WhatIf(batch=small, configured=batch, without_gpu=True))
        if result.point is None:
            raise RuntimeError(f"at {small}: {result.problem}\n{result.output[-1500:]}")
        points.append(result.point)
    return points


def measure(name: str, batch: int) -> int | None:
    """Return what a real training reserves of a GPU, None without one."""
    argv = [sys.executable, str(MODELS), name, str(batch), TRUE_STEPS]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=300).stdout.splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("reserved ")), None)


def compare(name: str) -> list[float]:
    """Print what is reckoned and what is true at two micro-batches; return the errors."""
    points, errors = count(name), []
    for batch in (BATCHES[name], 2 * BATCHES[name]):
        found = estimate(points, batch, None)
        reckoned, true = found.bytes - found.parts.other, measure(name, batch)
        error = "" if true is None else f"{true / 1e6:8.0f} MB {reckoned / true - 1:+7.1%}"
        sys.stdout.write(f"{name:14} {batch:3} {reckoned / 1e6:8.0f} MB {error}\n")
        errors += [] if true is None else [reckoned / true - 1]
    return errors


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=list(BATCHES), choices=list(BATCHES))
    given = parser.parse_args()
    errors: list[float] = []
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        asked = {pool.submit(compare, name): name for name in given.only}
        for done in concurrent.futures.as_completed(asked):
            try:
                errors += done.result()
            except (RuntimeError, subprocess.SubprocessError) as error:
                sys.stdout.write(f"{asked[done]}: {error}\n")
            sys.stdout.flush()
    if errors:
        middle = statistics.median(map(abs, errors))
        sys.stdout.write(f"median {middle:.1%}, worst {max(errors, key=abs):+.1%} of {len(errors)}\n")


if __name__ == "__main__":
    main()
