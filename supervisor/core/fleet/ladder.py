"""Chooses how a training on several nodes starts again, and which nodes are left out; a pure function.

The rungs, dearest last: all ranks again on the same nodes, with a spare of the same allocation, with the node excluded
and the allocation requeued. A node is excluded by one physical proof, or where statistics named it twice in a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from supervisor.core.fleet.culprit import Culprit, Proof

SUSPICION_KEPT_S = 24 * 3600.0
NAMINGS_TO_EXCLUDE = 2
EXCLUDED_SHARE = 0.05
"""Of all nodes and spares: more are excluded only by a person."""


class Rung(str, Enum):
    """A way to start again."""

    SAME_NODES = "same_nodes"
    SPARE = "spare"
    REQUEUE = "requeue"
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """What the owner allows."""

    restarts_per_cause: int = 20
    """Restarts for the same reason without a step between them that was not made before."""
    may_requeue: bool = True
    settle_s: float = 600.0
    """A launch that ends sooner and never showed a step made no progress; of a longer one it is not known."""
    backoff_s: tuple[float, ...] = (0.0, 0.0, 5.0, 15.0, 60.0, 300.0)
    """Wait before the first, second ... restart in a row without progress; the last counts for all further ones."""
    restarts_per_period: int = 60
    period_s: float = 3600.0
    """However much progress lies between them: a training that restarts each minute costs more than it brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The nodes of a training, and what is known against them."""

    nodes: tuple[str, ...]
    spares: tuple[str, ...] = ()
    excluded: frozenset[str] = frozenset()
    named_at_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """When statistics named a node, in seconds on the leader's clock."""
    same_restarts: int = 0
    """Restarts in a row without progress between them."""
    restarted_at_s: tuple[float, ...] = ()
    """When the restarts of the last period were made, in seconds on the leader's clock."""

    def with_nodes(self, usable: Sequence[str], wanted: int) -> Fleet:
        """Return it with `wanted` nodes that train, those that did before first; the others are spares."""
        kept = [node for node in self.nodes if node in usable]
        nodes = (*kept, *(node for node in usable if node not in kept))
        return replace(self, nodes=nodes[:wanted], spares=nodes[wanted:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """How all ranks start again."""

    rung: Rung
    reason: str
    fleet: Fleet
    """The nodes and what is held against them from now on."""
    excluded: tuple[str, ...] = ()
    """Nodes that this restart excludes."""
    taken: tuple[str, ...] = ()
    """Spares that take their places."""
    spent: bool = False
    """Given up because a budget is used up, whoever is at fault."""


def choose_restart(
    culprit: Culprit, fleet: Fleet, now_s: float, limits: FleetLimits, *, progress_known: bool = True
) -> Restart:
    """Return the cheapest rung that leaves out who is proven to be at fault.

    A launch whose progress is not known counts in the period alone.
    """
    if fleet.same_restarts >= limits.restarts_per_cause:
        reason = f"{fleet.same_restarts} restarts without progress: {culprit.reason}"
        return Restart(rung=Rung.GIVE_UP, reason=reason, fleet=fleet, spent=True)
    recent = tuple(at_s for at_s in fleet.restarted_at_s if now_s - at_s < limits.period_s)
    if len(recent) >= limits.restarts_per_period:
        reason = f"{len(recent)} restarts within {limits.period_s:.0f} s: {culprit.reason}"
        return Restart(rung=Rung.GIVE_UP, reason=reason, fleet=fleet, spent=True)
    counted = fleet.same_restarts + (1 if progress_known else 0)
    fleet = replace(fleet, restarted_at_s=(*recent, now_s), same_restarts=counted)
    noted = _note_naming(culprit, fleet, now_s)
    guilty = _to_exclude(culprit, noted)
    if not guilty:
        return Restart(rung=Rung.SAME_NODES, reason=culprit.reason, fleet=noted)
    if len(guilty) <= len(noted.spares):
        return _use_spares(guilty, culprit, noted)
    if not limits.may_requeue:
        reason = f"no spare is left and requeueing is not allowed: {culprit.reason}"
        return Restart(rung=Rung.GIVE_UP, reason=reason, fleet=noted)
    left_out = replace(noted, excluded=noted.excluded | set(guilty))
    return Restart(rung=Rung.REQUEUE, reason=culprit.reason, fleet=left_out, excluded=guilty)


def choose_wait_s(same_restarts: int, limits: FleetLimits) -> float:
    """Return how long a restart waits; a fault that comes back at once is mostly not over yet."""
    place = min(max(same_restarts, 1), len(limits.backoff_s)) - 1
    return limits.backoff_s[place] if limits.backoff_s else 0.0


def _note_naming(culprit: Culprit, fleet: Fleet, now_s: float) -> Fleet:
    """Return the fleet with a statistical naming noted, and those older than a day forgotten."""
    kept = {
        node: tuple(at_s for at_s in times if now_s - at_s < SUSPICION_KEPT_S)
        for node, times in fleet.named_at_s.items()
    }
    if culprit.node_at_fault and culprit.proof is not Proof.PHYSICAL:
        for node in culprit.nodes:
            kept[node] = (*kept.get(node, ()), now_s)
    return replace(fleet, named_at_s={node: times for node, times in kept.items() if times})


def _to_exclude(culprit: Culprit, fleet: Fleet) -> tuple[str, ...]:
    """Return the nodes to leave out: proven, still in use, and within what may be excluded without a person."""
    if not culprit.node_at_fault:
        return ()
    proven = [
        node
        for node in culprit.nodes
        if node in fleet.nodes
        and (culprit.proof is Proof.PHYSICAL or len(fleet.named_at_s.get(node, ())) >= NAMINGS_TO_EXCLUDE)
    ]
    if culprit.proof is Proof.PHYSICAL:
        return tuple(proven)
    allowed = max(1, int(EXCLUDED_SHARE * (len(fleet.nodes) + len(fleet.spares)))) - len(fleet.excluded)
    return tuple(proven) if len(proven) <= allowed else ()


def _use_spares(guilty: tuple[str, ...], culprit: Culprit, fleet: Fleet) -> Restart:
    taken, left = fleet.spares[: len(guilty)], fleet.spares[len(guilty) :]
    nodes = list(fleet.nodes)
    for node, spare in zip(guilty, taken, strict=True):
        nodes[nodes.index(node)] = spare
    used = replace(
        fleet,
        nodes=tuple(nodes),
        spares=left,
        excluded=fleet.excluded | set(guilty),
    )
    return Restart(rung=Rung.SPARE, reason=culprit.reason, fleet=used, excluded=guilty, taken=taken)
