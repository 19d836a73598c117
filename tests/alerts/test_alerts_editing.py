"""The message of an open incident is edited where the service can; what was deleted meanwhile is sent again."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from editable_services import Editable, editable
from hypothesis import HealthCheck, given, settings
from notices_by_hand import notice, notices, resumed
from receiver_by_hand import endless, raw, receiver, status
from strict_services import ntfy, strict
from test_alerts_channels import CASES, NOW, deliver
from test_alerts_picture import curve

from supervisor.alerts.channel import Channel, EditingChannel, KeptNotice, PicturedChannel
from supervisor.alerts.incident_messages import KEPT_AT_MOST, OpenMessages, find_message, keep_message
from supervisor.alerts.outbox import AlertSender
from supervisor.alerts.picture import draw_loss
from supervisor.core.events import AlertTried
from supervisor.core.moments import Moment
from tests.examples import at_least

DEADLINE_S = 120.0
BOTH = pytest.mark.parametrize("kind", ["discord", "telegram"])


def opened(**changes: object) -> KeptNotice:
    """The beginning of the incident that `resumed` ends."""
    data = {**resumed().data, "decision": "stop", **changes}
    return notice("incident.opened", **data)


@contextmanager
def facing(kind: str, folder: Path, **changes: object) -> Iterator[tuple[Channel, EditingChannel, Editable]]:
    with editable(kind) as server:
        channel = CASES[kind].channel(server.port, folder, **changes)
        assert isinstance(channel, EditingChannel)
        yield channel, channel, server


def edit(channel: Channel, sent: KeptNotice, message: str | None, picture: bytes | None = None) -> str | None:
    """Write a notice into a message; return what it is named afterwards, None where it has to be sent again."""
    assert isinstance(channel, EditingChannel)
    assert message is not None
    answer = channel.edit(sent, channel.render(sent), picture, message, NOW)
    if answer is None:
        return None
    assert answer.delivered, answer.error
    return answer.message


@BOTH
def test_the_end_of_an_incident_takes_the_place_of_its_beginning(kind: str, tmp_path: Path) -> None:
    with facing(kind, tmp_path) as (channel, _, server):
        answer = deliver(channel, opened())
        assert [text.splitlines()[0] for text in server.shown.values()] == ["yolo: stall"]
        assert edit(channel, resumed(), answer.message) == answer.message
        assert edit(channel, resumed(), answer.message) == answer.message, "an edit that changes nothing is no failure"
        assert [text.splitlines()[0] for text in server.shown.values()] == ["yolo is training again (nothing to do)"]


@BOTH
def test_a_message_that_was_deleted_is_to_be_sent_again(kind: str, tmp_path: Path) -> None:
    with facing(kind, tmp_path) as (channel, _, server):
        made = deliver(channel, opened()).message
        server.shown.clear()
        assert edit(channel, resumed(), made) is None


@BOTH
def test_a_message_of_another_service_or_chat_is_never_edited(kind: str, tmp_path: Path) -> None:
    with facing(kind, tmp_path) as (channel, _, server):
        made = deliver(channel, opened()).message
        assert made is not None
        foreign = made.replace("-1001234", "-1009999") if kind == "telegram" else made.replace(kind, "telegram text")
        for name in (foreign, "", "7", f"{made}/../../1", f"{made}?x"):
            assert edit(channel, resumed(), name) is None
        assert next(iter(server.shown.values())).startswith("yolo: stall")


@BOTH
def test_a_service_that_is_away_is_asked_again_and_not_sent_a_second_message(kind: str, tmp_path: Path) -> None:
    with facing(kind, tmp_path) as (channel, editing, server):
        made = deliver(channel, opened()).message
        assert made is not None
        server.refusals = [(503, b"", {}), (429, b"", {"Retry-After": "7"})]
        for wait_s in (None, 7.0):
            answer = editing.edit(resumed(), channel.render(resumed()), None, made, NOW)
            assert answer is not None
            assert (answer.delivered, answer.retry_after_s) == (False, wait_s)


@BOTH
def test_a_receiver_without_edit_makes_a_message_of_each_notice(kind: str, tmp_path: Path) -> None:
    with facing(kind, tmp_path, edit=False) as (channel, _, _server):
        assert deliver(channel, opened()).message is None
        assert edit(channel, resumed(), "discord 1400000001") is None
        assert edit(channel, resumed(), "telegram text 1400000001 -1001234") is None


@BOTH
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=at_least(10))
@given(sent=notices())
def test_no_text_of_any_length_or_script_is_refused_in_an_edit(kind: str, tmp_path: Path, sent: KeptNotice) -> None:
    with facing(kind, tmp_path) as (channel, _, server):
        made = deliver(channel, opened()).message
        assert edit(channel, sent, made) == made
        assert len(server.shown) == 1


@BOTH
def test_a_message_with_a_picture_is_edited_too(kind: str, tmp_path: Path) -> None:
    picture = draw_loss(curve([2.0, 1.0, 1.5]))
    assert picture is not None
    with facing(kind, tmp_path) as (channel, _, server):
        assert isinstance(channel, PicturedChannel)
        made = channel.send_with_picture(opened(), channel.render(opened()), picture, NOW).message
        assert edit(channel, resumed(), made, picture) == made
        assert next(iter(server.shown.values())).startswith("yolo is training again")
        long = replace(resumed(), data={**resumed().data, "message": "word " * 130, "remedy_why": "word " * 130})
        assert edit(channel, long, made) == (None if kind == "telegram" else made)


def test_a_thread_of_discord_is_kept(tmp_path: Path) -> None:
    with editable("discord") as server:
        threaded = replace(CASES["discord"], path=f"{CASES['discord'].path}?thread_id=9")
        channel = threaded.channel(server.port, tmp_path)
        made = deliver(channel, opened()).message
        assert edit(channel, resumed(), made) == made


@BOTH
@pytest.mark.parametrize(
    "answered",
    [
        status(200, b"ok"),
        status(200, b'{"id": "../../../channels/1", "result": {"message_id": "1 2"}}'),
        status(200, b"[" * 100_000),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 300_000),
    ],
)
def test_an_acceptance_that_names_no_message_is_one_all_the_same(kind: str, tmp_path: Path, answered: object) -> None:
    with receiver() as server:
        server.answers = [answered]  # type: ignore[list-item]  # one of those above
        answer = deliver(CASES[kind].channel(server.port, tmp_path), opened())
    assert (answer.delivered, answer.message) == (True, None)


def test_an_edit_to_a_service_that_never_ends_its_answer_is_bounded(tmp_path: Path) -> None:
    with receiver() as server:
        server.answers = [endless]
        channel = CASES["discord"].channel(server.port, tmp_path, read_timeout_s=5.0)
        assert isinstance(channel, EditingChannel)
        answer = channel.edit(resumed(), channel.render(resumed()), None, "discord 7", NOW)
    assert answer is not None
    assert not answer.delivered


def test_ntfy_shows_the_newest_message_of_an_incident_alone_and_what_needs_a_person_by_itself(tmp_path: Path) -> None:
    with strict(ntfy) as server:
        channel = CASES["ntfy"].channel(server.port, tmp_path)
        plain = CASES["ntfy"].channel(server.port, tmp_path, edit=False)
    gave_up = notice("job.gave_up", **resumed().data)
    other = opened(incident="yolo-13")
    sequences = [json.loads(channel.render(sent)).get("sequence_id") for sent in (opened(), resumed(), gave_up, other)]
    assert sequences[0] == sequences[1] is not None
    assert sequences[2] is None
    assert sequences[3] not in (None, sequences[0])
    assert "sequence_id" not in json.loads(plain.render(opened()))


@dataclass(frozen=True)
class Queued:
    """A notice as the record hands it out."""

    id: str
    body: bytes
    sink: str = "phone"


class Standing:
    """A clock that stands still."""

    def now(self) -> Moment:
        return Moment(1000.0, NOW)


def test_the_sender_edits_what_is_there_and_sends_again_what_is_not(tmp_path: Path) -> None:
    inbox: queue.Queue[AlertTried] = queue.Queue()
    with facing("discord", tmp_path) as (channel, _, server):
        sender = AlertSender({"phone": channel}, inbox.put, Standing())
        sender.start()

        def offer(name: str, sent: KeptNotice, message: str | None) -> str | None:
            assert sender.offer(Queued(name, sent.content), message=message)
            tried = inbox.get(timeout=DEADLINE_S)
            assert tried.delivered, tried.error
            return tried.message

        first = offer("msg_1", opened(), None)
        assert offer("msg_2", resumed(), first) == first
        assert [text.splitlines()[0] for text in server.shown.values()] == ["yolo is training again (nothing to do)"]
        server.shown.clear()
        second = offer("msg_3", resumed(), first)
        assert second not in (None, first)
        assert len(server.shown) == 1
        sender.stop(DEADLINE_S)


def test_messages_are_kept_for_each_receiver_while_their_incident_is_open() -> None:
    kept: OpenMessages = {}
    kept = keep_message(kept, "phone", opened(), "discord 1")
    kept = keep_message(kept, "desk", opened(), None)
    assert find_message(kept, "phone", resumed()) == "discord 1"
    assert find_message(kept, "desk", resumed()) is None
    assert find_message(kept, "phone", opened()) is None
    assert find_message(kept, "phone", notice("job.gave_up", **resumed().data)) is None
    assert find_message(kept, "phone", notice("incident.resumed", job="yolo")) is None
    assert keep_message(kept, "phone", notice("flag.warning", job="yolo"), "discord 2") == kept
    assert keep_message(kept, "phone", resumed(), "discord 1") == {}


def test_incidents_that_are_never_closed_take_no_more_room() -> None:
    kept: OpenMessages = {}
    for number in range(3 * KEPT_AT_MOST):
        kept = keep_message(kept, "phone", opened(incident=f"yolo-{number}"), f"discord {number}")
    assert len(kept["phone"]) == KEPT_AT_MOST
    assert find_message(kept, "phone", replace(resumed(), data={"incident": f"yolo-{number}"})) == f"discord {number}"
