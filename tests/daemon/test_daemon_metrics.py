"""What is counted for metrics only grows, and the text file is replaced as one."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START, HandClock

from supervisor.core import events as ev
from supervisor.core.history import History
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.peers import PeerStage
from supervisor.core.readings import Stage, StepRecord
from supervisor.core.remedies.budget import Budget, Ledger
from supervisor.core.scale import Scale
from supervisor.core.stats.histogram import Histogram
from supervisor.daemon.inbox import Inbox, Inquiry
from supervisor.daemon.job_state import JobState
from supervisor.daemon.metrics import MetricsCollector, MetricsDeps, Textfile
from supervisor.daemon.training_counts import Counts
from supervisor.metrics.known import Known
from supervisor.store.archive import Archive
from supervisor.store.store import Store
from tests.rigs.hanging_fs import hanging


def running(ledger: Ledger | None = None, number: int = 1) -> JobState:
    attempt = Attempt(number=number, launched_at=START, scale=Scale.TRAINING)
    job = Job(name="one", since=START, phase=Phase.RUNNING, attempt=attempt, ledger=ledger or Ledger())
    return JobState(job=job, rules=(), history=History(now=START, launched_at=START, gpus_used=()))


def made(*steps: int, loss: float = 1.0, wait_s: float | None = None, rank: int = 0) -> ev.StepsMade:
    records = tuple(StepRecord(at=START, step=step, loss=loss, data_wait_s=wait_s) for step in steps)
    return ev.StepsMade(at=START, job="one", attempt=1, records=records, rank=rank)


def test_steps_are_counted_and_those_made_before_as_redone() -> None:
    counts = Counts({"one": running(Ledger(furthest_step=3))})
    counts.begin()
    for event in (made(2, 3, 4, 5), made(6, loss=math.nan), made(6, rank=1)):
        counts.take(event, START)
    found = counts.of("one")
    assert (found.steps, found.steps_redone, found.non_finite_steps) == (5, 2, 1)


def test_what_was_before_the_daemon_is_not_counted() -> None:
    state = running(Ledger(total=7))
    counts = Counts({"one": state})
    counts.take(ev.Tick(at=START), START)
    assert not counts.of("one").restarts


def test_snapshots_are_counted_by_the_time_they_took() -> None:
    counts = Counts({"one": running()})
    for rank, facts in (
        (0, {"kind": "snapshot", "stall_s": 0.05, "write_s": 2.0}),
        (1, {"kind": "snapshot", "stall_s": 0.05, "write_s": 2.0}),
        (None, {"kind": "snapshot", "stall_s": "long", "write_s": 1e300}),
        (None, {"stall_s": 1.0, "write_s": 1.0}),
    ):
        report = ev.AgentReported(
            at=START, job="one", attempt=1, agent_event=ev.AgentEvent.CHECKPOINT_SAVED, facts={**facts}, rank=rank
        )
        counts.take(report, START)
    found = counts.of("one").snapshots.known()
    assert (found.total_s, [count for limit_s, count in found.buckets if limit_s in (1.0, 3.0)]) == (2.05, [0, 1])


def test_restarts_are_counted_by_cause_and_flags_when_they_rise() -> None:
    state = running()
    counts = Counts({"one": state})
    counts.begin()
    ledger = state.job.ledger.restarted(START, Budget(), progress_known=True, cause="stall")
    state.job = replace(state.job, ledger=ledger, open_flags=frozenset({("stall", "", 2), ("fan", "gpu", 1)}))
    counts.take(ev.Tick(at=START), START)
    state.job = replace(state.job, open_flags=frozenset({("stall", "", 2)}))
    counts.take(ev.Tick(at=START), START)
    state.job = replace(state.job, ledger=ledger.restarted(START, Budget(), progress_known=False))
    counts.take(ev.Tick(at=START), START)
    assert counts.of("one").restarts == {"stall": 1, "unknown": 1}
    assert counts.of("one").flags == {"stall": 1, "fan": 1}


def test_time_is_counted_by_what_it_was_spent_on() -> None:
    state = running()
    assert state.history is not None
    counts, now = Counts({"one": state}), START
    counts.take(ev.Tick(at=now), now)
    stage = ev.StageEntered(at=START, job="one", attempt=1, stage=Stage.SETUP)
    for event in (stage, replace(stage, stage=Stage.STEP)):
        state.history.add(event)
        now = now.plus(2)
        if event.stage is Stage.STEP:
            state.history.add(made(1))
            counts.take(made(1, wait_s=0.5), now)
        counts.take(ev.Tick(at=now), now)
    state.job = replace(state.job, phase=Phase.BACKOFF)
    counts.take(ev.Tick(at=now), now := now.plus(3))
    state.job = replace(state.job, phase=Phase.FINISHED)
    counts.take(ev.Tick(at=now), now := now.plus(1))
    counts.take(ev.Tick(at=now), now := now.plus(600))
    expected = {"setup": 2.0, "train": 1.5, "data_wait": 0.5, "down": 3.0, "waiting": 1.0, "unseen": 600.0}
    assert counts.of("one").seconds == expected


def test_on_a_node_without_rank_0_time_is_counted_by_the_stage_of_rank_0() -> None:
    state = running()
    assert state.history is not None
    counts, of = Counts({"one": state}), {"job": "one", "attempt": 1}
    counts.take(ev.Tick(at=START), START)
    claimed = ev.AgentEvent.CLAIMED
    state.history.add(ev.AgentReported(at=START, agent_event=claimed, facts={}, rank=2, pid=7, **of))  # type: ignore[arg-type]  # names
    for second, (stage, stepped) in enumerate(((Stage.SETUP, False), (Stage.STEP, True), (Stage.VALIDATE, True)), 1):
        at = START.plus(second)
        seen = PeerStage(stage=stage, lasted_s=0.0, stepped=stepped)
        state.history.add(ev.PeerStageSeen(at=at, stage=seen, **of))  # type: ignore[arg-type]  # names
        counts.take(ev.Tick(at=at), at)
    assert counts.of("one").seconds == {"setup": 1.0, "train": 1.0, "validate": 1.0}


def test_steps_made_again_are_time_spent_again() -> None:
    state = running(Ledger(furthest_step=10))
    assert state.history is not None
    state.history.add(made(4))
    state.history.add(ev.StageEntered(at=START, job="one", attempt=1, stage=Stage.STEP))
    counts = Counts({"one": state})
    counts.take(ev.Tick(at=START), START)
    counts.take(made(4), START)
    counts.take(ev.Tick(at=START), START.plus(1))
    counts.take(made(11), START)
    counts.take(ev.Tick(at=START), START.plus(3))
    assert counts.of("one").seconds == {"again": 1.0, "train": 2.0}


@pytest.mark.parametrize(("phase", "unit"), [(Phase.RUNNING, "rocm-run@one.service"), (Phase.STOPPED, None)])
def test_a_training_has_the_unit_of_its_attempt_while_that_runs(phase: Phase, unit: str | None, tmp_path: Path) -> None:
    Store.open(f"sqlite:///{tmp_path / 'record.db'}", START, "boot").close(START)
    state, inbox, asked = running(number=3), Inbox(), list[tuple[str, int]]()
    state.job = replace(state.job, phase=phase)

    def find_unit(job: str, attempt: int) -> str:
        asked.append((job, attempt))
        return f"rocm-run@{job}.service"

    collector = MetricsCollector(
        MetricsDeps(
            clock=HandClock(),
            inbox=inbox,
            states={"one": state},
            counts=Counts({"one": state}),
            readings=lambda: ((), None),
            sources=lambda: (),
            archive=Archive(tmp_path / "record.db"),
            store_problem=lambda: None,
            database_writes=Histogram().known,
            unit=find_unit,
            receivers=lambda: (),
            interval_s=lambda: 1.0,
        )
    )
    with ThreadPoolExecutor() as threads:
        known = threads.submit(collector.known)
        inquiry = inbox.get(5.0)
        assert isinstance(inquiry, Inquiry)
        inquiry.answer.set_result(inquiry.question())
        (training,) = known.result(5.0).trainings
    assert (training.unit, asked) == (unit, [("one", 3)] if unit else [])


WRITES_FOR_EVER = """
import sys
from supervisor.children.files_apart import keep_files_apart
from supervisor.core.moments import Moment
from supervisor.daemon.metrics import Textfile
from supervisor.metrics.known import Known
known = Known(now=Moment(0.0, 0.0), stale_after_s=3.0, version="0", python="3", sqlite="3", started_unix_s=0.0)
keep_files_apart()
textfile = Textfile(lambda: sys.argv[1], lambda: known)
textfile.write()
print("written", flush=True)
while True:
    textfile.write()
