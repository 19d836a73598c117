"""Who caused a fault of a training on several nodes: the strongest proof decides, and a doubt names nobody."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from supervisor.core.fleet.culprit import Culprit, Proof, name_culprit
from supervisor.core.fleet.evidence import UNREAD_END, RankEvidence

WAITING = RankEvidence(node="", rank=0, collective=100, in_collective=True, stack="all_reduce", process_state="S")


def ranks(nodes: int, each: int = 2) -> list[RankEvidence]:
    """Healthy ranks that wait for a peer in the same collective."""
    return [replace(WAITING, node=f"n{rank // each}", rank=rank) for rank in range(nodes * each)]


def named(evidence: list[RankEvidence], rank: int, **found: object) -> Culprit:
    """Who is named where one rank was found otherwise."""
    evidence[rank] = replace(evidence[rank], **found)  # type: ignore[arg-type]
    return name_culprit(evidence)


@pytest.mark.parametrize(
    ("found", "proof", "node_at_fault", "reason"),
    [
        ({"fault": "gpu_hang"}, Proof.PHYSICAL, True, "n1 reported gpu_hang"),
        ({"process_state": "D"}, Proof.PHYSICAL, True, "n1 has a rank that waits in the kernel (state D)"),
        ({"process_state": "T"}, Proof.PHYSICAL, False, "rank 3 (n1) stopped by a signal (state T)"),
        ({"killed_by": "SIGSEGV"}, Proof.PHYSICAL, False, "rank 3 (n1) ended first: killed by SIGSEGV"),
        ({"exception": "ValueError at a.py:3"}, Proof.PHYSICAL, False, "rank 3 (n1) ended first: ValueError at a.py:3"),
        (
            {"sequence": 698, "in_collective": True},
            Proof.COLLECTIVE_ORDER,
            True,
            "rank 3 (n1) has begun fewer collectives than others, by 2",
        ),
        ({"collective": 99}, Proof.COLLECTIVE_ORDER, True, "rank 3 (n1) at collective 99, others at 100"),
        (
            {"in_collective": False},
            Proof.COLLECTIVE_ORDER,
            True,
            "rank 3 (n1) not in collective 100, where others wait",
        ),
        ({"stack": "read_image"}, Proof.STACK_MINORITY, True, "rank 3 (n1) in read_image, 5 others in all_reduce"),
        ({"slow_windows": 7}, Proof.SLOW_PEER, True, "rank 3 (n1) slower than its peers in 7 of 10 windows"),
    ],
)
def test_the_rank_that_differs_is_named(
    found: dict[str, object], proof: Proof, node_at_fault: bool, reason: str
) -> None:
    culprit = named([replace(rank, sequence=700) for rank in ranks(3)], 3, **found)
    assert culprit.reason == reason
    assert (culprit.proof, culprit.ranks, culprit.nodes) == (proof, (3,), ("n1",))
    assert culprit.node_at_fault is node_at_fault


def test_a_rank_within_a_collective_that_no_other_has_begun_is_named_and_not_all_others() -> None:
    culprit = named([replace(rank, sequence=700) for rank in ranks(3)], 3, sequence=701)
    assert (culprit.reason, culprit.node_at_fault) == ("rank 3 (n1) has begun more collectives than others, by 1", True)


def test_of_two_ranks_that_count_differently_the_one_behind_is_named_and_no_node_is() -> None:
    evidence = [rank for rank in ranks(2) if rank.rank in (0, 2)]
    culprit = named([replace(rank, sequence=700) for rank in evidence], 1, sequence=699)
    assert (culprit.reason, culprit.node_at_fault) == (
        "rank 2 (n1) has begun fewer collectives than others, by 1",
        False,
    )


def test_a_wait_in_the_kernel_is_no_cause_where_another_rank_ended_by_itself() -> None:
    evidence = ranks(3)
    evidence[0] = replace(evidence[0], process_state="D")
    culprit = named(evidence, 3, killed_by="SIGKILL")
    assert (culprit.ranks, culprit.node_at_fault) == ((3,), False)


def test_a_node_that_does_not_answer_is_named_with_all_its_ranks() -> None:
    evidence = ranks(4)
    evidence[2] = replace(evidence[2], reachable=False)
    culprit = named(evidence, 3, reachable=False)
    assert (culprit.nodes, culprit.ranks, culprit.node_at_fault) == (("n1",), (2, 3), True)


def test_where_most_nodes_do_not_answer_the_network_is_at_fault() -> None:
    evidence = [replace(rank, reachable=rank.node == "n0") for rank in ranks(3)]
    assert name_culprit(evidence).proof is Proof.NONE


def test_the_order_of_two_ranks_is_enough_but_their_stacks_are_not() -> None:
    assert named(ranks(2, each=1), 1, collective=7).ranks == (1,)
    unnumbered = [replace(rank, collective=None) for rank in ranks(2, each=1)]
    assert named(unnumbered, 1, stack="read_image").proof is Proof.NONE


def test_a_rank_that_ended_because_it_lost_its_peer_is_not_late() -> None:
    evidence = [replace(rank, exception="RuntimeError", communication=True) for rank in ranks(2)]
    assert named(evidence, 3, collective=99, sequence=5).proof is Proof.NONE


def test_an_exception_that_reports_a_lost_peer_is_a_consequence() -> None:
    evidence = [
        replace(rank, exception="DistBackendError", communication=True, ended_at_s=1.0 + rank.rank / 1000)
        for rank in ranks(2)
    ]
    culprit = named(evidence, 2, exception="ZeroDivisionError", communication=False, ended_at_s=1.2)
    assert (culprit.ranks, culprit.node_at_fault) == ((2,), False)


def test_the_same_exception_of_all_ranks_is_the_fault_of_no_node() -> None:
    evidence = [replace(rank, exception="KeyError at train.py:9", ended_at_s=1.0 + rank.rank) for rank in ranks(3)]
    culprit = name_culprit(evidence)
    assert (culprit.proof, culprit.nodes) == (Proof.NONE, ())
    assert "the program is at fault" in culprit.reason


@pytest.mark.parametrize(("gap_s", "first"), [(0.5, (1,)), (0.05, ())])
def test_who_ended_first_is_reported_only_beyond_the_error_of_the_clocks(gap_s: float, first: tuple[int, ...]) -> None:
    evidence = [*ranks(2, each=1), replace(WAITING, node="n2", rank=2)]
    evidence[0] = replace(evidence[0], killed_by="SIGABRT", ended_at_s=10.0 + gap_s, offset_error_s=0.1)
    culprit = named(evidence, 1, killed_by="SIGSEGV", ended_at_s=10.0, offset_error_s=0.1)
    assert culprit.ranks == first


def test_of_two_ranks_of_one_node_the_first_is_known_however_far_its_clock_is_off() -> None:
    evidence = ranks(2)
    evidence[3] = replace(evidence[3], killed_by="SIGABRT", ended_at_s=10.05, offset_error_s=0.1)
    culprit = named(evidence, 2, killed_by="SIGSEGV", ended_at_s=10.0, offset_error_s=0.1)
    assert culprit.reason == "rank 2 (n1) ended first: killed by SIGSEGV"
    evidence[3] = replace(evidence[3], ended_at_s=10.0)
    same = named(evidence, 2, killed_by="SIGSEGV", ended_at_s=10.0)
    assert (same.proof, same.reason) == (Proof.NONE, "several ranks ended within the error of their clocks")


def test_a_rank_whose_end_has_no_time_leaves_open_which_was_first() -> None:
    evidence = [*ranks(2), replace(WAITING, node="n2", rank=4)]
    evidence[0] = replace(evidence[0], killed_by="SIGABRT", ended_at_s=10.0)
    evidence[1] = replace(evidence[1], killed_by="SIGABRT", ended_at_s=0.0)
    assert named(evidence, 3, killed_by="SIGSEGV", ended_at_s=12.0).ranks == (1,)
    assert named(evidence, 3, killed_by="SIGSEGV", ended_at_s=None).ranks == ()


def test_the_end_that_all_ranks_have_in_common_is_named() -> None:
    alike = [replace(rank, exception="KeyError at train.py:9", ended_at_s=1.0) for rank in ranks(2)]
    assert name_culprit(alike).reason == "all ranks ended alike (KeyError at train.py:9): the program is at fault"
    killed = [replace(rank, killed_by="SIGXCPU", ended_at_s=1.0) for rank in ranks(2)]
    assert name_culprit(killed).reason == "all ranks ended alike (killed by SIGXCPU): the program is at fault"


def test_a_rank_behind_is_named_with_its_collective_and_that_of_the_others() -> None:
    evidence = [replace(rank, collective=10 + rank.rank) for rank in ranks(2)]
    assert name_culprit(evidence).reason == "rank 0 (n0) at collective 10, others at 13"
    evidence = [replace(rank, sequence=10 + rank.rank) for rank in ranks(3)]
    assert name_culprit(evidence).reason == "rank 0 (n0) has begun fewer collectives than others, by 5"
    assert named(ranks(2), 3, sequence=0).proof is Proof.NONE, "one number is no order"


def test_a_rank_that_vanished_while_its_peers_lived_is_named_though_nobody_has_its_status() -> None:
    evidence = ranks(2)
    evidence[2] = replace(evidence[2], killed_by="SIGTERM", communication=True, ended_at_s=5.1)
    culprit = named(evidence, 3, exception=UNREAD_END, ended_at_s=5.0)
    assert (culprit.ranks, culprit.node_at_fault) == ((3,), False)
    both = [replace(rank, exception=UNREAD_END, ended_at_s=5.0 + 0.05 * (3 - rank.rank)) for rank in evidence[2:]]
    assert name_culprit([*evidence[:2], *both]).ranks == (3,), "it vanished before the rank beside it"


def test_a_rank_that_vanished_may_have_been_done_where_another_is_known_to_have_failed() -> None:
    evidence = [replace(rank, ended_at_s=5.0 + rank.rank, exception=UNREAD_END) for rank in ranks(2)]
    assert name_culprit(evidence).proof is Proof.NONE, "all ended, and nobody knows how"
    assert named(evidence, 3, exception="OSError: No space left on device").ranks == (3,)


def test_many_suspects_have_something_in_common_that_is_no_node() -> None:
    evidence = [replace(rank, fault="gpu_hang" if rank.rank < 8 else None) for rank in ranks(10)]
    culprit = name_culprit(evidence)
    assert (culprit.proof, culprit.node_at_fault) == (Proof.NONE, False)
    assert "too many suspects (4 nodes)" in culprit.reason


def test_healthy_ranks_name_nobody() -> None:
    assert name_culprit(ranks(4)).proof is Proof.NONE
    assert name_culprit([]).proof is Proof.NONE


def test_the_order_in_which_evidence_arrives_changes_nothing() -> None:
    evidence = ranks(2)
    evidence[1] = replace(evidence[1], collective=99)
    evidence[2] = replace(evidence[2], stack="read_image")
    assert {name_culprit(order).ranks for order in permutations(evidence)} == {(1,)}
