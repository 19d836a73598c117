"""What rules warn of on a node reaches the leader once, also from a node that was away and to a leader that is new."""

from __future__ import annotations

import json

import pytest

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import RecordWarning, Send

from .test_fleet_leading import LIMITS, Nodes, begun


def warning(number: int, ago_s: float = 0.0) -> ms.NodeWarning:
    return ms.NodeWarning(number=number, rule="storage_wait", text=f"wait {number}", ago_s=ago_s, launch="run.0.1")


def beat(nodes: Nodes, name: str, *numbers: int) -> tuple[list[int], int | None]:
    """Let a node beat with warnings; return which the leader writes down, and which it says to have."""
    sent = ms.NodeBeat(sent_s=nodes.now_s, warnings=tuple(map(warning, numbers)))
    *written, answer = nodes.leading.took(name, sent, nodes.now_s)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, ms.LeaderBeat)
    found = [command.warning.number for command in written if isinstance(command, RecordWarning)]
    assert len(found) == len(written)
    return found, answer.message.warned


def test_each_is_written_down_once_however_often_it_is_sent() -> None:
    nodes = begun()
    assert beat(nodes, "n1") == ([], 0)
    assert beat(nodes, "n1", 1, 2) == ([1, 2], 2)
    assert beat(nodes, "n1", 1, 2, 3) == ([3], 3)
    assert beat(nodes, "n0", 1) == ([1], 1), "each node counts its own"


def test_a_node_that_was_away_is_not_asked_for_what_the_leader_has() -> None:
    nodes = begun()
    nodes.join("n1", instance="daemon-1")
    beat(nodes, "n1", 1)
    nodes.leading.disconnected("n1")
    nodes.join("n1", instance="daemon-1")
    assert beat(nodes, "n1") == ([], 1)
    nodes.join("n1", instance="daemon-2")
    assert beat(nodes, "n1", 1) == ([1], 1), "another daemon counts from 1"


def test_a_leader_that_is_new_takes_the_next_one_whatever_its_number() -> None:
    nodes = begun()
    beat(nodes, "n1", 1)
    nodes.leading = Leading(nodes.leading.epoch, LIMITS, nodes.now_s, nodes.leading.fleet)
    nodes.join("n0", "n1")
    assert beat(nodes, "n1") == ([], 0)
    assert beat(nodes, "n1", 7) == ([7], 7)


@pytest.mark.parametrize(
    "value",
    [
        7,
        "x",
        [7],
        [{}],
        [{"number": 0, "rule": "r", "text": "t", "ago_s": 1.0}],
        [{"number": 1, "rule": "r", "ago_s": 1}],
    ],
)
def test_what_is_no_warning_is_none(value: object) -> None:
    sent = ms.decode(json.dumps({"message": "NodeBeat", "sent_s": 1.0, "warnings": value}).encode())
    assert sent == ms.NodeBeat(sent_s=1.0)


def test_a_beat_holds_few_and_short_ones() -> None:
    many = tuple(ms.NodeWarning(number=number, rule="r", text="x" * 9000, ago_s=1.0) for number in range(1, 99))
    encoded = ms.encode(ms.NodeBeat(sent_s=1.0, warnings=many))
    assert len(encoded) < 4000
    sent = ms.decode(encoded)
    assert isinstance(sent, ms.NodeBeat)
    assert [(found.number, len(found.text)) for found in sent.warnings] == [(1, 500), (2, 500), (3, 500), (4, 500)]
