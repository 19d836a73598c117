"""How a training on several nodes starts again: the cheapest rung, and no node is excluded on a doubt."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet.culprit import Culprit, Proof
from supervisor.core.fleet.ladder import Fleet, FleetLimits, Restart, Rung, choose_restart

LIMITS = FleetLimits()
HOUR_S = 3600.0


def fleet(nodes: int = 4, spares: int = 1) -> Fleet:
    return Fleet(nodes=tuple(f"n{number}" for number in range(nodes)), spares=tuple(f"s{n}" for n in range(spares)))


def culprit(*nodes: str, proof: Proof = Proof.PHYSICAL, node_at_fault: bool = True) -> Culprit:
    return Culprit(proof=proof, reason="a reason", nodes=nodes, node_at_fault=node_at_fault)


def started(guilty: Culprit, known: Fleet, now_s: float = 0.0, limits: FleetLimits = LIMITS) -> Restart:
    return choose_restart(guilty, known, now_s, limits)


def test_nobody_named_means_the_same_nodes_again() -> None:
    restart = started(culprit(proof=Proof.NONE, node_at_fault=False), fleet())
    assert (restart.rung, restart.excluded, restart.fleet.nodes) == (Rung.SAME_NODES, (), fleet().nodes)


def test_a_process_that_ended_by_itself_excludes_no_node() -> None:
    assert started(culprit("n1", node_at_fault=False), fleet()).rung is Rung.SAME_NODES


def test_a_proven_node_is_replaced_by_a_spare_at_its_place() -> None:
    restart = started(culprit("n1"), fleet())
    assert (restart.rung, restart.excluded, restart.taken) == (Rung.SPARE, ("n1",), ("s0",))
    assert (restart.fleet.nodes, restart.fleet.spares) == (("n0", "s0", "n2", "n3"), ())


def test_without_a_spare_the_allocation_is_requeued_without_the_node() -> None:
    restart = started(culprit("n1"), fleet(spares=0))
    assert (restart.rung, restart.excluded, restart.fleet.excluded) == (Rung.REQUEUE, ("n1",), frozenset({"n1"}))
    given_up = started(culprit("n1"), fleet(spares=0), limits=FleetLimits(may_requeue=False))
    assert given_up.rung is Rung.GIVE_UP


def test_statistics_exclude_a_node_that_they_name_twice_in_a_day() -> None:
    doubt = culprit("n2", proof=Proof.SLOW_PEER)
    first = started(doubt, fleet())
    assert first.rung is Rung.SAME_NODES
    again = started(doubt, first.fleet, now_s=2 * HOUR_S)
    assert (again.rung, again.excluded) == (Rung.SPARE, ("n2",))
    much_later = started(doubt, first.fleet, now_s=25 * HOUR_S)
    assert much_later.rung is Rung.SAME_NODES


def test_restarts_without_progress_come_to_an_end() -> None:
    known = fleet()
    rungs: list[Rung] = []
    for _ in range(LIMITS.restarts_per_cause + 1):
        restart = started(culprit(proof=Proof.NONE, node_at_fault=False), known)
        known, rungs = restart.fleet, [*rungs, restart.rung]
    assert rungs == [Rung.SAME_NODES] * LIMITS.restarts_per_cause + [Rung.GIVE_UP]


@given(
    names=st.lists(
        st.tuples(st.integers(0, 39), st.sampled_from([proof for proof in Proof if proof is not Proof.PHYSICAL])),
        max_size=30,
    )
)
def test_statistics_alone_never_exclude_more_than_a_twentieth(names: list[tuple[int, Proof]]) -> None:
    known = fleet(nodes=40, spares=10)
    for number, proof in names:
        known = started(culprit(f"n{number}", proof=proof), known).fleet
    assert len(known.excluded) <= 2
    assert len(known.nodes) == 40
    assert not set(known.nodes) & known.excluded


def test_a_restart_counts_until_its_period_is_over_to_the_second() -> None:
    limits = replace(LIMITS, restarts_per_period=1, period_s=60.0)
    known = replace(fleet(), restarted_at_s=(100.0,))
    named = culprit(proof=Proof.NONE, node_at_fault=False)
    assert choose_restart(named, known, 159.9, limits).rung is Rung.GIVE_UP
    assert choose_restart(named, known, 160.0, limits).rung is Rung.SAME_NODES
