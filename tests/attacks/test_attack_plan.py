"""The same seed gives the same attack, a script says all of it, and what is too much is left out by shrinking."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attack_plan import WEIGHTS, Action, from_script, plan, shrink, to_script
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 1 << 32), st.integers(0, 200))
def test_a_seed_is_an_attack_and_its_script_is_the_same_one(seed: int, count: int) -> None:
    actions = plan(seed, count)
    assert len(actions) == count
    assert plan(seed, count) == actions
    assert from_script(f"# a comment\n\n{to_script(actions)}") == actions


def test_every_kind_of_action_comes() -> None:
    assert {action.kind for action in plan(1, 5000)} == set(WEIGHTS)


@pytest.mark.parametrize("line", ["write", "write x", "write -1", "rm 1", "write 1 2"])
def test_a_line_that_is_no_action_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"not an action: .*KIND SEED"):
        from_script(line)


@given(st.integers(2, 60), st.sets(st.integers(0, 59), min_size=1, max_size=3))
def test_what_is_left_is_what_it_takes(count: int, needed: set[int]) -> None:
    actions = [Action("write", number) for number in range(count)]
    wanted = {Action("write", number % count) for number in needed}

    def breaks(tried: Sequence[Action]) -> bool:
        return wanted <= set(tried)

    assert set(shrink(actions, breaks, 5000)) == wanted


def test_shrinking_ends_after_as_many_runs_as_it_may_take() -> None:
    calls = []

    def breaks(tried: Sequence[Action]) -> bool:
        calls.append(len(tried))
        return tried[-1].seed == 99

    shrunk = shrink([Action("write", number) for number in range(100)], breaks, 4)
    assert len(calls) <= 4
    assert breaks(shrunk)
