"""The tuner's verdicts: what is adopted, what is refused, and what chance cannot bring about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tuner_simulation import adopted_share

from supervisor.core.foreign_values import BYTES_MAX
from supervisor.core.tuning.bottleneck import Shares, find_bottlenecks, name_of
from supervisor.core.tuning.budget import RECKONED, STEPS, STEPS_S, count_left, find_unaffordable
from supervisor.core.tuning.compare import (
    BEYOND_REACH_PAIRS_MIN,
    PAIRS_MAX,
    PAIRS_MIN,
    Comparison,
    Outcome,
    block_is_complete,
)
from supervisor.core.tuning.guards import Block
from supervisor.core.tuning.knob import COUNTED_MAX, KNOBS, Facts, Kind, Knob, NotTried, Phase, choose_knobs, facts_of
from supervisor.core.tuning.session import Session, begin_session
from supervisor.core.tuning.trial import Arm
from tests.rigs.declared import check_declared

CPU = Facts(device="cpu", processors=4, workers=0, threads=4, fused=False, channels_last=False)
SWITCH = Knob(name="switch", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))
OTHER = Knob(name="other", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))

JOINT = Knob(
    name="joint",
    phase=Phase.ATTENTION,
    kind=Kind.NUMERICS,
    values=lambda _: (True,),
    along=("switch", "other"),
    falls_apart=True,
)
ROUNDING = Knob(
    name="rounding", phase=Phase.PRECISION, kind=Kind.NUMERICS, values=lambda _: (True,), idle_under="switch"
)
LATER = Knob(name="later", phase=Phase.COMPILE, kind=Kind.NUMERICS, values=lambda _: (True,))


def compared(owner_s: float, arm_s: float, pairs: int, wobble: float = 0.0) -> Comparison:
    """Return a comparison in which every second pair of blocks took `wobble` longer."""
    comparison = Comparison()
    for number in range(pairs):
        slow = 1 + wobble * (number % 2)
        comparison = comparison.after(owner_s * slow, arm_s)
    return comparison


def run(session: Session, step_s: Mapping[frozenset[str], float]) -> Session:
    """Run a tune to its end; a block takes what its settings take, by the names of those that are on."""
    blocks = 0
    while session.wanted is not None:
        session = session.after_block(step_s[frozenset(session.wanted)])
        check_declared(session)
        blocks += 1
        assert blocks < 1000, "the tune does not end"
    return session


def test_a_clear_gain_is_adopted_after_four_pairs_and_not_before() -> None:
    assert compared(1.0, 0.92, PAIRS_MIN - 1).verdict() is None
    verdict = compared(1.0, 0.92, PAIRS_MIN).verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.ADOPTED
    assert verdict.gain.gain == pytest.approx(0.087, abs=0.001)
    assert verdict.gain.low <= verdict.gain.gain <= verdict.gain.high


def make_young_block(session: Session, number: int) -> Session:
    """Return a tune after one more block of a net whose losses fall in a curve, and which is four times as fast."""
    steps = range(60 * number, 60 * number + 60)
    losses = tuple(8 + 4 * math.exp(-step / 80) + 0.1 * math.sin(7 * step) for step in steps)
    return session.after_block(0.1 if session.wanted else 0.4, Block(first_step=steps.start, losses=losses))


@pytest.mark.parametrize("workers", [0, 1])
def test_more_workers_wait_for_losses_only_where_they_are_the_first(workers: int) -> None:
    """Sixteen workers, four times as fast, were compared until no step was left: losses of a young YOLO bend."""
    facts = Facts(device="cuda", cuda=True, processors=16, workers=workers, prefetch=4, pinned=True)
    session = begin_session([knob for knob in KNOBS if knob.name == "workers"], (), facts)
    for number in range(4):
        assert not session.adopted
        session = make_young_block(session, number)
    assert session.settings == ({"workers": 16} if workers else {})


def test_an_arm_that_gains_too_little_so_far_is_given_up_before_the_last_pair() -> None:
    comparison = Comparison()
    for number in range(BEYOND_REACH_PAIRS_MIN):
        assert comparison.verdict() is None, number
        comparison = comparison.after(1.0, 0.875 + 0.186 * (number % 2))
    verdict = comparison.verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.NOT_SETTLED
    assert verdict.gain.high > 0.03, "a gain is not excluded"


@pytest.mark.parametrize(("arm_s", "wobble", "pairs"), [(1.02, 0.034, 3), (0.998, 0.024, 4)])
def test_an_arm_that_is_no_faster_is_given_up_after_three_pairs_and_one_that_hardly_is_after_four(
    arm_s: float, wobble: float, pairs: int
) -> None:
    assert compared(1.0, arm_s, pairs - 1, wobble=wobble).verdict() is None
    verdict = compared(1.0, arm_s, pairs, wobble=wobble).verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.NOT_SETTLED


def test_a_decoder_has_attention_and_what_computes_it_faster_proven_together() -> None:
    facts = Facts(cuda=True, attention="eager", autocast=False, fused=False)
    session = begin_session(
        *choose_knobs(
            facts,
            may=["precision"],
            remedied=[],
            knobs=[knob for knob in KNOBS if knob.name in {"attention", "autocast", "fused_optimizer"}],
        ),
        facts,
    )
    assert session.wanted == {}
    trial = session.trial
    assert trial is not None
    assert trial.settings == {"attention": "sdpa", "autocast": "bfloat16", "fused_optimizer": True}


def test_attention_refused_with_what_is_set_along_is_tried_by_itself_and_so_are_they() -> None:
    facts = Facts(cuda=True, attention="eager", autocast=False, fused=False)
    names = {"attention", "autocast", "fused_optimizer"}
    knobs, left = choose_knobs(
        facts, may=["precision"], remedied=[], knobs=[knob for knob in KNOBS if knob.name in names]
    )
    together = frozenset(names)
    session = run(
        begin_session(knobs, left, facts),
        {
            frozenset(): 1.0,
            together: 1.2,
            frozenset({"attention"}): 0.8,
            frozenset({"attention", "autocast"}): 1.1,
            frozenset({"attention", "fused_optimizer"}): 0.6,
            frozenset({"fused_optimizer"}): 0.75,
        },
    )
    assert session.settings == {"attention": "sdpa", "fused_optimizer": True}
    assert [row.knob for row in session.refused] == ["autocast"], "attention is no longer among what was refused"


def test_attention_that_does_harm_with_what_is_set_along_is_tried_by_itself() -> None:
    facts = Facts(cuda=True, attention="eager", autocast=False, fused=False)
    knobs, left = choose_knobs(facts, may=["precision"], remedied=[])
    session = begin_session(knobs, left, facts)
    while session.trial is not None and session.tried.partition(" ")[0] != "attention":
        session = session.after_refusal("no")
    assert session.tried == "attention = sdpa, autocast = bfloat16, fused_optimizer = true"
    assert session.after_refusal("losses differ").tried == "attention = sdpa"


def test_a_gain_below_three_percent_is_none() -> None:
    verdict = compared(1.0, 0.975, PAIRS_MAX, wobble=0.001).verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.REFUSED
    assert "gains at most" in verdict.why


def test_a_gain_within_the_noise_of_the_owners_own_blocks_is_not_settled() -> None:
    verdict = compared(1.0, 0.95, PAIRS_MAX, wobble=0.2).verdict()
    assert verdict is not None
    assert verdict.outcome is Outcome.NOT_SETTLED


def test_an_arm_that_is_clearly_faster_is_settled_after_two_pairs_of_blocks() -> None:
    verdict = compared(1.0, 0.5, 2).verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.pairs) == (Outcome.ADOPTED, 2)
    assert compared(1.0, 0.5, 3, wobble=1.0).verdict() is None, "not where the blocks are unsteady"


def test_an_arm_that_is_clearly_slower_costs_two_pairs_of_blocks() -> None:
    verdict = compared(1.0, 1.5, 2).verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.pairs) == (Outcome.REFUSED, 2)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6)), max_size=PAIRS_MAX))
@example([(65507.0, 58488.0), (592910.0, 0.0625)])
def test_a_comparison_ends_and_never_adopts_what_was_slower_on_the_average(pairs: list[tuple[float, float]]) -> None:
    comparison = Comparison(tuple(pairs))
    verdict = comparison.verdict()
    if len(pairs) >= PAIRS_MAX:
        assert verdict is not None
    if verdict is not None and verdict.outcome is Outcome.ADOPTED:
        assert math.fsum(math.log(owner / arm) for owner, arm in pairs) > 0


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_with_its_value(time_s: float) -> None:
    with pytest.raises(ValueError, match=str(time_s)):
        Comparison().after(time_s, 1.0)


def test_a_block_has_six_steps_and_a_third_of_a_second_or_five_slow_ones() -> None:
    assert not block_is_complete((0.01,) * 20)
    assert not block_is_complete((0.25,) * 5)
    assert block_is_complete((0.05,) * 6)
    assert not block_is_complete((0.05,) * 6, steps=16)
    assert not block_is_complete((1.0,) * 4)
    assert not block_is_complete((0.29,) * 5)
    assert block_is_complete((0.3,) * 5)
    assert not block_is_complete((0.3,) * 5, steps=16)


def test_what_is_no_gain_is_undone_and_what_is_one_is_confirmed_against_the_owners_settings() -> None:
    session = begin_session((SWITCH, OTHER), (), CPU)
    times = {
        frozenset(): 0.10,
        frozenset({"switch"}): 0.08,
        frozenset({"switch", "other"}): 0.08,
    }
    ended = run(session, times)
    assert [row.knob for row in ended.adopted] == ["switch"]
    assert [row.knob for row in ended.refused] == ["other"]
    assert ended.before_s == pytest.approx(0.10)
    assert ended.after_s == pytest.approx(0.08)


def test_gains_that_do_not_hold_together_go_the_newest_first() -> None:
    """Together both are slower than the owner's settings, which the owner's settings show only in the end."""
    session = begin_session((SWITCH, OTHER), (), CPU)
    while session.trial is not None and len(session.adopted) < 2:
        session = session.after_block(1.0 if session.wanted == session.trial.base else 0.8)
    assert [row.knob for row in session.adopted] == ["switch", "other"]
    times = {frozenset(): 0.10, frozenset({"switch"}): 0.08, frozenset({"switch", "other"}): 0.11}
    times[frozenset({"other"})] = 0.12
    ended = run(session, times)
    assert [row.knob for row in ended.adopted] == ["switch"]
    assert "not confirmed together" in ended.refused[-1].why


def test_losses_that_are_too_few_to_compare_refuse_an_arm_after_the_last_pair() -> None:
    session, blocks = begin_session((SWITCH,), (), CPU), 0
    while session.wanted is not None:
        seen = Block(losses=(1.0,) if blocks < 2 else ())
        session, blocks = session.after_block(0.5 if session.wanted else 1.0, seen), blocks + 1
    assert (blocks, session.adopted) == (2 * PAIRS_MAX, ())
    assert [row.why for row in session.refused] == [f"not settled after {PAIRS_MAX} pairs: its losses are too few"]


def test_an_arm_that_the_agent_refuses_is_refused_with_its_reason() -> None:
    session = begin_session((SWITCH, OTHER), (), CPU).after_refusal("losses differ by 3 %")
    assert [(row.knob, row.why) for row in session.refused] == [("switch", "losses differ by 3 %")]
    assert session.tried == "other = true"


def test_when_the_time_is_over_only_what_was_adopted_is_confirmed() -> None:
    session = begin_session((SWITCH, OTHER), (), CPU)
    while session.tried == "switch = true":
        session = session.after_block(1.0 if not session.wanted else 0.8)
    session = session.without_more("the time given is over")
    assert session.tried == "all together"
    assert [row.why for row in session.refused] == ["the time given is over"]


def test_fast_steps_are_judged_by_as_many_as_half_a_minute_has() -> None:
    assert count_left(int(RECKONED * STEPS) - 10, 2 * STEPS_S, 0.05) == 10
    assert count_left(2 * STEPS, 2 * STEPS_S, 0.05) == 0
    assert count_left(2 * STEPS, 0.0, STEPS_S / 1e6) == 1_000_000


def test_an_arm_is_begun_and_tried_on_only_where_steps_are_left_to_confirm_it() -> None:
    """A block takes ten steps with what does not count, an exchange twenty more; the arm's first block stands."""
    session = begin_session((SWITCH, OTHER), (), CPU).having(1.0)

    def is_left_out(left: int) -> bool:
        why = find_unaffordable(session, left, lambda held, wanted: 10 if held == wanted else 30)
        too_few = f"{left} steps of this tune are left, too few to try and confirm it: --steps gives it more"
        assert why in {None, too_few}
        return why is not None

    two_pairs, one_pair, confirming = 30 + 10 + 30, 10 + 30, 10 + 30 + 10 + 30
    assert (is_left_out(two_pairs + confirming - 1), is_left_out(two_pairs + confirming)) == (True, False)
    session = session.after_block(0.95)
    assert (is_left_out(one_pair + confirming - 1), is_left_out(one_pair + confirming)) == (True, False)
    session = session.after_block(0.95)
    assert not is_left_out(0), "a pair that was begun is ended"
    while session.tried == "switch = true":
        session = session.after_block(1.0 if not session.wanted else 0.8)
    session = session.after_refusal("too few are left")
    assert session.tried == "all together"
    assert not is_left_out(0), "what was adopted is proven"


