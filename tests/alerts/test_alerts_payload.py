"""What is told, of which change, in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor.alerts.payload import LARGEST_BODY_BYTES, Notice, alert_id, clean, notices, self_test
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.apply_decision import after_decision
from supervisor.core.apply_event import after_event
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job, Phase, RetryPlan
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, StepRecord
from supervisor.core.triage.finding import Finding, inconclusive

START = Moment(1000.0, 1_763_600_000.0)
POINT = Checkpoint(
    path="/runs/night/last.pt",
    fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1),
    epoch=3,
    step=400,
    verdict=Verdict.PROVEN,
)
STALL = RedFlag(rule="stall", severity=Severity.CRITICAL, at=START, message="no step for 41 s", since=START)
RUNNING = Job(
    name="night",
    since=START,
    phase=Phase.RUNNING,
    attempt=Attempt(number=1, launched_at=START, last_step=411, last_step_at=START, epoch=4, loss=0.7),
)


def build_notices(before: Job | None, after: Job, decision: de.Decision | None = None) -> tuple[Notice, ...]:
    return notices(before, after, decision, START.plus(60), "box")


def body(notice: Notice) -> dict[str, Any]:
    decoded = json.loads(notice.body())
    assert set(decoded) == {"type", "timestamp", "data"}
    assert isinstance(decoded, dict)
    return decoded


def stopped() -> tuple[Job, de.Stop]:
    stop = de.Stop(at=START, job="night", attempt=1, reason="stalled", save=False, flag=STALL)
    return after_decision(RUNNING, stop), stop


def test_an_incident_is_reported_when_it_opens_and_when_training_goes_on() -> None:
    """The whole of one story through the core's own functions."""
    job, stop = stopped()
    (opened,) = build_notices(RUNNING, job, stop)
    assert opened.type == "incident.opened"
    facts = body(opened)["data"]
    assert (facts["severity"], facts["rule"], facts["message"]) == ("critical", "stall", "no step for 41 s")
    assert (facts["job"], facts["attempt"], facts["host"], facts["last_step"]) == ("night", 1, "box", 411)
    quiet: list[tuple[Job, Job, de.Decision | None]] = []

    def follow(step: ev.Event | de.Decision) -> None:
        nonlocal job
        decided = isinstance(step, de.Decision)
        after = after_decision(job, step) if isinstance(step, de.Decision) else after_event(job, step)
        quiet.append((job, after, step if decided else None))  # type: ignore[arg-type]  # it is one where decided
        job = after

    follow(ev.Exited(at=START.plus(9), job="night", attempt=1, status=ExitStatus(at=START.plus(9), signal=15)))
    treated = de.Retry(at=START.plus(9), job="night", attempt=1, reason="stalled", not_before=START, flag=STALL)
    follow(replace(treated, cause="stall", remedy="no_workers", why="the same stall at the same place"))
    follow(de.Launch(at=START.plus(12), job="night", attempt=2, resume_from=POINT, reason="newest proven"))
    assert [build_notices(*item) for item in quiet] == [(), (), ()]
    first = StepRecord(at=START.plus(30), step=401)
    after = after_event(job, ev.StepsMade(at=START.plus(30), job="night", attempt=2, records=(first,)))
    (resumed,) = build_notices(job, after)
    assert resumed.type == "incident.resumed"
    facts = body(resumed)["data"]
    assert (facts["resumed_from"], facts["resumed_step"], facts["lost_steps"]) == ("/runs/night/last.pt", 400, 11)
    assert facts["downtime_s"] == 30.0
    assert (facts["cause"], facts["remedy"], facts["remedy_why"]) == (
        "stall", "no_workers", "the same stall at the same place"
    )  # fmt: skip
    assert (resumed.key, alert_id(resumed, "x") == alert_id(opened, "x")) == (opened.key, False)
    assert build_notices(after, after) == ()


def test_what_a_triage_found_is_reported_once_and_that_it_found_nothing_is_not() -> None:
    job, _ = stopped()
    assert job.incident is not None
    output = Finding(verdict="data", words="img is not finite", files=("/data/3.png",))
    found = replace(job, incident=replace(job.incident, finding=output))
    (notice,) = build_notices(job, found)
    assert (notice.type, notice.severity) == ("incident.triaged", Severity.CRITICAL)
    assert body(notice)["data"]["triage"] == {
        "verdict": "data", "words": "img is not finite", "files": ["/data/3.png"]
    }  # fmt: skip
    assert build_notices(found, found) == ()
    nothing = replace(job, incident=replace(job.incident, finding=inconclusive("it ran out of time")))
    assert build_notices(job, nothing) == ()


