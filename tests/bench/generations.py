"""Measures what the generations are kept for: a training's writes killed, and its checkpoints poisoned.

    .venv/bin/python tests/bench/generations.py --train-python PYTHON [--kills 1000] [--each 50] [--work DIR]

Kills: a process writes a real YOLOv8n checkpoint over one file, again and again, as ultralytics does, and is killed by
SIGKILL while it writes; each time the daemon's own search must name a proven generation, and its bytes must be those
of a whole save. Between two writes lie 0.03 s; the first save of all stands until it is taken, as a training's does.
Poison: real checkpoints spoilt in every way lie beside a sound older one; none may be chosen.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from supervisor.config.settings import CheckpointSettings, JobSettings
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.job import Attempt, Job, Phase
from supervisor.daemon.checkpoints.candidates import Search, find, fingerprint
from supervisor.daemon.checkpoints.collector import CollectorDeps, GenerationCollector
from supervisor.daemon.checkpoints.proof_queue import ProofQueue, Saved
from supervisor.daemon.clock import SystemClock
from supervisor.runner.proving import Prover

POISON = Path(__file__).resolve().parents[1] / "rigs" / "poison.py"
KINDS = ("nan", "truncated", "optimizer", "average", "architecture", "hostile")
JOB = "bench"
WAIT_S = 60.0
PAUSE_S = 0.03
"""Between two writes: three quarters of the writer's time are writing."""
WRITER = """
import os, sys, time
contents = [open(path, "rb").read() for path in sys.argv[3:]]
number = int(sys.argv[2])
while True:
    content = contents[number % len(contents)]
    with open(sys.argv[1], "wb", buffering=0) as file:  # in place, as Path.write_bytes does
        for at in range(0, len(content), 1 << 17):
            file.write(content[at : at + (1 << 17)])
            time.sleep(0.0002)
    os.write(1, b"%d\\n" % number)
    number += 1
    time.sleep(PAUSE)
"""