def test_steps_are_kept_to_leave_values_out_that_may_cost() -> None:
    def reckon(session: Session) -> int:
        """Return how many steps have to be left for the arm under way."""
        return next(
            left
            for left in range(0, 2000, 10)
            if find_unaffordable(session, left, lambda held, wanted: 10 if held == wanted else 30) is None
        )

    two_pairs, confirming, reviewed = 10 + 30 + 10 + 30, 10 + 30 + 10 + 30, 30 + 10 + 30
    session = begin_session((JOINT, SWITCH, OTHER, LATER), (), CPU)
    while not session.adopted:
        session = session.after_block(1.0 if not session.wanted else 0.5)
    assert session.tried == "later = true"
    assert reckon(session) == two_pairs + confirming + 3 * reviewed
    session = begin_session((SWITCH, LATER), (), CPU)
    while not session.adopted:
        session = session.after_block(1.0 if not session.wanted else 0.5)
    assert reckon(session) == two_pairs + confirming, "what was proven by itself is not left out"


def arm_of(session: Session) -> Arm:
    """Return the arm under way."""
    assert session.trial is not None
    assert session.trial.arm is not None
    return session.trial.arm


def test_an_arm_that_cannot_gain_yet_is_tried_behind_the_others_and_then_left_out() -> None:
    workers = next(knob for knob in KNOBS if knob.name == "workers")
    session = begin_session((workers, SWITCH), (), CPU)
    session = session.postponed(arm_of(session), "no step waits for data")
    assert session.tried == "switch = true"
    while session.tried == "switch = true":
        session = session.after_block(1.0 if not session.wanted else 0.8)
    assert session.tried == "workers = 4", "the switch may have brought about that steps wait"
    session = session.postponed(arm_of(session), "no step waits for data")
    assert session.tried == "all together"
    why = "no step waits for data"
    assert session.left == tuple(NotTried(knob="workers", value=count, why=why) for count in (4, 8))


