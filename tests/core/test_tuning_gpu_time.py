"""What a GPU computes for a step decides on arms whose steps are too uneven, if these are not slower for it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from supervisor.core.tuning.bottleneck import Traced
from supervisor.core.tuning.budget import end_unaffordable
from supervisor.core.tuning.compare import Comparison, Outcome, Verdict
from supervisor.core.tuning.gpu_time import GPU_GAIN_MIN, LOOKS, GpuTimes, is_unclear, judge_steps
from supervisor.core.tuning.guards import Block
from supervisor.core.tuning.knob import Facts, Kind, Knob, Phase
from supervisor.core.tuning.session import CONFIRMING, Session, begin_session

GPU = Facts(device="cuda", cuda=True, processors=16, workers=16)
LAYOUT = Knob(name="layout", phase=Phase.LAYOUT, kind=Kind.NUMERICS, values=lambda _: (True,))
KERNELS = Knob(name="kernels", phase=Phase.KERNELS, kind=Kind.NUMERICS, values=lambda _: (True,))
LOADER = Knob(name="loader", phase=Phase.DATA, kind=Kind.SAME_ARITHMETIC, values=lambda _: (16,), is_costly=True)
UNEVEN = 0.07
"""By how much blocks of a ResNet-50 on an H200 differ that its host holds back."""


def trace(step_s: float, *, on_gpu: bool = True) -> Traced:
    """Return a trace of twelve steps for each of which as much is computed."""
    return Traced(
        steps=12,
        span_s=1.0,
        waited_s=0.0,
        starved_s=0.0,
        communication_s=0.0,
        computing_s=12 * step_s,
        matrix_s=0.0,
        on_gpu=on_gpu,
    )


def traced(base_s: float, arm_s: float) -> GpuTimes:
    """Return what traces have shown of the owner's settings and of the layout."""
    return GpuTimes().after({}, trace(base_s)).after({"layout": True}, trace(arm_s))


def compare(gain: float, gpu_gain: float | None, seed: int) -> Verdict:
    """Return the verdict on an arm whose blocks differ as a ResNet-50's do."""
    chance, comparison, verdict = random.Random(seed), Comparison(), None
    while verdict is None:
        owner_s, arm_s = (math.exp(chance.gauss(0, UNEVEN)) for _ in range(2))
        comparison = comparison.after(owner_s, arm_s / (1 + gain))
        verdict = judge_steps(comparison, gpu_gain)
    return verdict


def count_adopted(gain: float, gpu_gain: float | None, comparisons: int = 200) -> float:
    """Return the share of comparisons in which the arm was adopted."""
    verdicts = [compare(gain, gpu_gain, seed) for seed in range(comparisons)]
    return sum(verdict.outcome is Outcome.ADOPTED for verdict in verdicts) / comparisons


def make(session: Session, *blocks_s: float) -> Session:
    """Return the session after blocks of its own choice."""
    for block_s in blocks_s:
        session = session.after_block(block_s)
    return session


def trace_wanted(session: Session) -> Session:
    """Return the session that knows what a trace has shown of the settings it wants."""
    return replace(session, gpu_times=session.gpu_times.after(session.wanted or {}, trace(0.03)))


def test_a_gain_of_5_percent_that_uneven_steps_hide_is_found_where_the_gpu_computes_less() -> None:
    assert count_adopted(0.05, None) <= 0.2
    assert count_adopted(0.05, 0.12) >= 0.97


def test_a_setting_for_which_the_gpu_computes_less_and_the_host_more_is_seldom_adopted() -> None:
    assert count_adopted(-0.05, 0.12) <= 0.02
    assert count_adopted(-0.08, 0.25) <= 0.005


def test_a_setting_whose_steps_stay_unclear_has_more_of_them_compared_and_ends() -> None:
    """At the last look of 16 pairs one in ten of a ResNet-50's 5 % were not found."""
    verdicts = [compare(0.05, 0.12, seed) for seed in range(200)]
    assert max(verdict.pairs for verdict in verdicts) in LOOKS[3:]
    late = [verdict for verdict in verdicts if verdict.pairs > LOOKS[2]]
    assert sum(verdict.outcome is Outcome.ADOPTED for verdict in late) > len(late) / 2


