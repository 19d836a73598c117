"""When the next snapshot is due, and the interval that costs least."""

from __future__ import annotations

import importlib.util
import math
from types import ModuleType

import pytest
from agent_by_hand import AGENT_PATH

S = 1_000_000_000


@pytest.fixture(scope="module")
def interval() -> ModuleType:
    path = AGENT_PATH / "rocm_agent" / "snapshots" / "interval.py"
    spec = importlib.util.spec_from_file_location("agents_interval", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_is_due_after_the_interval_and_then_again(interval: ModuleType) -> None:
    every = interval.Interval("300.0", "", 10 * S)
    assert not every.due(309 * S)
    assert every.due(310 * S)
    every.taken(320 * S)
    assert not every.due(619 * S)
    assert every.due(620 * S)


@pytest.mark.parametrize("setting", ["0", "0.0", "", "nan", "inf", "-1", "often"])
def test_nothing_and_nonsense_mean_never(interval: ModuleType, setting: str) -> None:
    assert not interval.Interval(setting, "", 0).due(10**18)


def test_the_best_interval_is_youngs_and_grows_with_cost_and_time_between_faults(interval: ModuleType) -> None:
    best = interval.optimal_s(1.0, 1.0, 86400.0)
    assert math.isclose(best, math.sqrt(2 * 1.0 * 86400.0), rel_tol=0.01)
    assert interval.optimal_s(2.0, 1.0, 86400.0) > best > interval.optimal_s(1.0, 1.0, 43200.0)


def test_no_interval_costs_more_than_its_share_or_waits_longer_than_an_hour(interval: ModuleType) -> None:
    assert interval.optimal_s(0.001, 0.1, 60.0) == interval.SHORTEST_S
    assert interval.optimal_s(0.001, 20.0, 60.0) == 20.0 / interval.WRITE_SHARE
    assert interval.optimal_s(2.0, 0.1, 60.0) == 2.0 / interval.STALL_SHARE
    assert interval.optimal_s(1e4, 0.1, 1e9) == interval.LONGEST_S


def test_auto_measures_first_and_then_keeps_to_what_it_found(interval: ModuleType) -> None:
    every = interval.Interval("auto", "21600", 0)
    assert every.due(int(interval.SHORTEST_S * S))
    every.taken(10 * S)
    every.measured(0.02, 0.2)
    assert math.isclose(every.every_s, math.sqrt(2 * 0.02 * 21600.0), rel_tol=0.01)
    assert not every.due(int((10 + every.every_s) * S) - S)
    assert every.due(int((10 + every.every_s) * S) + S)


def test_a_training_that_outlives_the_time_between_faults_saves_less_often(interval: ModuleType) -> None:
    every = interval.Interval("auto", "60", 0)
    every.taken(10 * S)
    every.measured(0.02, 0.2)
    assert every.every_s == interval.SHORTEST_S
    every.taken(36_000 * S)
    every.measured(0.02, 0.2)
    assert math.isclose(every.every_s, math.sqrt(2 * 0.02 * 36_000.0), rel_tol=0.01)


def test_one_slow_write_moves_nothing(interval: ModuleType) -> None:
    every = interval.Interval("auto", "60", 0)
    for write_s in (0.2, 0.2, 5.0):
        every.taken(10 * S)
        every.measured(0.01, write_s)
    assert every.every_s == interval.SHORTEST_S