def test_what_changes_nothing_under_what_was_adopted_is_left_out() -> None:
    """Under autocast no product of matrices is computed in single precision, be it rounded or not."""
    rounding = Knob(
        name="rounding", phase=Phase.PRECISION, kind=Kind.NUMERICS, values=lambda _: (True,), idle_under="switch"
    )
    session = begin_session((SWITCH, rounding), (), CPU)
    while session.trial is not None and not session.adopted:
        session = session.after_block(0.08 if session.wanted else 0.10)
    assert session.left == (NotTried(knob="rounding", value=True, why="changes nothing under switch = true"),)
    ended = run(session, {frozenset(): 0.10, frozenset({"switch"}): 0.08, frozenset({"rounding"}): 0.09})
    assert [row.knob for row in ended.adopted] == ["switch"]
    assert [(row.knob, row.why) for row in ended.refused] == [("rounding", "in place of switch = true: slower by 11%")]
    assert ended.left == (), "it was tried"
    no_gain = {frozenset(): 0.10, frozenset({"switch"}): 0.10, frozenset({"rounding"}): 0.08}
    ended = run(begin_session((SWITCH, rounding), (), CPU), no_gain)
    assert [row.knob for row in ended.adopted] == ["rounding"]


Factors = Mapping[str, float]


def run_by_factors(session: Session, factors: Factors) -> tuple[Session, list[str]]:
    """Run a tune whose settings each multiply the time of a step; return what the arms of its review tried."""
    reviewed = []
    while session.wanted is not None and session.trial is not None:
        if session.trial.arm is not None and session.trial.arm.leaves_out:
            reviewed.append(session.tried)
        session = session.after_block(math.prod(factors[name] for name in session.wanted))
        check_declared(session)
    return session, reviewed


