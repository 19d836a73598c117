"""Runs the whole suite in three stages and says at the end what failed in any of them.

    run_tests.py [--quick] [--slowest N] [PYTEST OPTION ...]

1. `units`: what is neither marked `waits` nor `alone`, one process a core.
2. `waits`: tests whose daemons and trainings mostly wait, more processes than cores.
3. `alone`: one test after another with nothing beside it: what compares durations with a limit, and what uses something
   that a machine has one of.

Each test belongs to exactly one stage. Tests of one `xdist_group` share a process, which sets up once what they share.
A stage that fails does not keep the next one from running.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OK, FAILED, NOTHING_SELECTED = 0, 1, 5
"""Exit statuses of pytest."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests that are run by the same number of processes; `workers` of 0 is this process's own, in order."""

    name: str
    markers: str
    workers: int

    def options(self) -> list[str]:
        """Return what pytest is told."""
        spread = ["-n", str(self.workers), "--dist", "loadgroup"] if self.workers else []
        return ["-q", "-m", self.markers, *spread]


@dataclass(slots=True)
class Outcome:
    """What became of a stage."""

    stage: Stage
    status: int
    took_s: float
    counts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: list[tuple[str, float]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every test of the stage passed, and pytest itself came to its end."""
        return self.status in (OK, NOTHING_SELECTED) and not self.failed

    def line(self) -> str:
        """Return the line of the summary."""
        told = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count) or "no tests"
        ended = "" if self.status in (OK, FAILED, NOTHING_SELECTED) else f"; pytest ended with status {self.status}"
        return f"{self.stage.name:<6} {self.took_s:>6.0f} s  {told}{ended}"


def stages(cores: int) -> list[Stage]:
    """Return the stages of the whole suite for a machine of so many cores."""
    return [
        Stage("units", "not waits and not alone", cores),
        Stage("waits", "waits and not alone", cores + 1),
        Stage("alone", "alone", 0),
    ]


QUICK = "not waits and not alone and not slow and not train"


def run_stage(stage: Stage, options: list[str]) -> Outcome:
    """Run one stage; pytest prints as it goes."""
    tell(f"=== {stage.name}: {stage.markers} ({stage.workers or 1} at a time)")
    began_s = now_s()
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.rigs.outcomes", *stage.options(), *options]
        # A stage that a test of this file runs is not the worker process that runs the test.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        status = subprocess.run(
            command, cwd=ROOT, env={**inherited, "TEST_OUTCOMES": str(told)}, check=False
        ).returncode
        facts = json.loads(told.read_text()) if told.exists() else {}
    return Outcome(stage, status, now_s() - began_s, **facts)


def report(outcomes: list[Outcome], slowest: int = 0) -> int:
    """Print what became of the stages and each test that failed; return the exit status."""
    seconds = sorted((pair for outcome in outcomes for pair in outcome.seconds), key=lambda pair: -pair[1])
    if slowest:
        tell(f"=== slowest {slowest}")
    for name, took_s in seconds[:slowest]:
        tell(f"{took_s:>8.2f} s  {name}")
    tell("=== all stages")
    for outcome in outcomes:
        tell(outcome.line())
    for outcome in outcomes:
        for name, reason in outcome.failed.items():
            tell(f"FAILED ({outcome.stage.name}) {name} - {reason}")
    ok = all(outcome.ok for outcome in outcomes) and any(outcome.counts.get("passed") for outcome in outcomes)
    tell(f"{'passed' if ok else 'FAILED'} in {sum(outcome.took_s for outcome in outcomes) / 60:.1f} min")
    return 0 if ok else 1


def tell(line: str) -> None:
    """Print a line at once, between what pytest prints."""
    print(line, flush=True)  # noqa: T201 - it is a command


def now_s() -> float:
    """Return the monotonic time."""
    return time.monotonic()  # noqa: TID251 - a runner of tests has no Moment


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return 1 where a test of any of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only what takes neither long nor a training environment")
    parser.add_argument("--slowest", type=int, default=10, help="print the so many slowest tests")
    asked, options = parser.parse_known_args(arguments)
    cores = len(os.sched_getaffinity(0))
    planned = [Stage("quick", QUICK, cores)] if asked.quick else stages(cores)
    return report([run_stage(stage, options) for stage in planned], asked.slowest)


if __name__ == "__main__":
    sys.exit(main())
