"""What counts as progress of a training on several nodes, and which of its saved states are taken for poisoned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.fleet.culprit import Proof
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.ladder import FleetLimits
from supervisor.core.fleet.launch_progress import LaunchProgress
from supervisor.core.fleet.resume import Offer

from .test_fleet_leading import LIMITS, Nodes, begun, generation, resumed_from, take_over

SETTLE_S = 5.0
WAITING = replace(LIMITS, fleet=FleetLimits(may_requeue=False, backoff_s=(0.0, 60.0), settle_s=SETTLE_S))
KILLED: dict[str, object] = {"killed_by": "SIGKILL", "ended_at_s": 5.0}
RAISED: dict[str, object] = {"exception": "ValueError: a batch is empty", "ended_at_s": 5.0}


def without_steps() -> Nodes:
    """A training of which no step is ever seen."""
    nodes = begun(WAITING)
    nodes.leading.progress.steps, nodes.shows_steps = None, False
    nodes.fault("n0")
    nodes.wait(0.3)
    assert nodes.leading.epoch == Epoch("run", 0, 2)
    return nodes


def test_launches_that_worked_for_a_while_and_never_showed_a_step_are_no_row() -> None:
    nodes = without_steps()
    for relaunch in (3, 4, 5):
        nodes.wait(SETTLE_S + 1.0)
        nodes.fault("n0")
        nodes.wait(0.3)
        assert nodes.leading.epoch == Epoch("run", 0, relaunch), "at once"


def test_launches_that_end_early_without_a_step_wait_before_the_next() -> None:
    nodes = without_steps()
    nodes.fault("n0")
    nodes.wait(30.0)
    assert nodes.leading.epoch == Epoch("run", 0, 2)
    nodes.wait(31.0)
    assert nodes.leading.epoch == Epoch("run", 0, 3)


def test_a_launch_of_which_a_leader_that_is_gone_saw_the_begin_is_not_known_to_have_ended_early() -> None:
    nodes = without_steps()
    take_over(nodes, open_incident=False)
    nodes.leading.limits = WAITING
    nodes.join("n0", "n1")
    nodes.wait(0.2)
    nodes.fault("n0")
    nodes.wait(0.3)
    assert nodes.leading.epoch == Epoch("run", 0, 3)


@pytest.mark.parametrize("grows", [True, False])
def test_a_newer_state_to_resume_from_is_progress_where_no_step_is_known(grows: bool) -> None:
    nodes = without_steps()
    for number in range(1, 4):
        name, saved_unix_s = (f"/data/{number}", 1e9 + number) if grows else ("/data/1", 1e9)
        saved = Offer(name=name, digest="a", saved_unix_s=saved_unix_s, proven=True)
        nodes.saved = dict.fromkeys(("n0", "n1"), (saved,))
        nodes.wait(0.2)
        nodes.fault("n0")
        nodes.wait(61.0 if number == 1 else 0.3)
    assert (nodes.leading.epoch == Epoch("run", 0, 5)) is grows


@pytest.mark.parametrize(("fact", "reached", "resumed"), [(KILLED, 40, 30), (RAISED, 40, 20), (KILLED, 30, 20)])
def test_a_state_from_which_steps_were_made_until_a_rank_was_killed_is_resumed_from_again(
    fact: dict[str, object], reached: int, resumed: int
) -> None:
    """What a program ends by itself may come of the state, as may what ends it before the first step."""
    nodes = begun()
    nodes.leading.progress.steps = 1000
    nodes.saved = dict.fromkeys(("n0", "n1"), (generation(30), generation(20)))
    nodes.facts[1] = fact
    for _ in range(3):
        nodes.fault("n0")
        nodes.wait(0.3)
        nodes.made = reached
        nodes.wait(0.2)
    assert resumed_from(nodes) == {(f"step-{resumed:012d}", "a")}


def test_a_node_whose_daemon_ended_while_all_others_ended_by_their_leases_is_named() -> None:
    nodes = begun(replace(LIMITS, nodes=3), "n0", "n1", "n2")
    nodes.running = dict.fromkeys(nodes.running)
    take_over(nodes, open_incident=False)
    nodes.leading.limits = replace(LIMITS, nodes=3)
    nodes.ordered.pop("n1")
    nodes.join("n0", "n2")
    nodes.join("n1", instance="another")
    nodes.wait(3.0)
    incident = nodes.records[-1].incident
    assert (incident.kind, incident.excluded) == ("no_leader", ())
    assert incident.culprit is not None
    assert (incident.culprit.proof, incident.culprit.nodes) == (Proof.PHYSICAL, ("n1",))
    assert not incident.culprit.node_at_fault


def test_steps_that_were_known_before_a_leader_took_over_are_no_progress_when_they_are_made_again() -> None:
    progress = LaunchProgress(steps=100)
    assert not progress.take_steps(100, counts_itself=False)
    assert progress.take_steps(101, counts_itself=False)


def test_the_state_that_a_training_had_resumed_from_before_a_leader_took_over_is_none_that_is_new() -> None:
    progress = LaunchProgress(steps=100, resumed=generation(80))
    assert not progress.launch(generation(80), 0.0)
    assert progress.launch(generation(100), 1.0)