@pytest.mark.parametrize("gpu_gain", [0.0, GPU_GAIN_MIN - 0.001, -0.2])
def test_where_the_gpu_computes_no_clearly_less_steps_alone_decide(gpu_gain: float) -> None:
    for seed in range(20):
        assert compare(0.0, gpu_gain, seed) == compare(0.0, None, seed)


def test_what_steps_prove_by_themselves_needs_no_gpu() -> None:
    verdict = compare(0.5, 0.12, 1)
    assert (verdict.outcome, verdict.remark) == (Outcome.ADOPTED, "")
    assert verdict.pairs < LOOKS[0]


def test_an_arm_that_the_gpu_decides_on_says_so() -> None:
    found = [compare(0.05, 0.12, seed) for seed in range(10)]
    adopted = next(verdict for verdict in found if verdict.outcome is Outcome.ADOPTED)
    assert adopted.remark == "likely, not proven by steps alone: the GPU computes 11% less for a step"
    refused = [compare(-0.05, 0.12, seed) for seed in range(10)]
    slower = next(verdict for verdict in refused if verdict.outcome is Outcome.NOT_SETTLED)
    why = f"the GPU computes 11% less for a step, and steps are not clearly faster after {slower.pairs} pairs of blocks"
    assert slower.why == f"not settled: {why}"


def test_first_pairs_that_look_slower_refuse_no_arm_that_is_about_to_be_traced() -> None:
    slower = Comparison(((1.0, 1.2), (1.0, 0.9), (1.0, 1.02)))
    assert slower.verdict() is not None, "no faster on the average"
    assert judge_steps(slower, None, is_awaited=True) is None
    much_slower = Comparison(((1.0, 1.5), (1.0, 1.4), (1.0, 1.3)))
    refused = judge_steps(much_slower, None, is_awaited=True)
    assert refused is not None
    assert refused.outcome is Outcome.REFUSED
    never_traced = Comparison((*slower.pairs, *slower.pairs[:2]))
    assert judge_steps(never_traced, None, is_awaited=True) is not None, "no steps were left to trace it"


@pytest.mark.parametrize(
    ("pairs_s", "expected"),
    [((), True), ((1.0,), True), ((0.8,), False), ((1.2,), False), ((0.8, 1.2), True), ((0.8, 0.8), False)],
)
def test_a_trace_is_worth_its_steps_while_pairs_agree_on_no_large_difference(
    pairs_s: Sequence[float], expected: bool
) -> None:
    assert is_unclear(Comparison(tuple((1.0, arm_s) for arm_s in pairs_s))) is expected


def test_each_setting_is_traced_once_before_a_switch_to_the_other() -> None:
    session = begin_session((LAYOUT, KERNELS), (), GPU, GpuTimes(is_traceable=True))
    assert not session.wants_trace, "no pair was made: a large gain needs no trace"
    session = make(session, 1.0, 0.96)
    assert session.wants_trace, "the second block of the arm, before a switch"
    session = make(trace_wanted(session), 0.97)
    assert not session.wants_trace, "the owner's settings follow the next block too"
    session = make(session, 1.01)
    assert session.wants_trace
    session = make(trace_wanted(session), 1.0)
    assert session.gpu_times.find_gain({}, {"layout": True}) == pytest.approx(0.0)
    assert not session.wants_trace


@pytest.mark.parametrize(
    ("gpu_times", "turns"),
    [
        pytest.param(traced(0.034, 0.030), "ABBABABABABA", id="the GPU computes less"),
        pytest.param(traced(0.034, 0.034), "ABBAABBAABBA", id="as much"),
        pytest.param(GpuTimes(), "ABBAABBAABBA", id="not known"),
    ],
)
def test_blocks_of_an_arm_with_which_the_gpu_computes_less_alternate_after_the_first_round(
    gpu_times: GpuTimes, turns: str
) -> None:
    """Each round of two pairs ends with the settings to beat: what is tried next begins with that block."""
    session, made = begin_session((LAYOUT,), (), GPU, gpu_times), ""
    while session.trial is not None and session.trial.arm is not None and len(made) < len(turns):
        is_arms, level_s = bool(session.wanted), 1.2 if len(made) // 2 % 2 else 1.0
        made += "B" if is_arms else "A"
        session = session.after_block(level_s * (0.93 if is_arms else 1.0) * (1.1 if len(made) % 3 == 0 else 1.0))
    assert turns.startswith(made)
    assert len(made) >= 8


