"""A triage answers once, when nothing of it runs any more, whatever its replays do; the replays are real processes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START, PausedClock

from supervisor.config.settings import JobSettings
from supervisor.core import attempt_files as fo
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, DesiredState, Job, Phase, RetryPlan
from supervisor.core.triage.state import UNWANTED, TriageState
from supervisor.daemon.cleanup import clear_replays
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.triage import TriageRunner
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.direct import DirectLauncher
from supervisor.runner.launcher import LaunchError

REPLAY = """
import json, os, pathlib, sys, time
folder = pathlib.Path(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"]).parent
report = json.loads(os.environ["ROCM_SUPERVISOR_TRIAGE"])["report"]
with open(folder.parent / "made", "a") as made:
    made.write(folder.name + "\\n")
"""
POISONED = {
    "seen": True,
    "step": 7,
    "device": "cpu",
    "batch": {"not_finite": ["img"], "out_of_range": [], "files": ["a.png", "b.png"], "bad_files": ["b.png"]},
}
FLAG = RedFlag(rule="non_finite_loss", severity=Severity.CRITICAL, at=START, message="nan", since_step=7)


class Refusing(DirectLauncher):
    """Starts nothing."""

    def launch(self, slot: str, folder: Path) -> None:
        raise LaunchError(f"{slot}: no room for {folder.name}")


class Trial:
    """A job's folder as its daemon has it when a triage begins, and what the triage tells."""

    def __init__(self, state: Path, program: str, limit_s: float = 30.0) -> None:
        self.state, self.reported = state, list[ev.Event]()
        self.stopped: list[tuple[str, int]] = []
        self.folder = state / "jobs" / "one"
        self.attempt = self.folder / "1"
        self.attempt.mkdir(parents=True)
        script = state / "replay.py"
        script.write_text(REPLAY + program)
        command = [sys.executable, str(script)]
        launch = {"version": 1, "job": "one", "attempt": 1, "argv": command, "cwd": str(state), "env": {}}
        (self.attempt / fo.LAUNCH).write_text(json.dumps(launch))
        self.settings = JobSettings(command=command, triage="auto", triage_limit_s=limit_s)
        now = SystemClock().now()
        triage_state = TriageState(
            attempt=1, at=now, flag=FLAG, cause="non_finite", step=7, looked_for="loss", began_at=now
        )
        self.job = Job(
            name="one",
            since=now,
            phase=Phase.BACKOFF,
            attempt=Attempt(number=1, launched_at=now),
            retry=RetryPlan(not_before=now, reason="nan", awaits_triage=True),
            triage=triage_state,
            incident=Incident(id="one-1", job="one", attempt=1, flag=FLAG, decision="stop"),
        )
        self.examiner = TriageRunner(
            clock=SystemClock(),
            put=self.reported.append,
            state=state,
            launcher=DirectLauncher(),
            settings=lambda _: self.settings,
            job=lambda _: self.job,
            exact=lambda _job, _step: None,
            group=None,
            code=lambda: INSTALLED,
            find_stop=self.find_stop,
        )

    def find_stop(self, folder: Path, job: str, attempt: int) -> bool:
        found = (folder / fo.STOP_ASKED).exists()
        self.stopped += [(job, attempt)] if found else []
        return found

    def finds(self) -> ev.TriageEnded:
        """Make the triage and return its one answer; nothing of it may be left."""
        decision = de.Triage(
            at=SystemClock().now(), job="one", attempt=1, reason="", step=7, looked_for="loss", resume_from=None
        )
        self.examiner.examine(decision, self.job)
        (answer,) = self.reported
        assert isinstance(answer, ev.TriageEnded)
        for folder in self.folder.glob("triage-*"):
            assert not self.examiner.launcher.alive("one", folder)
        assert (self.folder / fo.CURRENT).resolve() == self.attempt
        return answer

    def made(self) -> list[str]:
        try:
            return (self.folder / "made").read_text().split()
        except FileNotFoundError:
            return []


def says(output: object) -> str:
    return f"pathlib.Path(report).write_text({json.dumps(output)!r})\n"


def test_what_a_replay_says_is_reported_and_kept_next_to_the_evidence(tmp_path: Path) -> None:
    trial = Trial(tmp_path, says(POISONED))
    answer = trial.finds()
    assert (answer.finding.verdict, answer.finding.files) == ("data", ("b.png",))
    kept = trial.attempt / "evidence" / "one-1" / "triage"
    assert json.loads((kept / "report.json").read_text())["finding"]["verdict"] == "data"
    assert "look at b.png" in (kept / "report.txt").read_text()
    assert (kept / "device.txt").exists(), "what it printed"
    clear_replays(trial.folder)
    assert list(trial.folder.glob("triage-*")) == []
    assert trial.attempt.exists()


def test_a_replay_that_is_over_is_read_and_not_made_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path, says(POISONED))
    trial.finds()
    trial.reported.clear()
    assert trial.finds().finding.verdict == "data"
    assert trial.made() == ["triage-1-device"]


