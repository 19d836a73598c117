"""Fails the changes that a job's life asks of its disk, each by itself, and looks whether anything is lost by it.

    python tests/attacks/failing_writes.py [--error EIO] [--times 1] [--each 3] [--jobs 2] [--together 8]
        [--only KIND#NUMBER ...]

The whole state lies on a file system of ours (`tests/rigs/failing_disk.py`) that counts what is asked of it: files and
folders made, written, synced, cut off, renamed, linked and removed. A life is a job that is killed by itself, resumed
and finished, beside another that is not hurt, and then a new daemon. First one is played without a failure; its changes
are of some hundred kinds ("rename state/jobs/one/N/code.tmp"). For each kind, and each of its occurrences or `--each`
of them, drawn by chance, a life is played in which this one fails, with `--times` so many of that kind from there on.
With `--together` so many of them, drawn by chance, share a life; where that breaks, or one of them is not reached for
another, each is played by itself. What must hold in each life is in `look`.
"""

from __future__ import annotations

import argparse
import errno
import random
import signal
import sqlite3
import struct
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]


from supervisor.runner.code_copy import FOLDER, CodeCopies  # noqa: E402
from tests.e2e.house import House, house  # noqa: E402
from tests.rigs.failing_disk import FailingDisk, failing, kind_of  # noqa: E402
from tests.rigs.laid_code import lay_code  # noqa: E402

ERRORS = ("ENOSPC", "EIO", "EROFS")
SAVE_EVERY, KILLED_AT, STEPS = 25, 55, 75
LIFE_S = 900.0
"""For a life that never ends: beside other work it takes minutes, each call to its disk being one of this process."""
UNAVAILABLE = 69
FINAL = frozenset({"finished", "failed", "stopped"})
OF_EACH_LIFE = frozenset({"decision.retry"})
"""Warnings in the log that come without a failure too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Which changes of a life fail: `times` of a kind, from its occurrence `number` on."""

    error: str
    kind: str
    number: int
    times: int = 1

    def __str__(self) -> str:
        """Return it as `--only` takes it."""
        return f"{self.error} {self.kind}#{self.number}"


def write_config(home: House, disk: FailingDisk) -> None:
    """Lay the state on that disk; the trainings' own folders and the socket lie elsewhere."""
    home.state = disk.at / "state"
    home.client.path = str(home.folder / "control.sock")
    words = ["--steps", str(STEPS), "--every-s", "0.01", "--save-every", str(SAVE_EVERY)]
    home.write(
        home.by_hand("one", "--wound", f"kill:{KILLED_AT}", *words)
        + home.by_hand("beside", *words, table="checkpoints.keep = false"),
        head=f'socket = "{home.client.path}"',
    )


def live(home: House, disk: FailingDisk, failures: Sequence[Failure]) -> str:
    """Play a life and assert what must hold; return what was warned of."""
    write_config(home, disk)
    for failure in failures:
        disk.fails_at(failure.kind, failure.number, getattr(errno, failure.error), times=failure.times)
    start(home, 1 + sum(failure.times for failure in failures))
    home.until(lambda: all(home.job(name)["phase"] in FINAL for name in ("one", "beside")), LIFE_S, "both to be over")
    before = {name: home.job(name) for name in ("one", "beside")}
    disk.heal()
    assert home.stop() == 0, "the daemon did not end in order"
    start(home, 1)
    look(home, before)
    assert home.stop() == 0, "the second daemon did not end in order"
    look_at_record(home, disk.real / "state" / "supervisor.db")
    return ", ".join(sorted(warned(home) - OF_EACH_LIFE))


def start(home: House, times: int) -> None:
    """Start the daemon as systemd does, at most so many times: one that cannot begin says why and ends."""
    for _ in range(times):
        daemon = home.start(wait=False)
        home.until(lambda d=daemon: d.poll() is not None or home.status() is not None, LIFE_S, "a daemon", daemon=False)  # type: ignore[misc]
        if daemon.poll() is None:
            return
        assert daemon.returncode == UNAVAILABLE, f"it ended with {daemon.returncode} when it began"
    raise AssertionError(f"the daemon did not begin\n{home.read_output()}")


