"""Strikes real trainings with a thousand faults of many kinds, and says which were found rightly and survived.

    python tests/bench/thousand_faults.py --train-python PYTHON --out FOLDER [--runs 1000] [--at-once 8]
                                          [--only KIND ...] [--frameworks NAME ...] [--limit-s SECONDS] [--gpus N]
    python tests/bench/thousand_faults.py --report FOLDER

Each run is a daemon and a training of its own: ultralytics, Hugging Face, Lightning, a loop with snapshots and one
that saves by itself. It is right where its one incident has the right rule and class, where it went on from a proven
state and made no more steps again than an interval, a step and the writing of a snapshot hold, where its numbers are
numbers, where nothing else was stopped or restarted, and where it came to its end, or was given up where that is
right. Where nothing is wrong with the training itself - a clock that steps, a daemon that dies - there must be no
incident at all.
`FOLDER/faults.jsonl` gets a line as soon as a run is over, `FOLDER/faults.txt` the table. Kinds take turns, so that
what ends early has had of each. Faults of a card are run where torch sees one, and what writes to the kernel's log
where that can be written to.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests/e2e")]

from thousand_kinds import ALL, BY_NAME, EVERY_S, KINDS, Kind  # noqa: E402 (after the path is set)
from thousand_runs import Outcome, Plan, as_line, from_line, play, seed_of  # noqa: E402

DRAW = ROOT / "tests/agent/draw_images.py"
NARROW = (
    "import sys, ultralytics, pathlib; print(pathlib.Path(ultralytics.__file__).parent / 'cfg/models/v8/yolov8.yaml')"
)
WIDTH = ("n: [0.33, 0.25, 1024]", "n: [0.33, 0.0625, 128]")
"""YOLOv8n is made narrower, for a step to take hundredths of a second."""


def planned(given: argparse.Namespace, data: Path) -> Iterator[Plan]:
    """Return the runs, kinds and frameworks in turn, each at a step of its own."""
    pairs = [
        (kind, framework)
        for kind in KINDS
        for framework in kind.frameworks
        if (given.only is None or kind.name in given.only) and framework in given.frameworks and _possible(kind, given)
    ]
    if not pairs:
        sys.exit("nothing of this can be run here")
    for number in range(given.runs or len(pairs)):
        if number % len(pairs) == 0:
            random.Random(seed_of(given.seed, number)).shuffle(pairs)
        kind, framework = pairs[number % len(pairs)]
        at = random.Random(seed_of(given.seed, number, kind.name)).randint(*kind.steps)
        yield Plan(
            number=number, kind=kind.name, framework=framework, at=at, python=given.train_python, data=str(data),
            stall_s=given.stall_s, gpu=1 + number % (given.gpus - 1) if given.gpus > 1 else 0,
        )  # fmt: skip


def _possible(kind: Kind, given: argparse.Namespace) -> bool:
    if kind.gpu and not given.gpus:
        return False
    if kind.clock and shutil.which("cc") is None:
        return False
    if kind.small_disk and os.geteuid() != 0:
        return False
    return not kind.kernel or os.access("/dev/kmsg", os.W_OK)


def prepare(given: argparse.Namespace, folder: Path) -> None:
    """Draw the images, and write a narrow YOLOv8 beside them."""
    if "ultralytics" not in given.frameworks:
        return
    subprocess.run([given.train_python, str(DRAW), str(folder), "24", "32"], check=True)
    asked = subprocess.run([given.train_python, "-c", NARROW], check=True, capture_output=True, text=True)
    text = Path(asked.stdout.split()[-1]).read_text()
    if WIDTH[0] not in text:
        sys.exit(f"{asked.stdout.strip()} has no scale {WIDTH[0]}")
    (folder / "yolov8n.yaml").write_text(text.replace(*WIDTH).replace("nc: 80", "nc: 1"))


def strike(given: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Run them all, as many at once as asked for, until the time is over; keep each as soon as it is over."""
    outcomes: list[Outcome] = []
    end_s = _now_s() + given.limit_s
    plans = planned(given, folder)
    running: set[Future[Outcome]] = set()
    with ProcessPoolExecutor(given.at_once) as pool, (given.out / "faults.jsonl").open("a", buffering=1) as kept:
        while True:
            while len(running) < given.at_once and _now_s() < end_s and (plan := next(plans, None)) is not None:
                running.add(pool.submit(play, plan))
            if not running:
                return outcomes
            done, running = wait(running, timeout=5, return_when=FIRST_COMPLETED)
            for future in done:
                outcome = future.result()
                outcomes.append(outcome)
                kept.write(f"{as_line(outcome)}\n")
                _say(outcome, len(outcomes))
            if done:
                write_report(outcomes, given.out)


