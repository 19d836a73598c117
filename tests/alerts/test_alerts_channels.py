"""Each channel over HTTP stands before a receiver that enforces the service's documented limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import strict_services as services
from hypothesis import HealthCheck, given, settings
from notices_by_hand import notice, notices, resumed
from strict_services import Service, Strict, strict

from supervisor.alerts.channel import Answer, Channel, KeptNotice
from supervisor.alerts.channels import CHANNELS
from supervisor.alerts.channels.telegram import Telegram, TelegramSettings
from supervisor.alerts.message import compose
from supervisor.alerts.settings import ReceiverError

ZONE = "Europe/Berlin"
NOW = 1_763_600_000.0
CHECK = "/ping/3f2c9a0e-5b1d-4e52-9b0a-2f6d9f1f7c11"
TOKEN = "4839574812:AAFD39kkdpWt3ywyRZergyOLMaJhac60qcs"


@dataclass(frozen=True)
class Case:
    """A channel with its service and the settings that lead to it."""

    kind: str
    service: Service
    path: str = ""
    secret: str | None = None
    extra: tuple[tuple[str, Any], ...] = ()

    def channel(self, port: int, folder: Path, **changes: Any) -> Channel:
        kind = CHANNELS[self.kind]
        (folder / "url").write_text(f"http://127.0.0.1:{port}{self.path}\n")
        given = {
            "kind": self.kind,
            "url_file": str(folder / "url"),
            "allow_private": True,
            "time_zone": "Europe/Berlin",
        }
        if self.secret is not None:
            (folder / "secret").write_text(f"{self.secret}\n")
            given["secret_file"] = str(folder / "secret")
        return kind.from_settings("phone", kind.settings_type(**{**given, **dict(self.extra), **changes}))


CASES = {
    case.kind: case
    for case in (
        Case("ntfy", services.ntfy, "/night-run-7hq2", "tk_AgQdq7mVBoFD37zQVN29RhuMzNIz2"),
        Case("discord", services.discord, "/api/webhooks/1208435/xD3f-9qW_7"),
        Case("slack", services.slack, "/services/T024BE7LD/B01A2B3C4/xoxqV3ryS3cr3t"),
        Case("telegram", services.telegram, "", TOKEN, (("chat_id", "-1001234"),)),
        Case("alertmanager", services.alertmanager, "", "s3cr3t-bearer-token"),
        Case("healthchecks", services.healthchecks, CHECK),
    )
}
every_channel = pytest.mark.parametrize("kind", CASES)


@contextmanager
def facing(kind: str, folder: Path) -> Iterator[tuple[Channel, Strict]]:
    with strict(CASES[kind].service) as server:
        yield CASES[kind].channel(server.port, folder), server


def deliver(channel: Channel, sent: KeptNotice) -> Answer:
    return channel.send(sent, channel.render(sent), NOW)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(sent=notices())
def test_no_text_of_any_length_or_script_is_refused_or_shown_as_markup(
    servers: dict[str, tuple[Channel, Strict]], sent: KeptNotice
) -> None:
    title = compose(sent, ZoneInfo(ZONE)).title
    for kind, (channel, server) in servers.items():
        server.accepted.clear()
        assert deliver(channel, sent) == Answer(delivered=True), kind
        (shown,) = server.accepted
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown), kind
        first = shown.splitlines()[0].removesuffix("…")
        assert first[:50] == title[: len(first)][:50], kind


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Channel, Strict]]]:
    found, running = {}, []
    for kind in CASES:
        context = facing(kind, tmp_path_factory.mktemp(kind))
        found[kind] = context.__enter__()
        running.append(context)
    yield found
    for context in running:
        context.__exit__(None, None, None)


@every_channel
def test_a_training_that_goes_on_is_understood_on_a_lock_screen(kind: str, tmp_path: Path) -> None:
    """State and training first; then the cost, the fault, its beginning in local time, and one command."""
    with facing(kind, tmp_path) as (channel, server):
        assert deliver(channel, resumed()).delivered
    (shown,) = server.accepted
    began = "02:57" if kind == "alertmanager" else "03:57"
    assert shown.splitlines() == [
        "yolo is training again (nothing to do)",
        "Resumed from step 1,204,600. Cost: 49 s without a step, 282 steps to redo.",
        "It was: no step for 41 s",
        f"Since {began}, step 1,204,882, epoch 31.",
        "Remedy: no workers (the same stall at the same place).",
        "Host gpubox. supervisorctl show yolo-12",
    ]


@every_channel
def test_a_longest_text_keeps_its_beginning(kind: str, tmp_path: Path) -> None:
    with facing(kind, tmp_path) as (channel, server):
        long = notice("digest", host="box", count=900, alerts=["漢😀" * 300] * 200)
        assert deliver(channel, long) == Answer(delivered=True)
    assert server.accepted[0].startswith("900 alerts from box\n漢😀漢😀")
    assert server.accepted[0].endswith("…")


@every_channel
def test_a_service_that_asks_for_time_is_given_it(kind: str, tmp_path: Path) -> None:
    """429 with `Retry-After`, in seconds or fractions of one; Telegram has it in the body."""
    with facing(kind, tmp_path) as (channel, server):
        server.refusals = [(429, b"slow down", {"Retry-After": "7"}), (429, b"", {"Retry-After": "1.337"})]
        assert [deliver(channel, resumed()).retry_after_s for _ in range(2)] == [7.0, 1.337]
        server.refusals = [(429, json.dumps({"ok": False, "parameters": {"retry_after": 5}}).encode(), {})]
        assert deliver(channel, resumed()).retry_after_s == (5.0 if kind == "telegram" else None)


@every_channel
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"parameters": {"retry_after": "soon"}}', b"\xff" * 3000])
def test_a_refusal_in_any_words_is_a_failed_attempt(kind: str, body: bytes, tmp_path: Path) -> None:
    with facing(kind, tmp_path) as (channel, server):
        server.refusals = [(429, body, {})]
        answer = deliver(channel, resumed())
    assert (answer.delivered, answer.retry_after_s, answer.final) == (False, None, False)
    assert (answer.error or "").startswith("status 429")


@every_channel
def test_a_service_that_echoes_address_or_token_does_not_give_them_away(kind: str, tmp_path: Path) -> None:
    case = CASES[kind]
    hidden = [text for text in (*case.path.split("/"), case.secret) if text and any(map(str.isdigit, text))]
    with facing(kind, tmp_path) as (channel, server):
        for text in hidden:
            server.refusals = [(403, f"no rights for {text}".encode(), {})]
            answer = deliver(channel, resumed())
            assert text not in f"{answer} {channel!r} {channel.destination}"
            assert "because it contains the address" in (answer.error or "")


def test_what_is_sent_to_ntfy_is_urgent_where_a_person_is_needed(tmp_path: Path) -> None:
    channel = CASES["ntfy"].channel(1, tmp_path)
    kinds = ("job.gave_up", "incident.opened", "flag.warning", "incident.resumed")
    assert [json.loads(channel.render(notice(kind)))["priority"] for kind in kinds] == [5, 4, 3, 2]


def test_the_token_of_ntfy_and_of_alertmanager_is_a_bearer_token(tmp_path: Path) -> None:
    seen: list[str] = []

    def service(_: str, headers: dict[str, str], __: bytes) -> str:
        seen.append(headers["authorization"])
        return ""

    for kind in ("ntfy", "alertmanager"):
        with strict(service) as server:
            assert deliver(CASES[kind].channel(server.port, tmp_path), resumed()).delivered
    assert seen == [f"Bearer {CASES[kind].secret}" for kind in ("ntfy", "alertmanager")]


def test_a_training_that_goes_on_resolves_the_alert_that_its_incident_opened(tmp_path: Path) -> None:
    channel = CASES["alertmanager"].channel(1, tmp_path)
    facts = {"job": "yolo", "host": "box", "rule": "stall", "incident": "yolo-12"}
    (opened,) = json.loads(channel.render(notice("incident.opened", **facts)))
    (over,) = json.loads(channel.render(notice("incident.resumed", timestamp="2026-11-21T03:01:00Z", **facts)))
    assert opened["labels"] == over["labels"]
    assert "yolo-12" not in opened["labels"].values()
    assert opened["endsAt"] > opened["startsAt"]
    assert over["endsAt"] == over["startsAt"] == "2026-11-21T03:01:00+00:00"
    gave_up, ended = json.loads(channel.render(notice("job.gave_up", **facts)))
    assert gave_up["labels"]["alertname"] == "TrainingGaveUp"
    assert (ended["labels"], ended["endsAt"]) == (opened["labels"], ended["startsAt"])


def test_a_training_that_was_given_up_is_a_failure_of_the_check_and_the_rest_is_its_log(tmp_path: Path) -> None:
    paths: list[str] = []

    def service(path: str, headers: dict[str, str], body: bytes) -> str:
        paths.append(path.removeprefix(CHECK))
        return services.healthchecks(path, headers, body)

    with strict(service) as server:
        channel: Any = CASES["healthchecks"].channel(server.port, tmp_path, ping_every_s=60.0)
        for kind in ("job.gave_up", "incident.opened", "test"):
            assert deliver(channel, notice(kind)).delivered
        assert channel.ping("1 of 1 training", NOW).delivered
    assert paths == ["/fail", "/log", "/log", ""]
    assert channel.ping_every_s == 60.0


@pytest.mark.parametrize(
    ("kind", "changes", "reported"),
    [
        ("ntfy", {"url": "https://ntfy.sh/"}, "does not end in a topic"),
        ("ntfy", {"url": "https://ntfy.sh/a?b=c"}, "does not end in a topic"),
        ("telegram", {"secret_env": "NO_SUCH_VARIABLE_HERE"}, "NO_SUCH_VARIABLE_HERE is not set"),
        ("telegram", {}, "secret is missing"),
        ("slack", {}, "no address"),
    ],
)
def test_settings_that_cannot_be_used_are_named(kind: str, changes: dict[str, Any], reported: str) -> None:
    channel = CHANNELS[kind]
    given = {"kind": kind, **dict(CASES[kind].extra), **changes}
    with pytest.raises(ReceiverError, match=reported) as caught:
        channel.from_settings("phone", channel.settings_type(**given))
    assert str(caught.value).startswith("alerts.phone")


def test_a_secret_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3same 0pen")
    with pytest.raises(ReceiverError) as caught:
        Telegram.from_settings("phone", TelegramSettings(chat_id="1", secret_file=str(tmp_path / "secret")))
    assert "s3same" not in str(caught.value)
