"""The database is deleted under living and ended trainings: numbers, adoption and history survive."""

from __future__ import annotations

import os
import signal

from house import House


def lose_the_record(home: House) -> None:
    for path in home.state.glob("supervisor.db*"):
        path.unlink()


def test_a_living_training_is_adopted_after_the_record_was_lost(home: House) -> None:
    home.write(home.by_hand("one"))
    home.start()
    pid = home.step("one", 30)["pid"]
    home.kill()
    lose_the_record(home)
    home.start()
    job = home.step("one", home.steps_made("one")[-1] + 20)
    assert (job["phase"], job["attempt"], job["pid"]) == ("running", 1, pid)
    assert "the record was lost: attempt 1 taken from the folders, attempt 1 still ran" in job["reason"]
    assert "the record was lost" in home.ctl("status").stdout
    os.kill(pid, signal.SIGKILL)
    last = home.step("one", 60, attempt=2)
    assert last["attempt"] == 2
    assert home.incident("one")["resumed_from"]["step"] >= 25
    assert [kind for (kind,) in home.query("SELECT kind FROM decisions ORDER BY id")] == ["retry", "launch"]


def test_attempts_that_had_ended_are_in_the_history_and_the_next_has_a_new_number(home: House) -> None:
    home.write(home.by_hand("one", "--wound", "kill:40"))
    home.start()
    pid = home.step("one", 60, attempt=2)["pid"]
    home.kill()
    os.kill(pid, signal.SIGKILL)
    home.until((home.state / "jobs/one/2/run/exit.json").exists, 20, "the shim's word", daemon=False)
    lose_the_record(home)
    home.start()
    job = home.step("one", 90, attempt=3)
    assert job["attempt"] == 3
    rows = home.query(
        "SELECT number, exit_signal, ended_unix_s IS NOT NULL FROM attempts WHERE number < 3 ORDER BY number"
    )
    assert rows == [(1, 9, 1), (2, 9, 1)]
    made = home.steps_made("one")
    assert made[-1] >= 90
    assert made.count(1) == 1, "it was not begun anew"


def test_a_training_that_had_finished_is_not_made_again(home: House) -> None:
    home.write(home.by_hand("one", "--steps", "40"))
    home.start()
    home.phase("one", "finished")
    home.kill()
    lose_the_record(home)
    home.start()
    assert home.phase("one", "finished")["attempt"] == 1
    assert home.steps_made("one") == list(range(1, 41))
