"""A link that is cut: nobody is named for it but the node that was cut off, in whatever order the reports come."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.ladder import Rung
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import Incident, Stage

from .test_fleet_leading import BEGAN_S, LIMITS, Nodes

NAMES = ("n0", "n1", "n2", "n3")
FOUR = replace(LIMITS, nodes=4)
WAITS: dict[str, object] = {"process_state": "S", "collective": 100, "in_collective": True, "stack": "all_reduce"}
LOST_PEER: dict[str, object] = {"exception": "RuntimeError: Connection closed by peer", "communication": True}
BESIDE_A_LOST_PEER = (
    WAITS,
    {**WAITS, "stack": "read_image"},
    {**WAITS, "sequence": 700},
    {**WAITS, "sequence": 699},
    {**WAITS, "collective": 99},
    {**WAITS, "in_collective": False},
    LOST_PEER,
    {**LOST_PEER, "ended_at_s": 5.0},
    {"killed_by": "SIGABRT", "ended_at_s": 5.0},
    {"exception": "exited with status 1", "ended_at_s": 5.0},
)
"""What a rank may look like whose only trouble is that another node is cut off."""


def launched() -> Nodes:
    nodes = Nodes(Leading(Epoch("run", 0, 0), FOUR, BEGAN_S))
    nodes.join(*NAMES)
    nodes.wait(0.2)
    return nodes


def come_back(nodes: Nodes, cut: str, *, by_a_new_link: bool) -> None:
    """What was sent while the link was down arrives; the node has ended its ranks if its lease is over."""
    epoch, running = nodes.ordered[cut], nodes.running[cut]
    nodes.silent.discard(cut)
    if by_a_new_link:
        nodes.join(cut)
    if running is None:
        nodes.tell(cut, ms.Stopped(epoch=epoch))


def closed(nodes: Nodes) -> list[Incident]:
    return [record.incident for record in nodes.records if record.closed]


def named(nodes: Nodes) -> tuple[str, ...]:
    """The nodes that the only incident names."""
    (incident,) = closed(nodes)
    assert incident.culprit is not None
    return incident.culprit.nodes


def test_a_node_that_is_back_before_the_incident_is_judged_was_cut_off_all_the_same() -> None:
    """Its evidence is missing, and among those who are left there is always one that differs."""
    nodes = launched()
    nodes.facts = dict.fromkeys(range(8), WAITS)
    nodes.facts[5] = {**WAITS, "stack": "read_image"}
    nodes.silent.add("n3")
    nodes.wait(2.6)
    assert nodes.leading.stage.value == "waiting"
    come_back(nodes, "n3", by_a_new_link=False)
    nodes.wait(1.0)
    assert named(nodes) == ("n3",)
    assert nodes.leading.stage is Stage.RUNNING, "it is there: the training goes on with it"
    assert sorted(order.node_rank for order in nodes.launches[4:]) == [0, 1, 2, 3]


def test_a_spare_takes_the_place_of_a_node_that_was_cut_off_though_it_is_back() -> None:
    nodes = Nodes(Leading(Epoch("run", 0, 0), replace(FOUR, nodes=3), BEGAN_S))
    nodes.join(*NAMES)
    nodes.wait(0.2)
    nodes.silent.add("n1")
    nodes.wait(2.6)
    come_back(nodes, "n1", by_a_new_link=True)
    nodes.wait(1.0)
    (incident,) = closed(nodes)
    assert (incident.rung, incident.excluded, incident.taken) == (Rung.SPARE, ("n1",), ("n3",))


@given(data=st.data())
def test_in_whatever_order_reports_come_only_the_node_that_was_cut_off_is_named(data: st.DataObject) -> None:
    nodes = launched()
    cut = data.draw(st.sampled_from(NAMES), "cut off")
    others = [name for name in NAMES if name != cut]
    for name in others:
        for rank in (2 * int(name[1:]), 2 * int(name[1:]) + 1):
            nodes.facts[rank] = data.draw(st.sampled_from(BESIDE_A_LOST_PEER), f"rank {rank}")
    late = set(data.draw(st.lists(st.sampled_from(others), max_size=1), "answer late"))
    reports = data.draw(st.lists(st.tuples(st.sampled_from(others), st.integers(1, 40)), max_size=4), "reports")
    back = data.draw(st.none() | st.integers(1, 60), "back after tenths of a second")
    by_a_new_link = data.draw(st.booleans(), "by a new link")
    nodes.silent.add(cut)
    if data.draw(st.booleans(), "its link is broken, not silent"):
        nodes.leading.disconnected(cut)
    for tenth in range(1, 90):
        for name in [name for name, at in reports if at == tenth]:
            if nodes.running[name] is not None:
                nodes.silent |= late
                nodes.fault(name, "rank 1 exited with status 1")
                nodes.silent -= late
        if back == tenth:
            come_back(nodes, cut, by_a_new_link=by_a_new_link)
        nodes.wait(0.1)
    for incident in closed(nodes)[:1]:
        assert incident.culprit is not None
        assert set(incident.culprit.nodes) <= {cut}, incident.culprit.reason


@pytest.mark.parametrize("away_s", [2.5, 10.0])
def test_a_leader_that_was_away_itself_takes_no_node_for_lost(away_s: float) -> None:
    """Its disk hung, or its machine: what its nodes sent meanwhile is still to be read."""
    nodes = launched()
    nodes.now_s += away_s
    nodes.do(nodes.leading.tick(nodes.now_s))
    nodes.wait(1.0)
    assert nodes.records == []


def test_a_leader_that_was_away_still_finds_a_node_that_is_lost() -> None:
    nodes = launched()
    nodes.silent.add("n3")
    nodes.now_s += 10.0
    nodes.do(nodes.leading.tick(nodes.now_s))
    nodes.wait(6.0)
    assert named(nodes) == ("n3",)