def test_blocks_alternate_from_the_next_round_on_where_a_trace_is_late() -> None:
    session = make(begin_session((LAYOUT,), (), GPU), 1.0, 0.96, 0.97, 1.01, 1.0)
    assert session.trial is not None
    late = replace(session, gpu_times=traced(0.034, 0.030))
    turns = ""
    for _ in range(7):
        turns += "B" if late.wanted else "A"
        late = make(late, (0.97 if late.wanted else 1.0) * (1.2 if len(turns) % 3 else 1.0))
    assert turns == "BBABABA"


def test_a_trace_that_shows_no_gpu_is_the_last_one() -> None:
    for nothing in (None, trace(0.03, on_gpu=False), trace(0.0)):
        times = traced(0.03, 0.025).after({"kernels": True}, nothing)
        assert not times.lacks({"other": True})
        assert times.find_gain({}, {"kernels": True}) is None
        assert times.find_gain({}, {"layout": True}) == pytest.approx(0.2), "what was shown is known"


def test_a_loader_is_neither_traced_nor_judged_by_what_a_gpu_computes() -> None:
    session = make(begin_session((LOADER,), (), GPU, GpuTimes(is_traceable=True)), 1.0, 1.0)
    assert not session.wants_trace


def test_what_only_the_gpu_supports_is_not_confirmed_over_the_owners_settings() -> None:
    """A tune never ends with what may be slower than these: steps have to prove it in the end."""
    session, chance = begin_session((LAYOUT,), (), GPU, traced(0.034, 0.030)), random.Random(2)
    tried = set()
    while session.wanted is not None:
        tried.add(session.tried)
        session = session.after_block(math.exp(chance.gauss(0, UNEVEN)) / (1.05 if session.wanted else 1.0))
    assert "all together" in tried, "it was adopted for the time being"
    assert session.adopted == ()
    assert session.refused[0].why.startswith("not confirmed together")


@pytest.mark.parametrize(
    ("pairs", "arm_s", "arm_losses", "is_gain"),
    [
        pytest.param(LOOKS[0], 0.93, 2.0, True, id="steps are faster"),
        pytest.param(LOOKS[0] + 2, 0.94, 2.0, True, id="between two looks"),
        pytest.param(LOOKS[0] - 2, 0.90, 2.0, False, id="too few pairs"),
        pytest.param(LOOKS[0] + 2, 1.0, 2.0, False, id="steps are no faster"),
        pytest.param(LOOKS[0], 0.97, 2.0, False, id="faster by less than so few pairs tell from chance"),
        pytest.param(LOOKS[-1] - 2, 0.97, 2.0, True, id="by as little in more pairs"),
        pytest.param(LOOKS[0] + 2, 0.94, 2.2, False, id="losses may be higher"),
    ],
)
def test_an_arm_for_which_the_gpu_computes_less_is_judged_by_the_pairs_made_where_no_more_steps_are_left(
    pairs: int, arm_s: float, arm_losses: float, is_gain: bool
) -> None:
    """Of a YOLO's tunes one in four had no steps left for the last look, and what was known by then was lost."""
    session = begin_session((LAYOUT,), (), GPU, traced(0.034, 0.030))
    assert session.trial is not None
    uneven = [(1.0, arm_s * (1.2 if pair % 2 else 1 / 1.2)) for pair in range(pairs)]
    seen = [
        tuple(
            Block(first_step=20 * pair + 10 * is_arm, losses=(level - 0.1, level, level + 0.1) * 2)
            for pair in range(pairs)
        )
        for is_arm, level in ((0, 2.0), (1, arm_losses))
    ]
    trial = replace(session.trial, comparison=Comparison(tuple(uneven)), seen_of_owner=seen[0], seen_of_arm=seen[1])
    ended = replace(session, trial=trial).after_last_block("no steps left")
    assert [row.why for row in ended.refused] == ([] if is_gain else ["no steps left"])
    assert ("layout" in ended.settings) is is_gain
    half = replace(trial, blocks=(1.0,))
    assert replace(session, trial=half).after_last_block("no steps left").settings == {}, "a pair is not complete"