def test_of_values_that_were_proven_together_those_that_cost_or_bring_nothing_are_left_out_again() -> None:
    session, _ = run_by_factors(
        begin_session((JOINT, SWITCH, OTHER), (), CPU), {"joint": 0.6, "switch": 1.05, "other": 0.995}
    )
    assert session.settings == {"joint": True}
    assert [(row.knob, row.why) for row in session.refused] == [
        ("switch", "left out again: faster by 5.0% (3.9% to 5.6%) without it"),
        ("other", "left out again: it gains at most 1.4%"),
    ]
    assert session.confirmed is not None
    assert session.after_s == pytest.approx(0.6)


def test_a_review_of_values_of_which_each_gains_takes_one_pair_of_blocks_each() -> None:
    session, reviewed = run_by_factors(
        begin_session((JOINT, SWITCH, OTHER), (), CPU), {"joint": 0.8, "switch": 0.8, "other": 0.8}
    )
    assert sorted(session.settings) == ["joint", "other", "switch"]
    assert session.refused == ()
    assert reviewed == [word for name in ("joint", "switch", "other") for word in [f"without {name} = true"] * 2]


def test_half_precision_that_costs_what_the_host_binds_gives_way_to_what_it_ruled_out() -> None:
    """A decoder on an H200: sdpa, bfloat16 and a fused optimizer gained together; in single precision TF32 was best."""
    knobs = (JOINT, ROUNDING, SWITCH, OTHER)
    session = begin_session(knobs, (), CPU)
    plain, reviewed = 1.3, []
    while session.wanted is not None and session.trial is not None:
        if session.trial.arm is not None and session.trial.arm.leaves_out:
            reviewed.append(session.tried)
        host = 0.7 if "joint" in session.wanted else 1.0
        precise = not {"switch", "rounding"} & set(session.wanted)
        step = plain if precise else host * (1.05 if "switch" in session.wanted else 1.0)
        session = session.after_block(step * (0.9 if "other" in session.wanted else 1.0))
    assert dict.fromkeys(reviewed) == dict.fromkeys(
        ["rounding = true in place of switch = true", "without joint = true", "without other = true"]
    )
    assert session.settings == {"joint": True, "other": True, "rounding": True}
    assert [(row.knob, row.why) for row in session.refused] == [
        ("switch", "left out again: faster by 5.0% (3.6% to 5.6%) with rounding = true in its place")
    ]
    assert session.left == (), "rounding was tried"
    assert session.confirmed is not None


def test_what_was_left_out_comes_back_where_that_in_its_place_is_not_confirmed() -> None:
    session = begin_session((SWITCH, ROUNDING, LATER), (), CPU)
    slow_after = {"switch": 0.7, "rounding": 0.6, "later": 0.9}
    while session.wanted is not None and session.trial is not None:
        step = math.prod(slow_after[name] for name in session.wanted)
        if session.trial.arm is None and "rounding" in session.wanted:
            step = 1.1
        session = session.after_block(step)
    assert session.settings == {"switch": True, "later": True}
    assert [row.knob for row in session.refused] == ["rounding"]
    assert session.refused[0].why.startswith("not confirmed together")


def test_what_was_adopted_before_others_gained_much_is_left_out_where_it_costs_by_then() -> None:
    def tune(later: float) -> tuple[Session, list[str]]:
        session, reviewed = begin_session((SWITCH, LATER), (), CPU), []
        while session.wanted is not None and session.trial is not None:
            if session.trial.arm is not None and session.trial.arm.leaves_out:
                reviewed.append(session.tried)
            on = set(session.wanted)
            session = session.after_block(
                (0.9 if "switch" in on else 1.0) if "later" not in on else later * (1.1 if "switch" in on else 1.0)
            )
        return session, reviewed

    session, reviewed = tune(later=0.5)
    assert set(reviewed) == {"without switch = true"}
    assert session.settings == {"later": True}
    session, reviewed = tune(later=0.75)
    assert (sorted(session.settings), reviewed) == (["later", "switch"], []), "too little was gained since"


def test_a_model_is_compiled_after_what_may_cost_was_left_out() -> None:
    """Each value that changes under a compiled model has it compiled once more, which takes minutes."""
    compiled = next(knob for knob in KNOBS if knob.name == "compile")
    session, tried = begin_session((JOINT, SWITCH, OTHER, compiled), (), replace(CPU, compiled=False)), []
    factors = {"joint": 0.8, "switch": 0.8, "other": 0.8, "compile": 0.5}
    while session.wanted is not None:
        tried += [session.tried]
        session = session.after_block(math.prod(factors[name] for name in session.wanted))
    assert list(dict.fromkeys(tried)) == [
        "joint = true, switch = true, other = true",
        *(f"without {name} = true" for name in ("joint", "switch", "other")),
        "compile = default",
        "all together",
    ]


def test_a_loader_that_was_proven_alone_is_not_left_out_nor_is_anything_once_the_time_is_over() -> None:
    session, reviewed = run_by_factors(
        begin_session([*_data_knobs(), SWITCH], (), STARVED), {"workers": 0.3, "pin_memory": 1.0, "switch": 0.7}
    )
    assert (sorted(session.settings), reviewed) == (["pin_memory", "switch", "workers"], [])
    prefetch = [knob for knob in KNOBS if knob.name == "prefetch_factor"]
    session, reviewed = run_by_factors(
        begin_session([*prefetch, LATER], (), STARVED), {"prefetch_factor": 0.9, "later": 0.5}
    )
    assert (sorted(session.settings), reviewed) == (["later", "prefetch_factor"], []), "it exchanges workers as well"
    session = begin_session((JOINT, SWITCH, OTHER), (), CPU)
    while not session.tried.startswith("without"):
        session = session.after_block(0.7 if session.wanted else 1.0)
    hurried = session.without_more("the time given was over")
    assert (hurried.tried, hurried.refused) == ("all together", ())
    refused = session.after_refusal("too few steps are left")
    assert (refused.tried, refused.refused) == ("without switch = true", ())