def _say(outcome: Outcome, count: int) -> None:
    words = "; ".join(outcome.wrong) or "right"
    sys.stdout.write(f"{count:5} {outcome.framework:<12} {outcome.kind:<27} {outcome.wall_s:5.1f} s  {words[:300]}\n")
    sys.stdout.flush()


def write_report(outcomes: list[Outcome], folder: Path) -> None:
    """Write the table whole or not at all."""
    part = folder / "faults.part"
    part.write_text("\n".join(report(outcomes)) + "\n")
    part.rename(folder / "faults.txt")


def report(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the lines of the table: a kind a line, and whatever was not right below it."""
    heads = f"{'s to find, median, worst':>25} {'steps lost, worst':>18}"
    yield f"{'kind':<28} {'group':<17} {'runs':>5} {'right':>5} {heads}"
    for kind in KINDS:
        mine = [outcome for outcome in outcomes if outcome.kind == kind.name]
        if not mine:
            continue
        right = sum(not item.wrong for item in mine)
        found = sorted(item.found_after_s for item in mine if item.found_after_s is not None)
        times = f"{statistics.median(found):17.2f} {found[-1]:7.2f}" if found else f"{'-':>17} {'-':>7}"
        lost = max((item.lost_steps for item in mine if item.lost_steps is not None), default=None)
        yield f"{kind.name:<28} {kind.group:<17} {len(mine):5} {right:5} {times} {'-' if lost is None else lost:>18}"
    for framework in ALL:
        mine = [outcome for outcome in outcomes if outcome.framework == framework]
        yield f"{framework:<28} {'':<17} {len(mine):5} {sum(not item.wrong for item in mine):5}"
    right = sum(not outcome.wrong for outcome in outcomes)
    kinds = len({outcome.kind for outcome in outcomes})
    yield f"\n{right} of {len(outcomes)} runs right, {kinds} kinds; snapshots every {EVERY_S} s"
    resumed = [outcome for outcome in outcomes if outcome.within_strictly is not None]
    strictly = sum(item.within_strictly is True for item in resumed)
    yield f"{strictly} of {len(resumed)} resumes lost no more than an interval and a step, without the time of writing"
    yield from (
        f"    {outcome.number} {outcome.framework} {outcome.kind} at step {outcome.at}: {'; '.join(outcome.wrong)}"
        for outcome in outcomes
        if outcome.wrong
    )


def main() -> None:
    """Strike, or read what was kept, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--train-python")
    what.add_argument("--report", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=int, default=0, help="default: one of each kind with each framework")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(BY_NAME))
    parser.add_argument("--frameworks", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--limit-s", type=float, default=1e9, help="none begins after it")
    parser.add_argument("--stall-s", type=float, default=6.0, help="limit of `stall`; longer where the machine is full")
    parser.add_argument("--gpus", type=int, default=0, help="cards that torch sees, for the faults of a card")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.report is not None:
        outcomes = [from_line(line) for line in (given.report / "faults.jsonl").read_text().splitlines()]
    elif given.out is None:
        parser.error("--out names no folder")
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="thousand-data-") as place:
            prepare(given, Path(place) / "data")
            outcomes = strike(given, Path(place) / "data")
    sys.stdout.write("\n".join(report(outcomes)) + "\n")
    sys.exit(any(outcome.wrong for outcome in outcomes))


def _now_s() -> float:
    return time.monotonic()  # noqa: TID251 - the bench's own limit


if __name__ == "__main__":
    main()