def test_giving_up_says_why_and_how_it_came_to_that() -> None:
    job, _ = stopped()
    ended = after_event(job, ev.HostLost(at=START, job="night", attempt=1, reason="reboot"))
    give_up = de.GiveUp(at=START, job="night", attempt=1, reason="5 restarts in a row", flag=STALL)
    (notice,) = build_notices(ended, after_decision(ended, give_up), give_up)
    assert (notice.type, notice.severity) == ("job.gave_up", Severity.CRITICAL)
    facts = body(notice)["data"]
    assert (facts["reason"], facts["rule"], facts["outcome"]) == ("5 restarts in a row", "stall", "gave_up")


def test_a_crash_that_cannot_be_retried_opens_its_incident_and_gives_up_at_once() -> None:
    give_up = de.GiveUp(at=START, job="night", attempt=1, reason="budget", flag=replace(STALL, rule="crash"))
    after = after_decision(RUNNING, give_up)
    assert [report.type for report in build_notices(RUNNING, after, give_up)] == ["incident.opened", "job.gave_up"]


def test_the_end_of_the_training_is_reported_whatever_the_floor_but_not_to_the_one_who_ended_it() -> None:
    finish = de.Finish(at=START, job="night", attempt=1, reason="ended by itself")
    (notice,) = build_notices(RUNNING, after_decision(RUNNING, finish), finish)
    assert (notice.type, notice.severity) == ("job.finished", Severity.INFO)
    assert notice.wanted(Severity.CRITICAL)
    by_user = replace(finish, by_user=True)
    assert build_notices(RUNNING, after_decision(RUNNING, by_user), by_user) == ()


def test_a_finish_without_a_step_since_a_fault_that_spoils_saves_is_a_warning_and_the_incident_stays_reported() -> None:
    job, _ = stopped()
    job = after_event(job, ev.Exited(at=START, job="night", attempt=1, status=ExitStatus(at=START, signal=15)))
    retry = de.Retry(at=START, job="night", attempt=1, reason="stalled", not_before=START, flag=STALL)
    launch = de.Launch(at=START, job="night", attempt=2, resume_from=POINT, reason="resume")
    before = after_decision(after_decision(job, retry), launch)
    finish = de.Finish(at=START, job="night", attempt=2, reason="no step", unconfirmed=True)
    (notice,) = build_notices(before, after_decision(before, finish), finish)
    assert (notice.type, notice.severity) == ("job.finished", Severity.WARNING)
    assert body(notice)["data"]["unconfirmed"] is True
    known = replace(finish, unconfirmed=False)
    reported = build_notices(before, after_decision(before, known), known)
    assert [(item.type, item.severity) for item in reported][1:] == [("job.finished", Severity.INFO)]
    assert "unconfirmed" not in body(reported[1])["data"]


def test_a_warning_reaches_those_who_want_warnings() -> None:
    flag = RedFlag(rule="vram_high", severity=Severity.WARNING, at=START, message="96 %", subject="0000:0a:00.0")
    warn = de.Warn(at=START, job="night", attempt=1, flag=flag)
    (notice,) = build_notices(RUNNING, after_decision(RUNNING, warn), warn)
    assert notice.type == "flag.warning"
    assert [notice.wanted(item) for item in Severity] == [True, True, False]
    assert body(notice)["data"]["subject"] == "0000:0a:00.0"
    unkillable = replace(warn, flag=replace(flag, severity=Severity.CRITICAL, rule="unkillable"))
    assert [report.type for report in build_notices(RUNNING, RUNNING, unkillable)] == ["flag.critical"]


def test_a_launch_a_kill_and_a_tick_are_not_worth_a_message() -> None:
    launch = de.Launch(at=START, job="night", attempt=1, resume_from=None, reason="start")
    pending = Job(name="night", since=START)
    assert build_notices(pending, after_decision(pending, launch), launch) == ()
    assert build_notices(None, pending) == ()
    assert build_notices(RUNNING, RUNNING) == ()


def test_asked_again_after_a_crash_the_same_alert_has_the_same_id() -> None:
    job, stop = stopped()
    (first,), (again,) = build_notices(RUNNING, job, stop), build_notices(RUNNING, job, stop)
    assert alert_id(first, "owner") == alert_id(again, "owner")
    assert alert_id(first, "owner") != alert_id(first, "team")
    assert alert_id(first, "owner").startswith("msg_")


def test_a_job_that_finishes_twice_is_reported_twice() -> None:
    finishes = [de.Finish(at=START.plus(later), job="night", attempt=1, reason="end") for later in (0, 5)]
    ids = {alert_id(build_notices(RUNNING, after_decision(RUNNING, finish), finish)[0], "owner") for finish in finishes}
    assert len(ids) == 2


