"""What a simulation assumes of the cluster, the training and the supervision."""

from __future__ import annotations

from dataclasses import dataclass, fields

DAY_S = 86400.0
HOUR_S = 3600.0


class ScenarioError(ValueError):
    """An assumption that no cluster can have, with its name and what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The assumptions of one simulation; each is printed with its result."""

    nodes: int
    faults_per_node_day: float
    days: float = 54.0
    spares: int = 1
    program_faults_per_day: float = 0.0
    """Faults of the training's own code, which do not grow with the number of nodes."""
    life_shape: float = 1.0
    """Shape of the Weibull distribution of a node's life; 1: exponential, below 1: early failures."""
    lemon_share: float = 0.0
    """Share of the nodes that fail `lemon_factor` times as often."""
    lemon_factor: float = 20.0
    save_every_s: float = 60.0
    save_s: float = 0.0
    """For how long each save holds the training."""
    evidence_s: float = 1.0
    restart_s: float = 120.0
    """From the order to start to the first step, on nodes that are there."""
    spare_s: float = 1.0
    """More, where a spare of the allocation takes part."""
    requeue_s: float = 15.0
    """More, where the allocation is requeued without a node."""
    repair_s: float = 24 * HOUR_S
    """Until an excluded node is a spare again."""
    person_s: float = 2 * HOUR_S
    """Until a person helps a training that was given up."""

    def __post_init__(self) -> None:
        """Refuse what no cluster can be."""
        if self.nodes < 1 or self.spares < 0:
            raise ScenarioError(
                f"nodes = {self.nodes}, spares = {self.spares}: at least 1 node and 0 spares are needed"
            )
        positive = ("days", "save_every_s", "life_shape", "repair_s", "lemon_factor")
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf") or (field.name in positive and value == 0):
                bound = "greater than 0" if field.name in positive else "0 or more"
                raise ScenarioError(f"{field.name} = {value}: must be a number that is {bound}")
        if self.lemon_share > 1:
            raise ScenarioError(f"lemon_share = {self.lemon_share}: a share is at most 1")
        if self.faults_per_node_day == 0 and self.program_faults_per_day == 0:
            raise ScenarioError(
                "faults_per_node_day = 0 and program_faults_per_day = 0: without faults nothing is simulated"
            )

    @property
    def mttf_s(self) -> float:
        """Mean time between two faults of the whole training, from the rates alone."""
        lemons = 1 + self.lemon_share * (self.lemon_factor - 1)
        per_day = self.nodes * self.faults_per_node_day * lemons + self.program_faults_per_day
        return DAY_S / per_day
