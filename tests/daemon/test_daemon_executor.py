"""The command of an attempt is the user's own; only where it resumes is said differently."""

from __future__ import annotations

from supervisor.config.settings import JobSettings, ResumeSettings
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
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
