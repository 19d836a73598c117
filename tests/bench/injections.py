"""Hurts real trainings under the real daemon, each once and at a random step, and says what was found, when, as what.

    python tests/bench/injections.py --train-python PYTHON [--runs 20] [--only FAULT ...] [--at-once 8] [--seed 1]

Each run is a job of its own: a small torch training in a plain loop, which only the agent's hooks follow. What acts is
asked of `supervisorctl history --json`; rules that only tell by default are asked of the flags in the record. Found in
its right class means: the job's first incident, or flag, came after the injection and is this table's rule and fault.
The limits of `stall`, and how long the slow rules look back, are set short, so that a run takes seconds or minutes.
`beyond` is the time to find it without what nobody can know sooner: the limit in force, and of a crash the time that
the process itself took to end (torch takes two seconds after an exception). Faults of a card need one, and are left
out without; memory in pieces is played through the rules, and said to be.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from house import House, house  # noqa: E402 (after the path is set)
from played_fragmentation import fragmentation  # noqa: E402

from supervisor.control.client import ControlError  # noqa: E402
from supervisor.core.robust import median  # noqa: E402

TRAINING = Path(__file__).with_name("injected_training.py")
STALL_S = 10.0
STEPS = (600, 1200)
BEYOND_S = 0.5
"""What a fault may take to be found, beyond the limit in force."""
STALL = f"limit_s = {STALL_S}\ndata_wait_limit_s = {STALL_S}\nvalidate_limit_s = {STALL_S}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to hurt a training, and what must be said of it."""

    name: str
    rule: str
    fault: str | None = None
    says: str = ""
    """A pattern that the message must hold."""
    acts: bool = True
    """Whether it makes an incident, or is only told."""
    limit_s: float | None = 0.0
    """In force, from the injection or the end of the process; None where it follows from minutes of measuring."""
    rules: dict[str, str] = field(default_factory=dict)
    steps: tuple[int, int] = STEPS
    wait_s: float = 90.0
    """From the injection until it is called missed."""
    gpu: bool = False


def _crash(name: str, fault: str, says: str, *, gpu: bool = False) -> Fault:
    return Fault(name=name, rule="crash", fault=fault, says=says, gpu=gpu)


def _stall(name: str, stage: str) -> Fault:
    return Fault(name=name, rule="stall", says=f"in stage {stage}", limit_s=STALL_S)


LEAK = "over_s = 600\ngone_within_s = 1e6\nmin_rise_fraction = 0.004"
SLOW = "over_s = 90\nmin_stretches = 3"
FAULTS = (
    # The slowest first: they run beside the others.
    Fault(
        name="leak", rule="host_memory_slope", acts=False, limit_s=None, rules={"host_memory_slope": LEAK}, wait_s=900
    ),
    Fault(
        name="slow", rule="throughput_drop", says="are usual here", acts=False, limit_s=None,
        rules={"throughput_drop": SLOW}, steps=(15_500, 18_000), wait_s=300,
    ),
    _crash("gpu_error", "illegal_access", "", gpu=True),
    Fault(name="gpu_sleep", rule="stall", says="in stage step", limit_s=STALL_S, gpu=True),
    _crash("workload_exc", "exception", "InjectedError: workload"),
    _crash("async_exc", "exception", "InjectedError"),
    _crash("signal_exc", "exception", "InjectedError: signal handler"),
    _crash("os_abort", "killed_by_signal", "SIGABRT"),
    _stall("lock_gil", "step|data_wait"),
    _crash("segfault", "illegal_access", "SIGSEGV"),
    _crash("sigint", "killed_by_signal", "SIGINT"),
    _crash("sigkill", "killed_by_signal", "SIGKILL"),
    _crash("sigterm", "killed_by_signal", "SIGTERM"),
    _stall("sigstop", "step"),
    _stall("data_stall", "data_wait"),
    _stall("validation_stall", "validate"),
    Fault(name="nan", rule="non_finite_loss"),
    Fault(name="spike", rule="loss_spike", acts=False),
)  # fmt: skip


