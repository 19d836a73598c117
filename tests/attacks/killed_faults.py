"""A triage, retries after NaN and out of memory, and the expiry of old rows, over which a daemon is killed.

As all acts of `killed_acts.py`.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from itertools import pairwise

from killed_scene import Scene, decisions, goes_on, lay_out, processes_with

from supervisor.daemon.clock import SystemClock
from tests.e2e.house import House
from tests.rigs.killing_disk import KillingDisk

WOUND_AT, SAVE_EVERY = 30, 25
RETRIED = ["launch", "stop", "retry", "launch"]
EXAMINED = ["launch", "stop", "start_triage", "triage", "retry", "launch"]
DAY_S, BUCKET_S = 86400, 10
OLD_DAYS, OLD_ROWS, OLD_STEPS = 100, 2000, 20
HOUR_S = 3600


def prepare_fault(home: House, disk: KillingDisk, table: str) -> None:
    """Run a training up to the step from which its loss is NaN."""
    pause = f"{WOUND_AT}:{home.folder / 'go'}"
    lay_out(home, disk, home.by_hand("one", "--wound", f"nan:{WOUND_AT}", "--pause", pause, table=table))
    home.start()
    home.until(lambda: home.proven("one") != [], 60, "its save to be proven")
    home.step("one", WOUND_AT - 1)


def begin_fault(home: House) -> None:
    """Let it make that step."""
    (home.folder / "go").touch()


def is_resumed(home: House) -> bool:
    """Whether it has made steps after the retry."""
    return [item["resumed_at"] is not None for item in home.incidents()] == [True]


def look_at_retry(home: House, decided: list[str]) -> None:
    """Assert that all of it was decided once, and that one training goes on from the last good save."""
    incident = home.resumed("one", limit_s=90)
    assert incident["outcome"] == "resumed", incident
    assert incident["resumed_from"]["step"] == SAVE_EVERY, incident["resumed_from"]
    last = len(home.steps_made("one"))
    home.until(lambda: len(home.steps_made("one")) > last + 20, 60, "it to go on")
    assert [kind for kind in decisions(home, "one") if kind not in {"warn", "kill"}] == decided
    job = home.job("one")
    assert (job["phase"], job["attempt"], job["restarts"]) == ("running", 2, 1), job
    made = home.steps_made("one")
    backs = [(before, step) for before, step in pairwise(made) if step != before + 1]
    assert [step for _, step in backs] == [SAVE_EVERY + 1] * (2 if decided == EXAMINED else 1), backs
    folders = (home.state / "jobs" / "one").glob("*[0-9]")
    assert {folder.name for folder in folders if processes_with(str(folder))} == {"2"}


# --- a remedy that changes settings, fails, and helps when it comes again ---------------------------------------------

OUT_OF_MEMORY = f"""
import sys, time
from pathlib import Path
import rocm_agent
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
batch = int(16 * rocm_agent.setting("batch_factor", 1.0))
with open(folder / "batches", "a") as starts:
    starts.write("%d\\n" % batch)
with open(folder / "steps.log", "a") as made:
    for step in range(1, 100_001):
        while step == {WOUND_AT} and not (folder / "go").exists():
            time.sleep(0.01)
        if step == {WOUND_AT} and batch > 4:
            raise RuntimeError("HIP out of memory. Tried to allocate %d MiB. GPU 0 has 6 GiB" % (200 * batch))
        time.sleep(0.02)
        rocm_agent.step(loss=1 / step, step=step)
        made.write("%d\\n" % step)
        made.flush()
