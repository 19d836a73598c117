"""How often each node fails, shrunk towards the fleet: a few faults are chance, many are the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from supervisor.core.remedies.causes import GPU_HANG, GPU_LOST, HARDWARE

MACHINE_CAUSES = frozenset({GPU_HANG, GPU_LOST, HARDWARE})
"""Causes that lie in the machine; what the program or its data cause says nothing about the node."""
HOURS = 1000.0
PRIOR_FAULTS = 1.0
"""How many faults at the fleet's rate each node is taken to have had before it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strikes:
    """What was seen of one node."""

    faults: int
    """Incidents whose cause lies in the machine."""
    hours: float
    """Time in which a training ran."""


def estimate_rates(nodes: Sequence[Strikes]) -> list[float | None]:
    """Return each node's faults in 1,000 hours of training, in the order given; None where none ran.

    The mean of a gamma distribution whose prior is the fleet's own rate with the weight of `PRIOR_FAULTS` faults: with
    h hours and n faults, (n + 1) / (h + 1 / rate). A node with one fault in an hour is not yet a bad one.
    """
    hours, faults = sum(node.hours for node in nodes), sum(node.faults for node in nodes)
    if hours <= 0:
        return [None] * len(nodes)
    if faults == 0:
        return [0.0 if node.hours > 0 else None for node in nodes]
    prior_hours = PRIOR_FAULTS * hours / faults
    return [
        HOURS * (node.faults + PRIOR_FAULTS) / (node.hours + prior_hours) if node.hours > 0 else None for node in nodes
    ]
