"""What was tried is kept with its outcome, and what this machine learned of it is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from record_by_hand import START, open_store, trial

from supervisor.core.remedies.context import Experience
from supervisor.core.remedies.trials import Outcome
from supervisor.store.archive import Archive


def test_a_trial_is_written_again_when_it_is_settled_and_counts_for_every_job(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    opened = replace(trial(), outcome=Outcome.OPEN, settled_at=None)
    with store.turn(START):
        store.save_trial("night", opened)
        store.save_trial("day", replace(opened, attempt=7))
    assert store.experience() == ()
    with store.turn(START):
        store.save_trial("night", replace(opened, outcome=Outcome.HELPED, settled_at=START))
        store.save_trial("day", replace(opened, attempt=7, outcome=Outcome.FAILED, settled_at=START))
        store.save_trial("day", replace(opened, attempt=8, outcome=Outcome.UNCLEAR, settled_at=START))
    learned = (Experience(cause="gpu_hang", remedy="restart", helped=1, failed=1),)
    assert store.experience() == learned
    store.close(START)
    again = open_store(tmp_path)
    assert again.experience() == learned
    again.close(START)
    archive = Archive(tmp_path / "supervisor.db")
    assert archive.experience() == learned
    assert [(remedy.attempt, remedy.outcome) for remedy in archive.remedies("day")] == [(7, "failed"), (8, "unclear")]
    assert [remedy.job for remedy in archive.remedies(limit=1)] != []


def test_a_turn_that_fails_teaches_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    try:
        with store.turn(START):
            store.save_trial("night", trial())
            raise RuntimeError("half way")
    except RuntimeError:
        pass
    assert store.experience() == ()
    store.close(START)
