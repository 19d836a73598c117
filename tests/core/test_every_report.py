"""Tables of the small parts of the core, word for word: what each case of a judgement, a reading or a sum comes to."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from supervisor.core import events as ev
from supervisor.core.attempt.agent_reports import AgentReports
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict, exact_before
from supervisor.core.checkpoints.continuity import judge_profile
from supervisor.core.checkpoints.loss_curve import Curve, curve_of
from supervisor.core.checkpoints.tensor_stats import Profile, TensorFigures
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.foreign_values import BYTES_MAX, NAME_CHARS_MAX, as_bounded, as_dict
from supervisor.core.gauge import Gauge, beyond, flag_reached
from supervisor.core.gpu_facts import IMPLAUSIBLE_C, GpuFacts, hottest
from supervisor.core.measured import Column
from supervisor.core.memory.estimate import estimate, fit_line, next_probe
from supervisor.core.memory.points import NEEDED, OPTIONAL, TEXT_LIMIT, Point, read_point
from supervisor.core.readings import GpuReading
from supervisor.core.remedies.budget import Ledger
from supervisor.core.remedies.gpu_issues import issues_of
from supervisor.core.remedies.miopen import MIOPEN_FACTS
from supervisor.core.reports.expectations import Expectation, checklist
from supervisor.core.reports.outages import AttemptLife, Outage, Unwatched, find_unwatched
from supervisor.core.reports.progress import progress_of
from supervisor.core.stats.histogram import Histogram, HistogramKnown
from supervisor.core.stats.rate_limit import Allowance
from supervisor.core.triage.finding import Finding, Replay, conclude
from supervisor.core.triage.state import TriageState, find_earlier_finding, looked_for
from supervisor.core.tuning.bottleneck import Shares, explain, find_bottlenecks, name_of, share_out, traced_of
from supervisor.core.tuning.compare import Comparison
from supervisor.core.tuning.knob import (
    COPIED_BYTES_MIN,
    KNOBS,
    Facts,
    Kind,
    Knob,
    NotTried,
    Phase,
    choose_knobs,
    facts_of,
)
from tests.rigs.declared import check_declared

from .long_stories import LongStory, long_story
from .stories import GB, GPU, JOB, NAN, START
from .transcripts import read, show

EVERYTHING = Expectation(
    batches_per_s=1.5,
    checkpoint_each_epoch=True,
    losses_fall=True,
    map_rises=True,
    max_temperature_c=90.0,
    max_vram_bytes=4 * GB,
    no_nan=True,
    deadline_unix_s=START.unix_s + 7200,
)


def course(*, well: bool) -> LongStory:
    """Two epochs of five hundred steps, and a third begun, as expected or not."""
    timeline = long_story()
    timeline.started().says(ev.AgentEvent.PLAN, epochs=5 if well else 50, batches_per_epoch=500)
    for epoch in range(3):
        first, every_s = 500 * epoch + 1, 0.5 if well else 1.0
        timeline.steps(first, first + 499, every_s, loss=2.0 - epoch / 2 if well else 1.0 + epoch / 2, batches=500)
        timeline.epoch_ends(epoch, fitness=0.5 + epoch / 10 if well else 0.5 - epoch / 10)
        if well or epoch == 0:
            timeline.says(ev.AgentEvent.CHECKPOINT_SAVED, path="/last.pt", step=first + 499)
        timeline.silence(10)
    if not well:
        timeline.steps(1501, 1502, loss=NAN, batches=500)
    return timeline.card(
        3, junction_c=80.0 if well else 95.0, vram_used_bytes=3 * GB if well else 5 * GB, vram_total_bytes=6 * GB
    )


def seen_alone() -> LongStory:
    """Two epochs, whose checkpoint was seen and by none of them reported."""
    timeline = long_story()
    timeline.started().steps(1, 20, batches=10).seen("/last.pt", Verdict.PROVEN)
    return timeline


def tell_expectations() -> str:
    """Return the verdict on every expectation: nothing known, one step made, as expected, and not."""
    begun = long_story()
    begun.started().steps(1, 1, batches=500)
    stories = {"nothing known": long_story(), "begun": begun, "well": course(well=True), "ill": course(well=False)}
    stories["files were seen"] = seen_alone()
    stories["no figures of the GPU"] = long_story().card(1)
    lines = []
    for name, timeline in stories.items():
        found = checklist(EVERYTHING, timeline.history, progress_of(timeline.history, EVERYTHING.batches_per_s))
        for item in found:
            check_declared(item)
        lines += [f"== {name}", *(f"{item.name}: {item.verdict}: {item.text}" for item in found), ""]
    return "\n".join(lines)


HALF = Replay(name="device", seen=True, step=812, device="cuda:0", half=True, module="conv", files=("a", "b"))
SINGLE = replace(HALF, half=False, module=None)
OTHERS: dict[str, tuple[Replay | None, ...]] = {
    name: (
        None,
        Replay(name=name, seen=True, same_course=True),
        Replay(name=name, seen=False, same_course=True),
        Replay(name=name, seen=False, same_course=False),
        Replay(name=name, seen=None, problem="out of memory"),
    )
    for name in ("float32", "cpu", "other_batch")
}


def tell_findings() -> str:
    """Return the finding of every combination of replays."""
    firsts = (
        HALF,
        SINGLE,
        replace(SINGLE, device="cpu"),
        replace(SINGLE, device=None),
        replace(SINGLE, not_finite=("img",), out_of_range=("cls",), bad_files=("b",)),
        Replay(name="device", seen=False, device="cuda:0", same_course=True),
        Replay(name="device", seen=False, same_course=True),
        Replay(name="device", seen=False, same_course=False),
        Replay(name="device", seen=False),
        Replay(name="device", seen=None, problem="the file is gone"),
        Replay(name="device", seen=None),
    )
    rows: dict[str, list[str]] = {}
    for first, others in product(firsts, product(*OTHERS.values())):
        replays = (first, *(item for item in others if item is not None))
        found = conclude(replays)
        case = ", ".join(f"{item.name} {describe(item)}" for item in replays)
        rows.setdefault(show(found), []).append(case)
    lines = [f"{text}\n  {len(cases)} cases, as {cases[0]}; {cases[-1]}" for text, cases in rows.items()]
    return "\n".join([*lines, show(conclude(())), ""])


def describe(replay: Replay) -> str:
    """Return a replay in a few words."""
    course_words = {True: "", False: " of another course", None: " of unknown course"}[replay.same_course]
    return f"{replay.device or ''} seen {replay.seen}{course_words}{' half' if replay.half else ''}".strip()


KNOWN = {
    "device": "cuda:0", "optimizer": "SGD", "processors": 8, "workers": 2, "prefetch": 2, "threads": 8, "pinned": False,
    "fused": False, "channels_last": False, "tf32": False, "autocast": False, "cudnn_benchmark": False,
    "cuda": True, "hip": False, "batch_bytes": 10_000_000, "shm_bytes": 8 * GB, "available_bytes": 16 * GB,
    "card_bytes": 6 * GB, "attention": "eager", "checkpointing": False, "micro_batches": 4, "convolves": True,
}  # fmt: skip


def tell_knobs() -> str:
    """Return which knobs are tried with which values, and why others are not."""
    reports: dict[str, dict[str, object]] = {
        "nothing known": {},
        "a GPU": dict(KNOWN),
        "a GPU of AMD": {**KNOWN, "hip": True},
        "a CPU": {**KNOWN, "cuda": False, "device": "cpu"},
        "a CPU, one thread": {**KNOWN, "cuda": False, "threads": 1, "processors": 1},
        "all set": {**KNOWN, **{name: True for name, value in KNOWN.items() if value is False}},
        "many workers": {**KNOWN, "workers": 16, "prefetch": 4},
        "no workers": {**KNOWN, "workers": 0},
        "no workers, no room": {**KNOWN, "workers": 0, "batch_bytes": 9 * GB},
        "one worker, no room": {**KNOWN, "workers": 1, "batch_bytes": 9 * GB},
        "batches that are copied in no time": {**KNOWN, "batch_bytes": COPIED_BYTES_MIN - 1},
        "batches that are not": {**KNOWN, "batch_bytes": COPIED_BYTES_MIN},
        **{f"{count} micro-batches": {**KNOWN, "micro_batches": count} for count in (1, 2, 3, 5)},
        "checkpointing": {**KNOWN, "checkpointing": True, "convolves": False, "attention": "sdpa"},
        "little room": {**KNOWN, "batch_bytes": 200_000_000},
        "cannot be changed": {
            **KNOWN,
            **{f"{name}_why_not": f"no {name}" for name in ("loader", "fused", "channels_last", "autocast")},
        },
        "nonsense": {name: "nonsense" if not isinstance(value, str) else 7 for name, value in KNOWN.items()},
        "numbers for truths": {**KNOWN, "workers": True, "pinned": 1, "cuda": 1},
    }
    lines = []
    for name, reported in reports.items():
        facts = facts_of(reported)
        for may, remedied in (((), ()), (("precision",), ("workers", "amp", "conv2d"))):
            tried, left = choose_knobs(facts, may=may, remedied=remedied)
            lines.append(f"== {name}{', precision allowed, workers, amp and conv2d remedied' if may else ''}")
            lines += [f"{knob.name}: {show(list(knob.values(facts)))}" for knob in tried]
            lines += [f"{item.knob}: not tried: {item.why}" for item in left]
    return "\n".join([*lines, f"{show(facts_of(KNOWN))}", ""])


def tell_bottlenecks() -> str:
    """Return every verdict at its limits."""
    cases = (
        Shares(),
        Shares(wait=0.10),
        Shares(wait=0.099),
        Shares(wait=0.5, headspace_gain=0.05),
        Shares(wait=0.5, headspace_gain=0.049),
        Shares(wait=NAN),
        Shares(wait=1.0),
        Shares(communication=0.10),
        Shares(communication=0.099),
        Shares(host=0.20),
        Shares(host=0.199),
        Shares(host=0.30, on_gpu=False),
        Shares(host=NAN),
        Shares(computing=0.50),
        Shares(computing=0.499),
        Shares(computing=0.9, moving=0.50),
        Shares(computing=0.9, moving=0.499),
        Shares(computing=0.9, moving=0.2, on_gpu=False),
        Shares(computing=0.9, moving=0.8, on_gpu=False),
        Shares(wait=0.40, host=0.20, communication=0.21, computing=0.19),
        Shares(wait=0.40, host=0.199, communication=0.19, computing=0.21),
        Shares(wait=0.10, computing=0.9, moving=0.1, phases={"forward": 0.3, "backward": 0.6, "optimizer": 0.001}),
    )
    lines = []
    for item in cases:
        found = find_bottlenecks(item)
        lines += [f"{show(item)}: {show(found) or 'nothing'}", f"  {name_of(found)}: {explain(item) or 'nothing'}"]
    return "\n".join([*lines, "", *list_traces(), ""])


TRACE = {
    "steps": 10,
    "span_s": 2.0,
    "waited_s": 0.5,
    "starved_s": 0.4,
    "communication_s": 0.2,
    "computing_s": 1.0,
    "matrix_s": 0.6,
    "phases": {"forward": 0.4, "backward": 0.5, "optimizer": 0.1, "transfer": 0.0},
    "on_gpu": True,
}


def list_traces() -> list[str]:
    """Return the shares of steps that were traced, with those that were not."""
    processor = TRACE | {"on_gpu": False}
    cases: tuple[tuple[str, float | None, float | None, object], ...] = (
        ("waiting of the trace's own", None, None, TRACE),
        ("more waiting without a trace", 0.5, 0.2, TRACE),
        ("a step without tracing is shorter", 0.2, 0.15, TRACE),
        ("a processor's is not asked for", 0.2, 0.15, processor),
        ("no waiting was traced", 0.3, 0.2, TRACE | {"waited_s": 0.0, "starved_s": 0.0}),
        ("nothing computes", 0.0, 0.2, TRACE | {"computing_s": 0.0, "matrix_s": 0.0, "phases": {}}),
        ("more than all", 0.0, 0.2, TRACE | {"computing_s": 9.0, "communication_s": 9.0}),
        ("no trace", 0.3, 0.2, None),
        ("no steps", 0.3, 0.2, TRACE | {"steps": 0}),
        ("no time", 0.3, 0.2, TRACE | {"span_s": 0.0}),
        ("nonsense", 0.3, 0.2, TRACE | {"waited_s": "long"}),
        ("less than nothing", 0.3, 0.2, TRACE | {"matrix_s": -1.0}),
        ("nonsense in a phase", 0.3, 0.2, TRACE | {"phases": {"forward": True, "other": 1.0}}),
    )
    return [f"{name}: {show(share_out(wait, pace_s, traced_of(trace)))}" for name, wait, pace_s, trace in cases]


def tell_comparisons() -> str:
    """Return the verdict on pairs of blocks, in seconds of the owner's and of the arm's."""
    cases: tuple[tuple[tuple[float, float], ...], ...] = (
        (),
        ((1.0, 0.9),),
        ((1.0, 0.9),) * 3,
        ((1.0, 0.9),) * 4,
        ((1.0, 0.97),) * 4,
        ((1.0, 1.01),) * 4,
        ((1.0, 1.26),) * 2,
        ((1.0, 1.25),) * 2,
        ((1.0, 0.7),) * 2,
        ((1.0, 0.79),) * 2,
        ((1.0, 0.96), (1.02, 0.99), (1.01, 0.95), (0.99, 1.0)),
        ((1.0, 0.93), (1.1, 1.04)) * 15,
        ((1.0, 0.98), (1.1, 1.08)) * 15,
    )
    lines = []
    for pairs in cases:
        comparison = Comparison(pairs)
        lines.append(f"{len(pairs)} pairs {show(sorted(set(pairs)))}: {show(comparison.gain())}")
        lines.append(f"  smallest {comparison.smallest_gain:.6g}, spread {comparison.spread:.6g}")
        lines.append(f"  {show(comparison.verdict())}")
    return "\n".join([*lines, ""])


def figures(
    rms: float = 0.1, *, zeros: float = 0.0, kept: float = 1.0, shape: tuple[int, ...] = (8, 4)
) -> TensorFigures:
    """Return the figures of a tensor that keeps this share of its signs."""
    signs = "+" * round(100 * kept) + "-" * round(100 * (1 - kept))
    return TensorFigures(shape=shape, kind="Float", rms=rms, zeros=zeros, signs=signs if len(shape) > 1 else None)


def weights(updates: int | None = None, **tensors: Any) -> Profile:
    """Return a checkpoint of three matrices, a variance and an optimizer of one state."""
    known = {f"model.{name}.weight": figures() for name in "abc"}
    known |= {"model.a.running_var": figures(1.0, shape=(8,)), "model.a.weights": figures(shape=(8,))}
    known |= {"optimizer.state.0.exp_avg": figures(0.01), "optimizer.state.0.step": figures(updates or 100.0, shape=())}
    named = {name.replace("__", "."): item for name, item in tensors.items()}
    return Profile(tensors={**known, **named}, optimizers={"optimizer": 3}, updates=updates)


def tell_continuity() -> str:
    """Return what is wrong with a checkpoint, by itself and after another, at each limit."""
    late: dict[str, Any] = {"updates": 10_000}
    early: dict[str, Any] = {}
    cases: dict[str, tuple[Profile, Profile]] = {
        "the same": (weights(), weights()),
        "zero": (weights(model__a__weight=figures(zeros=0.9)), weights()),
        "weights of a norm zero": (weights(model__a__weight=figures(0.0, zeros=1.0, shape=(8,))), weights()),
        "variance zero": (weights(model__a__running_var=figures(0.0, zeros=1.0, shape=(8,))), weights()),
        "a norm zero": (
            weights(model__n__weight=figures(0.0, zeros=1.0, shape=(8,))),
            weights(model__n__weight=figures(1.0, shape=(8,))),
        ),
        "no weight zero": (weights(model__a__weights=figures(0.0, zeros=1.0, shape=(8,))), weights()),
        "another shape": (weights(model__a__weight=figures(shape=(8, 5))), weights()),
        "a new tensor": (weights(model__d__weight=figures()), weights()),
        "a missing tensor": (weights(), weights(model__d__weight=figures())),
        "steps lost": (weights(100), weights(9000)),
        "steps made": (weights(9000, optimizer__state__0__step=figures(100.0, shape=())), weights(100)),
        "half of the steps": (weights(9000, optimizer__state__0__step=figures(4490.0, shape=())), weights(100)),
        "average grown": (weights(optimizer__state__0__exp_avg=figures(1e6)), weights()),
        "average of another shape": (weights(optimizer__state__0__exp_avg=figures(shape=(8, 5))), weights()),
    }
    for grown in (1.5, 2.5, 4.0, 6.0, 12.0, 50.0, 1000.0):
        for name, more in (("early", early), ("late", late)):
            before = weights(**more)
            cases[f"a matrix times {grown}, {name}"] = (
                weights(**more, model__a__weight=figures(0.1 * grown)),
                weights(**more),
            )
            cases[f"a matrix by {grown}, {name}"] = (
                weights(**more, model__a__weight=figures(0.1 / grown)),
                weights(**more),
            )
            every: dict[str, Any] = {f"model__{part}__weight": figures(0.1 * grown) for part in "abc"}
            cases[f"all times {grown}, {name}"] = weights(**more, **every), before
        variance = figures(grown, shape=(8,))
        cases[f"variance times {grown}"] = weights(model__a__running_var=variance), weights()
    for kept in (0.9, 0.8, 0.7, 0.6, 0.5):
        for name, more in (("early", early), ("late", late)):
            before = weights(**more)
            cases[f"a matrix keeps {kept}, {name}"] = (
                weights(**more, model__a__weight=figures(kept=kept)),
                weights(**more),
            )
            every = {f"model__{part}__weight": figures(kept=kept) for part in "abc"}
            cases[f"all keep {kept}, {name}"] = weights(**more, **every), before
    lines = [f"{name}: {show(judge_profile(after, [before]))}" for name, (after, before) in cases.items()]
    lines += [
        f"{name} alone: {show(judge_profile(after, []))}" for name, (after, _) in cases.items() if "times" not in name
    ]
    return "\n".join([*lines, ""])


def probe(batch: int | None, **facts: Any) -> Point:
    """Return what was measured of a small network at a micro-batch: 40 MB of its own and 10 a sample."""
    samples = batch or 1
    measured: dict[str, Any] = {
        "device": "cuda", "batch": batch, "configured": batch, "weights_bytes": 10_000_000,
        "gradient_bytes": 8_000_000, "optimizer_bytes": 20_000_000, "graph_bytes": 40_000_000 + 10_000_000 * samples,
        "update_bytes": 45_000_000, "reserved_bytes": 50_000_000 + 11_000_000 * samples, "other_bytes": 5_000_000,
        "card_bytes": 400_000_000,
    }  # fmt: skip
    return Point(**{**measured, **facts})


def tell_estimates() -> str:
    """Return what is reckoned from probes, at several micro-batches and sizes of the GPU."""
    unknown: dict[str, Any] = {"device": "cpu", "reserved_bytes": None, "other_bytes": None, "card_bytes": None}
    wide: dict[str, Any] = {"largest_output_columns": 16_384, "largest_output_bytes": 8_400_000}
    heavy: dict[str, Any] = {"optimizer_bytes": 60_000_000}
    probes: dict[str, list[Point]] = {
        "two": [probe(4), probe(8)],
        "three, in another order": [probe(8), probe(2), probe(4)],
        "one": [probe(4)],
        "one, of an unknown size": [probe(None)],
        "two of one size": [probe(4), probe(4)],
        "no larger with its samples": [probe(4), probe(8, graph_bytes=80_000_000)],
        "without a GPU": [probe(4, **unknown), probe(8, **unknown)],
        "a heavy optimizer": [probe(4, **heavy), probe(8, **heavy)],
        "heavy weights": [probe(4, weights_bytes=50_000_000), probe(8, weights_bytes=50_000_000)],
        "heavy gradients": [probe(4, gradient_bytes=50_000_000), probe(8, gradient_bytes=50_000_000)],
        "a heavy update": [probe(4, update_bytes=130_000_000), probe(8, update_bytes=130_000_000)],
        "an update as heavy as the passes": [probe(4, update_bytes=80_000_000), probe(8, update_bytes=120_000_000)],
        "more of its own than it peaks at": [probe(4, weights_bytes=90_000_000, optimizer_bytes=90_000_000)],
        "nothing": [probe(4, graph_bytes=0, update_bytes=0)],
        "less held than used": [probe(4, reserved_bytes=1)],
        "a wide output": [probe(4, **wide), probe(8, **wide)],
        "a little narrower": [probe(4, **{**wide, "largest_output_columns": 16_383})],
        "a little smaller": [probe(4, **{**wide, "largest_output_bytes": 8_399_999})],
    }
    lines = []
    for name, points in probes.items():
        lines.append(f"== {name}: line {show(fit_line(points))}")
        for batch in (4, 5, 64, None):
            try:
                found = estimate(points, batch, None)
            except ValueError as error:
                lines.append(f"{batch}: {error}")
                continue
            lines.append(f"{batch}: {show(found)}")
            for card in (140_000_000, 130_000_000, 123_900_000, 5_000_001):
                on_card = estimate(points, batch, card)
                lines.append(f"  on {card}: fits {on_card.fits}, largest micro-batch {on_card.largest_micro_batch}")
        lines += [f"next on {card}: {next_probe(points, card)}" for card in (100_000_000, 350_000_000, 4_000_000_000)]
    return "\n".join([*lines, ""])


def tell_curves() -> str:
    """Return which curves of losses have left another, at each limit."""
    wide = Curve(losses=30, low=1.0, median=2.0, high=3.0, median_least=1.5, median_most=2.5)
    uncertain = replace(wide, median_least=-1.0, median_most=9.0)
    of_itself = replace(wide, low=1.9, high=2.1)
    bases = {"wide": wide, "of an uncertain median": uncertain, "by half of itself": of_itself}
    bases["of a high quartile"] = replace(wide, low=-9.0, high=9.0, median=0.0)
    bases |= {
        f"{name}, and lately of 8": replace(base, latest=replace(wide, median=8.0)) for name, base in bases.items()
    }
    lines = []
    for name, base in bases.items():
        for place in (-20.0, -18.0, -9.0, -1.0, 0.0, 0.9, 1.0, 1.1, 2.0, 2.9, 3.0, 3.1, 4.0, 4.1, 9.0, 9.1, 18.0, 20.0):
            other = replace(wide, median_least=place, median_most=place)
            lines.append(f"{name}: all at {place:g}: {base.left_by(other)}")
        lines.append(f"{name}: one on both sides: {base.left_by(replace(wide, median_least=-99.0, median_most=99.0))}")
    few = [show(curve_of([1.0, NAN, None, 3.0, 2.0] * count)) for count in (1, 2, 3, 8, 9, 20)]
    return "\n".join([*lines, *few, show(curve_of([1.0, 2.0], least=2)), show(curve_of([], least=0)), ""])


TRANSCRIPTS = {
    "continuity": tell_continuity,
    "expectations": tell_expectations,
    "findings": tell_findings,
    "knobs": tell_knobs,
    "bottlenecks": tell_bottlenecks,
    "comparisons": tell_comparisons,
    "estimates": tell_estimates,
    "curves": tell_curves,
}


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_each_table_reads_as_it_was_reviewed(name: str) -> None:
    assert TRANSCRIPTS[name]() == read(name)


def test_knobs_are_tried_in_the_order_of_their_phases() -> None:
    tried, left = choose_knobs(Facts(), may=("precision",), remedied=())
    assert [knob.name for knob in tried] == ["workers", "channels_last", "autocast", "threads", "fused_optimizer"]
    assert {item.knob for item in left} == {knob.name for knob in KNOBS} - {knob.name for knob in tried}


def test_a_knob_that_changes_the_training_itself_is_not_tried() -> None:
    knob = Knob(name="batch", phase=Phase.DATA, kind=Kind.OPTIMISATION, values=lambda _: (2,))
    assert choose_knobs(Facts(), may=(), remedied=(), knobs=(knob,)) == (
        (),
        (NotTried(knob="batch", why="changes the training itself"),),
    )


# --- readings and sums -----------------------------------------------------------------------------------------------


def test_a_point_of_memory_keeps_every_number_of_its_report() -> None:
    numbers = {name: place for place, name in enumerate((*NEEDED, *OPTIONAL), start=1)}
    largest = {"bytes": 70, "columns": 80}
    more = {"device": "cuda", "shapes": 3, "compiled": True, "checkpointed": "", "torch": "2.12", "gpu": "MI50"}
    point = read_point({**numbers, **more, "largest_output": largest})
    assert not isinstance(point, str)
    assert {name: getattr(point, name) for name in numbers} == numbers
    assert {name: getattr(point, name) for name in more} == more
    assert (point.largest_output_bytes, point.largest_output_columns) == (70, 80)


def test_a_point_of_memory_without_what_is_optional_has_it_unknown() -> None:
    point = read_point(dict.fromkeys(NEEDED, 1))
    assert not isinstance(point, str)
    assert (point.device, point.shapes, point.compiled, point.checkpointed) == ("cpu", 1, False, None)
    assert (point.largest_output_bytes, point.largest_output_columns, point.torch, point.gpu) == (0, 0, "", None)
    assert {getattr(point, name) for name in OPTIONAL} == {None}
    assert len(getattr(read_point({**dict.fromkeys(NEEDED, 1), "gpu": "g" * 999}), "gpu", "")) == 128
    assert read_point({}) == "the report of the probe has no weights_bytes"
    assert read_point({"problem": "out of memory"}) == "out of memory"


@pytest.mark.parametrize("name", [*NEEDED, *OPTIONAL])
def test_a_size_that_no_memory_has_is_not_known(name: str) -> None:
    report: dict[str, object] = dict.fromkeys((*NEEDED, *OPTIONAL), 1)
    at_most = read_point({**report, name: BYTES_MAX})
    assert not isinstance(at_most, str)
    assert getattr(at_most, name) == BYTES_MAX
    beyond_it = read_point({**report, name: BYTES_MAX + 1})
    if name in NEEDED:
        assert beyond_it == f"the report of the probe has no {name}"
    else:
        assert getattr(beyond_it, name) is None


def test_other_numbers_of_a_probe_are_left_out_beyond_their_limits() -> None:
    report: dict[str, object] = dict.fromkeys(NEEDED, 1)
    for sent, kept in ((10**6, 10**6), (10**6 + 1, 1), (0, 1)):
        assert getattr(read_point({**report, "shapes": sent}), "shapes", None) == kept
    for sent, kept in ((BYTES_MAX, BYTES_MAX), (BYTES_MAX + 1, 0)):
        point = read_point({**report, "largest_output": {"bytes": sent, "columns": sent}})
        assert not isinstance(point, str)
        assert (point.largest_output_bytes, point.largest_output_columns) == (kept, kept)
    long = read_point({**report, "torch": "2" * 65, "checkpointed": "c" * 9999})
    assert not isinstance(long, str)
    assert long.torch == "2" * 63 + "…"
    assert long.checkpointed is not None
    assert len(long.checkpointed) == TEXT_LIMIT


def test_of_what_another_program_sent_each_kind_is_kept_within_its_bounds() -> None:
    sent = {"a": [1, "b", None, True, 2.5, {"c": [object()]}], "n" * 64: 1}
    assert as_dict(as_bounded(sent, 4))["a"] == [1, "b", None, True, 2.5, {"c": [None]}]
    assert as_bounded(object(), 4) is None
    assert as_dict({"a": 1, 7: 2}) == {"a": 1}
    longest = "n" * NAME_CHARS_MAX
    assert as_dict({longest: 1, longest + "n": 2}) == {longest: 1}


def test_an_outage_is_listed_with_each_attempt_that_lived_in_it_the_newest_first() -> None:
    first, second = Outage(began_unix_s=100, ended_unix_s=105), Outage(began_unix_s=200, ended_unix_s=300)
    short = Outage(began_unix_s=150, ended_unix_s=154.9)
    lives = (
        AttemptLife(job="a", number=1, launched_unix_s=0, ended_unix_s=250),
        AttemptLife(job="b", number=7, launched_unix_s=105, ended_unix_s=None),
        AttemptLife(job="c", number=3, launched_unix_s=0, ended_unix_s=100),
        AttemptLife(job="d", number=4, launched_unix_s=300, ended_unix_s=None),
    )
    assert find_unwatched((first, short, second), lives) == (
        Unwatched(job="a", attempt=1, outage=second),
        Unwatched(job="b", attempt=7, outage=second),
        Unwatched(job="a", attempt=1, outage=first),
    )
    assert second.seconds == 100


def test_an_allowance_fills_with_time_up_to_its_burst_and_not_by_a_clock_that_runs_back() -> None:
    grants = Allowance(per_s=0.5, burst=4)
    assert grants.left(100.0) == 4
    assert grants.take(100.0, 3)
    assert not grants.take(101.0, 2)
    assert grants.left(102.0) == 2
    assert grants.left(50.0) == 2
    assert grants.left(52.0) == 3
    assert grants.left(999.0) == 4
    grants.spend(999.0, 6)
    assert grants.left(999.0) == 0
    assert grants.left(1003.0) == 0
    assert grants.left(1005.0) == 1
    grants.spend(1005.0, 99)
    assert grants.left(1013.0) == 0
    assert grants.left(1015.0) == 1


def snapshot(
    step: int | None, kind: str = "snapshot", verdict: Verdict | None = Verdict.PROVEN, at: int = 0
) -> Checkpoint:
    """Return a snapshot that was looked at."""
    fingerprint = Fingerprint(size_bytes=1, modified_ns=at, inode=1)
    return Checkpoint(path=f"/{step}-{at}", fingerprint=fingerprint, step=step, kind=kind, verdict=verdict)


def test_the_newest_proven_snapshot_before_a_step_reproduces_it() -> None:
    known = [
        snapshot(10),
        snapshot(20),
        snapshot(20, at=5_000_000_000),
        snapshot(25, verdict=Verdict.REJECTED),
        snapshot(26, verdict=None),
        snapshot(27, kind="checkpoint"),
        snapshot(None),
        snapshot(30),
    ]
    assert exact_before(known, 30) == known[2]
    assert exact_before(known, 20) == known[0]
    assert exact_before(known, 31) == known[-1]
    assert exact_before(known, 10) is None


def test_the_issues_of_a_gpu_are_those_of_its_target_and_of_miopen() -> None:
    failing = next(fact for fact in MIOPEN_FACTS if fact.fails)
    (miopen, *_) = issues_of(f"{failing.gfx_version}:sramecc+")
    assert miopen.targets == (failing.gfx_version,)
    assert miopen.what == "MIOpen does not work on it"
    assert miopen.remedy == 'conv2d = "auto" computes convolutions without it'
    assert miopen.source == failing.source
    assert [issue.targets for issue in issues_of("gfx1032")] == [("gfx1031", "gfx1032")]
    assert [issue.targets for issue in issues_of("gfx1100")] == [("gfx11", "gfx12")]
    assert issues_of("gfx906") == ()
    assert issues_of(None) == ()


def test_a_start_by_a_person_clears_all_limits_and_no_history() -> None:
    spent = Ledger(
        total=5,
        in_a_row=3,
        causes=(("crash", 3),),
        free_in_a_row=2,
        refused_in_a_row=2,
        recent_unix_s=(1.0, 2.0),
        furthest_step=9,
        proven_step=7,
    )
    assert spent.forgiven() == Ledger(total=5, furthest_step=9, proven_step=7)


def test_a_gauge_without_words_of_its_own_is_described_by_value_and_limit() -> None:
    def message(gauge: Gauge) -> str:
        flag = flag_reached("queue", [gauge], START)
        assert flag is not None
        return flag.message

    assert message(Gauge(what="queue", unit="batches", now=7, limit=5)) == "queue: 7 batches, limit 5 batches"
    assert message(Gauge(what="queue", now=7.5, limit=5)) == "queue: 7.5, limit 5"
    assert message(Gauge(what="a fault", met=True)) == "a fault"
    assert message(Gauge(what="a fault", met=True, limit=None, now=3)) == "a fault"
    assert flag_reached("queue", [Gauge(what="queue", now=None, limit=5, severity=Severity.CRITICAL)], START) is None


@pytest.mark.parametrize(
    ("below", "strict", "reached"),
    [(False, False, (0, 1, 1)), (False, True, (0, 0, 1)), (True, False, (1, 1, 0)), (True, True, (1, 0, 0))],
)
def test_a_limit_is_reached_on_one_side_and_by_nan(*, below: bool, strict: bool, reached: tuple[int, int, int]) -> None:
    assert tuple(beyond(value, 5.0, below=below, strict=strict) for value in (4.0, 5.0, 6.0)) == reached
    assert beyond(NAN, 5.0, below=below, strict=strict)


def test_a_column_shows_a_value_with_its_unit_and_an_unknown_one_as_a_dash() -> None:
    column = Column("FAN", "{:.0f} rpm")
    assert (column.format(None), column.format(900), column.format(0)) == ("-", "900 rpm", "0 rpm")
    assert Column("POWER", "{:.1f} W", scale=0.001).format(1500) == "1.5 W"


def test_what_an_agent_reports_of_its_precision_is_kept_with_its_time() -> None:
    reports = AgentReports()
    facts: dict[str, object] = {"asked": "half", "used": "single", "why": "check_amp failed", "device": "cuda"}
    reports.add(ev.AgentReported(at=START, job=JOB, attempt=1, agent_event=ev.AgentEvent.PRECISION, facts=facts))
    found = reports.precision
    assert found is not None
    assert (found.at, found.asked, found.used, found.why, found.device) == (
        START, "half", "single", "check_amp failed", "cuda",
    )  # fmt: skip
    plan: dict[str, object] = {"start_epoch": 10**9 + 1}
    reports.add(ev.AgentReported(at=START, job=JOB, attempt=1, agent_event=ev.AgentEvent.PLAN, facts=plan))
    assert reports.start_epoch is None


def test_a_profile_has_its_parts_by_where_they_lie() -> None:
    names = (
        "layer.weight",
        "model.layer.weight",
        "model_state_dict.layer.weight",
        "rocm_supervisor.model.layer.weight",
        "net.bias",
        "optimizer.state.0.step",
    )
    profile = Profile(tensors=dict.fromkeys(names, figures()), optimizers={}, updates=None)
    assert {part: sorted(inner) for part, inner in profile.parts().items()} == {
        "": ["layer.weight"],
        "model": ["layer.weight"],
        "model_state_dict": ["layer.weight"],
        "rocm_supervisor.model": ["layer.weight"],
        "net": ["bias"],
    }


@pytest.mark.parametrize(
    ("celsius", "found"),
    [
        ({"junction_c": 90.0, "edge_c": 80.0, "memory_c": 85.0}, ("junction", 90.0)),
        ({"junction_c": 80.0, "edge_c": 90.0}, ("edge", 90.0)),
        ({"edge_c": 80.0, "memory_c": 90.0}, ("memory", 90.0)),
        ({"junction_c": 80.0, "edge_c": 80.0}, ("junction", 80.0)),
        ({"junction_c": IMPLAUSIBLE_C, "edge_c": 40.0}, ("edge", 40.0)),
        ({"junction_c": IMPLAUSIBLE_C - 0.1, "edge_c": 40.0}, ("junction", IMPLAUSIBLE_C - 0.1)),
        ({"junction_c": 0.0}, None),
        ({}, None),
    ],
)
def test_the_hottest_sensor_is_one_with_a_plausible_reading(
    celsius: dict[str, Any], found: tuple[str, float] | None
) -> None:
    assert hottest(GpuReading(at=START, gpu=GPU, source="sysfs", **celsius)) == found


def test_facts_of_a_gpu_hold_what_only_once_was_read() -> None:
    facts = GpuFacts(last_at=START)
    read: list[dict[str, Any]] = [
        {"fan_rpm": 0},
        {"fan_rpm": 1, "power_cap_w": 150.0, "ecc_uncorrectable": 2},
        {"fan_rpm": 0, "power_cap_w": 90.0},
        {"ecc_uncorrectable": 2, "ecc_correctable": 5},
        {"ecc_uncorrectable": 3, "ecc_correctable": 9},
    ]
    for second, fields in enumerate(read):
        facts.add(GpuReading(at=START.plus(second), gpu=GPU, source="sysfs", **fields))
        assert facts.fan_turned is (second > 0)
    assert (facts.readings, facts.last_at, facts.highest_cap_w) == (5, START.plus(4), 150.0)
    assert (facts.ecc_correctable, facts.ecc_uncorrectable) == (5, 2)
    assert (facts.ecc_unchanged_at, facts.ecc_grew_at) == (START.plus(3), START.plus(4))


def test_what_a_replay_looks_for_hangs_on_cause_rule_and_step() -> None:
    flag = RedFlag(rule="non_finite_loss", at=START, severity=Severity.CRITICAL, message="", since_step=7)
    assert looked_for(flag, "non_finite") == "loss"
    assert looked_for(flag, "stall") is None
    assert looked_for(replace(flag, since_step=None), "non_finite") is None
    assert looked_for(replace(flag, rule="stall"), "non_finite") is None


@pytest.mark.parametrize(
    ("verdict", "step", "again"),
    [
        ("data", 100, True),
        ("numerics", 99, True),
        ("unknown", 100, False),
        ("hardware", 100, False),
        ("data", 900, False),
    ],
)
def test_a_step_is_not_examined_twice_where_a_finding_about_it_holds(verdict: Any, step: int, *, again: bool) -> None:
    flag = RedFlag(rule="non_finite_loss", at=START, severity=Severity.CRITICAL, message="", since_step=100)
    finding = Finding(verdict=verdict, words="")
    last = TriageState(attempt=1, at=START, flag=flag, cause="nan", step=100, looked_for="loss", finding=finding)
    assert find_earlier_finding(last, step, 5) == (finding if again else None)
    assert find_earlier_finding(replace(last, finding=None), 100, 5) is None


def test_a_histogram_counts_what_is_at_its_limit_below_it_and_nothing_as_less_than_none() -> None:
    histogram = Histogram(1.0, 5.0)
    for seconds in (0.5, 1.0, 1.1, 5.0, 9.0, -2.0):
        histogram.observe(seconds)
    assert histogram.known() == HistogramKnown(buckets=((1.0, 3), (5.0, 5), (math.inf, 6)), total_s=16.6)
