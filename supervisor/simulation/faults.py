"""The kinds of faults that a simulated cluster has: how often, how they are noticed, and what evidence they leave.

Shares: the 419 unexpected interruptions of Llama 3's training on 16,384 GPUs in 54 days (arXiv 2407.21783, table 5).
Times to detection: what this project's benchmarks measured of its own rules (`tests/bench/injections.py`), the lease of
a node for a lost one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from supervisor.core.fleet.evidence import RankEvidence

INTERRUPTIONS = 419
LEASE_S = 2.0
HANG_S = 60.0
"""The limit for a step of a training whose own pace is not yet known; a learned one is shorter."""
CORRUPTED_S = 600.0
"""Work that a silently corrupted value spoils before a loss shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """One kind of fault."""

    name: str
    share: float
    """Of the faults of nodes."""
    detection_s: float
    node_at_fault: bool = False
    persists: float = 0.0
    """How likely a node that had it has it again soon, unless it is left out."""
    spoilt_s: float = 0.0
    """Work before the fault that is spoilt, besides what was not saved."""
    traces: tuple[tuple[float, RankEvidence], ...] = ()
    """What evidence of the rank at fault it leaves, with what probability; none beyond their sum."""


def _rank(**found: object) -> RankEvidence:
    return replace(RankEvidence(node="", rank=0), **found)  # type: ignore[arg-type]  # fields by name


NODE_KINDS: tuple[FaultKind, ...] = (
    FaultKind(
        name="gpu",
        share=(148 + 72 + 19 + 17 + 6) / INTERRUPTIONS,
        detection_s=1.0,
        node_at_fault=True,
        persists=0.5,
        traces=((0.9, _rank(fault="gpu_hang")), (0.1, _rank(killed_by="SIGABRT"))),
    ),
    FaultKind(
        name="host",
        share=(3 + 3 + 2 + 2 + 2 + 2) / INTERRUPTIONS,
        detection_s=LEASE_S,
        node_at_fault=True,
        persists=0.9,
        traces=((1.0, _rank(reachable=False)),),
    ),
    FaultKind(
        name="maintenance",
        share=32 / INTERRUPTIONS,
        detection_s=LEASE_S,
        node_at_fault=True,
        persists=1.0,
        traces=((1.0, _rank(reachable=False)),),
    ),
    FaultKind(
        name="network",
        share=(35 + 7) / INTERRUPTIONS,
        detection_s=HANG_S,
        node_at_fault=True,
        persists=0.3,
        traces=((0.5, _rank(collective=99)), (0.2, _rank(reachable=False))),
    ),
    FaultKind(
        name="program",
        share=(54 + 2) / INTERRUPTIONS,
        detection_s=1.0,
        traces=((1.0, _rank(exception="RuntimeError")),),
    ),
    FaultKind(
        name="hang",
        share=7 / INTERRUPTIONS,
        detection_s=HANG_S,
        persists=0.1,
        traces=((0.6, _rank(collective=99)), (0.2, _rank(stack="a loader"))),
    ),
    FaultKind(
        name="silent_corruption",
        share=6 / INTERRUPTIONS,
        detection_s=5.0,
        node_at_fault=True,
        persists=0.5,
        spoilt_s=CORRUPTED_S,
    ),
)
"""Together all of the 419."""
PROGRAM = next(kind for kind in NODE_KINDS if kind.name == "program")
HEALTHY = RankEvidence(node="", rank=0, collective=100, in_collective=True, stack="a collective")
WITNESSES = 6
"""Healthy ranks besides the faulty one: more of them change no proof."""


def draw_kind(random: Random, kinds: Sequence[FaultKind] = NODE_KINDS) -> FaultKind:
    """Return a kind of fault of a node, by the shares."""
    return random.choices(kinds, [kind.share for kind in kinds])[0]


def leave_evidence(kind: FaultKind, node: str, nodes: Sequence[str], random: Random) -> list[RankEvidence]:
    """Return what is found of the rank on `node` and of some healthy ones."""
    witnesses = [other for other in random.sample(nodes, min(len(nodes), WITNESSES + 1)) if other != node][:WITNESSES]
    found = [replace(HEALTHY, node=other, rank=number + 1) for number, other in enumerate(witnesses)]
    drawn, threshold = random.random(), 0.0
    for likelihood, trace in kind.traces:
        threshold += likelihood
        if drawn < threshold:
            waiting = trace.collective is None and trace.stack is None
            shown = trace if waiting or trace.stack else replace(trace, in_collective=True, stack=HEALTHY.stack)
            return [replace(shown, node=node, rank=0), *found]
    return [replace(HEALTHY, node=node, rank=0), *found]