"""
KNOWN = Known(now=START, stale_after_s=3.0, version="0", python="3", sqlite="3", started_unix_s=0.0)


def test_the_text_file_is_replaced_and_everybody_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "rocm_supervisor.prom"
    path.write_text("old")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    (tmp_path / ".rocm_supervisor.prom.draft").symlink_to(elsewhere)
    Textfile(lambda: str(path), lambda: KNOWN).write()
    assert path.read_text().startswith("# HELP rocm_supervisor_build_info ")
    assert (path.stat().st_mode & 0o777, elsewhere.read_text()) == (0o644, "not ours")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["elsewhere", "rocm_supervisor.prom"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_keeps_its_name(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "rocm.prom"
    make(path)
    kind = path.stat().st_mode
    Textfile(lambda: str(path), lambda: KNOWN).write()
    assert path.stat().st_mode == kind


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    place: list[str | None] = [str(tmp_path / "absent" / "x.prom")]
    textfile = Textfile(lambda: place[0], lambda: KNOWN)
    textfile.write()
    place[0] = None
    textfile.write()
    place[0] = str(tmp_path / "x.prom")
    textfile.write()
    assert (tmp_path / "x.prom").exists()


@pytest.mark.mounts
def test_a_folder_that_hangs_keeps_no_daemon_from_ending(tmp_path: Path) -> None:
    with hanging(tmp_path / "far", tmp_path / "behind") as far:
        command = [sys.executable, "-c", WRITES_FOR_EVER, str(far.at / "x.prom")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "written\n"
            far.hang(beyond_sigkill=True)
            try:
                while not far.waiting:
                    time.sleep(0.01)
                daemon.kill()
                assert daemon.wait(60) == -signal.SIGKILL
            finally:
                far.go_on()
