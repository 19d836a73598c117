"""What one training writes, however mad, ends neither the daemon nor the supervision of the training beside it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from house import House

from supervisor.core import attempt_files as fo

SILLY = "7" * 400


def two_jobs(home: House) -> None:
    home.write(home.by_hand("ill") + home.by_hand("well"))
    home.start()
    for name in ("ill", "well"):
        home.step(name, 5)


def folder(home: House, job: str = "ill", attempt: int = 1) -> Path:
    return home.state / "jobs" / job / str(attempt)


def say(home: House, event: str, facts: str) -> None:
    """Have the training's agent say something, with numbers that no agent would say."""
    line = f'{{"event": "{event}", "pid": 1, "rank": 0, "monotonic_ns": 1, "unix_s": 1.5, {facts}}}\n'
    with (folder(home) / fo.AGENT).open("a") as log:
        log.write(line)


def goes_on(home: House, job: str = "well", steps: int = 30) -> None:
    """Wait until the daemon knows of so many more steps of a job, all of them in its first attempt."""
    before = home.job(job)
    assert before["attempt"] == 1
    assert home.step(job, (before["step"] or 0) + steps)["attempt"] == 1


PLAN = '"framework": "own", "epochs": {epochs}, "batches_per_epoch": {batches}'
WORDS = {
    "allocated_bytes": [("allocator", f'"reserved_bytes": {SILLY}, "allocated_bytes": {SILLY}, "total_bytes": 1')],
    "epochs": [("plan", PLAN.format(epochs=SILLY, batches=100))],
    "batches_per_epoch": [("plan", PLAN.format(epochs=3, batches=100)), ("plan", PLAN.format(epochs=3, batches=SILLY))],
}


@pytest.mark.parametrize("word", WORDS)
def test_a_number_of_400_digits_in_the_agents_words_stops_nobody(home: House, word: str) -> None:
    two_jobs(home)
    for event, facts in WORDS[word]:
        say(home, event, facts)
    goes_on(home)
    goes_on(home, "ill")
    home.kill()
    home.start()
    goes_on(home)
    goes_on(home, "ill")
    assert home.ctl("doctor").returncode in (0, 1, 3)
    assert "Traceback" not in home.ctl("status").stderr


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("name", ["exit.json", "shim.json"])
def test_a_number_of_400_digits_in_the_shims_notes_stops_nobody(home: House, name: str, restarted: bool) -> None:
    two_jobs(home)
    note = json.loads((folder(home) / fo.SHIM).read_text())
    if restarted:
        home.kill()
    os.kill(note["pid"], signal.SIGSTOP)  # the training gets hold of its shim, and then of what it would write
    numbers = ("version", "exit_code", "signal", "max_rss_bytes", "user_s", "started_unix_s", "ended_monotonic_ns")
    forged = {**note, **dict.fromkeys((*note, *numbers) if name == "shim.json" else numbers, 0)}
    text = json.dumps(forged | {"version": 1}).replace(": 0", f": {SILLY}")
    (folder(home) / fo.RUN / name).unlink(missing_ok=True)
    (folder(home) / fo.RUN / name).write_text(text)
    os.kill(note["pid"], signal.SIGKILL)
    if restarted:
        home.start()
    home.until(lambda: home.job("ill")["attempt"] == 2, 30, "the end of the ill training to be seen")
    goes_on(home)
    home.kill()
    home.start()
    goes_on(home)
