"""A checkpoint held against itself and against the one before: ruins are told, trainings are let go on."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from supervisor.core.checkpoints.continuity import judge_profile
from supervisor.core.checkpoints.tensor_stats import Profile, TensorFigures, profile_of

NAMES = ("ema.0.conv.weight", "ema.1.conv.weight", "ema.2.conv.weight", "ema.3.conv.weight")


def signs(seed: int, flipped: float = 0.0) -> str:
    chance = random.Random(seed)
    made = [chance.choice("+-") for _ in range(256)]
    for at in range(round(256 * flipped)):
        made[at] = "-" if made[at] == "+" else "+"
    return "".join(made)


def matrix(seed: int = 0, *, flipped: float = 0.0, **changes: Any) -> TensorFigures:
    made = TensorFigures(shape=(8, 4, 3, 3), kind="Half", rms=0.1, zeros=0.0, signs=signs(seed, flipped))
    return replace(made, **changes)


def vector(rms: float | None, zeros: float = 0.0) -> TensorFigures:
    return TensorFigures(shape=(8,), kind="Half", rms=rms, zeros=zeros)


def state(number: int, what: str, *shape: int, rms: float = 0.01) -> tuple[str, TensorFigures]:
    return f"optimizer.state.{number}.{what}", TensorFigures(shape=shape, kind="Float", rms=rms, zeros=0.0)


def sound(flipped: float = 0.0, steps: float = 100, **changes: TensorFigures) -> Profile:
    """A model of four matrices with AdamW, as it stands after `steps`."""
    tensors: dict[str, TensorFigures] = {name: matrix(n, flipped=flipped) for n, name in enumerate(NAMES)}
    tensors["ema.0.bn.running_var"] = vector(1.0)
    tensors["ema.0.bn.bias"] = vector(0.0, 1.0)
    for number in range(4):
        tensors.update([state(number, "exp_avg", 8, 4, 3, 3), state(number, "exp_avg_sq", 8, 4, 3, 3, rms=1e-6)])
        tensors.update([state(number, "step", rms=steps)])
    tensors.update(changes)
    return Profile(tensors=tensors, optimizers={"optimizer": 5}, updates=round(steps))


def having(base: Profile, changes: Mapping[str, TensorFigures | None]) -> Profile:
    """The profile with tensors changed, added, or (None) left out."""
    kept = {name: item for name, item in {**base.tensors, **changes}.items() if item is not None}
    return replace(base, tensors=kept)


def reason(profile: Profile, *before: Profile) -> str:
    why, _ = judge_profile(profile, before)
    assert why is not None
    return why


def test_a_training_that_went_on_is_proven() -> None:
    assert judge_profile(sound(), []) == (None, False)
    assert judge_profile(sound(0.03, 150), [sound()]) == (None, False)


def test_a_snapshot_is_not_held_against_what_another_had_of_its_epoch() -> None:
    """After an epoch's first batch some is one tensor that is two later; gradients are there in mid-cycle only."""
    first = having(sound(), {"rocm_supervisor.counters.tloss.box_loss": vector(2.0)})
    later = having(
        sound(0.03, 150),
        {
            "rocm_supervisor.counters.tloss.box_loss": vector(9.0),
            "rocm_supervisor.counters.loss_items.box_loss": vector(2.0),
            "rocm_supervisor.gradients.0.conv.weight": matrix(7),
        },
    )
    final = having(sound(0.06, 200), {"rocm_supervisor.gradients.1.conv.weight": matrix(8)})
    assert judge_profile(later, [first]) == (None, False)
    assert judge_profile(final, [later]) == (None, False)