def test_an_arm_that_waits_for_losses_after_the_last_look_is_settled_by_each_further_pair() -> None:
    uneven = [(1.0, 0.98 * (1.15 if pair % 2 else 1 / 1.15)) for pair in range(LOOKS[-1] + 1)]
    for pairs in (LOOKS[-1], LOOKS[-1] + 1):
        verdict = judge_steps(Comparison(tuple(uneven[:pairs])), 0.12)
        assert verdict is not None
        assert (verdict.outcome, verdict.pairs) == (Outcome.ADOPTED, pairs)


NO_STEPS = "no steps left"


def give_up_layout() -> Session:
    """Return a tune that has adopted kernels, and made ten pairs of blocks that show nothing of the layout."""
    held = {"kernels": True}
    times = GpuTimes().after(held, trace(0.034)).after({**held, "layout": True}, trace(0.030))
    session = begin_session((KERNELS, LAYOUT), (), GPU, times)
    while session.tried == "kernels = true":
        session = session.after_block(0.5 if session.wanted else 1.0)
    assert session.trial is not None
    pairs = tuple((0.5, 0.5 * (1.2 if pair % 2 else 1 / 1.2)) for pair in range(10))
    trial = replace(session.trial, comparison=replace(session.trial.comparison, pairs=pairs), blocks=())
    return replace(session, trial=trial).after_last_block(NO_STEPS)


def confirm(session: Session) -> Session:
    """Return the session once all that was adopted is confirmed."""
    while session.tried == CONFIRMING:
        session = session.after_block(0.5 if session.wanted else 1.0)
    return session


@pytest.mark.parametrize(("arm_s", "is_gain"), [(0.42, True), (0.5, False)])
def test_steps_that_the_last_comparison_leaves_are_spent_on_an_arm_that_had_none(arm_s: float, is_gain: bool) -> None:
    given_up = give_up_layout()
    assert [row.why for row in given_up.refused] == [NO_STEPS]
    session = confirm(given_up)
    assert (session.tried, session.settings, session.refused) == ("layout = true", {"kernels": True}, ())
    while session.wanted is not None:
        session = session.after_block(arm_s if "layout" in session.wanted else 0.5)
    assert ("layout" in session.settings) is is_gain
    assert session.confirmed is not None
    assert session.before_s == pytest.approx(1.0)
    assert session.after_s is not None
    assert (session.after_s < 0.48) is is_gain
    assert [row.knob for row in session.refused] == ([] if is_gain else ["layout"])


def test_steps_are_left_for_it_up_to_the_end_of_the_last_comparison_and_no_longer() -> None:
    session = confirm(give_up_layout())
    assert end_unaffordable(session, 0, 20, lambda _held, _wanted: 10) is None
    ended = end_unaffordable(session, 100, 19, lambda _held, _wanted: 10)
    assert ended is not None
    assert (ended.wanted, ended.settings) == (None, {"kernels": True})
    assert ended.confirmed is not None
    assert [row.why for row in ended.refused] == [
        "19 steps of this tune are left, too few to try and confirm it: --steps gives it more"
    ]


def test_harm_that_shows_in_them_refuses_it_and_what_was_confirmed_stays() -> None:
    ended = confirm(give_up_layout()).after_refusal("the training warns: no kernel")
    assert (ended.wanted, ended.settings) == (None, {"kernels": True})
    assert [row.why for row in ended.refused] == ["the training warns: no kernel"]


def test_a_tune_whose_time_is_over_spends_no_more_on_it() -> None:
    session = confirm(give_up_layout().without_more("the time given was over"))
    assert (session.wanted, session.settings) == (None, {"kernels": True})
    assert [row.why for row in session.refused] == [NO_STEPS]
