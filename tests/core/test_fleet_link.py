"""The link between a node and its leader: what a hostile peer, or a network, can do to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet.epoch import Epoch, check_job, read_epoch
from supervisor.core.fleet.link import (
    GREETING_BYTES_MAX,
    MAC_BYTES,
    MESSAGE_BYTES_MAX,
    NONCE_BYTES,
    Greeting,
    Link,
    LinkError,
    Role,
    encode_greeting,
)

SECRET = b"the secret of the allocation"
NODE = Greeting(name="n7", version="1", job="run")
LEADER = Greeting(name="boss", version="1", job="run")


def node(secret: bytes = SECRET, greeting: Greeting = NODE, nonce: bytes = b"n" * NONCE_BYTES) -> Link:
    return Link(Role.NODE, greeting, secret, nonce, "10.0.0.1:29300")


def leader(secret: bytes = SECRET, greeting: Greeting = LEADER, nonce: bytes = b"l" * NONCE_BYTES) -> Link:
    return Link(Role.LEADER, greeting, secret, nonce, "10.0.0.7:40000")


def take(link: Link) -> bytes:
    sent = bytes(link.outgoing)
    link.outgoing.clear()
    return sent


def carry(a: Link, b: Link) -> tuple[list[bytes], list[bytes]]:
    """Carry bytes both ways until there are none; return what `a` and what `b` received."""
    received: tuple[list[bytes], list[bytes]] = ([], [])
    while a.outgoing or b.outgoing:
        received[1].extend(b.feed(take(a)))
        received[0].extend(a.feed(take(b)))
    return received


def pair() -> tuple[Link, Link]:
    """Return two ends that have proven who they are."""
    ends = node(), leader()
    carry(*ends)
    return ends


def test_both_ends_know_each_other_and_messages_arrive_in_order() -> None:
    a, b = pair()
    assert (a.peer, b.peer) == (LEADER, NODE)
    for text in (b"one", b"", b"three"):
        a.send(text)
    b.send(b"answer")
    assert carry(a, b) == ([b"answer"], [b"one", b"", b"three"])


@given(messages=st.lists(st.binary(max_size=200), max_size=5), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_however_the_network_cuts_the_bytes_the_messages_are_the_same(
    messages: Sequence[bytes], cuts: Sequence[int]
) -> None:
    a, b = pair()
    for message in messages:
        a.send(message)
    data = take(a)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    received = [message for start, end in pairwise(places) for message in b.feed(data[start:end])]
    assert received == list(messages)


@given(data=st.data())
def test_a_changed_byte_ends_the_link_and_no_changed_message_is_taken(data: st.DataObject) -> None:
    a, b = pair()
    sent = [b"stop", b"launch", b"beat"]
    for message in sent:
        a.send(message)
    stream = bytearray(take(a))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    received: list[bytes] = []
    with contextlib.suppress(LinkError):
        for message in b.feed(bytes(stream)):
            received.append(message)
    assert received == sent[: len(received)]
    assert len(received) < len(sent)


@pytest.mark.parametrize("harm", ["replayed", "left out", "reordered", "sent back", "of another link"])
def test_a_message_that_is_not_the_next_of_this_link_ends_it(harm: str) -> None:
    a, b = pair()
    a.send(b"first")
    first = take(a)
    a.send(b"second")
    second = take(a)
    if harm == "of another link":
        other = node(nonce=b"m" * NONCE_BYTES)
        carry(other, leader(nonce=b"k" * NONCE_BYTES))
        other.send(b"first")
        first = take(other)
    streams = {
        "replayed": (b, first + first),
        "left out": (b, second),
        "reordered": (b, second + first),
        "sent back": (a, first),
        "of another link": (b, first),
    }
    victim, stream = streams[harm]
    with pytest.raises(LinkError, match="forged, repeated or out of order"):
        list(victim.feed(stream))


def test_who_has_another_secret_is_refused_by_both_before_any_message() -> None:
    a, b = node(secret=b"another secret, as long"), leader()
    with pytest.raises(LinkError, match=r"10\.0\.0\.1:29300, which calls itself boss: does not have the secret of"):
        carry(a, b)
    assert b.peer is None
    with pytest.raises(LinkError, match="has not proven who it is"):
        b.send(b"launch")
    assert str(b.closed()) == (
        "10.0.0.7:40000, which calls itself n7: did not accept this leader's proof that it has the secret of training "
        "run; give the leader and all nodes the same --secret-file"
    )


def test_an_end_that_closes_is_named() -> None:
    a, b = node(), leader()
    assert str(b.closed()) == "10.0.0.7:40000: closed the connection"
    carry(a, b)
    assert str(a.closed()) == "leader boss (10.0.0.1:29300): closed the connection"
    assert str(b.closed()) == "node n7 (10.0.0.7:40000): closed the connection"


def test_a_leader_that_sends_our_own_proof_back_proves_nothing() -> None:
    """A mirror: it has no secret, and returns what it is sent as its own."""
    victim = leader()
    greeting = encode_greeting(Role.NODE, NODE, b"x" * NONCE_BYTES)
    list(victim.feed(len(greeting).to_bytes(4, "big") + greeting))
    answered = take(victim)
    length = int.from_bytes(answered[:4], "big")
    proof = answered[4 + length :]
    with pytest.raises(LinkError, match="does not have the secret"):
        list(victim.feed(proof))


def test_a_recorded_conversation_does_not_open_another_link() -> None:
    a, b = node(), leader()
    recorded = take(a)
    list(b.feed(recorded))
    list(a.feed(take(b)))
    recorded += take(a)
    with pytest.raises(LinkError, match="does not have the secret"):
        list(leader(nonce=b"z" * NONCE_BYTES).feed(recorded))


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "another program has the port"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "another program has the port"),
        (b"\x00\x00\x00\x02[]", "another program has the port"),
        ((GREETING_BYTES_MAX + 1).to_bytes(4, "big"), "at most 2048 is taken"),
    ],
)
def test_a_foreign_program_is_named_for_what_it_is(stream: bytes, text: str) -> None:
    with pytest.raises(LinkError, match=text) as found:
        list(node().feed(stream))
    assert "10.0.0.1:29300" in str(found.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"job": "other"}, r"\(n7\): belongs to training other, this is run"),
        ({"protocol": 2}, r"\(n7\): uses protocol 2 \(rocm-supervisor 1\), this is 1: install one version"),
        ({"role": "leader"}, "is no node"),
        ({"name": ""}, "is no node"),
    ],
)
def test_a_peer_that_does_not_belong_here_is_named(change: dict[str, object], text: str) -> None:
    facts = json.loads(encode_greeting(Role.NODE, NODE, b"x" * NONCE_BYTES)) | change
    frame = json.dumps(facts).encode()
    met = leader()
    with pytest.raises(LinkError, match=text):
        list(met.feed(len(frame).to_bytes(4, "big") + frame))
    assert json.loads(take(met)[4:])["name"] == "boss", "it learns whom it has met, and that it does not belong there"


def test_sizes_are_bounded_before_and_after_the_proof() -> None:
    a, b = pair()
    with pytest.raises(LinkError, match="at most 1048576 can be sent"):
        a.send(b"x" * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(LinkError, match=r"node n7 \(10\.0\.0\.7:40000\)"):
        list(b.feed((MESSAGE_BYTES_MAX + MAC_BYTES + 1).to_bytes(4, "big")))
    with pytest.raises(ValueError, match="at least 16"):
        node(secret=b"short")


@given(stream=st.binary(max_size=300))
def test_any_bytes_end_in_an_error_or_in_waiting_for_more(stream: bytes) -> None:
    for link in (node(), leader()):
        received: list[bytes] = []
        with contextlib.suppress(LinkError):
            received.extend(link.feed(stream))
        assert received == []
        assert link.peer is None


@given(
    a=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    b=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_epochs_have_an_order_within_a_training_and_none_across(a: tuple[int, int], b: tuple[int, int]) -> None:
    first, second = Epoch("run", *a), Epoch("run", *b)
    assert first.is_newer_than(second) == (a > b)
    assert first.next().is_newer_than(first)
    assert not Epoch("other", *a).is_newer_than(second)
    assert first.is_newer_than(None)
    assert read_epoch(str(first)) == first


@pytest.mark.parametrize("text", ["", "a/b", "a.1.2", "../x", "x" * 65])
def test_a_training_has_a_name_that_files_and_epochs_can_have(text: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        check_job(text)
    assert read_epoch(f"{text}.1.2") is None


def test_the_bytes_on_the_wire_stay_those_of_this_protocol() -> None:
    """Nodes of one version of the protocol may run different versions of the program."""
    a, b = pair()
    a.send(b"stop")
    b.send(b"launch")
    assert hashlib.sha256(take(a)).hexdigest() == "ff91561eb14b75792ef07dd19bc655dc3106e4b7a10545b211e508dd29dafdce"
    assert hashlib.sha256(take(b)).hexdigest() == "4b64e2961d27f380a84d386e04448721c89762cb87f40760e84a6830457eb578"
