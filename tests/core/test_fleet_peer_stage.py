"""The stage of rank 0 reaches the other nodes as long as its node's beats report it, whatever their clocks say."""

from __future__ import annotations

import json

import pytest

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import Send
from supervisor.core.peers import PEERS_FRESH_S, PeerStage
from supervisor.core.readings import Stage

from .test_fleet_leading import LIMITS, Nodes, begun

SAVING = PeerStage(stage=Stage.CHECKPOINT, lasted_s=3.0, stepped=True)
OTHER_CLOCK_S = -7200.0
"""What the clock of a node has more than the leader's."""


def beat(nodes: Nodes, name: str, stage: PeerStage | None = None, epoch: Epoch | None = None) -> PeerStage | None:
    """Let a node beat, and return the stage by the leader's answer."""
    sent = ms.NodeBeat(sent_s=nodes.now_s + OTHER_CLOCK_S, stage=stage, epoch=epoch or nodes.running.get(name))
    (answer,) = nodes.leading.took(name, sent, nodes.now_s)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, ms.LeaderBeat)
    return answer.message.peer_stage


def test_it_is_passed_on_with_its_age_to_the_other_node_alone() -> None:
    nodes = begun()
    assert beat(nodes, "n0", SAVING) is None
    nodes.now_s += 2.0
    assert beat(nodes, "n1") == PeerStage(stage=Stage.CHECKPOINT, lasted_s=5.0, stepped=True)
    beat(nodes, "n0")
    assert beat(nodes, "n1") is None, "its node does not know it any more"


def test_of_a_node_that_dies_it_counts_for_five_seconds() -> None:
    nodes = begun()
    beat(nodes, "n0", SAVING)
    nodes.leading.disconnected("n0")
    nodes.now_s += PEERS_FRESH_S
    assert beat(nodes, "n1") is not None
    nodes.now_s += 0.1
    assert beat(nodes, "n1") is None


def test_a_leader_that_is_started_again_knows_it_with_the_next_beat() -> None:
    nodes = begun()
    beat(nodes, "n0", SAVING)
    nodes.leading = Leading(nodes.leading.epoch, LIMITS, nodes.now_s, nodes.leading.fleet)
    nodes.join("n0", "n1")
    assert beat(nodes, "n1") is None
    beat(nodes, "n0", SAVING)
    assert beat(nodes, "n1") == SAVING


def test_what_was_sent_of_an_earlier_launch_is_of_no_later_one() -> None:
    """A beat that was on its way while all was ended and launched again: neither stage, wait nor steps of it count."""
    nodes = begun()
    earlier = nodes.running["n0"]
    assert earlier is not None
    nodes.fault("n0")
    nodes.wait(5.0)
    assert nodes.leading.epoch.is_newer_than(earlier)
    steps = nodes.leading.progress.steps
    late = ms.NodeBeat(sent_s=0.0, steps=10**6, storage_wait="process 7 waits", epoch=earlier, stage=SAVING)
    nodes.leading.took("n0", late, nodes.now_s)
    (answer,) = nodes.leading.took("n1", ms.NodeBeat(sent_s=0.0, epoch=nodes.running["n1"]), nodes.now_s)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, ms.LeaderBeat)
    assert (answer.message.peer_stage, answer.message.peer_waits) == (None, ())
    assert nodes.leading.progress.steps == steps


def test_a_node_of_a_version_that_does_not_say_which_launch_it_beats_of_is_believed() -> None:
    nodes = begun()
    nodes.leading.took("n0", ms.NodeBeat(sent_s=0.0, storage_wait="process 7 waits"), nodes.now_s)
    (answer,) = nodes.leading.took("n1", ms.NodeBeat(sent_s=0.0), nodes.now_s)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, ms.LeaderBeat)
    assert [wait.node for wait in answer.message.peer_waits] == ["n0"]


def test_a_spare_neither_has_a_stage_nor_learns_it() -> None:
    nodes = begun()
    nodes.join("n2")
    beat(nodes, "n2", SAVING)
    assert beat(nodes, "n1") is None
    beat(nodes, "n0", SAVING)
    assert beat(nodes, "n2") is None


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "step", [], {}, {"stage": "step"}, {"stage": "step", "lasted_s": -1.0},
        {"stage": "step", "lasted_s": "1"}, {"stage": "of a later version", "lasted_s": 1.0},
        {"stage": 7, "lasted_s": 1.0},
    ],
)  # fmt: skip
def test_what_is_no_stage_that_is_known_is_none(value: object) -> None:
    sent = ms.decode(json.dumps({"message": "NodeBeat", "sent_s": 1.0, "stage": value}).encode())
    assert sent == ms.NodeBeat(sent_s=1.0)
    facts = {"message": "LeaderBeat", "echo_s": 1.0, "now_s": 2.0, "lease_s": 5.0, "peer_stage": value}
    assert ms.decode(json.dumps(facts).encode()) == ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0)


def test_both_versions_read_each_others_messages() -> None:
    """As the version before this one writes them; what it does not know it leaves unread."""
    from_node = b'{"message": "NodeBeat", "sent_s": 1.0, "steps": 7, "counts_itself": false, "ranks": [0], '
    from_node += b'"storage_wait": null}'
    assert ms.decode(from_node) == ms.NodeBeat(sent_s=1.0, steps=7, ranks=(0,))
    from_leader = b'{"message": "LeaderBeat", "echo_s": 1.0, "now_s": 2.0, "lease_s": 5.0, "peer_waits": []}'
    assert ms.decode(from_leader) == ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0)
    sent = ms.NodeBeat(sent_s=1.0, steps=7, ranks=(0,), epoch=Epoch("run", 0, 1), stage=SAVING)
    assert json.loads(ms.encode(sent)) == {
        "message": "NodeBeat",
        "sent_s": 1.0,
        "steps": 7,
        "counts_itself": False,
        "ranks": [0],
        "storage_wait": None,
        "epoch": "run.0.1",
        "stage": {"stage": "checkpoint", "lasted_s": 3.0, "stepped": True},
        "warnings": [],
    }
