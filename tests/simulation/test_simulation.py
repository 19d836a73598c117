"""The simulation agrees with what is known in closed form, and with the policy that it plays."""

from __future__ import annotations

import math
from statistics import mean

import pytest

from supervisor.core.fleet.ladder import Rung
from supervisor.simulation.faults import NODE_KINDS, FaultKind
from supervisor.simulation.run import simulate
from supervisor.simulation.scenario import DAY_S, Scenario, ScenarioError

RSC_1 = 6.50 / 1000
"""Faults of a node in a day on Meta's RSC-1 (arXiv 2410.21680)."""


def unproductive(scenario: Scenario, seeds: int = 8) -> float:
    return mean(simulate(scenario, seed).unproductive_share for seed in range(seeds))


def test_the_shares_of_the_kinds_are_all_of_the_published_interruptions() -> None:
    assert sum(kind.share for kind in NODE_KINDS) == pytest.approx(1.0)


def test_a_cluster_has_the_kinds_of_faults_that_it_is_given() -> None:
    kinds = (
        FaultKind(name="often", share=0.75, detection_s=10.0),
        FaultKind(name="rare", share=0.25, detection_s=50.0),
    )
    still = Scenario(nodes=100, faults_per_node_day=0.05, days=90, restart_s=0, evidence_s=0)
    outcome = simulate(still, 1, kinds)
    assert set(outcome.faults) == {"often", "rare"}
    assert outcome.faults["rare"] / outcome.faults.total() == pytest.approx(0.25, abs=0.05)
    assert outcome.spent_s["detection"] / outcome.faults.total() == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(("gpus", "published_h"), [(16_384, 1.8), (131_072, 0.23)])
def test_the_time_between_faults_is_the_one_projected_for_rsc_1(gpus: int, published_h: float) -> None:
    assert Scenario(nodes=gpus // 8, faults_per_node_day=RSC_1).mttf_s / 3600 == pytest.approx(published_h, rel=0.05)


def test_faults_come_as_often_as_their_rate_says() -> None:
    scenario = Scenario(nodes=500, spares=50, faults_per_node_day=0.01, restart_s=0, evidence_s=0, days=200)
    outcome = simulate(scenario, 1)
    repeats = 1.2  # nodes that were not excluded fail again
    between_s = outcome.total_s / outcome.faults.total()
    assert scenario.mttf_s / repeats < between_s < scenario.mttf_s * 1.1


def test_with_small_losses_the_share_is_the_one_of_the_closed_form() -> None:
    """1 - ETTR = r (restart + interval / 2) + save / interval, for r faults of the program a second."""
    rate_s = 4 / DAY_S
    scenario = Scenario(
        nodes=1,
        faults_per_node_day=0,
        program_faults_per_day=4,
        days=400,
        save_every_s=600,
        save_s=6,
        restart_s=118,
        evidence_s=1,
    )
    expected = rate_s * (1 + 1 + 118 + 606 / 2) + 6 / 606
    assert unproductive(scenario) == pytest.approx(expected, rel=0.05)


def test_the_best_interval_between_saves_is_daly_s() -> None:
    """sqrt(2 x save x MTTF) within 10 % of the least loss over a range of intervals."""
    save_s, per_day = 10.0, 24.0
    daly_s = math.sqrt(2 * save_s * DAY_S / per_day)

    def loss(every_s: float) -> float:
        return unproductive(
            Scenario(
                nodes=1,
                faults_per_node_day=0,
                program_faults_per_day=per_day,
                days=100,
                save_every_s=every_s,
                save_s=save_s,
                restart_s=0,
            ),
            seeds=1,
        )

    best = min(loss(daly_s * factor) for factor in (0.25, 0.5, 0.7, 1.4, 2.0, 4.0))
    assert loss(daly_s) <= 1.1 * best


def test_a_training_without_spares_is_requeued_without_the_node() -> None:
    outcome = simulate(Scenario(nodes=64, spares=0, faults_per_node_day=0.01), 3)
    assert outcome.rungs[Rung.SPARE] == 0
    assert outcome.rungs[Rung.REQUEUE] == outcome.excluded > 0


def test_all_time_is_accounted_for_and_a_seed_repeats() -> None:
    scenario = Scenario(
        nodes=128, spares=2, faults_per_node_day=0.05, lemon_share=0.05, life_shape=0.7, program_faults_per_day=1
    )
    outcome, again = simulate(scenario, 5), simulate(scenario, 5)
    assert outcome == again
    assert outcome.productive_s + sum(outcome.spent_s.values()) == pytest.approx(outcome.total_s)
    assert sum(outcome.cost_s.values()) == pytest.approx(sum(outcome.spent_s.values()))


def test_lemons_cost_more_than_they_would_if_they_were_left_out() -> None:
    healthy = Scenario(nodes=256, spares=8, faults_per_node_day=0.005, days=30)
    lemons = Scenario(nodes=256, spares=8, faults_per_node_day=0.005, days=30, lemon_share=0.02)
    assert unproductive(lemons) > unproductive(healthy)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"nodes": 0}, "at least 1 node"),
        ({"save_every_s": 0.0}, "save_every_s = 0.0: must be a number that is greater than 0"),
        ({"restart_s": -1.0}, "restart_s = -1.0: must be a number that is 0 or more"),
        ({"days": math.nan}, "days = nan"),
        ({"life_shape": math.inf}, "life_shape = inf"),
        ({"lemon_share": 2.0}, "a share is at most 1"),
        ({"faults_per_node_day": 0.0}, "without faults nothing is simulated"),
    ],
)
def test_what_no_cluster_can_be_is_refused_by_name(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        Scenario(**{"nodes": 8, "faults_per_node_day": 0.01, **wrong})  # type: ignore[arg-type]