LAYOUT = Knob(name="layout", phase=Phase.LAYOUT, kind=Kind.NUMERICS, values=lambda _: (True,), again_after=("switch",))


def test_two_values_of_which_neither_gains_without_the_other_are_tried_together() -> None:
    """A decoder's sdpa and bfloat16: each by itself as fast as before, both 18 % faster."""
    nothing, layout, switch = frozenset[str](), frozenset({"layout"}), frozenset({"switch"})
    ended = run(
        begin_session((LAYOUT, SWITCH), (), CPU), {nothing: 0.1, layout: 0.1, switch: 0.1, layout | switch: 0.08}
    )
    assert {row.knob for row in ended.adopted} == {"layout", "switch"}
    assert ended.refused == ()


def test_values_that_lose_together_are_not_tried_once_more_after_the_one_that_gains_alone() -> None:
    nothing, layout, switch = frozenset[str](), frozenset({"layout"}), frozenset({"switch"})
    times = {nothing: 0.1, layout: 0.1, switch: 0.08, layout | switch: 0.12}
    session, tried = begin_session((LAYOUT, SWITCH), (), CPU), []
    while session.wanted is not None:
        tried += [session.tried] if session.tried not in tried else []
        session = session.after_block(times[frozenset(session.wanted)])
    assert tried == ["layout = true", "switch = true, layout = true", "switch = true", "all together"]
    assert session.settings == {"switch": True}
    assert [row.knob for row in session.refused] == ["layout"]


def test_what_was_no_gain_is_tried_once_more_with_what_may_make_it_one() -> None:
    times = {
        frozenset(): 0.10,
        frozenset({"layout"}): 0.10,
        frozenset({"switch"}): 0.08,
        frozenset({"switch", "layout"}): 0.06,
    }
    ended = run(begin_session((LAYOUT, SWITCH), (), CPU), times)
    assert [row.knob for row in ended.adopted] == ["switch", "layout"]
    assert ended.refused == ()
    slow = times | {frozenset({"switch", "layout"}): 0.08}
    ended = run(begin_session((LAYOUT, SWITCH), (), CPU), slow)
    assert [row.knob for row in ended.refused] == ["layout"], "once, not for ever"


def test_the_last_comparison_begins_and_ends_with_what_was_adopted() -> None:
    session = begin_session((SWITCH,), (), CPU)
    while session.trial is not None and session.trial.arm is not None:
        session = session.after_block(1.0 if not session.wanted else 0.5)
    seen = []
    while session.wanted is not None:
        seen.append(bool(session.wanted))
        session = session.after_block(1.0 if not session.wanted else 0.5)
    assert seen == [True, False, False, True]
    assert session.before_s == pytest.approx(1.0)
    assert session.after_s == pytest.approx(0.5)


def confirm_switch(
    step_s: float, blocks: int, facts: Facts = CPU, losses: float | None = None, later_s: float | None = None
) -> Session:
    """Return a tune after so many blocks of its last comparison, in which a step takes as long with all together.

    `later_s`: in the second block of that; `losses`: those seen with it, where any are.
    """
    session = begin_session((WORKERS, SWITCH) if facts.processors == 2 else (SWITCH,), (), facts)
    workers_s = {True: 1.0, False: 5.0}
    first = 0
    while session.trial is not None and session.trial.arm is not None:
        base_s = workers_s["workers" in session.wanted] if facts.processors == 2 and session.wanted is not None else 1.0
        session = session.after_block(base_s * (0.8 if "switch" in (session.wanted or {}) else 1.0))
    for block in range(blocks):
        is_changed = "switch" in (session.wanted or {})
        first += 10
        level = 2.0 if losses is None or not is_changed else losses
        seen = Block(first_step=first, losses=tuple(level + 0.1 * (-1) ** step for step in range(6)))
        changed_s = step_s if block < 2 or later_s is None else later_s
        session = session.after_block(changed_s if is_changed else 1.0, None if losses is None else seen)
    return session


def test_a_last_comparison_without_steps_left_ends_with_what_its_pairs_prove() -> None:
    begun = confirm_switch(0.9, blocks=4)
    assert begun.confirmed is None, "more pairs were to show it"
    ended = begun.after_last_step()
    assert ended.wanted is None
    assert (ended.settings, ended.refused) == ({"switch": True}, ())
    assert ended.confirmed is not None
    assert ended.before_s == pytest.approx(1.0)
    assert ended.after_s == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("step_s", "later_s", "blocks", "losses"),
    [
        pytest.param(0.8, 1.1, 4, None, id="a gain that chance explains"),
        pytest.param(0.9, None, 2, None, id="one pair"),
        pytest.param(0.9, None, 0, None, id="none"),
        pytest.param(0.9, None, 4, 2.1, id="losses may be higher"),
    ],
)
def test_a_last_comparison_that_proves_nothing_by_then_leaves_what_was_proven_first(
    step_s: float, later_s: float | None, blocks: int, losses: float | None
) -> None:
    ended = confirm_switch(step_s, blocks, losses=losses, later_s=later_s).after_last_step()
    assert (ended.wanted, ended.settings, ended.refused) == (None, {"switch": True}, ())
    assert ended.before_s == pytest.approx(1.0)
    assert ended.after_s == pytest.approx(0.8), "that of its own comparison"
    alone = replace(confirm_switch(step_s, blocks, losses=losses, later_s=later_s), first=None).after_last_step()
    assert (alone.wanted, alone.adopted, alone.confirmed) == (None, (), None)
    assert [row.knob for row in alone.refused] == ["switch"]
    assert "not confirmed together in the steps given" in alone.refused[0].why


