"""The daemon dies at every step of a recovery, one after the other, and the recovery is made once all the same."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from house import House

from tests.rigs.forked_daemon import start_daemon

MORTAL = Path(__file__).with_name("mortal_daemon.py")
SINK = '[alerts.nobody]\nurl = "http://127.0.0.1:9/hook"\nallow_private = true\nmin_severity = "info"\n'
LIVES = 60
"""More than there are points to die at."""
SETTLED_LOOKS = 20
"""Each 0.05 s: the last daemon may still die at what it does about the end that it reports."""


def training(home: House) -> str:
    """Return a job that hangs once, deaf to SIGTERM, so that every kind of decision is made about it."""
    table = "save_s = 0.5\ngrace_s = 5\nkill_wait_s = 60"
    return home.by_hand("one", "--wound", "deaf:60", "--steps", "160", table=table, stall="limit_s = 2") + SINK


def examined(home: House) -> str:
    """Return a job whose losses cease to be numbers once, and that is to find out why before it is retried."""
    words = ("--wound", "nan:60", "--steps", "160")
    return home.by_hand("one", *words, table='triage = "auto"') + SINK


def lives(home: House, limit_s: float, last: str = "") -> int:
    """Start one daemon after the other until the job has finished; return how many there were.

    `last` is the point to die at once it has: a job that is seen to have finished before is not the end.
    """
    home.lay_code()
    end, points = time.monotonic() + limit_s, home.folder / "points"  # noqa: TID251 - a test's deadline
    for life in range(1, LIVES):
        may_be_last = not last or (points.exists() and last in points.read_text().splitlines())
        with home.log.open("ab") as log:
            arguments, looks = [str(points), "--config", str(home.config)], 0
            home.daemon = start_daemon(arguments, log.fileno(), MORTAL.stem, MORTAL.parent)
        while home.daemon.poll() is None:
            status = home.status()
            finished = status is not None and status["jobs"][0]["phase"] == "finished" == home.recorded_phase("one")
            looks = looks + 1 if finished and may_be_last else 0
            if looks == SETTLED_LOOKS:
                return life
            assert time.monotonic() < end, home.read_output()  # noqa: TID251 - a test's deadline
            time.sleep(0.05)
        assert home.daemon.returncode == -9, home.read_output()
    raise AssertionError(f"{LIVES} lives were not enough: {points.read_text()}")


def kinds(home: House, question: str) -> dict[str, int]:
    return Counter(kind for (kind,) in home.query(question))


def made_once(home: House) -> None:
    """Assert that one training ran at a time, from the right step on, and that all was decided and told once."""
    assert home.steps_made("one") == [*range(1, 60), *range(51, 161)], "one training at a time, and none too many"
    assert kinds(home, "SELECT kind FROM decisions") == {
        "launch": 2, "stop": 1, "kill": 1, "retry": 1, "finish": 1
    }  # fmt: skip
    assert kinds(home, "SELECT type FROM alerts") == {
        "incident.opened": 1, "incident.resumed": 1, "job.finished": 1
    }  # fmt: skip
    incident = home.incident("one")
    assert (incident["rule"], incident["outcome"], incident["lost_steps"]) == ("stall", "resumed", 9)
    assert incident["remedy"] == "restart"
    assert home.query("SELECT attempt, cause, remedy, outcome FROM remedies") == [(2, "stall", "restart", "helped")]
    home.nothing_runs()


def test_a_daemon_killed_at_every_step_of_a_recovery_makes_it_once(home: House) -> None:
    home.write(training(home))
    count = lives(home, 600, "after recording Finish")
    points = (home.folder / "points").read_text().splitlines()
    assert count == len(points) + 1
    recorded = ("Stop", "Kill", "Exited", "Retry", "ResumePointFound", "Launch", "Launched", "Finish")
    done = ("act Stop", "act Kill", "act Launch", "launch", "signal", "search")
    must = [*done, *(f"recording {item}" for item in recorded)]
    assert {f"{side} {item}" for side in ("before", "after") for item in must} <= set(points)
    made_once(home)


OF_A_TRIAGE = (
    *(f"{side} recording {what}" for what in ("StartTriage", "Triage", "TriageEnded") for side in ("before", "after")),
    *(f"{side} {what}" for what in ("act Triage", "launch of a replay") for side in ("before", "after")),
)


def replayed_once(home: House) -> None:
    """Assert that one replay was made, then one training, and that all was decided and told once."""
    made = home.steps_made("one")
    assert made[made.index(51, 51) :] == [*range(51, 61), *range(51, 161)], "one after the other, and none too many"
    assert kinds(home, "SELECT kind FROM decisions WHERE kind != 'warn'") == {
        "launch": 2, "stop": 1, "start_triage": 1, "triage": 1, "retry": 1, "finish": 1
    }  # fmt: skip
    reported = kinds(home, "SELECT type FROM alerts")
    assert (reported["incident.opened"], reported["incident.triaged"], reported["incident.resumed"]) == (1, 1, 1)
    incident = home.incident("one")
    assert (incident["finding"]["verdict"], incident["remedy"], incident["outcome"]) == (
        "hardware", "restart", "resumed"
    )  # fmt: skip
    home.nothing_runs()


def test_a_daemon_killed_in_the_midst_of_a_triage_makes_it_once(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the points that differ in what the next daemon finds; tests/bench/recovery_sweep.py has them all."""
    points = {"after recording Triage", "after launch of a replay", "before recording TriageEnded"}
    home.write(examined(home))
    monkeypatch.setenv("DIE_AT", "\n".join(points))
    assert points <= set(OF_A_TRIAGE)
    count = lives(home, 600)
    assert set((home.folder / "points").read_text().splitlines()) == points
    assert count == len(points) + 1
    replayed_once(home)
