"""How well the rules judge: hours of healthy training without a false alarm, and how soon faults are found.

    python tests/bench/judgement.py [--hours 200] [--seed 1]

Everything is played through the real history and rules, at thousands of times real speed. A fault's time is counted
from when the training stood still, or from the step that was wrong; the daemon adds 0.3 s at most.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/rigs")]

from healthy import GPU, NIGHTS, PID, START, Habits, Healthy, play  # noqa: E402 (after the path is set)

from supervisor.core import events as ev  # noqa: E402
from supervisor.core.flags import Severity  # noqa: E402
from supervisor.core.history import History  # noqa: E402
from supervisor.core.readings import GpuReading, Stage  # noqa: E402
from supervisor.core.rules import RULES  # noqa: E402

ALL_RULES = tuple(rule() for rule in RULES)
TEN_MINUTES = Habits(hours=0.25, first_batch_s=(5, 120), pause_s=(0.5, 2), pause_every_s=120)
NAN = float("nan")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# --- what is well ---------------------------------------------------------------------------------------------------


def false_alarms(hours: float, seed: int) -> int:
    """Play every kind of night for its share of the hours; return the critical flags."""
    say(f"{'healthy training':<52} {'hours':>6} {'steps':>10} {'critical':>8} {'told':>5}  took")
    alarms = 0
    for number, night in enumerate(NIGHTS):
        began_s = time.perf_counter()
        training = Healthy(replace(night, hours=hours / len(NIGHTS), seed=100 * seed + number))
        critical: set[tuple[object, ...]] = set()
        reported: Counter[str] = Counter()
        standing: frozenset[tuple[object, ...]] = frozenset()
        for _, flags in play(training.events(), ALL_RULES):
            keys = frozenset(flag.key for flag in flags)
            for flag in flags:
                if flag.key not in standing:
                    reported[flag.rule] += flag.severity is Severity.WARNING
                    if flag.severity is Severity.CRITICAL:
                        critical.add((*flag.key, flag.message))
            standing = keys
        took_s = time.perf_counter() - began_s
        played = training.now.seconds_since(START) / 3600
        say(
            f"{night.name:<52} {played:6.1f} {training.step:10} {len(critical):8} {reported.total():5}  "
            f"{took_s:.0f} s, {played * 3600 / took_s:.0f} times real speed"
        )
        for key in sorted(critical, key=str):
            say(f"    FALSE ALARM {key}")
        alarms += len(critical)
    return alarms


# --- what is not ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong after ten minutes' learning."""

    name: str
    rule: str
    limit_s: float
    """By when it must be found."""
    hurt: Callable[[Healthy], Iterator[ev.Event]]
    habits: Habits = TEN_MINUTES


def _stands_still(training: Healthy) -> Iterator[ev.Event]:
    return training.silence(700, busy=None, cpu=None, every_s=0.25)


def _spins(training: Healthy) -> Iterator[ev.Event]:
    return training.silence(700, busy=99.0, cpu=100.0, every_s=0.25)


def _idles(training: Healthy) -> Iterator[ev.Event]:
    return training.silence(700, busy=0.0, cpu=0.5, every_s=0.25)


def _within(stage: Stage) -> Callable[[Healthy], Iterator[ev.Event]]:
    def hurt(training: Healthy) -> Iterator[ev.Event]:
        yield training.enters(stage)
        yield from training.silence(4000, busy=0.0, cpu=0.5, every_s=0.25)

    return hurt


def _waits_in_kernel(training: Healthy) -> Iterator[ev.Event]:
    return training.silence(700, busy=0.0, cpu=0.0, stuck=(PID,), every_s=0.25)


def _nan(training: Healthy) -> Iterator[ev.Event]:
    for _ in range(100):
        yield training.steps([training.habits.every_s], loss=NAN)


def _search(training: Healthy) -> Iterator[ev.Event]:
    """The owner's 10 November: no batch at full load, on a card without kernels."""
    yield ev.Launched(at=training.now, job="well", attempt=1, shim_pid=PID - 1, training_pid=PID)
    yield training.enters(Stage.WARMUP)
    for event in training.silence(3000, busy=99.0, every_s=0.25):
        if isinstance(event, ev.GpusRead):
            card = GpuReading(at=event.at, gpu=GPU, source="sysfs", gpu_busy_percent=99.0, gfx_version="gfx1010")
            yield ev.GpusRead(at=event.at, readings=(card,))
        else:
            yield event


SCRIPT = replace(TEN_MINUTES, stages_complete=False)
SLOW = replace(TEN_MINUTES, every_s=0.4)
FAULTS: tuple[Fault, ...] = (
    Fault(name="stall at 18 batches/s, no card read", rule="stall", limit_s=10, hurt=_stands_still),
    Fault(name="stall at 2.5 batches/s", rule="stall", limit_s=10, hurt=_stands_still, habits=replace(SLOW, hours=0.5)),
    Fault(name="kernel that never ends: 99 % and no step", rule="stall", limit_s=10, hurt=_spins),
    Fault(name="deadlock: card and processes idle", rule="stall", limit_s=10, hurt=_idles),
    Fault(name="process in state D", rule="stall", limit_s=10, hurt=_waits_in_kernel),
    Fault(name="stall in the data loader", rule="stall", limit_s=16, hurt=_within(Stage.DATA_WAIT)),
    Fault(name="stall in validation, none seen before", rule="stall", limit_s=3601, hurt=_within(Stage.VALIDATE)),
    Fault(
        name="stall of a script that only torch's hooks follow", rule="stall", limit_s=61, hurt=_spins, habits=SCRIPT
    ),
    Fault(name="NaN from step k on", rule="non_finite_loss", limit_s=3.5 / 18, hurt=_nan),
)


def found(fault: Fault, seed: int) -> tuple[str, float, float | None] | None:
    """Return which rule acted, after how long, and after how long something was first told."""
    training = Healthy(replace(fault.habits, seed=seed))
    began_s: list[float] = []

    def stream() -> Iterator[ev.Event]:
        if fault.hurt is not _search:
            yield from training.events()
        began_s.append(training.now.monotonic_s)
        yield from fault.hurt(training)

    reported_s = None
    for event, flags in play(stream(), ALL_RULES, History(now=START, launched_at=START, gpus_used=(GPU,))):
        after_s = event.at.monotonic_s - began_s[0] if began_s else None
        if after_s is None or not flags:
            continue
        reported_s = after_s if reported_s is None else reported_s
        if flags[0].severity is Severity.CRITICAL:
            return flags[0].rule, after_s, reported_s
    return None


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=200.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    say(f"{'fault after 10 minutes of learning':<52} {'must be':>9} {'found':>9} {'told':>9}  by")
    search = Fault(
        name="search for kernels that never ends, gfx1010", rule="busy_without_progress", limit_s=121, hurt=_search
    )
    missed = 0
    for fault in (*FAULTS, search):
        answer = found(fault, given.seed)
        if answer is None:
            say(f"{fault.name:<52} {fault.limit_s:7.2f} s    NEVER")
            missed += 1
            continue
        rule, after_s, reported_s = answer
        wrong = "" if rule == fault.rule and after_s <= fault.limit_s else "  WRONG"
        missed += bool(wrong)
        say(f"{fault.name:<52} {fault.limit_s:7.2f} s {after_s:7.2f} s {reported_s or 0:7.2f} s  {rule}{wrong}")
    say("")
    alarms = false_alarms(given.hours, given.seed)
    say(f"\n{missed} faults missed, late or misnamed; {alarms} false alarms in {given.hours:g} hours (must be 0 and 0)")


if __name__ == "__main__":
    main()
