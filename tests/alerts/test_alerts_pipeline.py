"""What is sent when: nothing essential is lost or late for long, warnings become a few messages, quiet is quiet."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from notices_by_hand import notice

from supervisor.alerts.channel import KeptNotice, read_notice
from supervisor.alerts.channels.ntfy import NtfySettings
from supervisor.alerts.channels.webhook import WebhookSettings
from supervisor.alerts.pipeline import (
    LISTED,
    Pending,
    Policy,
    Situation,
    build_digest,
    full_budget,
    is_essential,
    plan,
    policy_of,
    routes,
)
from supervisor.alerts.quiet import QuietHours, read_hours
from supervisor.config import check_text
from supervisor.core.flags import Severity
from supervisor.core.moments import Moment

START = Moment(1000.0, 1_763_600_000.0)
PHONE = Policy(digest=True)
BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(begin_min=22 * 60 + 30, end_min=7 * 60, zone=BERLIN)
STEP_S = 5.0


def warning(job: str = "yolo", rule: str = "vram_high") -> KeptNotice:
    return notice("flag.warning", job=job, rule=rule, severity="warning", message="96 %")


class Receiver:
    """A receiver whose messages always arrive; `sent` has the time of each with what it stands for."""

    def __init__(self, policy: Policy = PHONE, open_jobs: Iterable[str] = ()) -> None:
        self.policy, self.open_jobs = policy, frozenset(open_jobs)
        self.now, self.budget = START, full_budget(START)
        self.waiting: dict[str, tuple[KeptNotice, Moment]] = {}
        self.sent: list[tuple[Moment, tuple[KeptNotice, ...]]] = []
        self.muted = False
        self.count = 0

    def queue(self, *notices: KeptNotice) -> None:
        for item in notices:
            self.count += 1
            self.waiting[f"msg_{self.count}"] = (item, self.now)

    def turn(self) -> None:
        pending = [
            Pending(id=key, notice=item, waited_s=self.now.seconds_since(at))
            for key, (item, at) in self.waiting.items()
        ]
        situation = Situation(now=self.now, muted=self.muted, open_jobs=self.open_jobs)
        planned = plan(pending, self.policy, self.budget, situation)
        self.budget = planned.budget
        for message in planned.messages:
            for item in message:
                del self.waiting[item.id]
            self.sent.append((self.now, tuple(item.notice for item in message)))

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.turn()
            self.now = self.now.plus(STEP_S)

    def step_clock(self, seconds: float) -> None:
        self.now = Moment(self.now.monotonic_s, self.now.unix_s + seconds)

    @property
    def delivered(self) -> list[KeptNotice]:
        return [item for _, message in self.sent for item in message]


def test_a_critical_notice_and_an_outcome_are_sent_at_once_and_by_themselves() -> None:
    phone = Receiver()
    phone.queue(notice("incident.opened", job="yolo"), notice("job.finished", job="other", severity="info"))
    phone.turn()
    assert [len(message) for _, message in phone.sent] == [1, 1]


def test_warnings_of_a_training_wait_for_each_other_and_are_one_message() -> None:
    phone = Receiver()
    phone.queue(warning())
    phone.run(10)
    phone.queue(warning(rule="thermal"), warning("other"))
    phone.run(5)
    assert phone.sent == []
    phone.run(60)
    assert [[item.data["job"] for item in message] for _, message in phone.sent] == [["yolo", "yolo"], ["other"]]


@pytest.mark.parametrize("jobs", [1, 3, 40, 1000])
def test_a_thousand_warnings_in_a_minute_are_at_most_five_messages_and_none_is_lost(jobs: int) -> None:
    phone = Receiver()
    for number in range(1000):
        phone.queue(warning(f"job{number % jobs}"))
        if number % 84 == 0:
            phone.run(5)
    phone.run(600)
    assert len(phone.sent) <= 5
    phone.run(3600)
    assert len(phone.delivered) == 1000


def test_a_thousand_flags_in_a_minute_keep_no_outcome_from_arriving_soon() -> None:
    phone = Receiver()
    phone.queue(*(warning(f"job{number}") for number in range(1000)))
    phone.queue(notice("job.gave_up", job="yolo"))
    phone.turn()
    assert [item.type for item in phone.delivered] == ["job.gave_up"]


def test_a_flood_of_essential_notices_is_gathered_and_each_is_named() -> None:
    phone = Receiver()
    phone.queue(*(notice("job.gave_up", job=f"job{number}", host="box") for number in range(100)))
    phone.run(60)
    assert 4 <= len(phone.sent) <= 6
    phone.run(3600)
    named = ""
    for at, message in phone.sent:
        content = build_digest(message, "box", at, BERLIN)
        named += " ".join(json.loads(content)["data"]["alerts"]) + " "
        assert len(message) <= LISTED
    assert all(f"job{number} STOPPED, needs you" in named for number in range(100))


def test_a_program_gets_each_notice_by_itself_and_at_once() -> None:
    hook = Receiver(Policy())
    hook.queue(*(warning() for _ in range(100)))
    hook.turn()
    assert [len(message) for _, message in hook.sent] == [1] * 100


def test_warnings_of_a_training_wait_for_the_end_of_its_incident_but_not_for_ever() -> None:
    phone = Receiver(open_jobs={"yolo"})
    phone.queue(warning(), warning("other"))
    phone.run(300)
    assert [item.data["job"] for item in phone.delivered] == ["other"]
    phone.run(900)
    assert [item.data["job"] for item in phone.delivered] == ["other", "yolo"]


def test_while_muted_nothing_but_a_test_is_sent_and_afterwards_everything() -> None:
    phone = Receiver()
    phone.muted = True
    phone.queue(warning(), notice("job.gave_up", job="yolo"), notice("test"))
    phone.run(3600)
    assert [item.type for item in phone.delivered] == ["test"]
    phone.muted = False
    phone.run(60)
    assert sorted(item.type for item in phone.delivered) == ["flag.warning", "job.gave_up", "test"]


kinds = st.sampled_from(("flag.warning", "job.gave_up", "incident.resumed", "job.finished", "incident.opened"))
steps = st.one_of(
    st.tuples(st.just("queue"), st.lists(kinds, min_size=1, max_size=30)),
    st.tuples(st.just("run"), st.integers(1, 40)),
    st.tuples(st.just("clock"), st.integers(-100_000, 100_000)),
    st.tuples(st.just("mute"), st.booleans()),
    st.tuples(st.just("incident"), st.booleans()),
    st.tuples(st.just("reload"), st.sampled_from((PHONE, Policy(), Policy(digest=True, quiet=NIGHT)))),
)


@settings(deadline=None)
@given(st.lists(steps, max_size=12))
def test_whatever_happens_nothing_is_lost_or_sent_twice(story: list[tuple[str, Any]]) -> None:
    phone = Receiver(Policy(digest=True, quiet=NIGHT))
    queued: list[KeptNotice] = []
    for step, value in story:
        match step:
            case "queue":
                severity = {"flag.warning": "warning", "job.finished": "info"}
                items = [
                    notice(kind, job=f"job{len(queued)}", severity=severity.get(kind, "critical")) for kind in value
                ]
                queued += items
                phone.queue(*items)
            case "run":
                phone.run(value * STEP_S)
            case "clock":
                phone.step_clock(value)
            case "mute":
                phone.muted = value
            case "incident":
                phone.open_jobs = frozenset({"job0"}) if value else frozenset()
            case "reload":
                phone.policy = value
    phone.muted, phone.policy = False, PHONE
    phone.run(4 * 3600)
    assert len(phone.delivered) == len(queued)
    assert {id(item) for item in phone.delivered} == {id(item) for item in queued}


def expected_quiet(local: datetime) -> bool:
    """The night from 22:30 to 07:00, reckoned in another way than the code does: as the morning of a shifted clock."""
    shifted = local + timedelta(hours=1, minutes=30)
    return (shifted.hour, shifted.minute) < (8, 30)


def test_ten_thousand_nights_with_clock_steps_and_summer_time_leak_nothing_and_lose_nothing() -> None:
    """27 years of Berlin: each day a warning and an outcome at odd times, and a clock that is set now and then."""
    phone = Receiver(Policy(digest=True, quiet=NIGHT))
    leaked = queued = 0
    for day in range(10_000):
        phone.queue(warning(f"job{day % 7}"))
        queued += 1
        if day % 3 == 0:
            phone.queue(notice("job.finished", job="yolo", severity="info"))
            queued += 1
        if day % 11 == 0:
            phone.step_clock((-1) ** day * (day % 23) * 1800.0)
        for _ in range(12):
            before = len(phone.sent)
            phone.turn()
            local = datetime.fromtimestamp(phone.now.unix_s, BERLIN).replace(tzinfo=None)
            leaked += expected_quiet(local) and len(phone.sent) > before
            phone.now = phone.now.plus(7200.0 + (day % 59))
    phone.run(86_400)
    assert (leaked, len(phone.delivered)) == (0, queued)


def test_critical_notices_pass_at_night() -> None:
    phone = Receiver(Policy(digest=True, quiet=NIGHT))
    phone.now = Moment(1000.0, datetime(2026, 11, 21, 3, 0, tzinfo=BERLIN).timestamp())
    phone.budget = full_budget(phone.now)
    phone.queue(notice("job.gave_up", job="yolo"), notice("job.finished", job="other", severity="info"), warning())
    phone.run(3 * 3600)
    assert [item.type for item in phone.delivered] == ["job.gave_up"]
    phone.run(3600 + 60)
    assert sorted(item.type for item in phone.delivered) == ["flag.warning", "job.finished", "job.gave_up"]


@pytest.mark.parametrize(
    ("local", "quiet"),
    [
        ((2026, 11, 20, 22, 29), False),
        ((2026, 11, 20, 22, 30), True),  # Friday, which is one of its days
        ((2026, 11, 21, 6, 59), True),  # Saturday morning belongs to Friday's night
        ((2026, 11, 21, 7, 0), False),
        ((2026, 11, 21, 23, 0), False),  # Saturday
        ((2026, 11, 23, 6, 0), False),  # Monday morning belongs to Sunday's night
    ],
)
def test_a_night_belongs_to_the_day_on_which_it_begins(local: tuple[int, ...], quiet: bool) -> None:
    hours = read_hours("22:30-07:00", ["fri"], BERLIN)
    year, month, day, hour, minute = local
    assert hours.includes(datetime(year, month, day, hour, minute, tzinfo=BERLIN).timestamp()) is quiet


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 1439), st.integers(0, 1439))
@example(float("nan"), 0, 0)
def test_no_clock_makes_quiet_hours_fail(unix_s: float, begin_min: int, end_min: int) -> None:
    QuietHours(begin_min=begin_min, end_min=end_min, zone=BERLIN).includes(unix_s)


def test_a_period_that_ends_when_it_begins_is_a_day_long() -> None:
    hours = read_hours("12:00-12:00", ["mon"], BERLIN)
    assert hours.includes(datetime(2026, 11, 24, 11, 59, tzinfo=BERLIN).timestamp())
    assert not hours.includes(datetime(2026, 11, 24, 12, 0, tzinfo=BERLIN).timestamp())


def test_routes_by_training_and_type() -> None:
    policy = Policy(jobs=("yolo*",), types=("incident.*", "job.gave_up"))
    assert routes(policy, "incident.opened", "yolo-large")
    assert not routes(policy, "incident.opened", "resnet")
    assert not routes(policy, "flag.warning", "yolo")
    assert routes(Policy(jobs=("yolo",)), "test", None)


def test_a_policy_is_read_from_the_settings() -> None:
    given_settings = NtfySettings(quiet_hours="22:30-07:00", quiet_days=["fri"], time_zone="Europe/Berlin", jobs=["a"])
    policy = policy_of(given_settings)
    assert (policy.digest, policy.jobs, policy.floor) == (True, ("a",), Severity.WARNING)
    assert policy.quiet == QuietHours(begin_min=1350, end_min=420, days=frozenset({4}), zone=BERLIN)
    assert policy_of(WebhookSettings()) == Policy()


@pytest.mark.parametrize("zone", ["Mars/Phobos", "../../etc/passwd", "UTC"])
def test_a_zone_that_is_not_known_changes_nothing_but_the_zone_which_is_utc(zone: str) -> None:
    policy = policy_of(
        NtfySettings(quiet_hours="22:30-07:00", report_at="07:30", time_zone=zone, jobs=["a"], min_severity="info")
    )
    assert (policy.jobs, policy.digest, policy.floor) == (("a",), True, Severity.INFO)
    assert (policy.report_at, policy.zone) == ("07:30", timezone.utc)
    assert policy.quiet is not None
    assert policy.quiet.includes(datetime(2026, 7, 1, 22, 30, tzinfo=timezone.utc).timestamp())
    assert not policy.quiet.includes(datetime(2026, 7, 1, 22, 29, tzinfo=timezone.utc).timestamp())


@pytest.mark.parametrize(
    "keys",
    [
        "quiet_hours = '22:30'",
        "quiet_hours = '24:00-07:00'",
        "quiet_hours = '7-8'",
        "quiet_days = ['friday']",
        "jobs = ['']",
    ],
)
def test_quiet_hours_that_are_none_are_refused_in_the_configuration(keys: str) -> None:
    assert check_text(f"[alerts.a]\nurl_env = 'U'\n{keys}", "some.toml").settings is None


def test_a_digest_names_the_essential_ones_first_and_counts_the_rest_by_rule() -> None:
    waiting = [*(warning(f"job{number}", "thermal") for number in range(30)), notice("job.gave_up", job="yolo")]
    data = json.loads(build_digest(waiting, "box", START, BERLIN))["data"]
    assert data["alerts"][0].startswith("yolo STOPPED, needs you")
    assert (data["count"], data["severity"], data["more"]) == (31, "critical", {"thermal": 31 - LISTED})


def test_what_cannot_be_read_is_essential() -> None:
    assert is_essential(read_notice("msg_1", b"{"))
