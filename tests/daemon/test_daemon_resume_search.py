"""What a training said that it saved is looked for, even where the daemon that heard it died before it kept that."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clocks_by_hand import until

from supervisor.config.settings import CheckpointSettings, JobSettings, ResumeSettings
from supervisor.core import attempt_files as fo
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import OTHER_FORMATS, Checkpoint, Verdict
from supervisor.core.job import Attempt, Job, Phase, RetryPlan
from supervisor.core.readings import ExitStatus
from supervisor.daemon.checkpoints.candidates import fingerprint
from supervisor.daemon.checkpoints.resume_search import UNRECORDED_SAVES, ResumeSearch
from supervisor.daemon.checkpoints.save_steps import SaveSteps
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.fence import SEARCH
from supervisor.runner.unexamined import UnexaminedError


class Shelves:
    """Keeps nothing, and finds every checkpoint in order."""

    folder = Path("/nowhere")

    def __init__(self, unexamined: str | None = None) -> None:
        """`unexamined` is why no checkpoint can be examined."""
        self.proofs, self.asked, self.unexamined = self, list[str](), unexamined

    def store_of(self, _: str) -> Shelves:
        return self

    def all(self) -> tuple[Checkpoint, ...]:
        return ()

    def judge(self, job: str, checkpoint: Checkpoint) -> None:
        pass

    def prove(self, _: str, path: Path) -> Checkpoint:
        self.asked.append(path.name)
        if self.unexamined is not None:
            raise UnexaminedError(self.unexamined)
        stat = fingerprint(path)
        assert stat is not None
        return Checkpoint(path=str(path), fingerprint=stat, verdict=Verdict.PROVEN)


def found(
    state: Path, saved: list[Path], known: tuple[Checkpoint, ...] = (), resume: ResumeSettings | None = None
) -> ev.ResumePointFound:
    """Search after an attempt that said that it saved these files, one a step."""
    answer = answer_of(Shelves(), state, saved, known, resume)
    assert isinstance(answer, ev.ResumePointFound)
    return answer


def answer_of(
    shelves: Any,
    state: Path,
    saved: list[Path],
    known: tuple[Checkpoint, ...] = (),
    resume: ResumeSettings | None = None,
    *,
    patterns: tuple[str, ...] = (),
    host_lost: str | None = None,
    resume_from: Checkpoint | None = None,
    **known_of_job: Any,
) -> ev.Event:
    """Return how such a search ends."""
    attempt = state / "jobs" / "one" / "1"
    (attempt / fo.RUN).mkdir(parents=True)
    with (attempt / fo.AGENT).open("w") as log:
        log.write(("no line of an agent" * 50 + "\n") * 1200)
        for step, path in enumerate(saved, 1):
            at = SystemClock().now()
            output = {"monotonic_ns": int(at.monotonic_s * 1e9), "unix_s": at.unix_s, "pid": 1, "rank": 0}
            log.write(json.dumps({"event": "checkpoint_saved", **output, "paths": [str(path)], "step": step}))
            log.write("\n")
    reported: list[ev.Event] = []
    seeker = ResumeSearch(
        clock=SystemClock(),
        put=reported.append,
        state=state,
        settings=lambda _: JobSettings(
            command=["train"],
            resume=resume or ResumeSettings(),
            checkpoints=CheckpointSettings(paths=list(patterns)),
        ),
        known=lambda _, sources=None: tuple(c for c in known if sources is None or c.source in sources),
        collector=shelves,
        steps=SaveSteps(SystemClock(), state, lambda _: None, "this boot"),
    )
    now = SystemClock().now()
    plan = RetryPlan(not_before=now, reason="crash")
    ended = None if host_lost is not None else ExitStatus(at=now, signal=9)
    attempted = Attempt(number=1, launched_at=now, exit=ended, host_lost=host_lost, resume_from=resume_from)
    job = Job(name="one", since=now, phase=Phase.BACKOFF, attempt=attempted, retry=plan, **known_of_job)
    seeker.search(job, None)
    ends = (ev.ResumePointFound, ev.SupervisionChanged)
    until(lambda: any(isinstance(report, ends) for report in reported), "the search to end")
    return reported[-1]


def test_the_copies_for_a_program_that_loads_its_own_are_kept_and_not_reported(tmp_path: Path) -> None:
    """LightGBM's saves cannot be verified: each start again was a warning."""
    (tmp_path / "model.txt").write_bytes(b"saved")
    (tmp_path / "jobs" / "one").mkdir(parents=True)
    reported: list[ev.Event] = []
    shelves: Any = Shelves()
    seeker = ResumeSearch(
        clock=SystemClock(),
        put=reported.append,
        state=tmp_path,
        settings=lambda _: JobSettings(
            command=["train"], cwd=str(tmp_path), checkpoints=CheckpointSettings(paths=["*.txt"])
        ),
        known=lambda _, sources=None: (),
        collector=shelves,
        steps=SaveSteps(SystemClock(), tmp_path, lambda _: None, "this boot"),
    )
    seeker.keep_existing_files("one", 2, loads_itself=True)
    assert reported == []
    assert [path.name for path in tmp_path.glob("jobs/one/existing/2/*/*")] == ["model.txt"]
    seeker.keep_existing_files("one", 3)
    (found,) = reported
    assert isinstance(found, ev.ExistingFound)
    assert (found.count, found.kept) == (1, 1)