def test_of_values_that_were_not_confirmed_together_the_first_one_holds() -> None:
    session = begin_session((SWITCH, OTHER), (), CPU)
    while session.trial is not None and session.trial.arm is not None:
        session = session.after_block(0.8 ** len(session.wanted or {}))
    ended = session.after_last_step()
    assert ended.settings == {"switch": True}
    assert [row.knob for row in ended.refused] == ["other"]


def test_workers_that_were_proven_alone_stay_where_no_steps_are_left_to_prove_the_rest() -> None:
    ended = confirm_switch(0.95, blocks=2, facts=replace(CPU, processors=2)).after_last_step()
    assert (ended.wanted, dict(ended.settings)) == (None, {"workers": 2})
    assert ended.confirmed is not None
    assert ended.before_s == pytest.approx(5.0)
    assert ended.after_s == pytest.approx(1.0)
    assert (ended.refused[-1].knob, ended.refused[-1].value) == ("switch", True)


def test_steps_that_are_over_end_the_last_comparison_alone() -> None:
    trying = begin_session((SWITCH,), (), CPU)
    assert trying.after_last_step() == trying
    assert trying.after_last_block("no steps left").refused[0].why == "no steps left"
    ended = begin_session((), (), CPU)
    assert ended.after_last_step() == ended.after_last_block("no steps left") == ended


WORKERS = next(knob for knob in KNOBS if knob.name == "workers")


def list_wanted(session: Session, step_s: Mapping[frozenset[str], float]) -> tuple[Session, list[frozenset[str]]]:
    """Run a tune to its end; return what each block of the last comparison was made with."""
    wanted = []
    while session.wanted is not None:
        names = frozenset(session.wanted)
        wanted += [names] if session.trial is not None and session.trial.arm is None else []
        session = session.after_block(step_s[names])
    return session, wanted


def test_workers_that_gain_a_multiple_are_not_exchanged_once_more_for_the_last_comparison() -> None:
    """On a YOLO each exchange took 90 of 720 steps: what gained as much again was given up for the want of them."""
    nothing, workers, both = frozenset[str](), frozenset({"workers"}), frozenset({"workers", "switch"})
    two = replace(CPU, processors=2)
    session, wanted = list_wanted(begin_session((WORKERS, SWITCH), (), two), {nothing: 5.0, workers: 1.0, both: 0.8})
    assert session.settings == {"workers": 2, "switch": True}
    assert set(wanted) == {workers, both}, "the owner's workers come back no more"
    assert session.before_s == pytest.approx(5.0)
    assert session.after_s == pytest.approx(0.8)
    alone, wanted = list_wanted(begin_session((WORKERS, SWITCH), (), two), {nothing: 5.0, workers: 1.0, both: 1.2})
    assert (list(alone.settings), wanted) == (["workers"], []), "what is left was proven"
    assert alone.before_s == pytest.approx(5.0)
    assert alone.after_s == pytest.approx(1.0)
    assert alone.confirmed is not None


STARVED_LOADER = Facts(device="cuda", cuda=True, processors=16, workers=1, prefetch=4, tf32=False)
"""One worker makes batches for a GPU that waits for them."""


def begin_starved(*blocks_s: float, facts: Facts = STARVED_LOADER) -> Session:
    """Return a tune that tries workers and then TF32, after blocks of its own choice."""
    knobs, left = choose_knobs(facts, may=("precision",), remedied=(), knobs=KNOBS)
    session = begin_session([knob for knob in knobs if knob.name in {"workers", "tf32"}], left, facts)
    for block_s in blocks_s:
        session = session.after_block(block_s)
    return session


def test_new_workers_that_end_a_long_wait_are_settled_without_a_second_exchange() -> None:
    session = begin_starved(1.0, 0.2, 0.205)
    assert session.tried == "workers = 16"
    settled = session.after_starving((1.0, 1.01))
    assert settled is not None
    assert (settled.settings, settled.tried) == ({"workers": 16}, "workers = 32")
    assert settled.confirming_base == {"workers": 16}, "they are not exchanged for the last comparison either"
    assert settled.trial is not None
    assert settled.trial.blocks == (0.205,), "their newest block begins the next comparison"
    assert settled.first is not None
    assert settled.first.before_s == pytest.approx(1.005, rel=0.001)


def test_new_workers_whose_blocks_differ_much_are_settled_by_more_of_them() -> None:
    session = begin_starved(1.0, 0.2, 0.28)
    assert session.after_starving((0.9, 1.1)) is None
    assert session.after_starving((0.95, 1.05, 0.9, 1.1), (0.21, 0.25)) is not None


@pytest.mark.parametrize(
    ("session", "owner_s"),
    [
        (begin_starved(1.0, 0.2, 0.51), (1.0, 1.0)),  # one block is not twice as fast
        (begin_starved(1.0, 0.2, 0.2), (1.0, 0.39)),  # the owner's last steps were as fast as that
        (begin_starved(1.0, 0.2), (1.0, 1.0)),
        (begin_starved(1.0, 0.2, 0.2, 1.0), (1.0, 1.0)),
        (begin_starved(1.0, 0.2, 0.2, facts=replace(STARVED_LOADER, workers=0)), (1.0, 1.0)),  # losses are waited for
        (begin_starved(1.0, 0.2, 0.2, facts=replace(STARVED_LOADER, workers=32)), (1.0, 1.0)),  # no worker is tried
    ],
)
def test_what_is_no_multiple_of_steps_that_waited_is_compared_in_both_directions(
    session: Session, owner_s: tuple[float, float]
) -> None:
    assert session.after_starving(owner_s) is None