def test_a_snapshot_of_a_model_named_model_continues_the_file_of_its_weights_and_the_other_way() -> None:
    """Llama, Qwen and Mistral in a file of transformers, and in a snapshot that holds their state dict as `model`."""
    inner = {f"model.layers.{number}.weight": matrix(number) for number in range(4)}
    weights = Profile(tensors={**inner, "lm_head.weight": matrix(4)})
    tied = Profile(tensors=inner)
    snapshot = Profile(tensors={f"model.{name}": figures for name, figures in weights.tensors.items()})
    for earlier, later in ((weights, snapshot), (snapshot, weights), (tied, snapshot), (snapshot, tied)):
        assert judge_profile(later, [earlier]) == (None, False)


def test_another_model_is_none_though_it_shares_no_name_with_the_one_before() -> None:
    before = Profile(tensors={f"model.layers.{number}.weight": matrix(number) for number in range(4)})
    other = {f"model.blocks.{number}.weight": matrix(number, shape=(9, 4)) for number in range(4)}
    assert reason(Profile(tensors=other), before).startswith("wrong architecture: 4 tensors are missing and 4 are new")


@pytest.mark.parametrize("flipped", [0.1, 0.22])
def test_a_training_in_its_wild_first_steps_is_proven(flipped: float) -> None:
    """As measured: AdamW from step 16 to 80, with one matrix grown 3.7 times and a variance 31 times."""
    grown = {NAMES[0]: matrix(0, flipped=flipped, rms=0.37), "ema.0.bn.running_var": vector(31.0)}
    assert judge_profile(having(sound(flipped, 80), grown), [sound(steps=16)]) == (None, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({NAMES[1]: matrix(1, largest=1)}, "1 numbers of ema.1.conv.weight are at the limit of float16"),
        ({"ema.0.bn.running_var": vector(0.0, 1.0)}, "running_var is all zero"),
        ({NAMES[0]: matrix(shape=(8, 5, 3, 3))}, "optimizer belongs to another model"),
        (dict([state(7, "exp_avg", 8, 4, 3, 3)]), "a state for parameter 7 and 5 parameters"),
        (dict([state(2, "step", rms=900)]), "has made 900 steps and the running average 100"),
    ],
)
def test_a_checkpoint_that_contradicts_itself_is_rejected_without_another(
    changes: dict[str, TensorFigures], words: str
) -> None:
    assert words in reason(having(sound(), changes))


@pytest.mark.parametrize(("steps", "is_accepted"), [(1100, True), (1101, False), (400, True), (399, False)])
def test_an_optimizer_may_be_some_steps_away_from_its_average(steps: int, *, is_accepted: bool) -> None:
    """Of 1,000 updates of the average: steps whose gradients were not finite are left out by the optimizer alone."""
    assert (judge_profile(replace(sound(steps=steps), updates=1000), [])[0] is None) is is_accepted


@pytest.mark.parametrize("agent", ["", "rocm_supervisor."])
def test_a_running_average_has_the_shapes_of_its_model(agent: str) -> None:
    model = {f"{agent}model.w": matrix(), f"{agent}ema.w": matrix(1)}
    assert judge_profile(Profile(tensors=model), []) == (None, False)
    other = Profile(tensors={**model, f"{agent}ema.w": matrix(shape=(8, 4, 1, 1))})
    assert reason(other) == (
        "its running average does not belong to its model: 1 tensors have another shape, "
        "first w: [8, 4, 1, 1] in place of [8, 4, 3, 3]"
    )


TRAINED = {f"model.{name}": matrix(number) for number, name in enumerate(("a.w", "b.w", "frozen.w"))}
BUFFERS = {"model.a.running_mean": vector(0.1), "model.a.num_batches_tracked": TensorFigures(shape=(), kind="Long")}
COUNT = TensorFigures(shape=(), kind="Long")


