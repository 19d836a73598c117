"""Tunes other people's training scripts on the CPU and compares what the tune reports with the rate that follows.

    python tests/gallery/run_tunes.py [--for 2m] [--window-s 40] ROW...

The rows are those of tests/gallery/rows.toml. A training runs under a daemon of its own. Its steps are counted by the
wall clock, from its flight recorder alone: for a window with the owner's settings, then one with what the tune adopted,
and after `--undo` one more with the owner's, which shows how much the machine itself changed meanwhile. Whatever lies
between two steps is in that rate: the start of an epoch, a validation, a save.
"""

# ruff: noqa: T201, E402 - a benchmark prints and measures the time; the gallery's folder is put on the path

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from gallery_arguments import build_parser, load_known_rows
from gallery_night import Play
from gallery_rows import MissingSourceError, Row

from supervisor.core.readings import StepRecord
from supervisor.daemon.clock import SystemClock
from supervisor.sources.attempt.recorder import RecorderReader
from tests.e2e.house import house

WARM_STEPS = 20
START_S = 180.0
TUNED_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Steps and samples a second of a window, all of its time counted; the second pair between neighbouring steps."""

    steps_per_s: float
    samples_per_s: float | None
    median_step_s: float
    steps: int


class Counting:
    """Reads the steps of an attempt from its recorder."""

    def __init__(self, folder: Path) -> None:
        self._reader, self._cursor, self._clock = RecorderReader(folder), 0, SystemClock()

    def read(self) -> list[StepRecord]:
        """Return the steps since the last call."""
        found: list[StepRecord] = []
        while True:
            page = self._reader.read(self._cursor, self._clock.now())
            self._cursor = page.cursor
            found += page.records
            if not page.behind:
                return found

    def measure(self, window_s: float) -> Rate:
        """Return the rate of the next `window_s` seconds."""
        self.read()
        time.sleep(window_s)
        found = self.read()
        if len(found) < 2:
            raise RuntimeError(f"{len(found)} steps in {window_s} s")
        span_s = found[-1].at.seconds_since(found[0].at)
        spans = [later.at.seconds_since(earlier.at) for earlier, later in pairwise(found)]
        known = [record.samples for record in found[1:] if record.samples is not None]
        samples = sum(known) / span_s if len(known) == len(spans) else None
        return Rate(
            steps_per_s=len(spans) / span_s, samples_per_s=samples, median_step_s=median(spans), steps=len(found)
        )


class Tuning(Play):
    """One row in a house, tuned."""

    threads = 1
    """Of torch: two that wait for each other on a busy machine of two processors measure its other programs."""

    def write_job(self) -> None:
        """Configure the row's command as its owner would: nothing is put into it."""
        env = {
            "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.house.folder / "hf"), "PYTHONUNBUFFERED": "1",
            "YOLO_OFFLINE": "1", "OMP_NUM_THREADS": str(self.threads), **self.row.env,
        }  # fmt: skip
        pairs = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
        table = f"cwd = {json.dumps(str(self._src / self.row.cwd))}\nenv = {{ {pairs} }}\n"
        self.house.write(self.house.job_of(self.name, self._fill(self.row.command), table))

    def tune(self, given: str, window_s: float, may: str) -> dict[str, Any]:
        """Return the tune's report and the rates around it."""
        self.write_job()
        self.house.start()
        self.house.step(self.name, WARM_STEPS, limit_s=START_S)
        counting = Counting(self.house.state / "jobs" / self.name / "1")
        before = counting.measure(window_s)
        words = ["--json", "tune", self.name, "--for", given, *(["--may", may] if may else [])]
        done = self.house.ctl(*words, limit_s=TUNED_S)
        if done.returncode:
            return {"row": self.name, "before": vars(before), "problem": (done.stdout + done.stderr)[-500:]}
        after = counting.measure(window_s)
        self.house.ctl("tune", self.name, "--undo")
        again = counting.measure(window_s)
        rates = {"before": vars(before), "after": vars(after), "again": vars(again)}
        return {"row": self.name, **rates, "report": json.loads(done.stdout)}


def tune_row(row: Row, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what a row came to."""
    with (
        tempfile.TemporaryDirectory(prefix="tuned-", ignore_cleanup_errors=True) as name,
        house(Path(name)) as home,
    ):
        try:
            return Tuning(row, home, asked.python, asked.sources).tune(asked.given, asked.window_s, asked.may)
        except (MissingSourceError, AssertionError, RuntimeError) as error:
            return {"row": row.name, "problem": str(error)[-1500:]}


def write_row(found: dict[str, Any]) -> str:
    """Return a line: the rates, the gain that was reported and the one that followed."""
    if "problem" in found:
        return f"{found['row']:26} {found['problem']}"
    report, rates = found["report"], [found[name]["steps_per_s"] for name in ("before", "after", "again")]
    steps, made = "/".join(f"{rate:.2f}" for rate in rates), rates[1] / ((rates[0] + rates[2]) / 2)
    line = f"{found['row']:26} {steps:>24} steps/s  made x{made:.2f}"
    if not report["adopted"]:
        return f"{line}  nothing adopted"
    gain = report["samples_per_s"]["after"] / report["samples_per_s"]["before"]
    adopted = ", ".join(f"{row['knob']}={row['value']}" for row in report["adopted"])
    return f"{line}  reported x{gain:.2f}  off {gain / made - 1:+.0%}  {adopted}"


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return what was asked for."""
    parser = build_parser(__doc__)
    parser.add_argument("rows", nargs="+", help="names of rows")
    parser.add_argument("--for", dest="given", default="2m", help="what a tune is given")
    parser.add_argument("--may", default="", help="permissions of the tune")
    parser.add_argument("--window-s", type=float, default=40.0, help="that each rate is measured for")
    parser.add_argument("--results", type=Path, help="a JSON line for each row is added here")
    return parser.parse_args(words)


def main() -> None:
    """Tune the rows, one after the other, and print a line for each."""
    asked = read_arguments()
    rows = load_known_rows(asked.rows)
    for name in asked.rows:
        found = tune_row(rows[name], asked)
        print(write_row(found), flush=True)
        if asked.results:
            with asked.results.open("a") as file:
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
