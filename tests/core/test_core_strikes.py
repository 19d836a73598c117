"""A node's rate of faults is drawn towards the fleet's while little was seen of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.fleet.strikes import Strikes, estimate_rates


def test_one_fault_in_an_hour_weighs_less_than_ten_in_a_month() -> None:
    fleet = [Strikes(faults=1, hours=1.0), Strikes(faults=10, hours=720.0), *[Strikes(faults=0, hours=720.0)] * 14]
    new, bad, *good = estimate_rates(fleet)
    assert new is not None
    assert bad is not None
    assert bad > 3 * new
    assert new == pytest.approx(2.0, rel=0.05)  # about twice the fleet's 1.02
    assert good == [pytest.approx(0.589, rel=0.01)] * 14


def test_a_node_on_which_nothing_ran_has_no_rate() -> None:
    assert estimate_rates([]) == []
    assert estimate_rates([Strikes(faults=0, hours=0.0)]) == [None]
    assert estimate_rates([Strikes(faults=0, hours=0.0), Strikes(faults=0, hours=5.0)]) == [None, 0.0]
    assert estimate_rates([Strikes(faults=1, hours=0.0), Strikes(faults=1, hours=5.0)])[0] is None


SEEN = st.builds(Strikes, faults=st.integers(0, 1000), hours=st.floats(1.0, 1e5))


@given(st.lists(SEEN, min_size=1, max_size=20))
def test_a_rate_lies_between_the_nodes_own_and_the_fleets(nodes: list[Strikes]) -> None:
    faults, hours = sum(node.faults for node in nodes), sum(node.hours for node in nodes)
    fleet = 1000 * faults / hours
    for node, rate in zip(nodes, estimate_rates(nodes), strict=True):
        own = 1000 * node.faults / node.hours
        assert rate is not None
        assert min(own, fleet) * (1 - 1e-9) <= rate <= max(own, fleet) * (1 + 1e-9)