@pytest.mark.parametrize(
    "average",
    [
        pytest.param(["ema.a.w", "ema.b.w", "ema.frozen.w"], id="without the buffers"),
        pytest.param(["ema.a.w", "ema.b.w"], id="of the trained parameters alone"),
        pytest.param(["ema.module.a.w", "ema.module.b.w", "ema.module.frozen.w"], id="RT-DETR, AveragedModel"),
        pytest.param(["ema.ema_model.a.w", "ema.ema_model.b.w", "ema.online_model.a.w"], id="ema-pytorch"),
        pytest.param(["ema.shadow_params.0", "ema.shadow_params.1"], id="torch-ema"),
        pytest.param(["ema.aw", "ema.bw", "ema.frozenw"], id="LitEma"),
    ],
)
def test_an_average_that_a_program_wraps_or_that_holds_less_belongs_to_its_model(average: list[str]) -> None:
    tensors = {**TRAINED, **BUFFERS, **{name: matrix(n) for n, name in enumerate(average)}, "ema.n_averaged": COUNT}
    assert judge_profile(Profile(tensors=tensors), []) == (None, False)


def test_what_is_in_front_of_most_names_is_the_wrapper_s() -> None:
    """A short name may end a longer one: of `w` the last part of `module.b.w` is one, too."""
    shapes = {"w": (2, 2), "a.w": (3, 3), "b.w": (4, 4)}
    model = {f"model.{name}": matrix(shape=shape) for name, shape in shapes.items()}
    tensors = {**model, **{f"ema.module.{name}": matrix(shape=shape) for name, shape in shapes.items()}}
    assert judge_profile(Profile(tensors=tensors), []) == (None, False)


@pytest.mark.parametrize("front", ["", "module."])
def test_a_wrapped_average_of_another_model_is_rejected(front: str) -> None:
    other = matrix(shape=(8, 4, 1, 1))
    shaped = Profile(tensors={**TRAINED, f"ema.{front}a.w": other, f"ema.{front}b.w": matrix()})
    assert "1 tensors have another shape, first a.w: [8, 4, 1, 1] in place of [8, 4, 3, 3]" in reason(shaped)
    larger = Profile(tensors={**TRAINED, f"ema.{front}a.w": matrix(), f"ema.{front}c.w": matrix()})
    assert "0 tensors are missing and 1 are new, first c.w" in reason(larger)
    named = Profile(tensors={**TRAINED, "ema.x.w": other, "ema.y.w": matrix()})
    assert "3 tensors are missing and 2 are new" in reason(named)


def test_a_bare_state_dict_is_named_as_the_model() -> None:
    before = Profile(tensors={"conv.weight": matrix()})
    assert reason(Profile(tensors={"conv.weight": matrix(rms=9.9)}), before) == (
        "does not continue the previous generation: in the model, its matrices are 99 times as large as they were"
    )


@pytest.mark.parametrize(
    ("steps", "doubted"),
    [((63, 64), False), ((64, 64), True), ((64, 128), True), ((64, 129), False), ((64, 63), False)],
)
def test_a_training_has_settled_after_64_steps_that_were_at_most_doubled(
    steps: tuple[int, int], *, doubted: bool
) -> None:
    """Of a snapshot the step counts, of a framework's checkpoint how often the average was updated."""
    earlier, later = (replace(sound(flipped), updates=None) for flipped in (0.0, 0.3))
    by_step = judge_profile(replace(later, step=steps[1]), [replace(earlier, step=steps[0])])
    assert by_step[1] is doubted
    tensors = {name: item for name, item in later.tensors.items() if "optimizer" not in name}
    by_updates = judge_profile(replace(later, tensors=tensors, updates=steps[1]), [replace(earlier, updates=steps[0])])
    assert by_updates[1] is doubted
    assert (
        judge_profile(replace(later, step=steps[1], updates=steps[1]), [replace(earlier, step=steps[0])])[1] is doubted
    )


def test_a_number_that_was_zero_had_no_sign_to_keep() -> None:
    half = "0" * 128
    before = having(sound(), {name: matrix(n, signs=half + "+" * 128) for n, name in enumerate(NAMES)})
    after = having(sound(), {name: matrix(n, signs="-" * 128 + "+" * 128) for n, name in enumerate(NAMES)})
    assert judge_profile(after, [before]) == (None, False)


