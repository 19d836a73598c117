"""After which step a file was saved: by the agent's word, by its time, or unknown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.job import Attempt, Job
from supervisor.core.moments import Moment
from supervisor.core.scale import Scale
from supervisor.daemon.checkpoints.save_steps import SaveSteps
from supervisor.sources.attempt.agent_log import parse

NOW = Moment(1000.0, 1_700_000_000.0)
BOOT = "this boot"
CAPACITY = 64


class Known:
    """A job's first attempt, which made a step a second for as many seconds."""

    def __init__(self, state: Path, made: int = 100) -> None:
        attempt = Attempt(number=1, launched_at=NOW, scale=Scale.TRAINING, first_step=1, last_step=made)
        self.job = Job(name="one", since=NOW, attempt=attempt)
        self.folder = state / "jobs" / "one" / "1"
        (self.folder / fo.RUN).mkdir(parents=True)
        note = {"pid": 1, "start_ticks": 1, "boot_id": BOOT}
        (self.folder / fo.SHIM).write_text(json.dumps(note))
        ring = bytearray(fo.IDENTITY.pack(fo.MAGIC, fo.HEADER_BYTES, fo.RECORD.size, CAPACITY, 0).ljust(4096, b"\0"))
        ring += bytes(CAPACITY * fo.RECORD.size)
        fo.HEAD.pack_into(ring, fo.HEAD_OFFSET, made)
        for number in range(made):
            at_ns = int((NOW.monotonic_s + number + 1) * 1e9)
            check = (number + 1) ^ fo.CHECK_XOR
            fields = (number + 1, number + 1, at_ns, 0, 0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, check)
            fo.RECORD.pack_into(ring, fo.HEADER_BYTES + number % CAPACITY * fo.RECORD.size, *fields)
        (self.folder / fo.RECORDER).write_bytes(ring)
        self.steps = SaveSteps(self, state, lambda _: self.job, BOOT)

    def now(self) -> Moment:
        """The present moment of the test."""
        return NOW.plus(200)

    def saved_after(self, seconds: float) -> Fingerprint:
        return Fingerprint(size_bytes=5, modified_ns=round(NOW.plus(seconds).unix_s * 1e9), inode=1)

    def says(self, saved: Fingerprint, step: object, **further: object) -> None:
        """Through the reader of agent.jsonl, which bounds every number."""
        seconds, rest_ns = divmod(saved.modified_ns, 10**9)
        output: dict[str, object] = {"event": "file_saved", "monotonic_ns": 1, "size_bytes": saved.size_bytes}
        output.update(modified_s=seconds, modified_ns=rest_ns, step=step, **further)
        fact = parse(json.dumps(output).encode(), NOW)
        assert fact is not None
        event = ev.AgentReported(at=NOW, job="one", attempt=1, agent_event=fact.agent_event, facts=fact.facts)
        self.steps.take_report(event, self.job)


@pytest.fixture
def known(tmp_path: Path) -> Known:
    return Known(tmp_path)


@pytest.mark.parametrize(("seconds", "step"), [(50.5, 50), (50.0, 50), (99.9, 99), (150.0, 100), (37.0, 37)])
def test_a_file_holds_the_last_step_made_before_it_was_written(known: Known, seconds: float, step: int) -> None:
    assert known.steps.step_of("one", known.saved_after(seconds)) == step


@pytest.mark.parametrize("seconds", [-5.0, 0.5, 20.0])
def test_of_a_file_from_before_the_attempt_or_its_oldest_record_nothing_is_known(known: Known, seconds: float) -> None:
    """The ring has room for the newest 64 steps."""
    assert known.steps.step_of("one", known.saved_after(seconds)) is None


def test_the_agents_word_comes_first_and_a_word_that_is_no_number_counts_for_nothing(known: Known) -> None:
    saved = known.saved_after(50.5)
    known.says(saved, "many")
    assert known.steps.step_of("one", saved) == 50
    known.says(saved, 48)
    assert known.steps.step_of("one", saved) == 48


def test_of_an_attempt_that_counts_itself_no_step_of_the_training_is_known(known: Known) -> None:
    assert known.job.attempt is not None
    known.job = replace(known.job, attempt=replace(known.job.attempt, scale=Scale.ATTEMPT))
    saved = known.saved_after(50.5)
    known.says(saved, 48)
    assert known.steps.step_of("one", saved) is None


def test_times_of_another_boot_say_nothing(known: Known) -> None:
    (known.folder / fo.SHIM).write_text(json.dumps({"pid": 1, "start_ticks": 1, "boot_id": "another"}))
    assert known.steps.step_of("one", known.saved_after(50.5)) is None


def test_a_recorder_that_was_scribbled_over_says_nothing(known: Known) -> None:
    (known.folder / fo.RECORDER).write_bytes(b"\xff" * 8192)
    assert known.steps.step_of("one", known.saved_after(50.5)) is None


def test_what_the_next_attempt_goes_on_from_keeps_its_step_when_it_is_looked_at_again(known: Known) -> None:
    saved = known.saved_after(50.5)
    used = Checkpoint(path="/d/ckpt.pt", fingerprint=replace(saved, inode=7), step=50)
    later = Attempt(number=2, launched_at=NOW.plus(120), resume_from=used, scale=Scale.TRAINING)
    known.job = replace(known.job, attempt=later)
    assert known.steps.step_of("one", saved) == 50
    assert known.steps.step_of("one", known.saved_after(49.5)) is None


def test_a_step_that_was_found_by_time_is_known_when_the_next_attempt_runs(known: Known) -> None:
    saved = known.saved_after(50.5)
    assert known.steps.step_of("one", saved) == 50
    known.job = replace(known.job, attempt=Attempt(number=2, launched_at=NOW.plus(120)))
    assert known.steps.step_of("one", saved) == 50


def test_the_saves_of_a_job_are_its_own_and_last_written_first(known: Known) -> None:
    """However their step became known; what is known of no step is not among them."""
    reported, found, too_old = known.saved_after(50.5), known.saved_after(60.5), known.saved_after(-5.0)
    known.says(reported, 50)
    for saved in (found, too_old):
        known.steps.step_of("one", saved)
    assert [(save.modified_ns, save.step) for save in known.steps.saves("one")] == [
        (found.modified_ns, 60),
        (reported.modified_ns, 50),
    ]
    assert known.steps.saves("another") == ()


def test_only_what_the_agent_reported_is_known_to_be_whole(known: Known) -> None:
    reported, found = known.saved_after(50.5), known.saved_after(60.5)
    known.says(reported, 50)
    assert known.steps.step_of("one", found) == 60
    assert (known.steps.is_complete("one", reported), known.steps.is_complete("one", found)) == (True, False)


def test_a_training_begins_by_the_clock_of_the_disk_that_it_saves_to(known: Known) -> None:
    """What was saved in the first hour on a server whose clock was an hour behind was of no training."""
    known.job = replace(known.job, began_unix_s=NOW.unix_s)
    assert known.steps.find_begin(known.job) == NOW.unix_s
    known.says(known.saved_after(-7200.0), 1, late=True)
    assert known.steps.find_begin(known.job) == NOW.unix_s
    known.says(known.saved_after(-3605.0), 2)
    known.says(known.saved_after(-3600.0), 3)
    assert known.steps.find_begin(known.job) == NOW.unix_s - 3600.0
    known.steps.measure_clock("one", str(known.folder / fo.RUN / "snapshot.pt"), 0.0)
    assert known.steps.find_begin(known.job) == NOW.unix_s - 3600.0
    known.says(known.saved_after(-2.0), 4)
    assert known.steps.find_begin(known.job) == NOW.unix_s