def warned(home: House) -> set[str]:
    """Return the names of what was logged as a warning or an error."""
    lines = (line.split(" ") for line in home.log.read_text().splitlines())
    return {words[3] for words in lines if len(words) > 3 and words[2] in ("warning", "error", "critical")}


def look_at_record(home: House, record: Path) -> None:
    """Assert that the record is intact and holds every step; `record` is what lies behind the disk.

    This process serves the disk: it must not map a file of it, as SQLite would.
    """
    with closing(sqlite3.connect(record, timeout=60)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        steps = dict(database.execute("SELECT job, SUM(steps) FROM step_metrics GROUP BY job").fetchall())
    assert steps == {name: len(home.steps_made(name)) for name in ("one", "beside")}, f"{steps} steps recorded"


def look(home: House, before: dict[str, Any]) -> None:
    """Assert, of a daemon that began after all failures, that the failure cost the jobs nothing and is over."""
    for name, job in before.items():
        now = home.job(name)
        assert job["phase"] == "finished", f"{name}: {job['phase']}, {job['reason']}"
        assert [now[key] for key in ("phase", "attempt")] == [job[key] for key in ("phase", "attempt")], (now, job)
        assert now["restarts"] == (name == "one"), f"{name}: {now['restarts']} restarts"
    steps_followed(home)
    generations_kept(home)
    home.until(lambda: (home.status() or {})["daemon"]["problem"] is None, 20, "no problem on a healed disk")
    crashed = [incident["job"] for incident in home.incidents() if incident["rule"] == "crash"]
    assert crashed == ["one"], home.incidents()


def steps_followed(home: House) -> None:
    """Assert that the job that was killed went back to its newest save and no other made a step twice."""
    assert home.steps_made("beside") == list(range(1, STEPS + 1)), home.steps_made("beside")
    made = home.steps_made("one")
    backs = [(last, step) for last, step in pairwise(made) if step != last + 1]
    assert backs == [(KILLED_AT - 1, KILLED_AT // SAVE_EVERY * SAVE_EVERY + 1)], f"steps went back: {backs}"
    assert (made[0], made[-1]) == (1, STEPS)


def generations_kept(home: House) -> None:
    """Assert that nothing was rejected, and that each generation that was proven is there and holds its step."""
    listed = home.client.get("/v1/jobs/one/checkpoints")["checkpoints"]
    assert not [item for item in listed if item["verdict"] == "rejected"], listed
    for item in listed:
        if item["source"] is not None and item["verdict"] == "proven":
            assert struct.unpack("<f", Path(item["path"]).read_bytes()[-4:])[0] == item["step"], item


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one life."""

    changes: tuple[str, ...]
    failed: tuple[str, ...]
    """The changes that failed."""
    warnings: str
    broken: str | None
    """What did not hold."""


def play(failures: Sequence[Failure], code: Path) -> Outcome:
    """Play one life in a fresh installation, whose trainings' code lies in `code` already."""
    with tempfile.TemporaryDirectory(prefix="failing-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "house").mkdir()
        with failing(folder / "disk", folder / "behind") as disk, house(folder / "house") as home:
            home.shares_imports = True
            lay_code(code, disk.real / "state")
            try:
                warnings, broken = live(home, disk, failures), None
            except Exception as error:  # noqa: BLE001 - whatever did not hold is the finding
                warnings, broken = "", f"{type(error).__name__}: {error}\n{home.read_output()}"
            disk.heal()
    return Outcome(changes=tuple(disk.changes), failed=tuple(disk.failed_changes), warnings=warnings, broken=broken)


def draw_failures(changes: Sequence[str], error: str, *, times: int, each: int | None, seed: int) -> list[Failure]:
    """Return a failure for each of these changes, or for `each` of a kind."""
    chance = random.Random(seed)
    found = []
    for kind, count in sorted(Counter(map(kind_of, changes)).items()):
        numbers = range(1, count + 1)
        drawn = numbers if each is None or each >= count else sorted(chance.sample(numbers, each))
        found += [Failure(error=error, kind=kind, number=number, times=times) for number in drawn]
    return found


def play_all(asked: Iterator[Sequence[Failure]], code: Path) -> Counter[str]:
    """Play a life for each group, one after another; print what became of each failure and return how many of what."""
    counted: Counter[str] = Counter()
    for group in asked:
        counted += play_group(group, code)
    return counted


def play_group(group: Sequence[Failure], code: Path) -> Counter[str]:
    """Play a life in which all of these fail, and then what that one did not settle each by itself."""
    outcome = play(group, code)
    if outcome.broken is not None and len(group) > 1:
        say(f"broken together: {'; '.join(map(str, group))} {outcome.broken}")
        return sum((play_group([failure], code) for failure in group), Counter[str]())
    reached = [failure for failure in group if failure.kind in map(kind_of, outcome.failed)]
    missed = [failure for failure in group if failure not in reached]
    if missed and (len(group) > 1 or missed[0].number > 1):
        # No two lives have equally many changes of a kind: an occurrence that one lacks is looked for earlier.
        again = missed if len(group) > 1 else [replace(missed[0], number=missed[0].number // 2)]
        counted = sum((play_group([failure], code) for failure in again), Counter[str]())
    else:
        counted = Counter({"not reached": len(missed)})
        say(*(f"not reached {failure} {outcome.broken or ''}" for failure in missed))
    what = "BROKEN" if outcome.broken is not None else "held"
    say(*(f"{what} {failure} {outcome.broken or outcome.warnings}" for failure in reached))
    return counted + Counter({what: len(reached)})


def say(*lines: str) -> None:
    """Print what became of failures."""
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def main() -> int:
    """Count the changes of a life without a failure, and fail each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--error", choices=ERRORS, default="ENOSPC")
    parser.add_argument("--times", type=int, default=1, help="how many of a kind fail, one after another")
    parser.add_argument("--each", type=int, help="how many occurrences of a kind are drawn; without, each comes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="1/1", metavar="K/N", help="each N-th of these, from the K-th on")
    parser.add_argument("--only", nargs="+", metavar="KIND#NUMBER", help="these alone")
    parser.add_argument("--jobs", type=int, default=2, help="lives at a time")
    parser.add_argument("--together", type=int, default=1, help="how many of the failures drawn share a life")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started is ended even then
    with tempfile.TemporaryDirectory(prefix="failing-code-") as folder:
        CodeCopies(Path(folder), same_user=True).current()
        code = Path(folder) / FOLDER
        if given.only is not None:
            words = (text.rpartition("#") for text in given.only)
            asked = [
                Failure(error=given.error, kind=kind, number=int(number), times=given.times)
                for kind, _, number in words
            ]
        else:
            undisturbed = play((), code)
            if undisturbed.broken is not None:
                sys.stdout.write(f"BROKEN without a failure: {undisturbed.broken}\n")
                return 1
            asked = draw_failures(undisturbed.changes, given.error, times=given.times, each=given.each, seed=given.seed)
            sys.stdout.write(f"{len(undisturbed.changes)} changes, {len(asked)} lives\n")
        random.Random(given.seed).shuffle(asked)
        part, parts = map(int, given.part.split("/"))
        asked = asked[part - 1 :: parts]
        groups = [asked[begin : begin + given.together] for begin in range(0, len(asked), given.together)]
        counted = play_at_once(groups, code, given.jobs)
    sys.stdout.write(f"{given.error}: {dict(counted)}\n")
    return 1 if counted["BROKEN"] else 0


def play_at_once(asked: Sequence[Sequence[Failure]], code: Path, jobs: int) -> Counter[str]:
    """Play lives, so many at a time."""
    shared = iter(asked)
    taking, ended = threading.Lock(), threading.Event()

    def shares() -> Iterator[Sequence[Failure]]:
        while not ended.is_set():
            with taking:
                group = next(shared, None)
            if group is None:
                return
            yield group

    with ThreadPoolExecutor(jobs) as workers:
        try:
            return sum(workers.map(lambda _: play_all(shares(), code), range(jobs)), Counter[str]())
        finally:
            ended.set()  # after SIGTERM the lives that are under way are played to their ends


if __name__ == "__main__":
    sys.exit(main())
