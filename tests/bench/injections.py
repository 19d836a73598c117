"""Hurts real trainings under the real daemon, each once and at a random step, and says what was found, when, as what.

    python tests/bench/injections.py --train-python PYTHON [--runs 20] [--only FAULT ...] [--at-once 8] [--seed 1]
                                     [--device cpu|cuda] [--out FILE] [--limit-s SECONDS]
    python tests/bench/injections.py --add FILE ... [--runs 20] [--out FILE]

Each run is a job of its own: a small torch training in a plain loop, which only the agent's hooks follow. What acts is
asked of the daemon's incidents, rules that only tell by default of the flags in the record. Found in its right class
means: the job's first incident, or flag, came after the injection and is this table's rule and fault. The limits of
`stall`, and how long the slow rules look back, are set short, so that a run takes seconds or minutes.
`beyond` is the time to find it without what nobody can know sooner: the limit in force, and of a crash the time that
the process itself took to end (torch takes two seconds after an exception). Faults of a card need one, and are left
out without; memory in pieces is then played through the rules, and said to be.
`--out` keeps each run as soon as it is over, so that what is killed keeps what it found; `--add` makes one table of
several such files. After `--limit-s` no training is started, and those that run then are left out.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from house import House, house  # noqa: E402 (after the path is set)
from injected_faults import FAULTS, STALL, Fault  # noqa: E402
from injected_runs import Output, Played, Results, Run, say  # noqa: E402
from played_fragmentation import fragmentation  # noqa: E402

from supervisor.control.client import ControlError  # noqa: E402

TRAINING = Path(__file__).with_name("injected_training.py")
PLAYED = "fragmentation"
"""It needs a card whose memory is full; without one the allocator's words are played in its place."""


class Bench:
    """One daemon and the trainings that it is given."""

    def __init__(self, home: House, python: str, results: Results, out: Path | None) -> None:
        self._house, self._python = home, python
        self._results, self._out = results, out

    def play(self, runs: list[Run], at_once: int, limit_s: float) -> None:
        """Run them, at most `at_once` at a time, each until something was said of it or its time is over."""
        self._house.write("\n".join(map(self._job, runs)))
        self._house.start()
        end_s = _now_s() + limit_s
        waiting, running = list(runs), list[Run]()
        while (waiting or running) and _now_s() < end_s:
            if waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].began_s = _now_s()
                self._ask(running[-1], "start")
            time.sleep(0.2)
            self._look(running)
            running = [run for run in running if not run.over]
        for run in running:
            say(f"    {run.job}: left out, the time is over")
            self._ask(run, "stop")
        self._house.until(lambda: not self._house.training_pids(), 60, "the last training to end")

    def _look(self, running: list[Run]) -> None:
        """See which are over, and keep what was said of them."""
        reported = {*self._house.query("SELECT DISTINCT job, rule FROM flags WHERE severity != 'info'")}
        hurt = {job for (job,) in self._house.query("SELECT job FROM incidents")}
        for run in running:
            self._strike(run)
            waits = not run.fault.acts and run.fault.foretells is None
            run.over = _now_s() > run.limit_s or run.job in hurt or (waits and (run.job, run.fault.rule) in reported)
            if not run.over:
                continue
            run.output = self._output(run)
            if run.job not in hurt:
                self._ask(run, "stop")
            self._results.runs.append(run)
            self._results.write(self._out)

    def _strike(self, run: Run) -> None:
        """Read when it struck, once it did."""
        note = self._note(run)
        if run.struck_s is None and note.exists():
            run.struck_s = float(note.read_text())

    def _note(self, run: Run) -> Path:
        return self._house.folder / f"{run.job}.struck"

    def _ask(self, run: Run, what: str) -> None:
        """Ask it of the daemon, which a crowded machine may keep from answering at once; it bears to be asked twice."""

        def asked() -> bool:
            try:
                self._house.client.post(f"/v1/jobs/{run.job}/{what}")
            except ControlError as error:
                say(f"    asked to {what} {run.job}: {error}")
                return False
            return True

        self._house.until(asked, 60, f"the daemon to {what} {run.job}")

    def _job(self, run: Run) -> str:
        fault, note = run.fault, str(self._note(run))
        words = [self._python, str(TRAINING), fault.name, "--at", str(run.at_step), "--note", note]
        words += ["--device", run.device, "--every-s", str(fault.every_s)]
        table = 'autostart = false\nenv = { OMP_NUM_THREADS = "1" }\nsnapshot_every_s = 0'
        job = self._house.job_of(run.job, words, table, **{"stall": STALL, **fault.rules})
        return f"{job}[jobs.{run.job}.budget]\nrestarts = 0\n"

    def _output(self, run: Run) -> Output | None:
        """Return the first incident of a job, or where the fault only is told, the first flag that is not `info`."""
        [(ended_s,)] = self._house.query("SELECT ended_unix_s FROM attempts WHERE job = ? AND number = 1", run.job)
        incidents = self._house.incidents(run.job)
        if run.fault.acts:
            reported = [
                (incident["at"], incident["rule"], incident["fault"], incident["message"]) for incident in incidents
            ]
        else:
            sql = "SELECT at_unix_s, rule, fault, message FROM flags WHERE job = ? AND severity != 'info'"
            reported = [(at_s, rule, fault, text) for at_s, rule, fault, text in self._house.query(sql, run.job)]
        if not reported:
            return None
        at_s, rule, fault, text = min(reported, key=lambda found: found[0])
        then = [incident["at"] for incident in incidents if incident["fault"] == run.fault.foretells]
        then_s = then[0] if run.fault.foretells and then else None
        return Output(at_s=at_s, rule=rule, fault=fault, message=text, ended_s=ended_s, then_s=then_s)