def test_what_is_filled_by_design_is_no_ruin() -> None:
    masked = {"ema.0.attention_mask": TensorFigures(shape=(4, 4), kind="Half", rms=6e4, zeros=0.4, largest=9)}
    assert judge_profile(having(sound(), masked), [])[0] is None
    flat = dict([state(number, "exp_avg", 288) for number in range(4)])
    sharded = having(sound(), {**flat, **dict.fromkeys([f"optimizer.state.{n}.exp_avg_sq" for n in range(4)])})
    assert judge_profile(sharded, [])[0] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({NAMES[0]: None}, "wrong architecture: 1 tensors are missing and 0 are new, first 0.conv.weight"),
        ({"ema.9.weight": matrix(9)}, "wrong architecture: 0 tensors are missing and 1 are new, first 9.weight"),
        ({"ema.0.bn.bias": replace(vector(0.1), shape=(9,))}, "another shape, first 0.bn.bias: [9] in place of [8]"),
        (dict([state(0, "exp_avg", 4, 8, 3, 3)]), "the state of parameter 0 is [4, 8, 3, 3] and was [8, 4, 3, 3]"),
        (
            dict.fromkeys([f"optimizer.state.3.{what}" for what in ("exp_avg", "exp_avg_sq", "step")]),
            "it has 3 states and had 4",
        ),
    ],
)
def test_another_architecture_is_seen_next_to_the_one_before(
    changes: dict[str, TensorFigures | None], words: str
) -> None:
    assert words in reason(having(sound(), changes), sound())


def test_what_a_module_keeps_next_to_its_parameters_may_change_its_shape() -> None:
    anchors = TensorFigures(shape=(2, 21), kind="Half", rms=1.0, zeros=0.0)
    before, after = {"ema.22.@anchors": anchors}, {"ema.22.@anchors": replace(anchors, shape=(2, 84))}
    assert judge_profile(having(sound(), after), [having(sound(), before)])[0] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({NAMES[0]: matrix(0, rms=0.0, zeros=1.0)}, "0.conv.weight is zero for 100%, was for 0%"),
        ({NAMES[0]: matrix(0, zeros=0.0625)}, "0.conv.weight is zero for 6%"),
        ({NAMES[0]: matrix(0, rms=3.2)}, "0.conv.weight is 32 times as large"),
        ({NAMES[0]: matrix(0, rms=0.001)}, "0.conv.weight is 100 times as small"),
        ({"ema.0.bn.running_var": vector(2000.0)}, "running_var is 2e+03 times as large"),
        ({NAMES[2]: matrix(77)}, "2.conv.weight keeps 5"),
        ({name: matrix(n, rms=0.5) for n, name in enumerate(NAMES)}, "matrices are 5 times as large"),
        ({name: matrix(n + 50) for n, name in enumerate(NAMES)}, "these are other numbers"),
        (dict([state(n, "exp_avg", 8, 4, 3, 3, rms=1e4) for n in range(4)]), "its exp_avg is 1e+06 times"),
    ],
)
def test_finite_numbers_that_continue_nothing_are_doubted(changes: dict[str, TensorFigures], words: str) -> None:
    why, in_doubt = judge_profile(having(sound(), changes), [sound()])
    assert why is not None
    assert words in why
    assert in_doubt


def test_a_settled_training_is_held_to_more() -> None:
    before, wild = sound(steps=1000), sound(0.3, 1100)
    assert "keep 70% of their signs" in reason(wild, before)
    assert judge_profile(replace(wild, updates=9000, tensors=sound(0.3, 9000).tensors), [before])[0] is None


def test_a_part_of_a_single_matrix_is_held_to_what_a_single_matrix_keeps() -> None:
    """As OpenNMT's output layer, which its files hold apart from the model."""
    before = having(sound(steps=100), {"weight": matrix(9)})
    after = sound(0.03, 200)
    assert judge_profile(having(after, {"weight": matrix(9, flipped=0.26)}), [before])[0] is None
    assert "keep 68% of their signs" in reason(having(after, {"weight": matrix(9, flipped=0.32)}), before)
    assert "these are other numbers" in reason(having(after, {"weight": matrix(78)}), before)


