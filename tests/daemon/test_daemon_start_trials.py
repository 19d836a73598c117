"""The starts of a tune in the daemon: what they ask for, what is read of them, and what is left however they end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.job import ALIVE, Job, Limits, Phase
from supervisor.core.moments import Moment
from supervisor.core.remedies.budget import Budget
from supervisor.core.tuning.guards import Memory
from supervisor.core.tuning.knob import Kind
from supervisor.core.tuning.restarts import Restarts, StartArm
from supervisor.daemon.tunes.blocks import HostMemory
from supervisor.daemon.tunes.start_trials import StartDeps, StartTrials
from tests.core.stories import JOB, Life
from tests.sources.recorder_by_hand import Writer

STEPS = 60
ABBA = ("-", "quick", "quick", "-")


class Training(Life):
    """A job whose attempts write their steps at once; how long each takes, or what happens, is told by its start."""

    def __init__(self, folder: Path, step_s: dict[str, float | str]) -> None:
        super().__init__(rules=(), limits=Limits(budget=Budget(backoff_s=(0.0,))))
        self.folder, self.step_s = folder, step_s
        self.looks_made, self.ended = 0, threading.Event()
        self.kept: list[Checkpoint] = []
        """The generations, where they are not what it has saved."""
        self.at_look: dict[int, Callable[[], object]] = {}
        self.samples: dict[str, int] = {}
        """Of a step; 8 where it is not named."""
        self.sets: dict[str, tuple[str, ...]] = {}
        """Settings that the agent reports as set, by the start."""
        self.begins: list[str] = []
        """What each attempt was started with."""
        self.silence(0)
        self._begin()
        self.saved = [replace(item, kind="snapshot") for item in self.saves("a.pt", 60).saved]
        self.silence(1)

    def _begin(self) -> None:
        attempt = self.present()
        words = "-" if attempt.start is None else attempt.start.knobs[-1][1]
        self.begins.append(words)
        step_s = self.step_s[words]
        (self.folder / str(attempt.number) / fo.RUN).mkdir(parents=True, exist_ok=True)
        if step_s == "broken":
            (self.folder / str(attempt.number) / fo.OUTPUT).write_text("Traceback\nImportError: no such library\n")
            self.started().exits(1).looks()
            self._begin()
        elif isinstance(step_s, float):
            writer = Writer(self.folder / str(attempt.number) / fo.RECORDER, capacity=256)
            for step in range(61, 61 + STEPS):
                writer.write(step, at_ns=10**9 + int((step - 61) * step_s * 1e9), samples=self.samples.get(words, 8))
            self._write_reports(attempt.number, self.sets.get(words, ()))
            self.started().training(STEPS)

    def _write_reports(self, number: int, settings: tuple[str, ...]) -> None:
        common = {"event": "remedy_applied", "pid": 1, "rank": 0, "monotonic_ns": 1, "unix_s": 1.0, "remedies": []}
        lines = [json.dumps({**common, "setting": name, "set": "twice"}) + "\n" for name in settings]
        (self.folder / str(number) / fo.AGENT).write_text("".join(lines))

    def job_now(self, _name: str) -> Job | None:
        """Return the job, a second later each time."""
        self.looks_made += 1
        self.silence(1)
        self.at_look.pop(self.looks_made, lambda: None)()
        return self.job

    def ask(self, event: ev.StartAsked) -> None:
        """Do what the daemon does of what a tune asks."""
        self.put(event)
        if self.job.phase is Phase.STOPPING:
            self.signalled().exits(0)
            self._begin_again()

    def _begin_again(self) -> None:
        if self.job.phase is Phase.BACKOFF and not self.job.shutting_down:
            self.looks()
            self._begin()

    def now_moment(self) -> Moment:
        return self.now


class Clock:
    def __init__(self, training: Training) -> None:
        self._training = training

    def now(self) -> Moment:
        return self._training.now

    def sleep(self, seconds: float) -> None:
        self._training.silence(seconds)


def arm(name: str) -> StartArm:
    return StartArm(knob="malloc", value=name, kind=Kind.SAME_ARITHMETIC, env=(("MALLOC", name),))


LARGER = StartArm(
    knob="batch",
    value="larger",
    kind=Kind.OPTIMISATION,
    factors=(("batch_factor", 2.0), ("lr_factor", 2.0)),
    samples_factor=2.0,
)


def try_starts(training: Training, *names: str, for_s: float = 1e6, why_not: str | None = None) -> Restarts:
    began = training.now
    deps = StartDeps(
        job=training.job_now,
        ask=training.ask,
        command=lambda _name: ("train",),
        environments=lambda _name: (),
        generations=lambda _name: training.kept or training.saved,
        why_not=lambda _name: why_not,
    )
    trials = StartTrials(
        Clock(training),
        JOB,
        training.folder,
        deps,
        training.ended,
        lambda: for_s - training.now.seconds_since(began),
        lambda: HostMemory(total_bytes=64 << 30, available_bytes=32 << 30),
    )
    trials.poll_s = 0.0
    arms = [LARGER if name == LARGER.value else arm(name) for name in names]
    return trials.run(arms, Memory(), lambda _restarts: None)


def settled(training: Training) -> Job:
    """Return the job, in which nothing is lent or ordered any more."""
    job = training.job
    assert job.asked_start is None
    assert job.phase in ALIVE
    assert job.attempt is not None
    assert job.attempt.order is None
    assert job.ledger.total == 0
    assert job.incident is None
    return job


def test_what_gains_is_adopted_and_started_with_at_once(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "quick": 0.5})
    found = try_starts(training, "quick")
    assert [row.value for row in found.adopted] == ["quick"]
    assert training.begins == ["-", *ABBA, *ABBA, "quick"]
    assert settled(training).tuned == training.present().start


BOTH = ("batch_factor", "lr_factor")


@pytest.mark.parametrize(
    ("samples", "sets", "why"),
    [
        (16, BOTH, None),
        (16, BOTH[:1], "its agent has not reported that it set lr_factor"),
        (8, BOTH, "a step has 8 samples under it, and 8 without"),
    ],
)
def test_twice_the_batch_is_adopted_where_batch_and_rate_are_what_they_are_to_be(
    tmp_path: Path, samples: int, sets: tuple[str, ...], why: str | None
) -> None:
    training = Training(tmp_path, {"-": 1.0, "larger": 1.0 if samples == 16 else 0.5})
    training.samples, training.sets = {"larger": samples}, {"larger": sets}
    found = try_starts(training, "larger")
    assert [row.why for row in found.refused] == ([] if why is None else [why])
    tuned = settled(training).tuned
    assert (None if tuned is None else tuned.factors) == (LARGER.factors if why is None else None)
    abba = ("-", "larger", "larger", "-")
    begins = [*abba, *abba, "larger"] if why is None else ["-", "larger", "-"]
    assert training.begins == ["-", *begins]


class Wobbling(dict[str, "float | str"]):
    """Times of steps, which are 3 % longer in every fourth start."""

    starts = 0

    def __getitem__(self, name: str) -> float | str:
        self.starts += 1
        step_s = super().__getitem__(name)
        return step_s if isinstance(step_s, str) else step_s * (1.03 if self.starts % 4 == 0 else 1.0)


def test_a_start_with_what_was_adopted_is_the_first_one_of_what_is_tried_next(tmp_path: Path) -> None:
    training = Training(tmp_path, Wobbling({"-": 1.0, "quick": 0.8, "same": 0.8}))
    found = try_starts(training, "quick", "same")
    assert [row.value for row in found.adopted] == ["quick"]
    assert training.begins == ["-", *ABBA, *ABBA, "-", "quick", "same", "same", "quick"]
    assert settled(training).tuned == training.present().start


def test_a_start_with_what_was_adopted_goes_on_where_nothing_else_is_tried(tmp_path: Path) -> None:
    training = Training(tmp_path, Wobbling({"-": 1.0, "quick": 0.95}))
    assert [row.value for row in try_starts(training, "quick").adopted] == ["quick"]
    assert training.begins == ["-", *ABBA, *ABBA, "-", "quick"]
    assert settled(training).tuned == training.present().start


def test_what_gains_nothing_leaves_the_training_as_it_was(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "same": 1.0})
    found = try_starts(training, "same")
    assert not found.adopted
    assert training.begins == ["-", "-", "same", "same", "-"]
    assert settled(training).tuned is None


def test_time_in_which_the_daemon_did_not_run_is_none_that_a_start_has(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "quick": 0.5})
    training.kept = [replace(item, path="earlier.pt") for item in training.saved]
    training.at_look = {look: lambda: training.away(3600.0) for look in range(1, 20)}
    training.at_look[20] = lambda: training.kept.extend(training.saved)
    found = try_starts(training, "quick")
    assert [row.value for row in found.adopted] == ["quick"]


def test_all_starts_go_on_from_the_same_snapshot(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "same": 1.0})
    used: list[Checkpoint | None] = []

    def save_more() -> None:
        used.append(training.present().resume_from)
        training.saves(f"{training.attempt}.pt", 100 + training.attempt)

    training.at_look = dict.fromkeys(range(8, 40), save_more)
    try_starts(training, "same")
    assert {item.path for item in used if item is not None} == {"a.pt"}
    assert training.present().start is None


def test_what_cannot_be_started_is_refused_with_its_last_line_and_the_next_is_tried(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "bad": "broken", "quick": 0.5})
    found = try_starts(training, "bad", "quick")
    assert found.refused[0].why.endswith("ImportError: no such library")
    assert [row.value for row in found.adopted] == ["quick"]
    settled(training)


def test_a_start_that_hangs_is_refused_and_ended(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "hung": "hangs"})
    found = try_starts(training, "hung")
    assert found.refused[0].why.startswith("0 of its steps were measured within ")
    assert settled(training).attempt == training.present()
    assert training.present().start is None


def test_a_fault_amid_a_trial_ends_the_tune_and_the_remedy_acts(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "quick": "hangs"})

    def crash() -> None:
        assert training.present().is_lent
        training.training(3).exits(1)

    training.at_look = {12: crash}
    found = try_starts(training, "quick")
    assert not found.adopted
    assert training.job.tuned is None
    assert training.job.asked_start is None


@pytest.mark.parametrize("ask", [ev.Ask.STOP, ev.Ask.SHUT_DOWN])
def test_a_training_that_its_user_stops_amid_a_trial_is_not_started_for_it(tmp_path: Path, ask: ev.Ask) -> None:
    training = Training(tmp_path, {"-": 1.0, "quick": "hangs"})
    training.at_look = {12: lambda: training.asks(ask)}
    found = try_starts(training, "quick")
    assert found.refused[0].why == "the training was stopped, or has ended"
    assert training.job.retry is None or training.job.retry.order is None


def test_a_tune_that_is_stopped_amid_a_trial_takes_back_what_it_lent(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "quick": "hangs"})
    training.at_look = {12: training.ended.set}
    found = try_starts(training, "quick")
    assert found.refused[0].why == "stopped"
    assert training.begins[-1] == "-"
    settled(training)


def test_no_round_is_begun_for_which_there_is_no_time(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "same": 1.0, "other": 1.0})
    found = try_starts(training, "same", "other", for_s=8)
    assert "too little for" in found.refused[-1].why
    assert len(training.begins) < 9
    settled(training)


@pytest.mark.parametrize(("for_s", "starts"), [(200, 1), (245, 8)], ids=["no time for a proof", "hardly any"])
def test_no_start_is_made_more_than_one_where_eight_that_a_proof_takes_do_not_fit(
    tmp_path: Path, for_s: float, starts: int
) -> None:
    """Each takes 31 s here, but the next ones may take a fifth less."""
    training = Training(tmp_path, {"-": 1.0, "quick": 0.5})
    found = try_starts(training, "quick", for_s=for_s)
    assert training.begins == ["-", *(ABBA * 2)[:starts], *(["quick"] if found.adopted else [])]
    why = "167 s of the time given are left, too little for 7 more starts of 31 s, which a proof takes"
    assert [row.why for row in found.refused] == ([why] if starts == 1 else [])
    assert len(found.adopted) == (starts == 8)


def test_without_a_proven_snapshot_or_a_reason_no_start_is_made(tmp_path: Path) -> None:
    training = Training(tmp_path, {"-": 1.0, "quick": 0.5})
    training.saved = [replace(item, kind="checkpoint") for item in training.saved]
    assert "no proven snapshot" in try_starts(training, "quick").refused[0].why
    assert try_starts(training, "quick", why_not="no copies").refused[0].why == "no copies"
    assert training.begins == ["-"]


def test_a_daemon_that_is_too_busy_to_answer_takes_back_what_is_lent_all_the_same(tmp_path: Path) -> None:
    """What an attempt saves is not resumed from while something is lent to it."""
    training = Training(tmp_path, {"-": 1.0, "quick": "hangs"})

    def is_busy() -> None:
        assert training.present().is_lent
        training.at_look = dict.fromkeys(range(training.looks_made, 999), is_busy_still)
        is_busy_still()

    def is_busy_still() -> None:
        raise TimeoutError("the daemon's loop did not answer within 5 s")

    training.at_look = {12: is_busy}
    found = try_starts(training, "quick")
    assert found.refused[0].why == "the daemon's loop did not answer within 5 s"
    assert settled(training).tuned is None


def test_steps_that_never_follow_one_another_are_not_kept_without_end(tmp_path: Path) -> None:
    training, writers = Training(tmp_path, {"-": 1.0, "odd": "hangs"}), dict[int, Writer]()

    def record_more() -> None:
        attempt = training.present()
        if attempt.is_lent:
            path = tmp_path / str(attempt.number) / fo.RECORDER
            writer = writers.get(attempt.number) or Writer(path, capacity=1024)
            for _ in range(1000):
                writer.write(2 * writer.head + 1, at_ns=10**9 + writer.head, samples=8)
            writers[attempt.number] = writer

    training.at_look = dict.fromkeys(range(1, 400), record_more)
    found = try_starts(training, "odd")
    assert found.refused[0].why == "0 of 20000 steps that it recorded follow one another"