def test_a_block_has_the_steps_that_were_made_until_other_settings_held() -> None:
    session = begin_session((SWITCH,), (), CPU).after_block(1.0, Block(losses=(2.0,)))
    session = session.lengthened(1.1, Block(losses=(2.5, 2.4)))
    assert session.trial is not None
    assert (session.trial.blocks, session.trial.seen_of_owner[0].losses) == ((1.1,), (2.0, 2.5, 2.4))
    session = session.after_block(0.9, Block(losses=(2.2,))).lengthened(0.8, Block(losses=(2.1,)))
    assert session.trial is not None
    assert session.trial.comparison.pairs == ((1.1, 0.8),)
    assert session.trial.seen_of_arm[0].losses == (2.2, 2.1)
    session = session.after_block(0.85).after_block(1.2).lengthened(1.3, Block())
    assert session.trial is not None
    assert session.trial.comparison.pairs == ((1.1, 0.8), (1.3, 0.85)), "the second pair ended with the owner's"


def test_before_a_block_nothing_is_lengthened() -> None:
    session = begin_session((SWITCH,), (), CPU)
    assert session.lengthened(1.1, Block()) == session
    assert Session().lengthened(1.1, Block()) == Session()


def test_workers_that_gain_little_are_confirmed_with_all_else() -> None:
    nothing, workers, both = frozenset[str](), frozenset({"workers"}), frozenset({"workers", "switch"})
    session, wanted = list_wanted(
        begin_session((WORKERS, SWITCH), (), replace(CPU, processors=2)), {nothing: 1.15, workers: 1.0, both: 0.8}
    )
    assert "switch" in session.settings
    assert set(wanted) == {nothing, both}


def test_what_does_not_hold_together_with_workers_proven_alone_is_dropped_and_they_are_kept() -> None:
    nothing, workers, both = frozenset[str](), frozenset({"workers"}), frozenset({"workers", "switch"})
    step_s = {nothing: 5.0, workers: 1.0, both: 0.8}
    session = begin_session((WORKERS, SWITCH), (), replace(CPU, processors=2))
    while session.wanted is not None:
        confirming = session.trial is not None and session.trial.arm is None
        session = session.after_block(
            1.1 if confirming and session.wanted.get("switch") else step_s[frozenset(session.wanted)]
        )
    assert list(session.settings) == ["workers"]
    assert session.confirmed is not None
    why = next(row.why for row in session.refused if row.knob == "switch")
    assert why.startswith("not confirmed together")


def test_all_micro_batches_of_an_update_are_joined_or_else_half_of_them() -> None:
    knob = next(knob for knob in KNOBS if knob.name == "micro_batch")
    assert list(knob.values(Facts(micro_batches=8))) == [8, 4]
    assert list(knob.values(Facts(micro_batches=3))) == [3]
    assert list(knob.values(Facts(micro_batches=1))) == []
    session = begin_session((knob,), (), Facts(micro_batches=8))
    while session.tried == "micro_batch = 8":
        session = session.after_block(1.0 if not session.wanted else 0.5)
    assert session.tried == "all together", "fewer joined are tried only where more could not be"


def test_an_arm_without_any_gain_in_steady_blocks_costs_two_pairs() -> None:
    verdict = compared(1.0, 1.0, 2).verdict()
    assert verdict is not None
    assert (verdict.outcome, verdict.pairs) == (Outcome.REFUSED, 2)


def test_after_a_count_of_workers_without_gain_no_larger_one_is_tried() -> None:
    workers = next(knob for knob in KNOBS if knob.name == "workers")
    session = begin_session((workers,), (), CPU)
    assert session.tried == "workers = 4"
    ended = run(session, {frozenset(): 0.1, frozenset({"workers"}): 0.1})
    assert [row.value for row in ended.refused] == [4]


STARVED = Facts(processors=16, workers=1, cuda=True, pinned=False)


def test_what_is_not_tried_is_listed_with_its_value_and_the_reason() -> None:
    """Larger values after one without gain, others after a gain, and what memory has no room for."""
    workers = next(knob for knob in KNOBS if knob.name == "workers")
    session = begin_session((workers,), (), replace(CPU, processors=2)).after_refusal("slower by 20%")
    assert session.left == (NotTried(knob="workers", value=4, why="2 was no gain"),)
    joined = next(knob for knob in KNOBS if knob.name == "micro_batch")
    session = begin_session((joined,), (), replace(CPU, micro_batches=4))
    while session.trial is not None and session.trial.arm is not None:
        session = session.after_block(1.0 if session.trial.is_arms_turn else 2.0)
    assert session.left == (NotTried(knob="micro_batch", value=2, why="4 was a gain"),)
    small = replace(CPU, batch_bytes=1000, available_bytes=100_000, shm_bytes=20_000)
    knobs, left = choose_knobs(small, may=(), remedied=())
    assert [knob.values(small) for knob in knobs if knob.name == "workers"] == [[4]]
    room = "memory or /dev/shm has room for the batches that 5 workers draw ahead"
    assert NotTried(knob="workers", value=8, why=room) in left
    _, left = choose_knobs(replace(small, shm_bytes=2000, workers=1, prefetch=2), may=(), remedied=())
    reasons = {row.knob: row.why for row in left}
    assert reasons["workers"] == "a batch of 0 MB drawn ahead has no room in memory or /dev/shm"
    assert reasons["prefetch_factor"] == "4 batches a worker drawn ahead have no room in memory or /dev/shm"


def test_pinning_is_proven_along_with_more_workers() -> None:
    session = begin_session(_data_knobs(), (), STARVED)
    assert session.tried == "workers = 16, pin_memory = true"
    while session.trial is not None and session.trial.arm is not None:
        session = session.after_block(1.0 if session.trial.wanted == session.trial.base else 0.5)
        assert len(session.settings) != 1, "both or none"
    assert {row.knob for row in session.adopted} == {"workers", "pin_memory"}


def test_where_pinning_cannot_be_set_more_workers_are_tried_alone() -> None:
    session = begin_session(_data_knobs(), (), STARVED).after_block(1.0).without_along({"pin_memory"})
    assert (session.tried, session.wanted) == ("workers = 16", {"workers": 16})
    assert session.after_refusal("no").tried == "pin_memory = true", "each by itself"


