"""Runs every property test with many examples on all cores, and prints what each took and what contradicted it.

    run_laws.py [--examples N] [--cores N] [--minutes N] [--seed N] [--out FILE] [PART OF A NAME ...]

Each law is run in shards, processes of their own with a seed of their own, so that one law fills all cores and no
shard remembers more examples than fit in memory. The shards of all laws take turns: where the time ends first, each
law has had its share, and the table says how many examples that was. FILE has the same as JSON after every shard, so
that a run that is killed keeps what it had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parent.parent.parent
SHARD_S = 60.0
"""About how long a shard is to take: long beside the start of a process, short beside a run."""
FIRST_SHARD, LARGEST_SHARD = 500, 50_000
"""Hypothesis remembers each example that it made: beyond so many it becomes slow."""


@dataclass(slots=True)
class Law:
    """One property test, what is left of it to be run, and what came of it."""

    name: str
    left: int
    shards: int = 0
    examples: int = 0
    counterexamples: int = 0
    seconds: float = 0.0
    exhausted: bool = False
    skipped: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether nothing more is to be learned: enough examples, none left to be made, or a counterexample."""
        return self.left <= 0 or self.exhausted or bool(self.failures)

    def shard(self, time_s: float = SHARD_S) -> int:
        """Return how many examples the next shard takes, in about `time_s` at most, and count them off."""
        rate = self.examples / self.seconds if self.seconds else 0.0
        size = max(FIRST_SHARD, int(rate * min(time_s, SHARD_S)))
        if self.seconds:
            size = max(1, int(min(size, rate * time_s)))
        size = min(self.left, LARGEST_SHARD, size)
        self.left -= size
        self.shards += 1
        return size

    def row(self) -> str:
        """Return the line of the table."""
        state = "counterexample" if self.failures else "all there are" if self.exhausted else "skipped" * self.skipped
        return f"{self.examples:>10,} {self.counterexamples:>4} {self.seconds:>9.1f} s  {self.name}  {state}".rstrip()


class Runner:
    """Hands the shards of the laws to the cores in turn."""

    def __init__(self, laws: list[Law], until_s: float, seed: int, out: Path | None = None) -> None:
        self._laws, self._turns = laws, deque(laws)
        self._until_s, self._seed, self._out = until_s, seed, out
        self._lock = Lock()

    def work(self) -> None:
        """Run shards until none is left or the time is over."""
        while (turn := self._next()) is not None:
            law, number, size = turn
            outcome, output = run_shard(law.name, size, self._seed + 1_000_000 * number)
            with self._lock:
                self._take(law, outcome, output)

    def _next(self) -> tuple[Law, int, int] | None:
        with self._lock:
            while self._turns and now_s() < self._until_s:
                law = self._turns.popleft()
                if not law.done:
                    self._turns.append(law)
                    return law, law.shards, law.shard(self._until_s - now_s())
            return None

    def _take(self, law: Law, outcome: dict[str, object], output: str) -> None:
        law.examples += int(str(outcome.get("examples", 0)))
        law.counterexamples += int(str(outcome.get("counterexamples", 0)))
        law.seconds += float(str(outcome.get("seconds", 0.0)))
        law.exhausted = law.exhausted or bool(outcome.get("exhausted"))
        if outcome.get("failed", True) or not (outcome["examples"] or outcome["skipped"]):
            law.failures.append(output)
        if outcome.get("skipped"):
            law.skipped, law.left = True, 0
        if self._out is not None:
            write(self._laws, self._seed, self._out)


def write(laws: list[Law], seed: int, file: Path) -> None:
    """Write what came of each law so far, whole or not at all."""
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps({"seed": seed, "laws": [asdict(law) for law in laws]}, indent=1))
    part.rename(file)


def run_shard(name: str, examples: int, seed: int) -> tuple[dict[str, object], str]:
    """Run one law in a process of its own; return what the plugin counted and what pytest printed."""
    with tempfile.TemporaryDirectory() as folder:
        reported = Path(folder) / "outcome.json"
        done = subprocess.run(
            [*PYTEST, name, f"--hypothesis-seed={seed}", f"--basetemp={folder}/tmp"],
            cwd=ROOT,
            env={**os.environ, "LAWS_EXAMPLES": str(examples), "LAWS_SEED": str(seed), "LAWS_OUTCOME": str(reported)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return (json.loads(reported.read_text()) if reported.exists() else {}), done.stdout


PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.rigs.counting"]


def now_s() -> float:
    """Return the monotonic time."""
    return time.monotonic()  # noqa: TID251 - a runner of tests has no Moment


def collect(parts: list[str]) -> list[str]:
    """Return the names of all property tests that contain one of `parts`, all where there are none."""
    with tempfile.TemporaryDirectory() as folder:
        reported = Path(folder) / "laws.json"
        subprocess.run(
            [*PYTEST, "--collect-only", "tests"],
            cwd=ROOT,
            env={**os.environ, "LAWS_OUTCOME": str(reported)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        names: list[str] = json.loads(reported.read_text())["laws"]
    return [name for name in names if not parts or any(part in name for part in parts)]


def main(arguments: list[str] | None = None) -> int:
    """Run the laws; return 1 where one of them has a counterexample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="run only laws whose name contains one of these")
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--out", type=Path, help="a file for what came of each law, kept up to date")
    asked = parser.parse_args(arguments)
    began_s = now_s()
    laws = [Law(name=name, left=asked.examples) for name in collect(asked.parts)]
    tell(f"{len(laws)} laws, {asked.examples:,} examples each, {asked.cores} cores, seed {asked.seed}")
    runner = Runner(laws, began_s + 60 * asked.minutes, asked.seed, asked.out)
    with ThreadPoolExecutor(asked.cores) as cores:
        for done in [cores.submit(runner.work) for _ in range(asked.cores)]:
            done.result()
    return report(laws, asked.examples, now_s() - began_s)


def tell(line: str) -> None:
    """Print a line at once: a run takes hours."""
    print(line, flush=True)  # noqa: T201 - it is a command


def report(laws: list[Law], examples: int, seconds: float) -> int:
    """Print the table and every counterexample; return the exit status."""
    tell("  examples against     time  law")
    for law in sorted(laws, key=lambda law: law.name):
        tell(law.row())
    full = sum(law.exhausted or law.examples >= examples for law in laws)
    against = [law for law in laws if law.failures]
    total = sum(law.examples for law in laws)
    tell(f"{total:,} examples in {seconds:.0f} s; {full} of {len(laws)} laws had {examples:,}")
    tell(f"counterexamples: {len(against)} laws of {len(laws)}")
    for law in against:
        tell(f"\n=== {law.name}\n{law.failures[0]}")
    return 1 if against else 0


if __name__ == "__main__":
    sys.exit(main())
