"""Plays one training from fault to fault; the policy of the product decides who is at fault and how it starts again."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from supervisor.core.fleet.culprit import name_culprit
from supervisor.core.fleet.ladder import Fleet, FleetLimits, Restart, Rung, choose_restart
from supervisor.simulation.faults import NODE_KINDS, PROGRAM, FaultKind, draw_kind, leave_evidence
from supervisor.simulation.outcome import Outcome
from supervisor.simulation.scenario import DAY_S, Scenario

REPEATED_AFTER_S = 600.0
"""A node that is not repaired fails again after this time, on average."""


def simulate(scenario: Scenario, seed: int, kinds: Sequence[FaultKind] = NODE_KINDS) -> Outcome:
    """Play one training of `scenario.days`, whose nodes have faults of these kinds; the same seed plays the same."""
    played = Training(scenario, Random(seed), kinds)  # noqa: S311 - a simulation that can be repeated
    while played.now_s < played.end_s:
        played.play_one_fault()
    played.outcome.total_s = played.now_s
    return played.outcome


@dataclass(slots=True)
class NodeLives:
    """When each node in use has its next fault."""

    scenario: Scenario
    random: Random
    lemons: frozenset[str]
    due_s: dict[str, float] = field(default_factory=dict)
    queue: list[tuple[float, str]] = field(default_factory=list)
    """Ordered by time; an entry that differs from `due_s` is out of date."""

    def begin(self, node: str, now_s: float) -> None:
        """Let the life of a node begin."""
        rate = self.scenario.faults_per_node_day * (self.scenario.lemon_factor if node in self.lemons else 1.0)
        scale_s = DAY_S / rate / math.gamma(1 + 1 / self.scenario.life_shape) if rate else math.inf
        self.plan(node, now_s + (self.random.weibullvariate(scale_s, self.scenario.life_shape) if rate else math.inf))

    def plan(self, node: str, at_s: float) -> None:
        """Set when a node has its next fault."""
        self.due_s[node] = at_s
        heapq.heappush(self.queue, (at_s, node))

    def end(self, nodes: Iterable[str]) -> None:
        """Forget nodes that are no longer in use."""
        for node in nodes:
            self.due_s.pop(node, None)

    def first(self) -> tuple[float, str]:
        """Return the next fault: when, and on which node."""
        while self.due_s.get(self.queue[0][1]) != self.queue[0][0]:
            heapq.heappop(self.queue)
        return self.queue[0]


class Training:
    """A simulated training, the nodes it has, and what it spent."""

    def __init__(self, scenario: Scenario, random: Random, kinds: Sequence[FaultKind]) -> None:
        self.scenario, self.random, self.kinds = scenario, random, kinds
        self.names = [f"n{number}" for number in range(scenario.nodes + scenario.spares)]
        self.fleet = Fleet(nodes=tuple(self.names[: scenario.nodes]), spares=tuple(self.names[scenario.nodes :]))
        self.in_use = set(self.fleet.nodes)
        lemons = random.sample(self.names, round(scenario.lemon_share * len(self.names)))
        self.lives = NodeLives(scenario, random, frozenset(lemons))
        for node in self.fleet.nodes:
            self.lives.begin(node, 0.0)
        self.in_repair: list[tuple[float, str]] = []
        self.now_s, self.end_s = 0.0, scenario.days * DAY_S
        self.next_program_s = self._draw_program_s(0.0)
        self.outcome = Outcome()

    def _draw_program_s(self, now_s: float) -> float:
        rate = self.scenario.program_faults_per_day
        return now_s + self.random.expovariate(rate / DAY_S) if rate else math.inf

    def play_one_fault(self) -> None:
        """Run until the next fault or the end, then recover; a fault while nothing runs is met at the next start."""
        at_s, node = self.lives.first()
        of_program = self.next_program_s < at_s
        at_s = max(self.now_s, min(at_s, self.next_program_s))
        if at_s >= self.end_s:
            self._run(self.end_s - self.now_s)
            return
        ran_s = at_s - self.now_s
        self._run(ran_s)
        if of_program:
            self.next_program_s = self._draw_program_s(self.now_s)
            kind, node = PROGRAM, self.random.choice(self.fleet.nodes)
        else:
            kind = draw_kind(self.random, self.kinds)
            self.lives.begin(node, self.now_s)
        self._lose_work(ran_s, kind)
        self._recover(node, kind)

    def _run(self, ran_s: float) -> None:
        """Step for some time, with the saves that fall into it."""
        saving_s = int(ran_s / self._save_cycle_s) * self.scenario.save_s
        self.now_s += ran_s
        self.outcome.productive_s += ran_s - saving_s
        self.outcome.spend("saving", saving_s, "saves")

    @property
    def _save_cycle_s(self) -> float:
        return self.scenario.save_every_s + self.scenario.save_s

    def _lose_work(self, ran_s: float, kind: FaultKind) -> None:
        """Take back what was not saved, and what the fault spoilt before it was noticed."""
        unsaved_s = ran_s % self._save_cycle_s
        lost_s = min(unsaved_s + kind.spoilt_s, self.outcome.productive_s)
        self.outcome.productive_s -= lost_s
        self.outcome.spend("lost_work", lost_s, kind.name)
        if ran_s > self._save_cycle_s:
            self.fleet = replace(self.fleet, same_restarts=0)

    def _recover(self, node: str, kind: FaultKind) -> None:
        """Let the policy name a culprit and choose how to start again, and book what that takes."""
        culprit = name_culprit(leave_evidence(kind, node, self.fleet.nodes, self.random))
        restart = choose_restart(culprit, self.fleet, self.now_s, FleetLimits())
        self.outcome.count(kind.name, restart, guilty=node if kind.node_at_fault else None)
        self._spend("detection", kind.detection_s, kind)
        self._spend("evidence", self.scenario.evidence_s, kind)
        self._carry_out(restart, culprit.nodes if culprit.node_at_fault else (), kind)
        self._spend("restart", self.scenario.restart_s, kind)
        self._take_back_repaired()
        if node in self.in_use and self.random.random() < kind.persists:
            self.lives.plan(node, self.now_s + self.random.expovariate(1 / REPEATED_AFTER_S))

    def _carry_out(self, restart: Restart, named: tuple[str, ...], kind: FaultKind) -> None:
        """Exchange the nodes that a restart leaves out."""
        left_out, taken = restart.excluded, restart.taken
        self.fleet = restart.fleet
        if restart.rung is Rung.SPARE:
            self._spend("restart", self.scenario.spare_s, kind)
        elif restart.rung is Rung.REQUEUE:
            self._spend("waiting", self.scenario.requeue_s, kind)
            taken = self._replace(left_out)
        elif restart.rung is Rung.GIVE_UP:
            self._spend("waiting", self.scenario.person_s, kind)
            left_out = tuple(node for node in named if node in self.in_use)
            taken = self._replace(left_out)
            self.fleet = replace(self.fleet, same_restarts=0)
        self._exchange(left_out, taken)

    def _replace(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Put nodes that the training never had in the place of some; the cluster always has another one."""
        in_use = list(self.fleet.nodes)
        new = tuple(f"n{len(self.names) + count}" for count in range(len(nodes)))
        for node, name in zip(nodes, new, strict=True):
            in_use[in_use.index(node)] = name
        self.names += new
        self.fleet = replace(self.fleet, nodes=tuple(in_use))
        return new

    def _exchange(self, left_out: tuple[str, ...], taken: tuple[str, ...]) -> None:
        """Begin the lives of the nodes that were taken in, and the repair of those left out."""
        self.in_use.difference_update(left_out)
        self.lives.end(left_out)
        self.in_use.update(taken)
        for node in taken:
            self.lives.begin(node, self.now_s)
        for node in left_out:
            heapq.heappush(self.in_repair, (self.now_s + self.scenario.repair_s, node))

    def _take_back_repaired(self) -> None:
        """Make spares of the nodes whose repair has ended, as many as the allocation has room for."""
        back = []
        while self.in_repair and self.in_repair[0][0] <= self.now_s:
            back.append(heapq.heappop(self.in_repair)[1])
        if back:
            spares = (*self.fleet.spares, *back)[: self.scenario.spares]
            self.fleet = replace(self.fleet, spares=spares, excluded=self.fleet.excluded - set(back))

    def _spend(self, part: str, seconds: float, kind: FaultKind) -> None:
        self.now_s += seconds
        self.outcome.spend(part, seconds, kind.name)