def test_pinning_that_was_refused_is_set_along_with_nothing() -> None:
    session = begin_session(_data_knobs(), (), STARVED)
    queue = session.postponed(arm_of(session), "no step waits")
    assert queue.tried == "pin_memory = true"
    assert queue.after_refusal("no").tried == "workers = 16"


def _data_knobs() -> list[Knob]:
    return [knob for knob in KNOBS if knob.name in {"workers", "pin_memory"}]


def test_the_block_that_ends_a_round_begins_the_next_one_of_the_same_settings() -> None:
    """After a refusal; an arm that was adopted is another thing to beat."""
    session, wanted = begin_session((SWITCH, OTHER), (), CPU).having(0.1), []
    while session.trial is not None:
        wanted.append("".join(session.wanted or {}) or "owner")
        session = session.after_block(0.05 if "other" in (session.wanted or {}) else 0.1)
    assert wanted == ["switch", "switch", "owner", "other", "other", "owner", "other", "owner", "owner", "other"]


def test_remedies_outrank_the_tuner_and_precision_needs_permission() -> None:
    card = Facts(device="cuda", processors=16, workers=4, cuda=True, fused=False, channels_last=False)
    tried, left = choose_knobs(card, may=(), remedied=("workers_factor", "cudnn"))
    assert [knob.name for knob in tried] == ["pin_memory", "channels_last", "fused_optimizer"]
    reasons = {row.knob: row.why for row in left}
    assert reasons["workers"] == "the remedy setting workers_factor outranks it"
    assert reasons["cudnn_benchmark"] == "the remedy setting cudnn outranks it"
    assert reasons["tf32"] == "not without permission: --may precision"
    assert "tf32" in [knob.name for knob in choose_knobs(card, may=("precision",), remedied=())[0]]


def test_compiling_is_tried_last_and_not_where_it_is_unknown_or_a_remedy_replaced_convolutions() -> None:
    card = Facts(device="cuda", cuda=True, fused=False, channels_last=False, compiled=False)
    tried, _ = choose_knobs(card, may=("precision",), remedied=())
    assert tried[-1].name == "compile"
    for facts, remedied in (
        (replace(card, compiled=None), ()),
        (replace(card, compiled=True), ()),
        (card, ("conv2d",)),
    ):
        assert "compile" not in [knob.name for knob in choose_knobs(facts, may=(), remedied=remedied)[0]]


def test_a_number_that_no_machine_has_is_unknown() -> None:
    most = {"workers": COUNTED_MAX, "threads": COUNTED_MAX, "batch_bytes": BYTES_MAX, "card_bytes": 0}
    assert facts_of(most) == Facts(workers=COUNTED_MAX, threads=COUNTED_MAX, batch_bytes=BYTES_MAX, card_bytes=0)
    assert facts_of({"workers": COUNTED_MAX + 1, "threads": -1, "batch_bytes": BYTES_MAX + 1}) == Facts()


def test_each_fact_that_an_agent_reports_by_its_name_is_known() -> None:
    switches: dict[str, Any] = {field.name: True for field in fields(Facts) if str(field.type).startswith("bool")}
    assert facts_of(switches) == Facts(**switches)


def test_facts_of_an_unexpected_type_are_unknown() -> None:
    facts = facts_of({"workers": "many", "threads": True, "fused": 1, "processors": 2, "device": "cpu", "more": 1})
    assert facts == Facts(processors=2, device="cpu")


@pytest.mark.parametrize(
    ("shares", "name"),
    [
        (Shares(wait=0.8), "data-bound"),
        (Shares(wait=0.3, headspace_gain=0.01), None),
        (Shares(wait=0.05, host=0.4, computing=0.55), "host-bound"),
        (Shares(wait=0.05, host=0.1, computing=0.85, moving=0.3), "GPU-bound"),
        (Shares(wait=0.05, host=0.1, computing=0.85, moving=0.3, on_gpu=False), "compute-bound"),
        (Shares(computing=0.97, moving=0.7), "memory-bound"),
        (Shares(communication=0.4), "communication-bound"),
        (Shares(wait=0.4, communication=0.3), "mixed"),
        (Shares(wait=0.6, host=0.2, computing=0.2), "data-bound"),
        (Shares(), None),
        (Shares(wait=math.nan), None),
    ],
)
def test_a_bottleneck_is_named_by_its_definition(shares: Shares, name: str | None) -> None:
    assert name_of(find_bottlenecks(shares)) == name


def test_knobs_without_effect_are_not_adopted_by_chance() -> None:
    """The long run is tests/bench/tuner_simulation.py."""
    assert adopted_share(0.0, 60, noise=0.10, keep=0.3)[0] <= 0.005
    assert adopted_share(0.11, 40, noise=0.03, keep=0.3)[0] >= 0.95


def test_eager_attention_and_checkpointing_are_tried_where_a_model_of_transformers_has_them() -> None:
    card = Facts(cuda=True, attention="eager", checkpointing=True)
    tried, left = choose_knobs(card, may=(), remedied=())
    offered = {knob.name: list(knob.values(card)) for knob in tried}
    assert offered["attention"] == ["sdpa"]
    assert offered["checkpointing"] == [False]
    reasons = {row.knob: row.why for row in choose_knobs(card, may=(), remedied=("allocator",))[1]}
    assert reasons["checkpointing"] == "the remedy setting allocator outranks it", "memory was short before"
    for facts in (Facts(attention="sdpa", checkpointing=False), Facts()):
        reasons = {row.knob: row.why for row in choose_knobs(facts, may=(), remedied=())[1]}
        assert reasons["attention"] == "already set"
        assert reasons["checkpointing"] == "no activations are seen to be checkpointed"
    assert "attention" not in {row.knob for row in left}
