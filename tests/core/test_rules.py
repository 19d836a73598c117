"""What holds for every rule."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from supervisor.core.flags import RedFlag, Severity
from supervisor.core.remedies.causes import CAUSES
from supervisor.core.rules import ACTING, ADVISORIES, RULES, ActingRule, Rule, act_of, cause_of

from .stories import GB, NAN, START, Story, story


def fields_of(rule: type[Rule]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(rule))  # type: ignore[arg-type] # every rule is one


def switches(rule: type[Rule]) -> list[str]:
    return ["enabled"] if rule in ADVISORIES else ["enabled", "act"]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_frozen_and_named_and_has_its_switches(rule: type[Rule]) -> None:
    names = list(fields_of(rule))
    assert names[: len(switches(rule))] == switches(rule)
    assert "name" not in names
    assert rule().enabled
    assert act_of(rule()) in ((None,) if rule in ADVISORIES else (True, False, "shadow"))
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
    units = ("_s", "_bytes", "_inodes", "_fraction", "_percent", "_factor", "_steps", "_epochs", "_c", "_per_s")
    for name in fields_of(rule)[len(switches(rule)) :]:
        if not isinstance(getattr(rule(), name), bool):  # a switch is no limit
            assert name in counts or name.endswith(units), name


@pytest.mark.parametrize("rule", ACTING)
def test_a_rule_that_may_act_names_a_cause_that_has_remedies(rule: type[ActingRule]) -> None:
    flag = RedFlag(rule=rule.name, severity=Severity.CRITICAL, at=START, message="x")
    assert "cause" in vars(rule)
    assert cause_of(flag) == rule.cause
    assert rule.cause in CAUSES


@pytest.mark.parametrize("rule", ADVISORIES)
def test_a_rule_that_only_warns_has_no_cause_and_no_critical_severity(rule: type[Rule]) -> None:
    source = inspect.getsource(inspect.getmodule(rule) or rule)
    assert not hasattr(rule, "cause")
    assert not hasattr(rule, "act")
    assert "CRITICAL" not in source
    assert "acting(" not in source


def test_a_rule_that_can_be_critical_is_listed_with_those_that_may_act() -> None:
    acting = {rule for rule in RULES if "acting(" in inspect.getsource(rule)}
    assert acting == set(ACTING)


def test_names_are_unique_and_crash_is_asked_first() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert names[0] == "crash"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_nothing_of_an_empty_history(rule: type[Rule]) -> None:
    assert story().check(rule()) is None


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_nothing_of_a_healthy_training(rule: type[Rule]) -> None:
    timeline = story().training().disks(runs=500 * GB).memory(available=20 * GB, rss=8 * GB)
    for step in range(101, 161):
        timeline.steps(step, step, 0.0).gpu(busy=99.0, used=4 * GB).silence(1)
    assert timeline.check(rule()) is None


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_asked_twice_answers_the_same(rule: type[Rule]) -> None:
    timeline: Story = story().training(20).steps(21, 30, loss=NAN).gpu(60, busy=0.0, used=6 * GB).disks(runs=1)
    assert timeline.check(rule()) == timeline.check(rule())