@dataclass
class Bench:
    """A job's shelf with the daemon's own collector and watch, and a record of what they told."""

    folder: Path
    reported: list[Checkpoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the parts as the daemon's assembly does."""
        clock, self.prover = SystemClock(), Prover()
        self.runs = self.folder / "runs"
        self.runs.mkdir(parents=True)
        (self.folder / "state/jobs" / JOB / "1/run").mkdir(parents=True)
        (self.folder / "state/jobs" / JOB / "1/run/shim.json").touch()
        settings = JobSettings(command=["train"], checkpoints=CheckpointSettings())
        job = Job(name=JOB, since=clock.now(), phase=Phase.RUNNING)
        self.job = replace(job, attempt=Attempt(number=1, launched_at=clock.now()))
        self.watch = ProofQueue(clock, self.hear, self.swept)
        self.collector = GenerationCollector(
            CollectorDeps(
                clock=clock,
                put=self.hear,
                state=self.folder / "state",
                settings=lambda _: settings,
                job=lambda _: self.job,
                examine=self.prover.examine,
            ),
            self.watch,
        )

    def swept(self, job: str) -> None:
        self.collector.sweep(job)

    def hear(self, event: ev.Event) -> None:
        if isinstance(event, ev.CheckpointSeen):
            self.reported.append(event.checkpoint)

    def start(self) -> None:
        self.watch.start()
        self.collector.start()

    def end(self) -> None:
        self.collector.end()
        self.watch.end()

    def save(self, path: Path, step: int) -> None:
        seen = fingerprint(path)
        if seen is not None:
            saved = Saved(job=JOB, attempt=1, path=path, prove=partial(self.collector.proofs.prove, JOB), step=step)
            self.collector.saved(saved, seen)

    def resume(self) -> Checkpoint | None:
        """Search as after a crash: nothing is let go meanwhile."""
        running, self.job = self.job, replace(self.job, phase=Phase.BACKOFF)
        try:
            shelf = self.collector.store_of(JOB)
            known = {report.key: report for report in self.reported}
            search = Search(
                known=tuple(known.values()),
                globs=("*.pt",),
                cwd=str(self.runs),
                fault_unix_s=None,
                fault_step=None,
                batches_per_epoch=None,
                generations=shelf.all(),
                generations_folder=str(shelf.folder),
            )
            return find(search, partial(self.collector.proofs.prove, JOB), self.judged).checkpoint
        finally:
            self.job = running

    def judged(self, checkpoint: Checkpoint) -> None:
        self.reported.append(checkpoint)
        self.collector.proofs.judge(JOB, checkpoint)


def digest(path: Path) -> str:
    """Return what tells one content from another."""
    return hashlib.blake2b(path.read_bytes()).hexdigest()


def poisons(bench: Bench, python: Path, made: Path, count: int) -> tuple[int, dict[str, int], list[str]]:
    """Return (poisoned ones shown, resumed from by kind, what was resumed from all the same)."""
    shown, chosen, names = 0, dict.fromkeys(KINDS, 0), []
    bench.save(_laid(made / "before.pt", bench.runs / "before.pt"), 100)
    _until(lambda: bool(bench.collector.store_of(JOB).all()), "the sound checkpoint to be taken")
    assert bench.resume() is not None, "the sound checkpoint itself is not proven"
    for kind in KINDS:
        _make(python, made, f"{kind}={count}")
        for number, path in enumerate(sorted(made.glob(f"{kind}-*.pt"))):
            target = _laid(path, bench.runs / "last.pt")
            spoilt = digest(target)
            bench.save(target, 200 + number)
            found = bench.resume()
            shown += 1
            if found is None or digest(Path(found.path)) == spoilt:
                chosen[kind] += 1
                names.append(path.name)
            target.unlink()
            path.unlink()
        _say(f"{kind}: {chosen[kind]} of {count} resumed from")
    assert not (made / "trace").exists(), "a hostile checkpoint was executed"
    return shown, chosen, names


def _laid(source: Path, target: Path) -> Path:
    shutil.copyfile(source, target)
    return target


def _make(python: Path, made: Path, *kinds: str) -> None:
    env = {**os.environ, "YOLO_CONFIG_DIR": str(made), "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    command = [str(python), str(POISON), str(made), *kinds]
    done = subprocess.run(command, capture_output=True, check=False, cwd=made, env=env)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def kills(bench: Bench, made: Path, count: int) -> tuple[int, int, int]:
    """Return (kills in the middle of a write, times without a proven whole generation, generations let go)."""
    chance = random.Random(1)
    target = bench.runs / "last.pt"
    complete = {digest(made / name) for name in ("before.pt", "after.pt")}
    bench.save(_laid(made / "before.pt", target), 1)
    _until(lambda: bool(bench.collector.store_of(JOB).all()), "the first save of all to be taken")
    lost = torn = 0
    step = 2
    while torn < count:
        step = _written(bench, target, made, step, chance)
        half = digest(target) not in complete
        torn += half
        found = bench.resume()
        if found is None or digest(Path(found.path)) not in complete:
            lost += 1
            _say(f"after {torn} kills: {found}, {len(bench.collector.store_of(JOB).all())} generations")
        if torn % 100 == 0 and half:
            _say(f"{torn} kills in mid-write, {lost} without a generation to resume from")
    gone = sum(report.kept_by == "" for report in bench.reported)
    return torn, lost, gone


def _written(bench: Bench, target: Path, made: Path, step: int, chance: random.Random) -> int:
    """Run the writer until it is killed at random, telling the collector of each save as the agent does."""
    program = WRITER.replace("PAUSE", str(PAUSE_S))
    words = [sys.executable, "-I", "-S", "-c", program, str(target), str(step)]
    contents = [str(made / "before.pt"), str(made / "after.pt")]
    with subprocess.Popen([*words, *contents], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 3)):
            step = int(writer.stdout.readline()) + 1
            bench.save(target, step)
        time.sleep(PAUSE_S + chance.random() * 0.06)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        for line in writer.stdout.read().splitlines():
            step = int(line) + 1
    return step


def _until(question: Callable[[], bool], what: str) -> None:
    end = time.perf_counter() + WAIT_S
    while not question():
        assert time.perf_counter() < end, f"waited {WAIT_S:.0f} s for {what}"
        time.sleep(0.02)


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


def measure(work: Path, python: Path, kill_count: int, each: int) -> Sequence[tuple[str, str, bool]]:
    """Return rows of (what, found, met)."""
    made = work / "made"
    made.mkdir()
    _make(python, made)
    rows = []
    if each:
        bench, began = Bench(work / "poison"), time.perf_counter()
        bench.collector.start()
        shown, chosen, names = poisons(bench, python, made, each)
        bench.end()
        took_s = time.perf_counter() - began
        rows.append((f"poisoned checkpoints, {each} of each kind", f"{len(names)} of {shown} resumed from", not names))
        rows += [(f"  {kind}", f"{found} of {each}", found == 0) for kind, found in chosen.items()]
        _say(f"{took_s:.0f} s; {names}")
    if kill_count:
        bench, began = Bench(work / "kills"), time.perf_counter()
        bench.start()
        torn, lost, gone = kills(bench, made, kill_count)
        bench.end()
        took_s = time.perf_counter() - began
        found = f"{lost} without a proven generation ({gone} let go meanwhile, {took_s:.0f} s)"
        rows.append((f"SIGKILL in the middle of {torn} writes", found, lost == 0))
    return rows


def main() -> int:
    """Measure, and print each figure with what it must be; the exit status says whether all are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--work", type=Path, help="a folder with some GB; default: a temporary one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.work) as work:
        rows = measure(Path(work), asked.train_python, asked.kills, asked.each)
    for what, found, met in rows:
        sys.stdout.write(f"{what:45} {found:60} must be 0: {'met' if met else 'NOT MET'}\n")
    return 0 if all(met for _, _, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
