"""Ends tunes of a living training at random points, and compares settings and losses with those of one never tuned.

    python tests/bench/tuner_kills.py [KILLS]

A tune is a run of random orders, as the daemon writes them. Half of them end as `--undo` ends one (the order is taken
away), half as with the daemon killed (nobody renews the lease). The training prints the settings that it finds itself.
Where only knobs of the same arithmetic were tried (the loader's), its losses have to be equal to the last bit.
"""

# ruff: noqa: T201 - a benchmark prints; its random numbers are a choice of orders

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.core import attempt_files as fo
from supervisor.daemon.clock import SystemClock
from supervisor.runner import tuned

ROOT = Path(__file__).resolve().parents[2]
AGENT_PATH = ROOT / "supervisor" / "agent" / "path"
BATCH = 8
LEASE_S = 1.0
SETTLED_STEPS = 30
"""Within which the workers of an arm have handed over what they had begun."""
SAME: Mapping[str, Sequence[object]] = {"workers": (1, 2), "prefetch_factor": (4,)}
ALL = {**SAME, "fused_optimizer": (True,), "channels_last": (True,), "autocast": ("bfloat16",), "threads": (2,)}


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


class Kills:
    """Tunes of one training, each ended at a random point."""

    def __init__(self, training: Training, knobs: Mapping[str, Sequence[object]]) -> None:
        self.training, self.knobs, self.chance = training, knobs, random.Random(len(knobs))
        self.numbers, self.ended = itertools.count(1), 0

    def tune_and_end(self, *, by_undo: bool) -> int:
        """Return the step from which on the owner's settings hold again."""
        for _ in range(self.chance.randint(1, 3)):
            chosen = self.chance.sample(sorted(self.knobs), self.chance.randint(1, len(self.knobs)))
            settings = {name: self.chance.choice(self.knobs[name]) for name in chosen}
            until_s = SystemClock().now().monotonic_s + LEASE_S
            tuned.write_order(self.training.folder, next(self.numbers), settings, until_s=until_s)
            time.sleep(self.chance.uniform(0.0, LEASE_S))
        if by_undo:
            tuned.withdraw_order(self.training.folder)
        else:
            time.sleep(LEASE_S)
        # The agent looks every quarter of a second, and answers an order that it was given at the end of a step.
        self.training.wait_for_steps(self.training.steps() + 4)
        time.sleep(0.6)
        held = self.training.steps()
        # A step is recorded before its line is printed, and the last line is not read: it may be half of one.
        self.training.wait_for_steps(held + SETTLED_STEPS + 2)
        tuned.withdraw_order(self.training.folder)
        return held


def compare(knobs: Mapping[str, Sequence[object]], kills: int, python: str) -> tuple[int, int | None]:
    """Return after how many ends the settings were the owner's, and how many losses differ; None: not comparable."""
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder), python, "cpu", 1_000_000, BATCH)
        try:
            training.wait_for_steps(8)
            plan = Kills(training, knobs)
            held = [plan.tune_and_end(by_undo=number % 2 == 0) for number in range(kills)]
        finally:
            training.end()
        lines = training.read_output().splitlines()[:-1]
        answers = (training.folder / fo.AGENT).read_text().count('"tuning"')
    own = lines[3].split()[1:]
    good = 0
    for step in held:
        at_once, settled = lines[step].split()[1:-1], lines[step + SETTLED_STEPS - 2].split()[1:]
        good += at_once == own[:-1] and settled == own
    print(f"  {len(lines)} steps, {answers} answers of the agent", flush=True)
    if knobs is not SAME:
        return good, None
    script = str(ROOT / "tests" / "bench" / "starved_training.py")
    alone = subprocess.run(
        [python, script, "cpu", str(len(lines)), str(BATCH)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    losses = [[line.split()[0] for line in found] for found in (lines, alone)]
    return good, sum(first != second for first, second in zip(*losses, strict=True))


def main() -> None:
    """Print the table; exit with 1 where anything differs."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    python = os.environ.get("TRAINING_PYTHON", sys.executable)
    same, differing = compare(SAME, kills, python)
    everything, _ = compare(ALL, kills, python)
    print(f"{'knobs':24} {'ended':>6} {'settings back':>22} {'losses that differ':>20}")
    print(f"{'of the loader':24} {kills:6} {same:22} {differing or 0:20}")
    print(f"{'all':24} {kills:6} {everything:22} {'not comparable':>20}")
    sys.exit(same != kills or everything != kills or bool(differing))


if __name__ == "__main__":
    main()
