"""Tunes a living training from bad settings, and compares with the exhaustive grid of the same knobs in the same run.

    python tests/bench/tuner_training.py cuda|cpu [BATCH] [REPORT.json]

The tuner and the agent are the real ones; no daemon runs. After the tune its settings are undone, and each combination
of the knobs is ordered in turn; the best of them and the adopted ones are then measured again in alternating blocks.
Combinations without loader workers are measured with all other knobs off and with all on.
"""

# ruff: noqa: T201 - a benchmark prints, and measures with the tuner's own eyes

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.control import types
from supervisor.core import attempt_files as fo
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.stats.median import median
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.tuning import Tune, Tuner

ROOT = Path(__file__).resolve().parents[2]
AGENT_PATH = ROOT / "supervisor" / "agent" / "path"
STEPS = 1_000_000
GRID_STEPS, GRID_DROPPED = 10, 3
AGAIN = 4
"""Blocks of the best of the grid and of the adopted settings, in turn."""
FOR_S = 600.0


class Training:
    """A training in a folder as the daemon would have made it, with its agent."""

    def __init__(self, state: Path, python: str, *words: object) -> None:
        self.state, self.folder = state, state / "jobs" / "bench" / "1"
        (self.folder / fo.RUN).mkdir(parents=True)
        script = str(ROOT / "tests" / "bench" / "starved_training.py")
        argv = [python, script, *map(str, words)]
        (self.folder / fo.LAUNCH).write_text(json.dumps({"argv": argv, "env": {}}))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROCM_", "PYTHON"))}
        path = os.pathsep.join(filter(None, (str(AGENT_PATH), os.environ.get("TRAINING_PATH", ""))))
        environment = kept | {fo.ENV_FOLDER: str(self.folder / fo.RUN), "PYTHONPATH": path}
        self.output = (state / "output").open("w+")
        self.process = subprocess.Popen(argv, env=environment, stdout=self.output, stderr=subprocess.STDOUT)
        now = SystemClock().now()
        self.job = Job(name="bench", since=now, phase=Phase.RUNNING, attempt=Attempt(number=1, launched_at=now))

    def steps(self) -> int:
        """Return how many steps were made."""
        recorder = self.folder / fo.RECORDER
        if not recorder.exists() or recorder.stat().st_size < fo.HEADER_BYTES:
            return 0
        with recorder.open("rb") as file:
            return int(fo.HEAD.unpack_from(file.read(fo.HEADER_BYTES), fo.HEAD_OFFSET)[0])

    def wait_for_steps(self, count: int) -> None:
        """Return once so many steps were made; raise RuntimeError where the training ends before."""
        while self.steps() < count:
            if self.process.poll() is not None:
                raise RuntimeError(f"the training ended with {self.process.returncode}: {self.read_output()[-2000:]}")
            time.sleep(0.02)

    def read_output(self) -> str:
        """Return all that it printed."""
        return Path(self.output.name).read_text()

    def end(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.output.close()


def measure(tune: Tune, settings: Mapping[str, object], dropped: int = GRID_DROPPED) -> float | None:
    """Return samples a second under some settings, None where the agent refuses one of them."""
    changes = settings != tune._held
    answer = tune._order(settings) if changes else {}
    if answer.get("refused"):
        print(f"  refused: {answer['refused']}", flush=True)
        return None
    return 1 / median(tune._collect(dropped if changes else 0, lambda spans: len(spans) >= GRID_STEPS).times)


def list_grid(workers: int, *, card: bool) -> list[dict[str, object]]:
    """Return every combination of the knobs on top of the loader's workers, and two without workers."""
    names: dict[str, object] = {"fused_optimizer": True, "channels_last": True, "autocast": "bfloat16"}
    if card:
        names |= {"cudnn_benchmark": True, "tf32": True}
    combinations = [
        dict(chosen) for count in range(len(names) + 1) for chosen in itertools.combinations(names.items(), count)
    ]
    # What switches the loader costs most: the two without workers come first.
    return [{}, dict(names), *({"workers": workers, **chosen} for chosen in combinations)]


def tune_once(training: Training) -> tuple[types.TuneReport, int, float]:
    """Return the report of a tune, and the steps and seconds that it took."""
    tuner = Tuner(SystemClock(), training.state, lambda _: training.job)
    first, began = training.steps(), time.perf_counter()
    tuner.start("bench", types.TuneBody(for_s=FOR_S, may=["precision"]))
    while tuner.report("bench").state != "ended":
        if training.process.poll() is not None:
            raise RuntimeError(training.read_output()[-2000:])
        time.sleep(0.1)
    return tuner.report("bench"), training.steps() - first, time.perf_counter() - began


def search_grid(training: Training, adopted: Mapping[str, object], *, card: bool) -> dict[str, object]:
    """Return rates of the start, the best of the grid and the adopted settings, the last two measured in turn."""
    tune = Tune(SystemClock(), "bench", training.folder, types.TuneBody(), lambda: None)
    facts = tune._read_facts()
    rates: list[tuple[float, dict[str, object]]] = []
    workers = adopted.get("workers") or min(16, facts.processors or 1)
    assert isinstance(workers, int)
    for settings in list_grid(workers, card=card):
        dropped = 2 * workers + 3 if settings.get("workers") != tune._held.get("workers") else GRID_DROPPED
        rate = measure(tune, settings, dropped)
        if rate is not None:
            rates.append((rate, settings))
            print(f"  grid {rate:10.1f}  {json.dumps(settings)}", flush=True)
    best = max(rates, key=lambda row: row[0])[1]
    pairs = [(measure(tune, best), measure(tune, adopted)) for _ in range(AGAIN)] if best != adopted else []
    again = [(first, second) for first, second in pairs if first and second]
    shares = [second / first for first, second in again]
    return {
        "combinations": len(rates),
        "start": next(rate for rate, settings in rates if not settings),
        "best": median(first for first, _ in again) if again else max(rates)[0],
        "best_settings": best,
        "share": median(shares) if shares else 1.0,
    }


def main(words: Sequence[str]) -> None:
    """Tune, search the grid, print the table."""
    device, batch = words[0], int(words[1]) if len(words) > 1 else 16
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), os.environ.get("TRAINING_PYTHON", sys.executable), device, STEPS, batch)
        try:
            training.wait_for_steps(8)
            report, steps, took_s = tune_once(training)
            for row in report.adopted:
                print(f"  adopted {row.knob} = {row.value}: {row.gain:+.0%} ({row.low:+.0%} to {row.high:+.0%})")
            for left in (*report.refused, *report.left):
                print(f"  refused {left.knob} = {left.value}: {left.why}")
            print(f"  {report.bottleneck.before} -> {report.bottleneck.after}; problem: {report.problem}", flush=True)
            adopted = {row.knob: row.value for row in report.adopted}
            found = search_grid(training, adopted, card=device.startswith("cuda"))
        finally:
            training.end()
    before, after = report.samples_per_s.before, report.samples_per_s.after
    rate = f"{before:.0f} -> {after:.0f} ({after / before:.2f}x)" if before and after else "nothing adopted"
    print(f"\n{'':28}{'measured':>22}{'must be':>12}")
    print(f"{'samples/s':28}{rate:>22}{'>= 3x':>12}")
    share = found["share"]
    print(f"{'share of the grid':28}{share:>21.1%} {'>= 98 %':>12}")
    print(f"{'steps of the tune':28}{steps:>22}{'<= 800':>12}")
    print(f"{'seconds of the tune':28}{took_s:>22.0f}")
    print(f"best of {found['combinations']}: {found['best']:.0f}/s with {json.dumps(found['best_settings'])}")
    if len(words) > 2:
        Path(words[2]).write_text(json.dumps({"report": types.encode(report), "grid": found, "steps": steps}))


if __name__ == "__main__":
    main(sys.argv[1:])
