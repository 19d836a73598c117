"""What nodes and leader send: what is written is read, and what another version or a broken one sends is bounded."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.resume import Offer
from supervisor.core.foreign_values import STEP_MAX
from supervisor.core.peers import PeerStage, PeerWait
from supervisor.core.readings import Stage

EPOCH = Epoch("run", 1, 2)
EVERY: tuple[ms.Message, ...] = (
    ms.Joined(running=EPOCH, ordered=EPOCH, host="10.0.0.1", unix_s=1.5),
    ms.Joined(running=None, ordered=None, host="10.0.0.1", unix_s=1.5),
    ms.NodeBeat(sent_s=1.0, steps=7, ranks=(0, 1)),
    ms.Fault(epoch=EPOCH, kind="rank_exit", reason="rank 1 killed by SIGKILL", rank=1),
    ms.EvidenceTaken(
        epoch=EPOCH,
        took_s=0.5,
        ranks=(
            RankEvidence(
                node="n1", rank=3, killed_by="SIGSEGV", ended_at_s=1.0, collective=4, in_collective=False, sequence=9
            ),
            RankEvidence(
                node="n1",
                rank=4,
                reachable=False,
                fault="ecc",
                exception="ValueError: x",
                communication=True,
                offset_error_s=0.25,
                process_state="D",
                group="tp",
                in_collective=True,
                stack="read_image",
                slow_windows=6,
            ),
        ),
        folder="/state/evidence",
    ),
    ms.Stopped(epoch=EPOCH, unkillable=True, waits="process 7 (rank) waits in fuse_get_req"),
    ms.Finished(epoch=EPOCH),
    ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0),
    ms.Launch(epoch=EPOCH, node_rank=1, nodes=2, host="10.0.0.1", port=29400),
    ms.Launch(
        epoch=EPOCH, node_rank=1, nodes=2, host="h", port=29400, resume_from="step-000000000007", resume_digest="ab"
    ),
    ms.Launch(epoch=EPOCH, node_rank=1, nodes=2, host="h", port=29400, loads_itself=True),
    ms.FindResume(
        number=3,
        share=1,
        shares=2,
        rejected=("step-000000000009",),
        passed_over=("step-000000000008",),
        since_unix_s=1.5e9,
    ),
    ms.Joined(running=None, ordered=None, host="h", unix_s=1.5, instance="boot-7"),
    ms.NodeBeat(sent_s=1.0, counts_itself=True, storage_wait="process 7 (python) waits for /data (nfs4)"),
    ms.LeaderBeat(echo_s=1.0, now_s=2.0, lease_s=5.0, peer_waits=(PeerWait(node="n1", words="process 7 waits"),)),
    ms.NodeBeat(
        sent_s=1.0,
        epoch=EPOCH,
        stage=PeerStage(stage=Stage.VALIDATE, lasted_s=2.5, stepped=True),
        warnings=(ms.NodeWarning(number=3, rule="storage_wait", text="it waits", ago_s=1.5, launch="run.1.2"),),
    ),
    ms.LeaderBeat(
        echo_s=1.0,
        now_s=2.0,
        lease_s=5.0,
        peer_stage=PeerStage(stage=Stage.WARMUP, lasted_s=2.5, stepped=False),
        warned=3,
    ),
    ms.Fault(epoch=EPOCH, kind="rank_exit", reason="rank 1 ended", killed_by="SIGKILL"),
    ms.Collect(epoch=EPOCH, limit_s=1.0, incident="run.1.2", waits_count=False),
    ms.Refused(reason="another training"),
    ms.ResumeOffers(
        number=3,
        offers=(
            Offer(name="step-000000000007", digest="ab", epoch=(1, 2), step=7, proven=False, reason="damaged"),
            Offer(name="/data/model.own", digest="ef", proven=False, reason="of another format", loads_itself=True),
            Offer(name="step-000000000009", digest="cd", epoch=(1, 3), step=9, saved_unix_s=17.5, proven=True),
        ),
        problem="OSError: Stale file handle",
    ),
    ms.Leave(reason="finished", finished=True),
    ms.Collect(epoch=EPOCH, limit_s=1.0, incident="run.1.2"),
    ms.Stop(epoch=EPOCH, reason="rank 1 killed"),
    ms.Leave(reason="stopped"),
)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_every_message_is_read_as_it_was_written(message: ms.Message) -> None:
    assert ms.decode(ms.encode(message)) == message


@pytest.mark.parametrize("message", EVERY, ids=lambda message: type(message).__name__)
def test_a_message_without_its_fields_is_refused_with_the_name_of_the_field(message: ms.Message) -> None:
    kind = type(message).__name__
    if isinstance(message, ms.Leave | ms.Refused):
        assert ms.decode(json.dumps({"message": kind}).encode()) == type(message)(reason="no reason given")
        return
    with pytest.raises(ms.MessageError, match=f"{kind}: .* is missing"):
        ms.decode(json.dumps({"message": kind}).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(data=st.data())
def test_any_value_in_any_field_is_a_message_or_an_error(data: st.DataObject) -> None:
    facts = json.loads(ms.encode(data.draw(st.sampled_from(EVERY))))
    facts[data.draw(st.sampled_from(sorted(facts)))] = data.draw(JSON)
    try:
        message = ms.decode(json.dumps(facts).encode())
    except ms.MessageError:
        return
    assert ms.decode(ms.encode(message)) == message


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_an_error(raw: bytes) -> None:
    with pytest.raises(ms.MessageError):
        ms.decode(raw)


@pytest.mark.parametrize(("ranks", "chars"), [(1, 2000), (16, 2000), (17, 1927), (ms.RANKS_MAX + 1, 128)])
def test_the_texts_of_many_ranks_are_cut_so_that_all_of_them_fit_the_link(ranks: int, chars: int) -> None:
    long = "x" * 5000
    rows = tuple(RankEvidence(node="n1", rank=rank, exception=long, stack=long) for rank in range(ranks))
    sent = json.loads(ms.encode(ms.EvidenceTaken(epoch=Epoch("run", 0, 1), took_s=0.1, ranks=rows)))["ranks"]
    assert len(sent) == min(ranks, ms.RANKS_MAX)
    assert {len(row[name]) for row in sent for name in ("exception", "stack")} == {chars}
    assert {row["node"] for row in sent} == {"n1"}
    assert {row["fault"] for row in sent} == {None}


def test_another_node_is_believed_no_more_ranks_than_a_node_can_have() -> None:
    rows = [{"node": "n1", "rank": rank} for rank in range(ms.RANKS_MAX + 9)]
    taken = ms.decode(
        json.dumps({"message": "EvidenceTaken", "epoch": "run.1.2", "took_s": 0.1, "ranks": rows}).encode()
    )
    assert isinstance(taken, ms.EvidenceTaken)
    assert [rank.rank for rank in taken.ranks] == list(range(ms.RANKS_MAX))


def test_the_texts_of_another_node_are_cut_each_at_its_length() -> None:
    long = "x" * 5000
    named = {"node": long, "rank": 3, "fault": long, "killed_by": long, "exception": long, "group": long, "stack": long}
    rank = ms.read_rank_evidence({**named, "process_state": long})
    assert rank is None, "a name that long is no node's"
    rank = ms.read_rank_evidence({**named, "node": "n1", "process_state": "DX"})
    assert rank is not None
    assert [len(text or "") for text in (rank.exception, rank.stack)] == [ms.REASON_CHARS_MAX] * 2
    assert (rank.fault, rank.killed_by, rank.process_state, rank.group) == (None, None, None, "world")
    fault = ms.decode(json.dumps({"message": "Fault", "epoch": "run.1.2", "kind": "hang", "reason": long}).encode())
    assert isinstance(fault, ms.Fault)
    assert len(fault.reason) == ms.REASON_CHARS_MAX
    offer = ms.read_offer({"name": "a", "digest": "b", "reason": long})
    assert offer is not None
    assert len(offer.reason or "") == ms.REASON_CHARS_MAX


@pytest.mark.parametrize(
    "message", [item for item in EVERY if not isinstance(item, ms.Leave)], ids=lambda message: type(message).__name__
)
def test_a_number_far_beyond_any_that_is_sent_is_refused_or_left_away(message: ms.Message) -> None:
    facts = json.loads(ms.encode(message))
    for name in [name for name, value in facts.items() if isinstance(value, int) and not isinstance(value, bool)]:
        for number in (10**30, -1):
            try:
                read = ms.decode(json.dumps({**facts, name: number}).encode())
            except ms.MessageError as error:
                assert f"{name} is missing or not from 0 to" in str(error)  # noqa: PT017 - a few fields may be missing
                continue
            assert getattr(read, name) is None


def test_what_another_node_sends_of_a_rank_without_a_word_is_as_little_as_is_known() -> None:
    assert ms.read_rank_evidence({"node": "n1", "rank": 0}) == RankEvidence(node="n1", rank=0)
    assert ms.read_rank_evidence({"node": "n1"}) is None
    assert ms.read_offer({"name": "a", "digest": "b"}) == Offer(name="a", digest="b", epoch=(), step=None)
    assert ms.read_offer({"name": "a"}) is None


def test_every_field_of_every_message_is_sent_with_a_value_of_its_own() -> None:
    """Else a field that is written and never read, or read under another name, would not be seen above."""
    sent: list[object] = list(EVERY)
    for message in EVERY:
        sent += message.ranks if isinstance(message, ms.EvidenceTaken) else ()
        sent += message.offers if isinstance(message, ms.ResumeOffers) else ()
        sent += message.peer_waits if isinstance(message, ms.LeaderBeat) else ()
    kinds = {type(item) for item in sent}
    assert {kind.__name__ for kind in kinds} >= set(ms._READERS)
    for kind in kinds:
        for declared in fields(kind):  # type: ignore[arg-type]  # each of them is a dataclass
            values = {getattr(item, declared.name) for item in sent if type(item) is kind}
            assert values - {declared.default}, f"{kind.__name__}.{declared.name} has its default everywhere"


@pytest.mark.parametrize(
    ("sent", "step"), [(0, 0), (STEP_MAX, STEP_MAX), (STEP_MAX + 1, None), (-1, None), (7.0, None)]
)
def test_an_offer_whose_step_no_training_reaches_is_taken_as_of_an_unknown_step(sent: float, step: int | None) -> None:
    offer = ms.read_offer({"name": "a", "digest": "b", "step": sent})
    assert offer is not None
    assert offer.step == step


def test_a_path_may_be_longer_than_other_texts() -> None:
    name = "d/" * 500 + "step-7"
    offer = ms.read_offer({"name": name, "digest": "b"})
    assert offer is not None
    assert offer.name == name
