"""A larger batch as what a start is tried with: where it can be changed, and what the learning rate becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from supervisor.core.tuning.batch import Batches, plan_batch
from supervisor.core.tuning.knob import Facts, Kind, NotTried, facts_of
from supervisor.core.tuning.restarts import StartArm

LOOP = Facts(optimizer="SGD", batch_size=8, steps_per_update=1)
PLAIN = Batches(samples=32, framework=None, adjustable=())
ASKING = replace(PLAIN, adjustable=("amp", "batch_factor"))


def planned(facts: Facts = LOOP, batches: Batches = PLAIN, *remedied: str) -> StartArm:
    found = plan_batch(facts, batches, remedied)
    assert isinstance(found, StartArm), found
    return found


def refused(facts: Facts = LOOP, batches: Batches = PLAIN, *remedied: str) -> str:
    found = plan_batch(facts, batches, remedied)
    assert isinstance(found, NotTried), found
    return found.why


def test_the_samples_of_an_update_and_the_rate_are_named_before_and_after() -> None:
    arm = planned()
    rate = "learning rate x2 (linear, SGD)"
    assert arm.value == f"x2: 8 -> 16 samples a micro-batch, 32 -> 64 samples an update, {rate}"
    assert (arm.kind, arm.samples_factor) == (Kind.OPTIMISATION, 2.0)
    assert arm.factors == (("loader_batch_factor", 2.0), ("lr_factor", 2.0))


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "NAdam", "RMSprop", "AdamW8bit"])
def test_the_rate_of_adam_and_its_kin_follows_by_the_square_root(optimizer: str) -> None:
    arm = planned(replace(LOOP, optimizer=optimizer))
    assert dict(arm.factors)["lr_factor"] == pytest.approx(2**0.5)
    assert arm.value.endswith(f"learning rate x1.41 (square root, {optimizer})")


def test_the_gradients_of_several_steps_that_a_loop_adds_up_are_one_update() -> None:
    arm = planned(replace(LOOP, steps_per_update=4), replace(PLAIN, samples=8))
    assert "8 -> 16 samples a micro-batch, 32 -> 64 samples an update" in arm.value


def test_a_script_that_asks_for_it_changes_its_batch_itself() -> None:
    for facts in (LOOP, replace(LOOP, batch_size=None, batch_why_not="no loader")):
        arm = planned(facts, ASKING)
        assert arm.factors == (("batch_factor", 2.0), ("lr_factor", 2.0))
        assert arm.value.startswith("x2: 32 -> 64 samples an update, ")


def test_where_the_batch_cannot_be_changed_the_reason_is_named() -> None:
    ordered = replace(LOOP, batch_size=None, batch_why_not="its loader draws in order")
    assert refused(ordered) == "its loader draws in order"
    assert refused(replace(LOOP, batch_size=None)) == "the agent of this attempt cannot"
    assert refused(replace(LOOP, optimizer="Lion")).startswith("by what rule the learning rate of Lion")
    assert refused(replace(LOOP, optimizer=None)).startswith("by what rule the learning rate of its optimizer")
    assert refused(LOOP, replace(PLAIN, samples=None)) == "the samples of an update are not known"
    assert refused(replace(LOOP, steps_per_update=None)) == "the samples of an update are not known"
    assert "micro_batch" in refused(LOOP, replace(PLAIN, framework="transformers"))
    assert "pass for newer" in refused(LOOP, replace(ASKING, framework="ultralytics"))
    assert refused(LOOP, replace(PLAIN, framework="keras")).startswith("keras takes the batch")


@pytest.mark.parametrize("setting", ["allocator", "batch_factor", "image_factor", "lr_factor"])
def test_what_a_remedy_has_changed_outranks_it(setting: str) -> None:
    assert refused(LOOP, PLAIN, setting) == f"the remedy setting {setting} outranks it"


def test_the_agents_report_of_the_batch_is_a_count_or_unknown() -> None:
    assert facts_of({"batch_size": 8, "batch_why_not": None}).batch_size == 8
    assert facts_of({"batch_size": True, "batch_why_not": "no loader"}) == Facts(batch_why_not="no loader")