def test_a_matrix_that_has_grown_before_the_training_has_settled_has_the_signs_of_what_it_learned() -> None:
    """As MACE's, which begins at a hundredth of the size of the others."""
    before = having(sound(steps=9), {NAMES[2]: matrix(2, rms=0.013)})
    for size, proven in ((0.07, True), (0.026, True), (0.025, False), (0.013, False)):
        after = having(sound(0.03, 54), {NAMES[2]: matrix(77, rms=size)})
        assert (judge_profile(after, [before])[0] is None) is proven
    settled = having(sound(steps=90), {NAMES[2]: matrix(2, rms=0.013)})
    assert "2.conv.weight keeps 5" in reason(having(sound(0.03, 100), {NAMES[2]: matrix(77, rms=0.07)}), settled)


def test_a_matrix_that_begins_at_zero_may_grow_as_it_likes() -> None:
    before = having(sound(), {"ema.lora_B.weight": matrix(5, rms=1e-5), "ema.lora_C.weight": matrix(6, rms=0.0)})
    after = having(sound(), {"ema.lora_B.weight": matrix(5, rms=1e-3), "ema.lora_C.weight": matrix(6, rms=1e-3)})
    assert judge_profile(after, [before])[0] is None


@pytest.mark.parametrize("optimizer", ["opt", "optim_g", "trainer.adam", ""])
def test_what_an_optimizer_of_any_name_keeps_is_none_of_the_weights(optimizer: str) -> None:
    """k-diffusion's `opt`, HiFi-GAN's `optim_g`, guided-diffusion's file of nothing but an optimizer's state."""
    place = f"{optimizer}.state".removeprefix(".")

    def train(rms: float, parameters: int) -> Profile:
        means = {f"{place}.{number}.exp_avg": matrix(round(rms), rms=rms) for number in range(parameters)}
        return replace(having(sound(), means), optimizers={"optimizer": 5, optimizer: 20})

    assert judge_profile(train(30.0, 12), [train(1.0, 12)]) == (None, False), "gradients grow, and have other signs"
    assert judge_profile(train(1.0, 12), [train(1.0, 9)]) == (None, False), (
        "of a parameter that had none it knows nothing yet"
    )
    assert "of their signs" in reason(having(train(1.0, 12), {n: matrix(99) for n in NAMES}), train(1.0, 12))


def test_an_optimizer_of_a_network_that_is_saved_in_another_file_is_no_contradiction() -> None:
    """HiFi-GAN keeps the generator apart, and both optimizers next to the discriminators."""
    of_generator = {
        f"optimizer_g.state.{number}.exp_avg": TensorFigures(shape=(512, 64, 16), kind="Float", rms=0.1, zeros=0.0)
        for number in range(3)
    }
    discriminators = replace(having(sound(), of_generator), optimizers={"optimizer": 5, "optimizer_g": 3})
    assert judge_profile(discriminators, []) == (None, False)
    alone = having(discriminators, {name: None for name in discriminators.tensors if name.startswith("optimizer.")})
    assert "optimizer_g belongs to another model: 3 of its states" in reason(alone)


def test_an_optimizer_of_a_network_that_is_saved_in_two_parts_is_no_contradiction() -> None:
    """OpenNMT-py saves its output layer apart from its model, and one optimizer for both."""
    output = {"generator.weight": matrix(7, shape=(9, 64)), "generator.bias": matrix(8, shape=(9,))}
    states = {f"optimizer.state.{5 + number}.exp_avg": figures for number, figures in enumerate(output.values())}
    whole = replace(having(sound(), {**output, **states}), optimizers={"optimizer": 7})
    assert judge_profile(whole, []) == (None, False)
    without = having(whole, dict.fromkeys(output))
    assert "optimizer belongs to another model: 2 of its states" in reason(without)