def test_a_loss_that_is_no_number_is_valid_json() -> None:
    assert RUNNING.attempt is not None
    spoilt = replace(RUNNING, attempt=replace(RUNNING.attempt, loss=float("nan")))
    finish = de.Finish(at=START, job="night", attempt=1, reason="end")
    (notice,) = build_notices(spoilt, after_decision(spoilt, finish), finish)
    assert body(notice)["data"]["loss"] is None


def test_a_trial_reaches_every_floor() -> None:
    notice = self_test("owner", START, "box", 1)
    assert notice.wanted(Severity.CRITICAL)
    assert body(notice)["type"] == "test"


def test_text_from_a_training_cannot_act_on_its_reader() -> None:
    hostile = (
        "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b]8;;http://x\x1b\\link \x9b31m \u202eevil\u2066 a\tb\nc \x00\udcff"
    )
    assert clean(hostile) == "red  link  evil a\tb\nc "
    assert clean("x" * 5000, 10) == "x" * 9 + "\u2026"


widest = st.text(alphabet=st.sampled_from('\U0001f600"\\\u202e\x1b[a\udc80\n'), max_size=3000)


@given(widest, widest, st.integers(-(2**63), 2**63 - 1), st.floats())
def test_whatever_stands_in_an_incident_its_body_is_small_and_valid(
    text: str, other: str, number: int, real: float
) -> None:
    flag = RedFlag(
        rule=text, severity=Severity.CRITICAL, at=START, message=text, subject=other, fault=other, since_step=number
    )
    point = replace(POINT, path=other, step=number, epoch=number)
    incident = Incident(
        id=text,
        job=other,
        attempt=1,
        flag=flag,
        decision="stop",
        resumed_from=point,
        evidence=text,
        reason=other,
        lost_steps=number,
        downtime_s=real,
        last_step=number,
        resumed_at=START,
    )
    assert RUNNING.attempt is not None
    attempt = replace(RUNNING.attempt, last_step=number, loss=real)
    job = replace(RUNNING, name=other, incident=incident, attempt=attempt, retry=RetryPlan(not_before=START, reason=""))
    give_up = de.GiveUp(at=START, job=other, attempt=1, reason=text)
    for notice in notices(None, job, give_up, START, text):
        encoded = notice.body()
        assert len(encoded) < LARGEST_BODY_BYTES
        json.loads(encoded)


def test_the_largest_body_there_can_be_is_small_enough() -> None:
    """Every text as long as it may be, of the characters that take the most bytes."""
    wide = "\U0001f600" * 5000
    flag = RedFlag(
        rule=wide,
        severity=Severity.CRITICAL,
        at=START,
        message=wide,
        subject=wide,
        fault=wide,
        diagnosis=Diagnosis(ruled_out=(wide,) * 9, causes=(wide,) * 9, advice=(wide,) * 9),
    )
    incident = Incident(id=wide, job=wide, attempt=1, flag=flag, decision="stop", evidence=wide, reason=wide)
    finding = Finding(verdict="data", words=wide, files=(wide,) * 99)
    incident = replace(incident, resumed_from=replace(POINT, path=wide), finding=finding)
    job = replace(RUNNING, name=wide, incident=incident)
    found = notices(None, job, de.GiveUp(at=START, job=wide, attempt=1, reason=wide), START, wide)
    assert [match.type for match in found] == ["incident.opened", "incident.triaged", "job.gave_up"]
    guessed = replace(job, incident=replace(incident, finding=inconclusive(wide)))
    found += notices(None, guessed, None, START, wide)
    assert max(len(match.body()) for match in found) < LARGEST_BODY_BYTES


def test_the_likeliest_causes_and_the_first_advice_go_with_a_flag_and_stay_short() -> None:
    output = ("a deadlock \x1b[31m" + "x" * 5000, "another", "a third")
    flag = replace(STALL, diagnosis=Diagnosis(ruled_out=output, causes=output, advice=("workers=0",)))
    stop = de.Stop(at=START, job="night", attempt=1, reason="stalled", save=False, flag=flag)
    (opened,) = build_notices(RUNNING, after_decision(RUNNING, stop), stop)
    facts = body(opened)["data"]
    assert [len(cause) <= 200 for cause in facts["causes"]] == [True, True]
    assert facts["causes"][1] == "another"
    assert "\x1b" not in facts["causes"][0]
    assert facts["advice"] == ["workers=0"]
    assert "ruled_out" not in facts