PLAYED = "fragmentation"
"""It needs a card whose memory is full: the allocator's words are played in its place."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One training with its fault."""

    fault: Fault
    job: str
    at_step: int
    note: Path
    struck_s: float | None = None
    """Unix time of the injection."""
    began_s: float = 0.0
    over: bool = False

    def looked(self, now_s: float) -> None:
        """Read when it struck, once it did."""
        if self.struck_s is None and self.note.exists():
            self.struck_s = float(self.note.read_text())
        limit_s = (self.struck_s + self.fault.wait_s) if self.struck_s else self.began_s + 600 + self.fault.wait_s
        self.over = self.over or now_s > limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The first that was said of a job."""

    at_s: float
    rule: str
    fault: str | None
    message: str
    ended_s: float | None
    """Unix time at which its process was gone; None while it was there."""


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def play(one: House, runs: list[Run], python: str, device: str, at_once: int) -> None:
    """Run them all, at most `at_once` at a time, each until something was said of it or its time is over."""
    one.write("\n".join(_job(one, run, python, device) for run in runs))
    one.start()
    waiting = list(runs)
    running: list[Run] = []
    while waiting or running:
        if waiting and len(running) < at_once:
            running.append(waiting.pop(0))
            running[-1].began_s = time.time()  # noqa: TID251 - compared with the training's own note
            ask(one, running[-1], "start")
        time.sleep(0.5)
        told = {(job, rule) for job, rule in one.query("SELECT DISTINCT job, rule FROM flags WHERE severity != 'info'")}
        hurt = {job for (job,) in one.query("SELECT job FROM incidents")}
        for run in running:
            run.looked(time.time())  # noqa: TID251 - compared with the training's own note
            run.over = run.over or run.job in hurt or (not run.fault.acts and (run.job, run.fault.rule) in told)
            if run.over and run.job not in hurt:
                ask(one, run, "stop")
        running = [run for run in running if not run.over]
    one.until(lambda: not one.training_pids(), 60, "the last training to end")


def ask(one: House, run: Run, what: str) -> None:
    """Ask it of the daemon, which a crowded machine may keep from answering at once; it bears to be asked twice."""

    def asked() -> bool:
        try:
            one.client.post(f"/v1/jobs/{run.job}/{what}")
        except ControlError as error:
            say(f"    asked to {what} {run.job}: {error}")
            return False
        return True

    one.until(asked, 60, f"the daemon to {what} {run.job}")


def _job(one: House, run: Run, python: str, device: str) -> str:
    words = [python, str(TRAINING), run.fault.name, "--at", str(run.at_step), "--note", str(run.note)]
    table = 'autostart = false\nenv = { OMP_NUM_THREADS = "1" }'
    rules = {"stall": STALL, **run.fault.rules}
    return (
        one.job_of(run.job, [*words, "--device", device], table, **rules) + f"[jobs.{run.job}.budget]\nrestarts = 0\n"
    )


def first_said(one: House, run: Run, incidents: list[dict[str, Any]]) -> Said | None:
    """Return the first incident of a job, or where the fault only is told, the first flag that is not `info`."""
    [(ended_s,)] = one.query("SELECT ended_unix_s FROM attempts WHERE job = ? AND number = 1", run.job)
    if run.fault.acts:
        mine = [found for found in incidents if found["job"] == run.job]
        told = [(m["at"], m["rule"], m["fault"], m["message"]) for m in mine]
    else:
        sql = "SELECT at_unix_s, rule, fault, message FROM flags WHERE job = ? AND severity != 'info'"
        told = [(at_s, rule, fault, text) for at_s, rule, fault, text in one.query(sql, run.job)]
    if not told:
        return None
    at_s, rule, fault, text = min(told, key=lambda found: found[0])
    return Said(at_s=at_s, rule=rule, fault=fault, message=text, ended_s=ended_s)


def beyond_s(run: Run, said: Said) -> float:
    """Return how long it took to find, without what nobody can know sooner."""
    assert run.struck_s is not None
    began_s = said.ended_s if run.fault.rule == "crash" and said.ended_s is not None else run.struck_s
    return said.at_s - began_s - (run.fault.limit_s or 0.0)


def right(run: Run, said: Said) -> bool:
    """Whether it was said after the injection, by the rule, as the class, in the words that it must be."""
    same = said.rule == run.fault.rule and said.fault == run.fault.fault
    return (
        run.struck_s is not None
        and said.at_s >= run.struck_s
        and same
        and bool(re.search(run.fault.says, said.message))
    )


def report(fault: Fault, runs: list[Run], said: dict[str, Said]) -> bool:
    """Print the line of a fault and what was wrong with it; return whether all was found, rightly and in time."""
    found = [run for run in runs if run.job in said]
    rightly = [run for run in found if right(run, said[run.job])]
    after_s = sorted(said[run.job].at_s - run.struck_s for run in rightly if run.struck_s is not None)
    late_s = max((beyond_s(run, said[run.job]) for run in rightly), default=0.0)
    met = len(rightly) == len(runs) and (fault.limit_s is None or late_s <= BEYOND_S)
    times = f"{median(after_s):8.2f} {after_s[-1]:8.2f}" if after_s else f"{'-':>8} {'-':>8}"
    beyond = f"{late_s:7.2f}" if after_s and fault.limit_s is not None else f"{'-':>7}"
    name = f"{fault.rule} ({fault.fault})" if fault.fault else fault.rule
    say(
        f"{fault.name:<17} {name:<26} {len(runs):4} {len(found):5} {len(rightly):5} {times} {beyond}  "
        f"{'met' if met else 'NOT MET'}"
    )
    for run in runs:
        if run not in rightly:
            say(f"    {run.job}, step {run.at_step}: {said.get(run.job, 'nothing was said')}; struck at {run.struck_s}")
    return met


def planned(faults: list[Fault], runs: int, chance: random.Random, folder: Path) -> Iterator[Run]:
    """Return the runs, the slow faults first and the others in turn."""
    slow = [fault for fault in faults if fault.limit_s is None]
    quick = [fault for fault in faults if fault.limit_s is not None]
    for group in (slow, quick):
        for number in range(runs):
            for fault in group:
                job = f"{fault.name.replace('_', '-')}-{number}"
                yield Run(fault=fault, job=job, at_step=chance.randint(*fault.steps), note=folder / f"{job}.struck")


def played(runs: int, chance: random.Random) -> bool:
    """Play memory that falls to pieces, and print its line; return whether it was told each time."""
    found = [fragmentation(chance) for _ in range(runs)]
    told = [(began_s, fired) for began_s, fired in found if fired is not None]
    after_s = sorted(fired.after_s - began_s for began_s, fired in told if fired.flag.rule == "fragmentation")
    met = len(after_s) == runs and after_s[0] >= 0
    times = f"{median(after_s):8.2f} {after_s[-1]:8.2f}" if after_s else f"{'-':>8} {'-':>8}"
    say(
        f"{'fragmentation':<17} {'fragmentation':<26} {runs:4} {len(told):5} {len(after_s):5} {times} {'-':>7}  "
        f"{'met' if met else 'NOT MET'} (played through the rules, no real training)"
    )
    return met


def main() -> None:
    """Hurt and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-python", required=True)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=[*(fault.name for fault in FAULTS), PLAYED])
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    question = [given.train_python, "-c", "import torch; print(torch.cuda.is_available())"]
    card = subprocess.run(question, capture_output=True, text=True, check=True).stdout.strip() == "True"
    asked = [fault for fault in FAULTS if given.only is None or fault.name in given.only]
    faults = [fault for fault in asked if card or not fault.gpu]
    with tempfile.TemporaryDirectory(prefix="injections-") as place, house(Path(place)) as one:
        runs = list(planned(faults, given.runs, random.Random(given.seed), Path(place)))
        play(one, runs, given.train_python, "cuda" if card else "cpu", given.at_once)
        answer = one.ctl("--json", "history", "-n", "1000")
        incidents = json.loads(answer.stdout)["incidents"]
        said = {run.job: told for run in runs if (told := first_said(one, run, incidents)) is not None}
    say(f"{'fault':<17} {'must be':<26} runs found right {'median s':>8} {'worst s':>8}  beyond")
    met = [report(fault, [run for run in runs if run.fault is fault], said) for fault in faults]
    if given.only is None or PLAYED in given.only:
        met.append(played(given.runs, random.Random(given.seed)))
    for fault in asked:
        if fault not in faults:
            say(f"{fault.name:<17} left out: no GPU here")
    say(f"\n{sum(met)} of {len(met)} faults met: all found, each in its class, within {BEYOND_S} s beyond the limit")
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
