"""A checkpoint of which no copy is kept is told, and nothing is done about it."""

from __future__ import annotations

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, ResumePoint, Verdict
from supervisor.core.checkpoints.loss_curve import Curve, Resumed
from supervisor.core.flags import Severity
from supervisor.core.job import Job, Phase, RetryPlan
from supervisor.core.rules.advisory.generations import Generations

from .stories import JOB, START, Story


def test_it_is_reported_with_the_reason_and_stops_nothing() -> None:
    story = Story()
    story.put(ev.CheckpointNotKept(at=START, job=JOB, attempt=1, path="/w/last.pt", reason="12 MB free"))
    flag = story.check(Generations())
    assert flag is not None
    assert (flag.severity, flag.subject) == (Severity.WARNING, "last.pt")
    assert flag.message == "no generation of /w/last.pt is kept: 12 MB free"


def test_saves_of_one_series_are_one_condition_and_not_a_warning_each() -> None:
    keys = []
    for number in (500, 1000):
        story = Story()
        path = f"/w/checkpoint-{number}.pt"
        story.put(ev.CheckpointNotKept(at=START, job=JOB, attempt=1, path=path, reason="12 MB free"))
        flag = story.check(Generations())
        assert flag is not None
        keys.append(flag.key)
    assert keys[0] == keys[1]


def test_an_attempt_knows_the_curve_that_it_is_to_continue() -> None:
    curve = Curve(losses=200, low=1.0, median=2.0, high=3.0, median_least=1.5, median_most=2.5)
    fingerprint = Fingerprint(size_bytes=1, modified_ns=1, inode=1)
    item = Checkpoint(path="/s/1/last.pt", fingerprint=fingerprint, step=500, verdict=Verdict.PROVEN)
    point = ResumePoint(checkpoint=item, possible=True, reason="newest", curve=curve)
    plan = RetryPlan(not_before=START, reason="crash", resume_point=point)
    job = Job(name=JOB, since=START, phase=Phase.BACKOFF, retry=plan)
    launch = de.Launch(at=START, job=JOB, attempt=2, resume_from=item, reason="newest")
    launched = after_decision(job, launch)
    assert launched.attempt is not None
    assert launched.attempt.resumed == Resumed(step=500, curve=curve)