def _now_s() -> float:
    return time.time()  # noqa: TID251 - compared with the training's own note


def planned(faults: list[Fault], runs: int, chance: random.Random, device: str) -> Iterator[Run]:
    """Return the runs, the slow faults first and the others in turn."""
    slow = [fault for fault in faults if fault.limit_s is None]
    quick = [fault for fault in faults if fault.limit_s is not None]
    for group in (slow, quick):
        for number in range(runs):
            for fault in group:
                job = f"{fault.name.replace('_', '-')}-{number}"
                yield Run(fault=fault, job=job, at_step=chance.randint(*fault.steps), device=device)


def played(runs: int, chance: random.Random) -> Played:
    """Play memory that falls to pieces."""
    found = [fragmentation(chance) for _ in range(runs)]
    reported = [(began_s, fired) for began_s, fired in found if fired is not None and fired.flag.rule == PLAYED]
    after_s = [fired.after_s - began_s for began_s, fired in reported]
    return Played(fault=PLAYED, why="played through the rules, no real training", runs=runs, after_s=after_s)


def hurt(given: argparse.Namespace, results: Results) -> None:
    """Hurt what was asked for."""
    question = [given.train_python, "-c", "import torch; print(torch.cuda.is_available())"]
    card = subprocess.run(question, capture_output=True, text=True, check=True).stdout.strip() == "True"
    device = given.device or ("cuda" if card else "cpu")
    faults = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    plays = device == "cpu" and any(fault.name == PLAYED for fault in faults)
    faults = [fault for fault in faults if device == "cuda" or not fault.gpu]
    chance = random.Random(given.seed)
    if plays:
        results.played.append(played(given.runs, chance))
        results.write(given.out)
    with tempfile.TemporaryDirectory(prefix="injections-") as place, house(Path(place)) as item:
        runs = list(planned(faults, given.runs, chance, device))
        if runs:
            Bench(item, given.train_python, results, given.out).play(runs, given.at_once, given.limit_s)


def main() -> None:
    """Hurt, or add up, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--train-python")
    what.add_argument("--add", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where PYTHON's torch sees a card")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit-s", type=float, default=1e9)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = Results()
    for file in given.add or ():
        results.add(file)
    if given.train_python:
        hurt(given, results)
    results.write(given.out)
    sys.exit(not results.report(given.runs))


if __name__ == "__main__":
    main()