def test_a_checkpoint_that_only_the_training_knows_of_is_resumed_from(tmp_path: Path) -> None:
    for name in ("a.pt", "b.pt"):
        (tmp_path / name).write_bytes(b"saved")
    point = found(tmp_path, [tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "gone.pt"]).point
    assert point.checkpoint is not None, point.reason
    assert (Path(point.checkpoint.path).name, point.checkpoint.step) == ("b.pt", 2)


def test_a_save_on_a_server_whose_clock_is_ahead_is_resumed_from(tmp_path: Path) -> None:
    """Of a time after its report it was taken for another save, and a crash began the training from its start."""
    (tmp_path / "a.pt").write_bytes(b"saved")
    ahead_ns = round((SystemClock().now().unix_s + 3600) * 1e9)
    os.utime(tmp_path / "a.pt", ns=(ahead_ns, ahead_ns))
    point = found(tmp_path, [tmp_path / "a.pt"]).point
    assert point.checkpoint is not None, point.reason
    assert point.checkpoint.step == 1


def test_saves_that_no_report_names_are_resumed_from_where_none_that_one_names_is_left(tmp_path: Path) -> None:
    """The disk of the reports was full while the training saved on, and removed what was recorded before."""
    recorded = tmp_path / "state-000040.pt"
    known = replace(rejected(recorded, ""), verdict=Verdict.PROVEN, step=40)
    recorded.unlink()
    assert found(tmp_path / "none", [], (known,)).point.checkpoint is None
    for name in ("state-000080.pt", "best.pt", "run2-000120.pt", "state-000120.pt.tmp"):
        (tmp_path / name).write_bytes(b"saved")
    point = found(tmp_path / "one", [], (known,)).point
    assert point.checkpoint is not None, point.reason
    assert point.checkpoint.path == str(tmp_path / "state-000080.pt")
    assert point.reason.endswith("state-000080.pt, which no report names")


def test_a_training_that_had_gone_on_from_a_checkpoint_is_not_begun_where_that_is_gone(tmp_path: Path) -> None:
    given = replace(rejected(tmp_path / "last.pt", ""), verdict=Verdict.PROVEN, step=40)
    (tmp_path / "last.pt").unlink()
    answer = answer_of(Shelves(), tmp_path / "gone", [], (given,), resume_from=given)
    assert isinstance(answer, ev.ResumePointFound)
    assert (answer.point.checkpoint, answer.point.possible) == (None, False)
    assert "last.pt, from which attempt 1 was resumed, is gone" in answer.point.reason
    assert "`supervisorctl start --fresh one`" in answer.point.reason
    began = given.saved_unix_s + 1
    answer = answer_of(Shelves(), tmp_path / "fresh", [], (given,), resume_from=given, began_unix_s=began)
    assert isinstance(answer, ev.ResumePointFound)
    assert answer.point.possible, "it was begun again since"


def test_a_checkpoint_that_cannot_be_examined_for_now_has_the_search_repeated(tmp_path: Path) -> None:
    """Its job waits for that: without an answer it starts from no older checkpoint, and not from the beginning."""
    (tmp_path / "a.pt").write_bytes(b"saved")
    answer = answer_of(Shelves("a.pt: the prover was killed by SIGKILL"), tmp_path, [tmp_path / "a.pt"])
    assert isinstance(answer, ev.SupervisionChanged)
    assert (answer.place, answer.recovered) == (SEARCH, False)
    assert "a.pt: the prover was killed by SIGKILL" in answer.error


