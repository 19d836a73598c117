"""What holds for every rule."""

from __future__ import annotations

import dataclasses

import pytest

from supervisor.core.rules import RULES, Rule

from .stories import GB, NAN, Story, story


def fields_of(rule: type[Rule]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(rule))  # type: ignore[arg-type] # every rule is one


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_frozen_and_named_and_has_its_two_switches(rule: type[Rule]) -> None:
    names = list(fields_of(rule))
    assert names[:2] == ["enabled", "act"]
    assert "name" not in names
    assert rule().enabled
    assert rule().act in (True, False, "shadow")
    with pytest.raises(AttributeError):
        setattr(rule(), names[0], False)


@pytest.mark.parametrize("rule", RULES)
def test_a_limit_names_its_unit(rule: type[Rule]) -> None:
    counts = {
        "learn",
        "limit",
        "min_readings",
        "min_retries",
        "min_share",
        "min_stretches",
        "run_steps",
        "tolerated",
        "tolerated_correctable",
        "tolerated_gradients",
    }
    units = ("_s", "_bytes", "_fraction", "_percent", "_factor", "_steps", "_epochs", "_c", "_per_s")
    for name in fields_of(rule)[2:]:
        assert name in counts or name.endswith(units), name


def test_names_are_unique_and_crash_is_asked_first() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert names[0] == "crash"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_nothing_of_an_empty_history(rule: type[Rule]) -> None:
    assert story().check(rule()) is None


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_nothing_of_a_healthy_training(rule: type[Rule]) -> None:
    told = story().training().disks(runs=500 * GB).memory(available=20 * GB, rss=8 * GB)
    for step in range(101, 161):
        told.steps(step, step, 0.0).gpu(busy=99.0, used=4 * GB).silence(1)
    assert told.check(rule()) is None


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_asked_twice_answers_the_same(rule: type[Rule]) -> None:
    told: Story = story().training(20).steps(21, 30, loss=NAN).gpu(60, busy=0.0, used=6 * GB).disks(runs=1)
    assert told.check(rule()) == told.check(rule())
