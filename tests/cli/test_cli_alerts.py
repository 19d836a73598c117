"""`supervisorctl alerts`: which receivers can be sent to, what became of each alert, and one sent to try it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from view_by_hand import DELIVERED, FakeView, serving

from supervisor.cli.app import App
from supervisor.cli.main import cli
from supervisor.control import types

NOW = 1_763_165_520.0
PHONE = types.AlertReceiver(name="phone", state="ok", min_severity="warning", delivered=7, last_delivered_at=NOW - 120)
DESK = types.AlertReceiver(
    name="desk", state="unusable", min_severity="critical", waiting=2, problem="alerts.desk.url_file: cannot be read"
)
REFUSED = msgspec.structs.replace(DELIVERED, state="failed", error="status 404: no such hook")


@dataclass
class Desk:
    """A command line at a daemon."""

    socket: Path
    view: FakeView = field(default_factory=FakeView)

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(cli, ["--socket", str(self.socket), *words], obj=App(now=lambda: NOW))


@pytest.fixture
def desk() -> Iterator[Desk]:
    view = FakeView(receivers=[DESK, PHONE])
    with serving(view) as socket:
        yield Desk(socket, view)


def test_each_receiver_is_shown_with_what_is_wrong_with_it(desk: Desk) -> None:
    result = desk.run("alerts")
    assert result.exit_code == 1
    first, *_ = (line for line in result.output.splitlines() if line.startswith("desk"))
    assert first.split()[1:5] == ["webhook", "unusable", "critical", "2"]
    assert first.endswith("alerts.desk.url_file: cannot be read")
    assert "phone     webhook  ok        warning         0          7         0  2 min ago" in result.output


def test_receivers_that_all_work_end_with_0(desk: Desk) -> None:
    desk.view.receivers = [PHONE]
    assert desk.run("alerts").exit_code == 0
    assert json.loads(desk.run("--json", "alerts").output)["receivers"][0]["delivered"] == 7


def test_a_receiver_that_works_in_another_zone_is_shown_with_why_and_ends_with_0(desk: Desk) -> None:
    desk.view.receivers = [msgspec.structs.replace(PHONE, warning="alerts.phone.time_zone: 'X/Y' is not a time zone")]
    result = desk.run("alerts")
    assert (result.exit_code, "ok " in result.output) == (0, True)
    assert "2 min ago       alerts.phone.time_zone: 'X/Y' is not a time zone" in result.output


def test_no_receiver_is_shown_as_none(desk: Desk) -> None:
    desk.view.receivers = []
    result = desk.run("alerts")
    assert (result.exit_code, result.output) == (0, "no receiver is configured; add [alerts.NAME] to config.toml\n")


def test_a_test_alert_that_arrives_is_reported_to_have_arrived(desk: Desk) -> None:
    result = desk.run("alerts", "test", "phone")
    assert (result.exit_code, result.output) == (0, "delivered to phone\n")


def test_a_test_alert_that_is_refused_ends_with_the_receivers_words(desk: Desk) -> None:
    desk.view.answer_to_test = REFUSED
    result = desk.run("alerts", "test", "phone")
    assert result.exit_code == 1
    assert "not delivered to phone: status 404: no such hook" in result.stderr


def test_a_test_alert_without_an_answer_ends_in_time(desk: Desk) -> None:
    desk.view.answer_to_test = msgspec.structs.replace(DELIVERED, state="waiting")
    result = desk.run("alerts", "test", "phone", "--timeout", "0.3")
    assert result.exit_code == 1
    assert "no response from phone within 0.3 s" in result.stderr


def test_an_unknown_receiver_is_named_with_the_known_ones(desk: Desk) -> None:
    result = desk.run("alerts", "test", "pager")
    assert result.exit_code == 1
    assert "no receiver 'pager' is configured" in result.stderr
    assert "one of: desk, phone" in result.stderr


def test_receivers_are_muted_for_a_time_and_the_answer_says_until_when(desk: Desk) -> None:
    result = desk.run("alerts", "mute", "2h")
    assert result.exit_code == 0
    assert result.output.startswith("desk, phone: muted until 20")
    assert desk.run("--json", "alerts", "mute", "90min", "phone").exit_code == 0
    assert desk.run("alerts", "unmute", "phone").output == "phone: not muted\n"
    assert desk.view.mutes == [(None, 7200), ("phone", 5400), ("phone", 0)]


@pytest.mark.parametrize("duration", ["0s", "25h", "2d", "2026-01-31", "soon"])
def test_a_mute_is_from_a_second_to_a_day_long(desk: Desk, duration: str) -> None:
    assert desk.run("alerts", "mute", duration).exit_code == 2
    assert desk.view.mutes == []


def test_an_unknown_receiver_cannot_be_muted(desk: Desk) -> None:
    result = desk.run("alerts", "mute", "1h", "pager")
    assert result.exit_code == 1
    assert "no receiver 'pager' is configured" in result.stderr


def test_a_muted_receiver_and_one_in_quiet_hours_are_shown_as_such(desk: Desk) -> None:
    muted = msgspec.structs.replace(PHONE, muted_until=NOW + 60, kind="ntfy")
    quiet = msgspec.structs.replace(PHONE, name="night", quiet=True)
    desk.view.receivers = [muted, quiet]
    result = desk.run("alerts")
    assert result.exit_code == 0
    first, second = (line.split() for line in result.output.splitlines()[1:3])
    assert (first[:3], second[:3]) == (["phone", "ntfy", "muted"], ["night", "webhook", "quiet"])
    assert "muted until 20" in result.output


def test_an_incident_is_acknowledged_and_an_unknown_one_is_an_error(desk: Desk) -> None:
    known = desk.view.history[0]
    result = desk.run("alerts", "ack", known.id)
    assert (result.exit_code, result.output) == (0, f"{known.job}: no more reminders until it is given up again\n")
    assert json.loads(desk.run("--json", "alerts", "ack", known.id).output)["incident"] == known.id
    unknown = desk.run("alerts", "ack", "night-99")
    assert unknown.exit_code == 1
    assert "night-99" in unknown.stderr