@pytest.mark.parametrize("first", ["", says(POISONED)], ids=["before_its_result", "after_it"])
def test_a_replay_whose_unit_was_stopped_is_its_users_stop_and_the_last_one(tmp_path: Path, first: str) -> None:
    trial = Trial(tmp_path, first + "(folder / 'run' / 'stop_asked').touch()\nsys.exit(143)\n")
    assert trial.finds().finding.words == UNWANTED
    assert trial.stopped == [("one", 1)]
    assert trial.made() == ["triage-1-device"]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sys.exit(3)", "3"),
        ("pathlib.Path(report).write_text('{')", "before the step"),
        (says([]), "before the step"),
        (says({"seen": 1}), "before the step"),
        ("pathlib.Path(report).write_text('[' * 100000)", "before the step"),
        ("os.mkfifo(report)", "before the step"),
        (
            says({"seen": False, "device": [], "batch": 7, "losses": [[1], "x", [2, None]], "step": "x"}),
            "too few earlier steps",
        ),
        (says({"seen": True, "batch": {"files": {"a": 1}, "not_finite": "img"}, "where": []}), "reproduced"),
    ],
)
def test_what_a_replay_leaves_that_is_not_sound_is_no_finding(tmp_path: Path, program: str, why: str) -> None:
    finding = Trial(tmp_path, program).finds().finding
    assert finding.verdict == "unknown"
    assert why in finding.words


def test_a_replay_that_goes_on_for_too_long_is_ended(tmp_path: Path) -> None:
    finding = Trial(tmp_path, "time.sleep(600)", limit_s=0.5).finds().finding
    assert (finding.verdict, "within the" in finding.words) == ("unknown", True)


def test_time_in_which_nothing_ran_is_none_that_a_replay_has(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "time.sleep(1.5)\n" + says(POISONED))
    trial.examiner = replace(trial.examiner, clock=PausedClock())
    assert trial.finds().finding.verdict == "data"


def test_what_is_reported_is_taken_though_another_process_of_the_replay_goes_on(tmp_path: Path) -> None:
    assert Trial(tmp_path, says(POISONED) + "time.sleep(600)").finds().finding.verdict == "data"


def test_a_replay_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    program = "(folder / 'run' / 'big').write_bytes(os.urandom(1 << 20))\ntime.sleep(600)"
    trial = Trial(tmp_path, program, limit_s=600.0)
    trial.examiner = replace(trial.examiner, folder_limit_bytes=9 << 20)
    finding = trial.finds().finding
    assert finding.words == "the step could not be replayed: it wrote more than 9 MB; see output.log of replay device"


def test_a_job_that_was_stopped_is_replayed_no_further(tmp_path: Path) -> None:
    trial = Trial(tmp_path, says(POISONED))
    trial.job = replace(trial.job, desired_state=DesiredState.STOP)
    assert trial.finds().finding.words == UNWANTED
    assert trial.made() == []


def test_a_replay_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "")
    trial.examiner = replace(trial.examiner, launcher=Refusing())
    assert "could not be started: one: no room" in trial.finds().finding.words


def test_a_triage_that_breaks_answers_all_the_same(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "")
    (trial.attempt / fo.LAUNCH).write_text("[]")
    finding = trial.finds().finding
    assert (finding.verdict, "the triage failed" in finding.words) == ("unknown", True)