def test_an_optimizer_that_is_saved_without_any_network_is_no_contradiction() -> None:
    """As in BasicSR's `40.state` next to `net_g_40.pth`, and accelerate's `optimizer.bin`."""
    network = {name: None for name in sound().tensors if not name.startswith("optimizer.")}
    assert judge_profile(having(sound(), network), []) == (None, False)


def test_a_new_course_is_believed_next_to_one_that_was_doubted() -> None:
    other = having(sound(), {name: matrix(n + 50) for n, name in enumerate(NAMES)})
    assert judge_profile(other, [sound()])[0] is not None
    assert judge_profile(other, [sound(), other]) == (None, False)


def test_a_layout_that_has_nothing_in_common_is_not_compared() -> None:
    renamed = {name.replace("ema.", "state_dict."): item for name, item in sound().tensors.items() if "ema" in name}
    assert judge_profile(Profile(tensors=renamed), [sound()])[0] is None


ROW = ["ema.w", "Half", [2, 2], 0.5, 0.0, 0, "+-+-"]


@pytest.mark.parametrize(
    "answer",
    [
        None, [], {}, {"tensors": 3}, {"tensors": [3]}, {"tensors": [ROW[:-1]]}, {"tensors": [[7, *ROW[1:]]]},
        {"tensors": [["w", "Half", [2, "2"], 0.5, 0.0, 0, None]]},
        {"tensors": [["w", "Half", [2], math.nan, 0.0, 0, None]]},
        {"tensors": [["w", "Half", [2], -0.5, 0.0, 0, None]]},
        {"tensors": [["w", "Half", [2], 0.5, 1.1, 0, None]]},
        {"tensors": [["w", "Half", [2], 0.5, 0.0, True, None]]},
    ],
)  # fmt: skip
def test_an_answer_that_is_not_sound_has_no_profile(answer: object) -> None:
    assert profile_of(answer) is None


def test_an_answer_is_read_back() -> None:
    row = ["ema.w", "Half", [2, 2], 0.5, 0.25, 2, "+-+-"]
    found = profile_of({"tensors": [row], "optimizers": {"optimizer": 3, "x": "y"}, "updates": 7})
    assert found is not None
    assert (found.optimizers, found.updates) == ({"optimizer": 3}, 7)
    figures = TensorFigures(shape=(2, 2), kind="Half", rms=0.5, zeros=0.25, largest=2, signs="+-+-")
    assert found.parts() == {"ema": {"w": figures}}


NUMBERS = st.none() | st.floats(min_value=0, allow_nan=False, allow_infinity=False)
FIGURES = st.builds(
    TensorFigures,
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    kind=st.sampled_from(["Half", "Float", "Long"]),
    rms=NUMBERS,
    zeros=NUMBERS,
    largest=st.integers(0, 3),
    signs=st.none() | st.text("+-0", max_size=9),
)
PROFILES = st.builds(
    Profile,
    tensors=st.dictionaries(
        st.sampled_from([*NAMES, "w", "model.w", "ema.w", "optimizer.state.0.exp_avg", "optimizer.state.0.step"]),
        FIGURES,
    ),
    optimizers=st.dictionaries(st.just("optimizer"), st.integers(0, 3)),
    updates=st.none() | st.integers(0, 9),
)


def sized(*sizes: float) -> Profile:
    """Matrices of these sizes in one part: the median of their growth hides one of three."""
    rows = {f"ema.{n}": TensorFigures(shape=(2, 2), kind="Float", rms=rms) for n, rms in enumerate(sizes)}
    return Profile(tensors=rows)


@given(PROFILES, st.lists(PROFILES, max_size=2))
@example(sized(1.0, 1.0, 5e-324), [sized(1.0, 1.0, 10.0)])
@example(sized(1.0, 1.0, 1e300), [sized(1.0, 1.0, 5e-324)])
def test_no_figures_whatever_raise(profile: Profile, before: list[Profile]) -> None:
    judge_profile(profile, before)