"""
"""A training that takes a batch which the supervisor sets, and runs out of memory with one that is too large."""
REMEDIED = ["launch", "retry", "launch", "retry", "launch"]


def prepare_remedy(home: House, disk: KillingDisk) -> None:
    """Run it up to the step at which it runs out of memory."""
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(home.folder / "one")]
    tables = "[jobs.one.budget]\nbackoff_s = [0.0]\n[jobs.one.remedies]\nhelped_after_steps = 20\n"
    lay_out(home, disk, home.job_of("one", command, "checkpoints.keep = false") + tables)
    home.start()
    home.step("one", WOUND_AT - 1)


def begin_out_of_memory(home: House) -> None:
    """Let it make that step."""
    (home.folder / "one" / "go").touch()


def has_helped(home: House) -> bool:
    """Whether the second remedy is known to have helped."""
    tried = home.client.get("/v1/remedies")["tried"]
    return [item["outcome"] for item in tried] == ["helped", "failed"]


def look_at_remedy(home: House, _: KillingDisk) -> None:
    """Assert that each remedy was chosen, judged and counted once, and that the training holds what both set."""
    home.until(lambda: has_helped(home), 90, "the second remedy to help")
    report = home.client.get("/v1/remedies")
    assert {(item["remedy"], item["helped"], item["failed"]) for item in report["learned"]} == {("half_batch", 1, 1)}
    assert [item["attempt"] for item in report["in_force"]] == [2, 3], report
    assert {item["applied"] for item in report["in_force"]} == {"batch_factor 0.25, by the script"}, report
    assert (home.folder / "one" / "batches").read_text().split() == ["16", "8", "4"]
    assert [kind for kind in decisions(home, "one") if kind not in {"warn", "kill"}] == REMEDIED
    assert (home.job("one")["attempt"], home.job("one")["restarts"], len(home.incidents())) == (3, 2, 2)
    made = home.steps_made("one")
    home.until(lambda: home.steps_recorded("one") >= len(made), 60, f"{len(made)} steps to be recorded")


# --- rows that are older than they are kept ---------------------------------------------------------------------------


def prepare_expiry(home: House, disk: KillingDisk) -> None:
    """Leave a record with steps that are to be kept as those of an hour alone, and an attempt that runs."""
    lay_out(home, disk, home.by_hand("one", table="checkpoints.keep = false"))
    home.start()
    home.step("one", 30)
    home.kill()
    begin_s = int(SystemClock().now().unix_s - OLD_DAYS * DAY_S) // HOUR_S * HOUR_S
    times = [begin_s + BUCKET_S * number for number in range(OLD_ROWS)]
    columns = "job, attempt, rank, bucket_unix_s, steps, step_first, step_last, first_unix_s, last_unix_s, loss_known"
    with closing(sqlite3.connect(disk.real / "state" / "supervisor.db")) as record, record:
        record.executemany(
            f"INSERT INTO step_metrics ({columns}, data_wait_known, non_finite) "
            f"VALUES ('one', 0, 0, ?, {OLD_STEPS}, 1, {OLD_STEPS}, ?, ?, 0, 0, 0)",
            [(bucket_s, bucket_s, bucket_s + BUCKET_S - 1) for bucket_s in times],
        )


def begin(home: House) -> None:
    """Start the daemon."""
    home.start(wait=False)


def is_expired(home: House) -> bool:
    """Whether none of them is left."""
    return home.status() is not None and count_old(home) == 0


def count_old(home: House) -> int:
    """Return how many of those rows the record has."""
    return int(home.query("SELECT count(*) FROM step_metrics WHERE attempt = 0")[0][0])


def look_at_expiry(home: House, _: KillingDisk) -> None:
    """Assert that each is in the sums of its hour once, and that nothing newer was touched."""
    home.until(lambda: is_expired(home), 120, "the old rows to be removed")
    kept = home.query("SELECT sum(steps) FROM step_tiers WHERE attempt = 0 AND width_s = ?", HOUR_S)
    assert kept == [(OLD_ROWS * OLD_STEPS,)], kept
    goes_on(home, "one")
    assert home.job("one")["attempt"] == 1
    assert home.incidents() == []
    assert home.query("PRAGMA integrity_check") == [("ok",)]


FAULTS = {
    "retry": Scene(
        prepare=lambda home, disk: prepare_fault(home, disk, ""),
        act=begin_fault,
        is_over=is_resumed,
        look=lambda home, _: look_at_retry(home, RETRIED),
    ),
    "triage": Scene(
        prepare=lambda home, disk: prepare_fault(home, disk, 'triage = "auto"'),
        act=begin_fault,
        is_over=is_resumed,
        look=lambda home, _: look_at_retry(home, EXAMINED),
    ),
    "remedy": Scene(prepare=prepare_remedy, act=begin_out_of_memory, is_over=has_helped, look=look_at_remedy),
    "expiry": Scene(prepare=prepare_expiry, act=begin, is_over=is_expired, look=look_at_expiry),
}
