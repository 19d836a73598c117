"""Restarts one job again and again and measures what the daemon keeps of it: nothing may grow with their number.

python tests/bench/restarts.py --restarts 10000 --limit-s 3600      # the figure; some restarts a second
python tests/bench/restarts.py --restarts 300                       # two minutes

A real daemon, real shims, real processes: a command that ends at once with a status that is always retried, without a
wait. Descriptors, threads and memory of the daemon are read each second; the medians of the last tenth of the restarts
are compared with those of the first. The first restarts warm caches up and are left out.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e")]

from house import House  # noqa: E402 (after the path is set)

from supervisor.daemon.cleanup import ATTEMPTS_KEPT, RECORDERS_KEPT  # noqa: E402

JOB = "storm"
RECORDER_MB = 8.4
FLAT = 1.05
WARM_UP = 50
LOOK_S = 1.0
REPORT_EVERY_S = 60.0
DATABASE_LIMIT_MB = 1024


@dataclass(frozen=True)
class Look:
    """The daemon once."""

    restarts: int
    descriptors: int
    threads: int
    memory_mb: float


def main() -> int:
    """Print what was measured; end with 1 where something grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--restarts", type=int, default=1000)
    parser.add_argument("--limit-s", type=float, default=500.0, help="give up after so many seconds")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, stormy(Path(place)) as house:
        looks, took_s = watch(house, asked.restarts, asked.limit_s)
        house.stop()
        return report(looks, took_s, house)


@contextmanager
def stormy(folder: Path) -> Iterator[House]:
    """Run a daemon with the job."""
    house = House(folder)
    command = json.dumps(["/bin/sh", "-c", "exit 7"])
    budget = "backoff_s = [0.0]\nalways_retry_exit_codes = [7]\nrestarts = 1000000\nrestarts_per_period = 1000000\n"
    house.write(f"[jobs.{JOB}]\ncommand = {command}\n[jobs.{JOB}.budget]\n{budget}")
    try:
        house.start()
        yield house
    finally:
        house.leave()


def watch(house: House, restarts: int, limit_s: float) -> tuple[list[Look], float]:
    """Read the daemon each second until there were so many restarts, or the time is up; print each minute's."""
    looks: list[Look] = []
    began = reported = time.perf_counter()
    while (took_s := time.perf_counter() - began) < limit_s:
        looks.append(look(house))
        if time.perf_counter() - reported >= REPORT_EVERY_S:
            reported = time.perf_counter()
            print(f"  {took_s:.0f} s: {looks[-1]}", flush=True)
        if looks[-1].restarts >= restarts:
            break
        time.sleep(LOOK_S)
    return looks, took_s


def look(house: House) -> Look:
    """Read the daemon once."""
    assert house.daemon is not None
    if house.daemon.poll() is not None:
        raise SystemExit(f"the daemon ended with status {house.daemon.returncode}:\n{house.read_output()[-3000:]}")
    place = Path(f"/proc/{house.daemon.pid}")
    facts = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line)
    return Look(
        restarts=attempts(house),
        descriptors=len(list((place / "fd").iterdir())),
        threads=int(facts["Threads"]),
        memory_mb=int(facts["VmRSS"].split()[0]) / 1024,
    )


def attempts(house: House) -> int:
    """Return the number of the newest attempt."""
    names = (
        (item.name for item in os.scandir(folder_of(house)) if item.name.isdigit()) if folder_of(house).exists() else ()
    )
    return max(map(int, names), default=0)


def folder_of(house: House) -> Path:
    """Return the job's folder."""
    return house.state / "jobs" / JOB


def report(looks: list[Look], took_s: float, house: House) -> int:
    """Print the medians of the first and the last tenth, and what lies on the disk; return 1 where it is too much."""
    warm = [item for item in looks if item.restarts >= WARM_UP]
    count = looks[-1].restarts
    print(f"{count} restarts in {took_s:.0f} s ({count / took_s:.1f} a second), {len(warm)} looks after {WARM_UP}")
    if len(warm) < 20:
        print("too few looks to compare")
        return 1
    tenth = max(1, len(warm) // 10)
    wrong = 0
    for name in ("descriptors", "threads", "memory_mb"):
        first, last = ([float(getattr(item, name)) for item in part] for part in (warm[:tenth], warm[-tenth:]))
        before, after = statistics.median(first), statistics.median(last)
        grown = after / before
        wrong += grown > FLAT
        print(f"{name:<12} first tenth {before:8.1f}  last tenth {after:8.1f}  x {grown:.3f}  (limit x {FLAT})")
    return 1 if wrong + disk(house, count) else 0


def disk(house: House, count: int) -> int:
    """Print what the record and the attempts' folders take; return how much of it is beyond its limit."""
    record_mb = sum(path.stat().st_size for path in house.state.glob("supervisor.db*")) / 1e6
    folders = [path for path in folder_of(house).iterdir() if path.name.isdigit()]
    recorders = [path for folder in folders for path in (folder / "run").glob("recorder*.bin")]
    taken_mb = sum(path.lstat().st_blocks * 512 for path in folder_of(house).rglob("*")) / 1e6
    limit_mb = RECORDERS_KEPT * RECORDER_MB + ATTEMPTS_KEPT * 0.1
    print(
        f"record       {record_mb:8.1f} MB, {record_mb / count * 1000:.1f} kB a restart (limit {DATABASE_LIMIT_MB} MB)"
    )
    print(
        f"folders      {len(folders):8d} (limit {ATTEMPTS_KEPT}), {len(recorders)} recorders (limit {RECORDERS_KEPT})"
    )
    print(f"job's disk   {taken_mb:8.1f} MB (limit {limit_mb:.0f} MB)")
    beyond = (record_mb > DATABASE_LIMIT_MB, len(folders) > ATTEMPTS_KEPT, len(recorders) > RECORDERS_KEPT)
    return sum(beyond) + (taken_mb > limit_mb)


if __name__ == "__main__":
    sys.exit(main())