def test_of_saves_reported_without_end_the_newest_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"saved")
    (tmp_path / "b.pt").write_bytes(b"saved")
    many = [tmp_path / "gone.pt"] * UNRECORDED_SAVES
    assert found(tmp_path / "last", [*many, tmp_path / "b.pt"]).point.checkpoint is not None
    assert found(tmp_path / "first", [tmp_path / "a.pt", *many]).point.checkpoint is None


def test_what_the_record_has_rejected_stays_rejected_whatever_the_training_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    bad = rejected(path, "not finite")
    assert found(tmp_path, [path], (bad,)).point.checkpoint is None


def rejected(path: Path, reason: str) -> Checkpoint:
    """A file that is there, and that the record has rejected."""
    path.write_bytes(b"saved")
    stat = fingerprint(path)
    assert stat is not None
    return Checkpoint(path=str(path), fingerprint=stat, verdict=Verdict.REJECTED, reason=reason)


@pytest.mark.parametrize(
    ("resume", "goes_on"),
    [
        (ResumeSettings(), True),
        (ResumeSettings(command=["train", "--resume"]), True),
        (ResumeSettings(command=["train", "--from={checkpoint}"]), False),
        (ResumeSettings(command=["train", "--resume"], to="last.ubj"), False),
    ],
)
def test_a_format_that_cannot_be_verified_is_left_to_a_program_that_is_handed_no_file(
    tmp_path: Path, resume: ResumeSettings, goes_on: bool
) -> None:
    path = tmp_path / "a.ubj"
    other = rejected(path, min(OTHER_FORMATS))
    point = found(tmp_path, [path], (other,), resume).point
    assert (point.possible, point.loads_itself, point.checkpoint) == (goes_on, goes_on, None)


@pytest.mark.parametrize("host_lost", [None, "the machine was rebooted"])
@pytest.mark.parametrize(
    ("resume", "moves"),
    [
        (ResumeSettings(command=["train", "--resume"]), True),
        (ResumeSettings(command=["train", "--resume"], set_newer_aside=True), False),
        (ResumeSettings(command=["train", "--from={checkpoint}"]), False),
        (ResumeSettings(), False),
    ],
)
def test_a_save_that_the_end_of_a_training_cut_short_is_moved_before_a_program_that_loads_it_starts(
    tmp_path: Path, resume: ResumeSettings, moves: bool, host_lost: str | None
) -> None:
    good, cut = tmp_path / "ck_1.pt", tmp_path / "ck_2.pt"
    good.write_bytes(b"saved")
    damaged = rejected(cut, "truncated: it ends before its numbers do")
    for path, age_s in ((good, 20), (cut, 10)):
        os.utime(path, (SystemClock().now().unix_s - age_s,) * 2)
    damaged = replace(damaged, fingerprint=Shelves().prove("", cut).fingerprint)
    answer = answer_of(
        Shelves(), tmp_path, [], (damaged,), resume, patterns=(str(tmp_path / "ck_*.pt"),), host_lost=host_lost
    )
    assert isinstance(answer, ev.ResumePointFound)
    assert answer.point.checkpoint is not None
    assert answer.point.checkpoint.path == str(good)
    assert (answer.point.stand_in is not None) is moves
    assert (str(cut) in answer.point.newer) is (moves or resume.set_newer_aside)


@pytest.mark.parametrize("needs_others", [True, False])
def test_that_a_program_reads_other_files_is_known_to_a_daemon_that_did_not_see_it_fail(
    tmp_path: Path, needs_others: bool
) -> None:
    own = tmp_path / "out" / "last.pt"
    own.parent.mkdir()
    own.write_bytes(b"saved")
    proven, copy = Shelves().prove("", own), str(tmp_path / "generations" / "000001" / "last.pt")

    class Kept(Shelves):
        def all(self) -> tuple[Checkpoint, ...]:
            return (replace(proven, path=copy, source=str(own)),)

    resume = ResumeSettings(command=["train", "--from={checkpoint}"])
    answer = answer_of(Kept(), tmp_path, [own], resume=resume, needs_others=needs_others)
    assert isinstance(answer, ev.ResumePointFound)
    assert answer.point.checkpoint is not None
    assert (answer.point.checkpoint.path == str(own)) is needs_others
    assert answer.point.needs_others is needs_others
