"""Names who caused a fault of a training on several nodes; the first kind of proof that names a culprit decides.

The order is that of how much each kind proves: a fault that the kernel reported, the order of the collectives, the
stack that differs from all others, a rank that was slow before. Where none of them names a culprit, none is named: to
exclude a healthy node costs more than to try once more (ByteRobust, arXiv 2509.16293, solved 22.7 % of its faults so).
Ranks are compared with one another only where every node has something to compare: among those who wait for a node of
which nothing is known there is always one that differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from supervisor.core.fleet.evidence import UNREAD_END, RankEvidence

LEAST_RANKS_FOR_STACKS = 3
"""Of two stacks that differ neither is the odd one."""
SLOW_WINDOWS = 5
"""Of ten; ByteRobust names a slow machine by the same share."""
SUSPECT_SHARE = 0.05
"""Beyond this share of the nodes (and beyond one) the network or the program is at fault, and no node."""
SILENT = "did not answer: its machine or its link was down, or its daemon had ended and was not started again"


class Proof(str, Enum):
    """What names a culprit, from the strongest to none."""

    PHYSICAL = "physical"
    COLLECTIVE_ORDER = "collective_order"
    STACK_MINORITY = "stack_minority"
    SLOW_PEER = "slow_peer"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """Who is at fault, by what proof."""

    proof: Proof
    reason: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    node_at_fault: bool = False
    """Whether the machine is at fault, and not only a process on it: only then is a node excluded."""


def name_culprit(evidence: Sequence[RankEvidence]) -> Culprit:
    """Return who caused a fault, by what is known of every rank; `evidence` names each rank once."""
    blind = _is_blind(evidence)
    for judge in _PHYSICAL if blind else (*_PHYSICAL, *_COMPARING):
        culprit = judge(evidence)
        if culprit is not None:
            return _unless_too_many(culprit, evidence)
    missing = "" if not blind else ", and of some nodes nothing is known"
    return Culprit(proof=Proof.NONE, reason=f"the evidence names no culprit{missing}")


def _name_unreachable(evidence: Sequence[RankEvidence]) -> Culprit | None:
    silent = [rank for rank in evidence if not rank.reachable]
    if not silent:
        return None
    if 2 * len(_nodes(silent)) > len(_nodes(evidence)):
        return Culprit(proof=Proof.NONE, reason="most nodes did not answer: the network is at fault, and no node")
    return _node_culprit(silent, Proof.PHYSICAL, SILENT)


def _name_reported(evidence: Sequence[RankEvidence]) -> Culprit | None:
    reported = [rank for rank in evidence if rank.fault is not None]
    if not reported:
        return None
    faults = ", ".join(sorted({str(rank.fault) for rank in reported}))
    return _node_culprit(reported, Proof.PHYSICAL, f"reported {faults}")


def _name_waiting(evidence: Sequence[RankEvidence]) -> Culprit | None:
    """Name the nodes whose ranks wait in the kernel; after those that ended, since a slow disk looks the same."""
    waiting = [rank for rank in evidence if rank.process_state == "D"]
    if not waiting or len(waiting) == len(evidence):
        return None
    return _node_culprit(waiting, Proof.PHYSICAL, "has a rank that waits in the kernel (state D)")


def _name_stopped(evidence: Sequence[RankEvidence]) -> Culprit | None:
    stopped = [rank for rank in evidence if rank.process_state == "T"]
    return _rank_culprit(stopped, Proof.PHYSICAL, "stopped by a signal (state T)") if stopped else None


def _name_first_ended(evidence: Sequence[RankEvidence]) -> Culprit | None:
    """Name the rank that ended before the others; what reports only a lost peer is a consequence, never the cause."""
    ended = [rank for rank in evidence if (rank.killed_by or rank.exception) and not rank.communication]
    if _is_blind(evidence):
        ended = [rank for rank in ended if rank.ended_by_itself]  # a status may report the peer that is missing
    known = [rank for rank in ended if rank.exception != UNREAD_END]
    # An end whose status is not known may be that of a rank that was done: a known one comes first.
    ended = known or ended
    if not ended or (not known and len(ended) == len(evidence)):
        return None
    if (
        len(ended) > 1
        and len({(rank.killed_by, rank.exception) for rank in ended}) == 1
        and len(ended) == len(evidence)
    ):
        return Culprit(proof=Proof.NONE, reason=f"all ranks ended alike ({_how(ended[0])}): the program is at fault")
    first = _first_in_time(ended)
    if first is None:
        return Culprit(proof=Proof.NONE, reason="several ranks ended within the error of their clocks")
    return _rank_culprit([first], Proof.PHYSICAL, f"ended first: {_how(first)}")


def _first_in_time(ended: Sequence[RankEvidence]) -> RankEvidence | None:
    """Return the rank that ended first; None where clocks leave it open."""
    if len(ended) == 1:
        return ended[0]
    known = sorted((rank.ended_at_s, place) for place, rank in enumerate(ended) if rank.ended_at_s is not None)
    if len(known) < len(ended):
        return None
    (first_s, first_place), (second_s, second_place), *_ = known
    first, second = ended[first_place], ended[second_place]
    error_s = 0.0 if first.node == second.node else first.offset_error_s + second.offset_error_s
    return first if second_s - first_s > error_s else None


def _name_by_number(evidence: Sequence[RankEvidence]) -> Culprit | None:
    """Name the ranks that have begun fewer collectives than others; where these are most, the few that began more.

    Of two halves either may be at fault, by a collective that it missed or by one that only it has begun: those behind
    are named, and no node is.
    """
    numbers = [rank.sequence for rank in evidence if rank.sequence is not None]
    if len(set(numbers)) < 2:  # an order needs two
        return None
    least = min(numbers)
    apart = max(numbers) - least
    late = [rank for rank in evidence if rank.sequence == least]
    if 2 * len(late) > len(numbers):
        ahead = [rank for rank in evidence if rank.sequence is not None and rank not in late]
        return _rank_culprit(ahead, Proof.COLLECTIVE_ORDER, f"has begun more collectives than others, by {apart}")
    few = 2 * len(late) < len(numbers)
    return _rank_culprit(late, Proof.COLLECTIVE_ORDER, f"has begun fewer collectives than others, by {apart}", node=few)


def _name_late(evidence: Sequence[RankEvidence]) -> Culprit | None:
    """Name the ranks that are behind in the steps of their group, or outside a collective that all others wait in."""
    # One that ended after its peer did is no later than those that the end of evidence found a step further.
    evidence = [rank for rank in evidence if rank.exception is None and rank.killed_by is None]
    for group in sorted({rank.group for rank in evidence}):
        members = [rank for rank in evidence if rank.group == group]
        numbers = [rank.collective for rank in members if rank.collective is not None]
        if len(numbers) < 2:  # an order needs two
            continue
        furthest, least = max(numbers), min(numbers)
        members = [rank for rank in members if rank.collective is not None]
        late = [rank for rank in members if rank.collective == least]
        if least < furthest:
            return _rank_culprit(late, Proof.COLLECTIVE_ORDER, f"at collective {least}, others at {furthest}")
        outside = [rank for rank in members if rank.in_collective is False]
        if outside and all(rank.in_collective for rank in members if rank not in outside):
            return _rank_culprit(outside, Proof.COLLECTIVE_ORDER, f"not in collective {furthest}, where others wait")
    return None


def _name_odd_stack(evidence: Sequence[RankEvidence]) -> Culprit | None:
    known = [rank for rank in evidence if rank.stack is not None]
    if len(known) < LEAST_RANKS_FOR_STACKS:
        return None
    (usual, count), *others = Counter(str(rank.stack) for rank in known).most_common()
    if not others or 2 * count <= len(known):
        return None
    odd = [rank for rank in known if rank.stack != usual]
    return _rank_culprit(odd, Proof.STACK_MINORITY, f"in {odd[0].stack}, {count} others in {usual}")


def _name_slow(evidence: Sequence[RankEvidence]) -> Culprit | None:
    slow = [rank for rank in evidence if rank.slow_windows >= SLOW_WINDOWS]
    if not slow or 2 * len(slow) > len(evidence):
        return None
    return _rank_culprit(
        slow, Proof.SLOW_PEER, f"slower than its peers in {slow[0].slow_windows} of 10 windows", node=True
    )


_Judge: TypeAlias = Callable[[Sequence[RankEvidence]], Culprit | None]
_PHYSICAL: tuple[_Judge, ...] = (
    _name_unreachable,
    _name_reported,
    _name_stopped,
    _name_first_ended,
    _name_waiting,
)
_COMPARING: tuple[_Judge, ...] = (_name_by_number, _name_late, _name_odd_stack, _name_slow)


def _unless_too_many(culprit: Culprit, evidence: Sequence[RankEvidence]) -> Culprit:
    """Return a culprit without exclusion where so many nodes look bad that something common to them must be."""
    allowed = max(1, int(SUSPECT_SHARE * len(_nodes(evidence))))
    gone = {rank.node for rank in evidence if not rank.reachable}
    if not culprit.node_at_fault or len(culprit.nodes) <= allowed or gone.issuperset(culprit.nodes):
        return culprit
    return Culprit(proof=Proof.NONE, reason=f"too many suspects ({len(culprit.nodes)} nodes): {culprit.reason}")


def _node_culprit(ranks: Sequence[RankEvidence], proof: Proof, what: str) -> Culprit:
    nodes = _nodes(ranks)
    return Culprit(
        proof=proof,
        reason=f"{', '.join(nodes)} {what}",
        ranks=tuple(rank.rank for rank in ranks),
        nodes=nodes,
        node_at_fault=True,
    )


def _rank_culprit(ranks: Sequence[RankEvidence], proof: Proof, what: str, *, node: bool | None = None) -> Culprit:
    """Return ranks as culprits; by an order or a stack their nodes are suspects, by an own end they are not."""
    numbers = ", ".join(f"{rank.rank} ({rank.node})" for rank in ranks)
    return Culprit(
        proof=proof,
        reason=f"rank {numbers} {what}",
        ranks=tuple(rank.rank for rank in ranks),
        nodes=_nodes(ranks),
        node_at_fault=proof is not Proof.PHYSICAL if node is None else node,
    )


def _is_blind(evidence: Sequence[RankEvidence]) -> bool:
    """Whether there is a node of whose ranks nothing is known."""
    return _nodes(evidence) != _nodes(rank for rank in evidence if rank.is_comparable)


def _nodes(ranks: Iterable[RankEvidence]) -> tuple[str, ...]:
    return tuple(sorted({rank.node for rank in ranks}))


def _how(rank: RankEvidence) -> str:
    return f"killed by {rank.killed_by}" if rank.killed_by else rank.exception or "exited"
