"""Runs the whole suite in three stages and says at the end what failed in any of them.

    run_tests.py [--quick] [--slowest N] [PYTEST OPTION ...]

1. `parallel`: what is marked neither `calm` nor `alone`, as many at a time as keep the cores busy, and at most sixteen
   more than there are cores: tests marked `waits`, whose daemons and trainings mostly wait, are spread among the
   others, which fill the cores meanwhile. The long ones come first, units last. Units marked `fills`, which only
   compute, get what all these leave of the cores: their processes have the lowest priority.
2. `calm`: so too, at most eight more than there are cores: whole daemons that are held to limits of seconds, of which
   eight take a little more than one core, for they wait for what hangs or stands still. Those marked `long` come first.
   What uses the kernel's log, of which a machine has one, is one after another in one process. What is marked `fills`
   and trains, the checks of Conv2d, gets what they leave of the cores, as the units do in the first stage. It has a
   limit of its own, which the first stage of a machine that others use too may exceed.
3. `alone`: one test after another with nothing running at the same time: what compares processor time or short
   durations with a limit.

Each test belongs to exactly one stage. A stage imports and collects its tests once and runs them in forks
(`tests/rigs/forked_workers.py`). Those of one `xdist_group` share a process, which sets up once what they share.
A stage that fails does not keep the next one from running. The later stages collect while the first runs, and import
no file but those in which the first found tests that it left out.

A test that failed is run once more after all stages, by itself. One that passes then is UNSTEADY: the
summary names it with the reason of its failure. The load of a shared machine is no fault of the product, so up to
UNSTEADY_AT_MOST such tests do not fail the suite; it is never hidden, since a test that waits for the wrong condition
looks the same. More of them, a test that fails both times, and a stage in which pytest itself did not come to its end
(a file that cannot be imported, a crash) fail it. Where more than AGAIN_AT_MOST tests failed nothing is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
OK, FAILED, NOTHING_SELECTED = 0, 1, 5
"""Exit statuses of pytest."""
UNSTEADY_AT_MOST = 3
"""Tests that may fail beside others and pass by themselves in a suite that passes."""
AGAIN_AT_MOST = 20
"""Tests that are run again: where more failed, the load of the machine is not the reason."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Tests that are run by so many processes at most; `workers` of 0 is pytest's own process, in order."""

    name: str
    markers: str
    workers: int

    def options(self) -> list[str]:
        """Return what pytest is told."""
        spread = ["-p", "tests.rigs.forked_workers", "--forks", str(self.workers)] if self.workers else []
        return ["-q", "-m", self.markers, *spread]


@dataclass(slots=True)
class Outcome:
    """What became of a stage."""

    stage: Stage
    status: int
    took_s: float
    processor_s: float = 0.0
    """Of every process of the stage that was waited for."""
    counts: dict[str, int] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: list[tuple[str, float]] = field(default_factory=list)
    elsewhere: list[str] | None = None
    """Files with tests that the stage left out; None where it did not collect."""

    @property
    def ended(self) -> bool:
        """Whether pytest itself came to its end."""
        return self.status in (OK, FAILED, NOTHING_SELECTED)

    @property
    def ok(self) -> bool:
        """Whether every test of the stage passed, and pytest itself came to its end."""
        return self.ended and self.status != FAILED and not self.failed

    def line(self) -> str:
        """Return the line of the summary."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count) or "no tests"
        ended = "" if self.ended else f"; pytest ended with status {self.status}"
        return (
            f"{self.stage.name:<8} {self.took_s:>6.0f} s ({self.processor_s:.0f} s of processor time)  {counts}{ended}"
        )


def stages(cores: int) -> list[Stage]:
    """Return the stages of the whole suite for a machine of so many cores."""
    return [
        Stage("parallel", "not alone and not calm and not (fills and train)", cores + 16),
        Stage("calm", "(calm or (fills and train)) and not alone", cores + 8),
        Stage("alone", "alone", 0),
    ]


QUICK = "not waits and not alone and not calm and not slow and not train"


class StartedStage:
    """A stage whose pytest collects its tests, and runs them once it is let.

    What collecting takes, 9 s on one core for all files, so happens while the first stage runs.
    """

    def __init__(
        self, stage: Stage, options: Sequence[str], only: Sequence[str] = (), files: Sequence[str] | None = None
    ) -> None:
        """Have all files collected or these, to run all tests of the stage or of them `only` these."""
        self.stage, self._only = stage, only
        self._folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "pytest", "-p", "tests.rigs.outcomes", *stage.options(), *options]
        # A stage that a test of this file runs is not the worker process that runs the test.
        ours = ("PYTEST_XDIST", "TEST_AGAIN", "TEST_FILES", "TEST_BEGIN")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        for name, content in (("TEST_AGAIN", only or None), ("TEST_FILES", files)):
            if content is not None:
                self._file(name).write_text(json.dumps(list(content)))
                env[name] = str(self._file(name))
        env |= {name: str(self._file(name)) for name in ("TEST_OUTCOMES", "TEST_ELSEWHERE")}
        let, self.letting = os.pipe()
        env["TEST_BEGIN"] = str(let)
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, pass_fds=[let])
        os.close(let)

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name.lower()}.json"

    def _read(self, name: str) -> Any:
        return json.loads(self._file(name).read_text()) if self._file(name).exists() else None

    def begin(self) -> None:
        """Let the tests run."""
        at_once = f"at most {self.stage.workers}" if self.stage.workers else "1"
        tell(f"=== {self.stage.name}: {', '.join(self._only) or self.stage.markers} ({at_once} at a time)")
        self._began_s = now_s()
        with contextlib.suppress(BrokenPipeError):  # it has ended: nothing could be collected
            os.write(self.letting, b"begin")
        os.close(self.letting)

    def wait_for_files(self) -> list[str] | None:
        """Return the files with tests that the stage leaves out once it has collected; None where it could not."""
        while self.process.poll() is None and not self._file("TEST_ELSEWHERE").exists():
            time.sleep(0.1)
        found: list[str] | None = self._read("TEST_ELSEWHERE")
        return found

    def wait(self) -> Outcome:
        """Return what became of it once it has ended."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status = self.process.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        facts = self._read("TEST_OUTCOMES") or {}
        facts["elsewhere"] = self._read("TEST_ELSEWHERE")
        self._folder.cleanup()
        return Outcome(self.stage, status, now_s() - self._began_s, processor_s, **facts)


