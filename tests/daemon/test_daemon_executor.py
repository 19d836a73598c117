"""The command of an attempt is the user's own; only where it resumes is said differently."""

from __future__ import annotations

import pytest
from clocks_by_hand import START

from supervisor.config.settings import JobSettings, ResumeSettings
from supervisor.core import decisions as de
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.daemon.executor import explain_failed_launch
from supervisor.daemon.launch.launch_spec import command_of

SAVED = Checkpoint(path="/runs/a b/last.pt", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1))
FIRST = ["yolo", "train", "model={checkpoint}"]
AGAIN = ["yolo", "train", "model={checkpoint}", "resume={checkpoint}", "{other}"]


def test_an_attempt_from_the_beginning_runs_the_command_as_it_is_written() -> None:
    assert command_of(JobSettings(command=FIRST, resume=ResumeSettings(command=AGAIN)), None) == FIRST


def test_a_resumed_one_runs_the_resume_command_with_the_file_in_its_place() -> None:
    resumed = command_of(JobSettings(command=FIRST, resume=ResumeSettings(command=AGAIN)), SAVED)
    assert resumed == ["yolo", "train", "model=/runs/a b/last.pt", "resume=/runs/a b/last.pt", "{other}"]


def test_without_a_resume_command_the_agent_does_the_resuming() -> None:
    assert command_of(JobSettings(command=FIRST), SAVED) == FIRST


@pytest.mark.parametrize(
    ("error", "shortage"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("can't start new thread"), "room for another thread"),
        (OSError(28, "No space left on device"), "disk space or inodes (`df -h`, `df -i`)"),
        (KeyError("what nobody expects"), None),
    ],
)
def test_a_launch_for_which_a_machine_had_no_room_counts_against_no_job(error: Exception, shortage: str | None) -> None:
    launch = de.Launch(at=START, job="one", attempt=3, resume_from=None, reason="start")
    failed = explain_failed_launch(launch, error, START)
    assert (failed.job, failed.attempt, failed.shortage) == ("one", 3, shortage)
