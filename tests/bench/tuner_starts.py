"""A tune that may restart a living training, by daemon and command line: what helps a start is kept, nothing else is.

    python tests/bench/tuner_starts.py [--train-python PYTHON] [--device cuda|blocked|cpu] [--for 360s] [--only NAME]
                                       [--json FILE]

`started_training.py` says what the training is. Its environments are, in this order, one that cannot start, one that
is slower, one that differs by a variable without effect, and one that is quicker; on a GPU the allocator's growing
segments are tried before them, unless `--only` names environments. Only the quick one may be adopted. Then the tune is
undone, and the next start has to be as configured. `blocked` is a training on a GPU whose owner has left a variable
set that makes it wait for each of its launches, and whose quick environment does not: its losses stay the same to the
last bit.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from house import House, house  # noqa: E402 (after the path is set)

SCRIPT = Path(__file__).with_name("started_training.py")
ENVIRONMENTS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "cuda": {
        "broken": {"CUDA_VISIBLE_DEVICES": "-1"},
        "slow": {"CUDA_LAUNCH_BLOCKING": "1"},
        "same": {"WITHOUT_EFFECT": "1"},
        "quick": {"NVIDIA_TF32_OVERRIDE": "1"},
    },
    "blocked": {
        "broken": {"CUDA_VISIBLE_DEVICES": "-1"},
        "slow": {"PAUSE_MS": "20"},
        "same": {"WITHOUT_EFFECT": "1"},
        "quick": {"CUDA_LAUNCH_BLOCKING": "0"},
    },
    "cpu": {
        "broken": {"PAUSE_MS": "none"},
        "slow": {"PAUSE_MS": "40"},
        "same": {"WITHOUT_EFFECT": "1"},
        "quick": {"PAUSE_MS": "8"},
    },
}
OWN: Mapping[str, Mapping[str, str]] = {
    # Without a compiler for it what can be set alive takes less of the tune's time.
    "cuda": {"CXX": "no-compiler"},
    "blocked": {"CUDA_LAUNCH_BLOCKING": "1", "CXX": "no-compiler"},
    # With these decided by its owner no other start is tried than those in its environments.
    "cpu": {"PAUSE_MS": "20", "OMP_NUM_THREADS": "1", "MALLOC_CONF": "narenas:1"},
}
DECIDED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
"""Set by the owner, it is not tried."""
SNAPSHOT_EVERY_S = 2
STEPS = 1_000_000
"""Of the tune: its time alone bounds it."""


class Bench:
    """One daemon with the training."""

    def __init__(self, home: House, given: argparse.Namespace) -> None:
        self._home, self._given = home, given
        self.wrong: list[str] = []
        """What is not as it has to be."""

    def run(self) -> dict[str, Any]:
        """Start the training, tune it, undo that; return the report of the tune."""
        home = self._home
        home.write(describe_job(home, self._given))
        home.start()
        home.phase("started", "running", limit_s=120)
        home.until(self._has_snapshot, 120, "a proven snapshot")
        began_s, first = time.perf_counter(), int(home.job("started")["attempt"])
        words = ("tune", "started", "--may", "restart", "--for", self._given.span, "--steps", str(STEPS), "--json")
        done = home.ctl(*words, limit_s=900)
        report: dict[str, Any] = json.loads(done.stdout)
        report["took_s"] = time.perf_counter() - began_s
        report["attempts"] = int(home.job("started")["attempt"]) - first
        self._check(report)
        self._print(report)
        self._undo()
        return report

    def _has_snapshot(self) -> bool:
        return any(item["verdict"] == "proven" for item in self._home.checkpoints("started"))

    def _check(self, report: Mapping[str, Any]) -> None:
        adopted = [row["value"] for row in report["adopted"] if row["knob"] in {"environment", "allocator"}]
        self._expect(adopted == ["quick"], f"adopted of starts: {adopted}, not the quick environment alone")
        refused = {row["value"]: row["why"] for row in report["refused"]}
        for name in set(self._given.only) - {"quick"}:
            self._expect(name in refused, f"{name} was not refused")
        self._expect(report["problem"] is None, f"the tune ended early: {report['problem']}")
        self._expect(self._home.incidents("started") == [], "the tune made an incident")
        charged = self._read_state()["ledger"]["total"]
        self._expect(charged == 0, f"{charged} restarts were charged to the job")

    def _read_state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._home.query("SELECT state FROM jobs WHERE name = 'started'")[0][0])
        return found

    def _undo(self) -> None:
        """Undo the tune, and see that the next start is as configured."""
        self._home.ctl("tune", "started", "--undo")
        before = int(self._home.job("started")["attempt"])
        self._home.ctl("restart", "started")
        self._home.until(lambda: self._steps_after(before), 120, "a start as configured")
        state = self._read_state()
        self._expect(state["tuned"] is None, "what was undone is used again")
        self._expect(state["attempt"].get("start") is None, "the start after the undo is not as configured")

    def _steps_after(self, attempt: int) -> bool:
        job = self._home.job("started")
        return bool(job["attempt"] > attempt and job["phase"] == "running")

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)

    def _print(self, report: Mapping[str, Any]) -> None:
        for verdict in ("adopted", "refused", "not_tried"):
            for row in report[verdict]:
                gain = f"{row['gain']:+.1%} ({row['low']:+.1%} to {row['high']:+.1%})" if verdict == "adopted" else ""
                print(f"{verdict:10}{row['knob']:18}{row['value']!s:32}{gain}{row.get('why') or ''}", flush=True)
        rates = report["samples_per_s"]
        print(f"per second before and after: {rates['before']}, {rates['after']}")
        print(f"starts: {report['attempts']}; seconds of the tune: {report['took_s']:.0f}", flush=True)


def describe_job(home: House, given: argparse.Namespace) -> str:
    """Return the table of the job with its environments."""
    words = [given.train_python, str(SCRIPT), "cpu" if given.device == "cpu" else "cuda"]
    own = {**OWN[given.device], **(DECIDED if len(given.only) < len(ENVIRONMENTS[given.device]) else {})}
    table = f'{write_env(own)}conv2d = "off"\nsnapshot_every_s = {SNAPSHOT_EVERY_S}\n'
    text = home.job_of("started", words, table)
    for name in given.only:
        env = ENVIRONMENTS[given.device][name]
        text += f'[jobs.started.environments.{name}]\npython = "{given.train_python}"\n{write_env(env)}'
    return text


def write_env(env: Mapping[str, str]) -> str:
    """Return the line of some variables."""
    return "env = { " + ", ".join(f'{name} = "{value}"' for name, value in env.items()) + " }\n"


def main(words: Sequence[str] | None = None) -> None:
    """Tune once; exit with status 1 where anything is not as it has to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", default=sys.executable)
    parser.add_argument("--device", choices=list(ENVIRONMENTS), default="cuda")
    parser.add_argument("--for", dest="span", default="360s", help="time of the tune, as its command takes it")
    parser.add_argument("--only", nargs="+", choices=list(ENVIRONMENTS["cuda"]), default=list(ENVIRONMENTS["cuda"]))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="starts-") as place, house(Path(place)) as home:
        home.bin = Path(os.environ.get("SUPERVISOR_BIN", home.bin))
        bench = Bench(home, given)
        try:
            report = bench.run()
        except BaseException:
            print(home.read_output(), flush=True)
            raise
    if given.json is not None:
        given.json.write_text(json.dumps(report))
    for text in bench.wrong:
        print(f"WRONG: {text}")
    if bench.wrong:
        raise SystemExit(1)
    print("only what helps was kept, and nothing of it is left after the undo")


if __name__ == "__main__":
    main()
