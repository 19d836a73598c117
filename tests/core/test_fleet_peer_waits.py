"""A node that waits for its storage is named to the other nodes, as long as its beats report that."""

from __future__ import annotations

import json

import pytest

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.peer_waits import NAMED_MAX, PeerWaits
from supervisor.core.fleet.training import Send
from supervisor.core.peers import PEERS_FRESH_S, PeerWait

from .test_fleet_leading import Nodes, begun

WORDS = "process 7 (python) waits for /data (nfs4 of server:/export)"
OF_N1 = (PeerWait(node="n1", words=WORDS),)


def beat(nodes: Nodes, name: str, words: str | None = None) -> tuple[PeerWait, ...]:
    """Let a node beat, and return which others wait by the leader's answer."""
    (answer,) = nodes.leading.took(name, ms.NodeBeat(sent_s=nodes.now_s, storage_wait=words), nodes.now_s)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, ms.LeaderBeat)
    return answer.message.peer_waits


def test_a_wait_is_named_to_the_other_node_alone_until_it_ends() -> None:
    nodes = begun()
    assert beat(nodes, "n1", WORDS) == ()
    assert beat(nodes, "n0") == OF_N1
    beat(nodes, "n1")
    assert beat(nodes, "n0") == ()


def test_a_wait_of_which_no_beat_is_fresh_does_not_count() -> None:
    nodes = begun()
    beat(nodes, "n1", WORDS)
    nodes.now_s += PEERS_FRESH_S
    assert beat(nodes, "n0") == OF_N1
    nodes.now_s += 0.1
    assert beat(nodes, "n0") == ()


def test_a_wait_ends_with_its_launch() -> None:
    nodes = begun()
    beat(nodes, "n1", WORDS)
    nodes.fault("n0")
    assert beat(nodes, "n0") == (), "the launch is being ended"
    assert beat(nodes, "n1", WORDS) == ()
    nodes.wait(5.0)
    assert len(nodes.launches) == 4
    assert beat(nodes, "n0") == ()


def test_a_spare_neither_waits_nor_learns_who_does() -> None:
    nodes = begun()
    nodes.join("n2")
    beat(nodes, "n2", WORDS)
    assert beat(nodes, "n0") == ()
    beat(nodes, "n1", WORDS)
    assert beat(nodes, "n2") == ()


def test_a_node_that_no_longer_runs_the_launch_waits_for_nothing_of_it() -> None:
    nodes = begun()
    beat(nodes, "n1", WORDS)
    nodes.leading.members["n1"].running = None
    beat(nodes, "n1", WORDS)
    assert beat(nodes, "n0") == ()


def test_of_many_nodes_that_wait_the_first_few_are_named() -> None:
    waits = PeerWaits()
    for number in range(200):
        waits.take(f"n{number}", WORDS, 1.0)
    assert [wait.node for wait in waits.find("n1", 2.0)] == ["n0", "n2", "n3", "n4"]
    assert len(waits.find("other", 2.0)) == NAMED_MAX


@pytest.mark.parametrize("value", [None, 7, True, "", [], {"a": 1}])
def test_what_is_no_text_is_no_wait(value: object) -> None:
    sent = ms.decode(json.dumps({"message": "NodeBeat", "sent_s": 1.0, "storage_wait": value}).encode())
    assert sent == ms.NodeBeat(sent_s=1.0)


@pytest.mark.parametrize("value", [None, 7, "n1", [7], [{}], [{"node": "n1"}], [{"node": 1, "words": "x"}], {"a": 1}])
def test_what_names_no_node_and_no_wait_is_none(value: object) -> None:
    facts = {"message": "LeaderBeat", "echo_s": 1.0, "now_s": 2.0, "lease_s": 5.0, "peer_waits": value}
    assert ms.decode(json.dumps(facts).encode()) == ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0)


def test_long_texts_and_many_nodes_are_cut() -> None:
    sent = ms.decode(json.dumps({"message": "NodeBeat", "sent_s": 1.0, "storage_wait": "x" * 9000}).encode())
    assert isinstance(sent, ms.NodeBeat)
    assert len(sent.storage_wait or "") == ms.WAIT_CHARS_MAX
    waits = [{"node": f"n{number}", "words": "x" * 9000} for number in range(99)]
    facts = {"message": "LeaderBeat", "echo_s": 1.0, "now_s": 2.0, "lease_s": 5.0, "peer_waits": waits}
    answer = ms.decode(json.dumps(facts).encode())
    assert isinstance(answer, ms.LeaderBeat)
    assert [(wait.node, len(wait.words)) for wait in answer.peer_waits] == [
        (f"n{number}", ms.WAIT_CHARS_MAX) for number in range(NAMED_MAX)
    ]


def test_messages_of_a_version_that_knows_no_waits_are_read_and_none_waits() -> None:
    """As that version writes them; what it does not know itself it leaves unread."""
    from_node = b'{"message": "NodeBeat", "sent_s": 1.0, "steps": 7, "counts_itself": false, "ranks": [0]}'
    assert ms.decode(from_node) == ms.NodeBeat(sent_s=1.0, steps=7, ranks=(0,))
    from_leader = b'{"message": "LeaderBeat", "echo_s": 1.0, "now_s": 2.0, "lease_s": 5.0}'
    assert ms.decode(from_leader) == ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0)
    later = b'{"message": "LeaderBeat", "echo_s": 1.0, "now_s": 2.0, "lease_s": 5.0, "of_a_later_version": [1]}'
    assert ms.decode(later) == ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0)