def run_stage(
    stage: Stage, options: list[str], only: Sequence[str] = (), files: Sequence[str] | None = None
) -> Outcome:
    """Run one stage, or of its tests `only` these, of all files or these; pytest prints as it goes."""
    started = StartedStage(stage, options, only, files)
    started.begin()
    return started.wait()


def run_stages(planned: Sequence[Stage], options: list[str]) -> list[Outcome]:
    """Run stages one after another; the later ones collect what the first has found as it runs, on another core."""
    started = [StartedStage(planned[0], options)]
    started[0].begin()
    files = started[0].wait_for_files() if len(planned) > 1 else None
    started += [StartedStage(stage, options, files=files) for stage in planned[1:]]
    outcomes = [started[0].wait()]
    for stage in started[1:]:
        stage.begin()
        outcomes.append(stage.wait())
    return outcomes


def compile_tests(root: Path, processes: int) -> None:
    """Have pytest write the byte code of all tests under `root`, each process a part, where there is none yet.

    In a fresh checkout each process of a stage would compile all of it: four times what its collection takes.
    """
    if any(root.glob("tests/*/__pycache__/*pytest*.pyc")):
        return
    folders = sorted({str(path.parent) for path in root.glob("tests/*/**/test_*.py")})
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    parts = [folders[at::processes] for at in range(processes)]
    started = [subprocess.Popen([*command, *part], cwd=root, stdout=subprocess.DEVNULL) for part in parts if part]
    for process in started:
        process.wait()


def run_again(outcomes: list[Outcome], options: list[str]) -> Outcome | None:
    """Run what failed once more, one test after another; None where nothing is to be run again."""
    names = [name for outcome in outcomes for name in outcome.failed]
    if not names or len(names) > AGAIN_AT_MOST or not all(outcome.ended for outcome in outcomes):
        return None
    return run_stage(Stage("again", "", 0), options, names)


def report(outcomes: list[Outcome], again: Outcome | None = None, slowest: int = 0) -> int:
    """Print what became of the stages and each test that failed; return the exit status."""
    seconds = sorted((pair for outcome in outcomes for pair in outcome.seconds), key=lambda pair: -pair[1])
    if slowest:
        tell(f"=== slowest {slowest}")
    for name, took_s in seconds[:slowest]:
        tell(f"{took_s:>8.2f} s  {name}")
    tell("=== all stages")
    ran = [*outcomes, again] if again else outcomes
    for outcome in ran:
        tell(outcome.line())
    tell_failures(outcomes, again)
    unsteady = len(again.passed) if again else 0
    ok = stood(outcomes, again) and any(outcome.counts.get("passed") for outcome in outcomes)
    limit = f", {unsteady} UNSTEADY (at most {UNSTEADY_AT_MOST} may be)" if unsteady else ""
    tell(f"{'passed' if ok else 'FAILED'} in {sum(outcome.took_s for outcome in ran) / 60:.1f} min{limit}")
    return 0 if ok else 1


def stood(outcomes: list[Outcome], again: Outcome | None) -> bool:
    """Return whether every test passed, a few of them only when they were run again."""
    if again is None or not again.ok:
        return all(outcome.ok for outcome in outcomes)
    failed = {name for outcome in outcomes for name in outcome.failed}
    explained = all(outcome.ok or (outcome.ended and outcome.failed) for outcome in outcomes)
    return explained and failed <= set(again.passed) and len(failed) <= UNSTEADY_AT_MOST


def tell_failures(outcomes: list[Outcome], again: Outcome | None) -> None:
    """Print each test that failed, and what became of it when it was run again."""
    passed_again = set(again.passed) if again else set()
    failed_again = again.failed if again else {}
    for outcome in outcomes:
        for name, reason in outcome.failed.items():
            if name in passed_again:
                tell(f"UNSTEADY {name} - {reason} (failed in {outcome.stage.name}, passed when run again by itself)")
            else:
                second = f" (again: {failed_again.get(name, 'it did not run')})" if again else ""
                tell(f"FAILED ({outcome.stage.name}) {name} - {reason}{second}")


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
    compile_tests(ROOT, cores)
    outcomes = run_stages(planned, options)
    return report(outcomes, run_again(outcomes, options), asked.slowest)


if __name__ == "__main__":
    sys.exit(main())
