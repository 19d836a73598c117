"""The layers of public networks that are hard to compute precisely: every way of every pass beside native."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from checking import Skip
from comparing import unlike
from rocm_agent.conv2d import candidates, conv2d, sums, winograd
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import hard_passes
from hard_passes import Layer, Row

LAYERS = {layer.name: layer for layer in hard_passes.KNOWN}
MODES = {mode.name: mode for mode in hard_passes.MODES}


def multiplies_float16() -> bool:
    """Whether this PyTorch has native convolutions and products of float16 on the CPU."""
    ones = torch.ones(1, 1, 2, 2, dtype=torch.float16)
    try:
        torch.conv2d(ones, ones)
        torch.bmm(ones[0], ones[0])
    except RuntimeError:
        return False
    return True


def judged(name: str, mode: str, *kinds: str) -> list[Row]:
    """Return every way of the layer's passes on the CPU, of random operands and of those whose sums cancel."""
    if MODES[mode].dtype is torch.float16 and not multiplies_float16():
        raise Skip(f"torch {torch.__version__} has no product of float16 on the CPU")
    return [
        row
        for lean in (False, True)
        for row in hard_passes.rows(LAYERS[name], MODES[mode], "cpu", lean=lean, kinds=kinds)
    ]


def assert_right(found: list[Row], *ways: str) -> None:
    """Assert that all rows are within their bounds, and that these ways are among them."""
    assert {row.way for row in found} >= set(ways), {row.way for row in found}
    assert all(row.right for row in found), "".join(hard_passes.line(row) for row in found if not row.right)


def check_depthwise_gradients_in_float16_are_rounded_once() -> None:
    assert_right(judged("focalnet, depthwise 3x3", "float16", "weight"), "columns", "tiles", "taps")
    assert_right(judged("focalnet, depthwise 5x5", "float16", "weight"), "columns", "tiles", "taps")
    assert_right(
        judged("focalnet, depthwise 5x5, last", "float16", "weight", "input"), "dense", "tiles", "taps", "columns"
    )


def check_the_gradients_of_first_layers_in_float16_are_rounded_once() -> None:
    assert_right(judged("mobilevit, stem", "float16", "weight"), "mec", "columns", "im2col")
    assert_right(judged("alexnet, first", "float16", "weight"), "mec", "columns")


def check_the_gradients_of_a_stem_in_bfloat16_are_rounded_once() -> None:
    assert_right(judged("mobilevit, stem", "bfloat16", "weight"), "mec", "columns")


def check_a_backward_pass_within_autocast_makes_the_same_gradients_as_outside() -> None:
    layer, found = LAYERS["mobilevit, stem"], []
    x, weight, dy = hard_passes.operands_of(layer, MODES["AMP bfloat16"], "cpu", lean=True)
    for within in (False, True):
        leaves = [x.float().requires_grad_(), weight.float().requires_grad_()]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = conv2d(*leaves, None, layer.stride, layer.padding, 1, 1, algorithm="planned")
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=within):
            y.backward(dy)
        found.append([leaf.grad for leaf in leaves])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


class Lengths(TorchDispatchMode):  # type: ignore[misc] # torch is not installed where types are checked
    """Notes how many products each batched product adds."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in {torch.ops.aten.bmm, torch.ops.aten.baddbmm_}:
            self.seen.append(args[-2].shape[2])
        return func(*args, **(kwargs or {}))


@contextmanager
def at_most(longest: int) -> Iterator[None]:
    """Have this machine's products add no more at once, as a card's do, and Winograd's passes be those of a card."""
    sums.LONGEST["cpu"], strips = {torch.float32: longest}, candidates.winograd_strips
    candidates.winograd_strips = winograd
    try:
        yield
    finally:
        candidates.winograd_strips = strips
        del sums.LONGEST["cpu"]


LONG = (
    (LAYERS["fasterrcnn mobilenet, 1x1"], 2048, {"pointwise"}),
    (Layer("3x3", (8, 8), 3, 40, padding=1), 64, {"mec", "shifted", "winograd", "columns", "im2col"}),
    (Layer("3x3, rows shorter than pieces", (8, 8), 3, 8, padding=1), 8, {"mec", "columns", "im2col"}),
    (Layer("1x1 on small maps", (8, 12), 1, 24), 100, {"pointwise", "pointwise-whole"}),
    (Layer("depthwise", (6, 6), 3, 40, padding=1, groups=6), 32, {"tiles", "taps", "columns"}),
)


def check_where_a_gpu_would_add_one_product_after_another_sums_over_a_map_are_made_in_pieces() -> None:
    for layer, longest, names in LONG:
        with at_most(longest), Lengths() as lengths:
            found = list(hard_passes.rows(layer, MODES["float32, TF32 off"], "cpu", lean=True, kinds=("weight",)))
        assert max(lengths.seen) <= longest, (layer.name, max(lengths.seen))
        assert_right(found, *names)


def check_pieces_of_a_product_are_together_the_product() -> None:
    generator = torch.Generator().manual_seed(4)
    for batch, length, piece in itertools.product((1, 3, 9), (64, 70, 127), (16, 64)):
        a = torch.randn(batch, 5, length, generator=generator, dtype=torch.float64)
        b = torch.randn(batch, 4, length, generator=generator, dtype=torch.float64).transpose(1, 2)
        assert not unlike(f"{batch} {length} {piece}", sums.in_pieces(a, b, piece), torch.bmm(a, b), 1e-14)
        halves = sums.in_pieces(a.bfloat16(), b.bfloat16(), piece)
        assert not unlike("halves", halves, torch.bmm(a.bfloat16().float(), b.bfloat16().float()), 1e-6)
    for length, longest in itertools.product((2049, 2100, 6400, 160_000), (100, 2048)):
        assert 0 < sums.piece_of(length, longest) <= longest


def check_a_way_beyond_its_bound_or_without_a_number_is_called_wrong() -> None:
    row = Row("a layer", "float16", "lean", "weight", "mec", 4e-4, 2e-4, 5e-4)
    assert row.right
    wrong = [row._replace(ours=6e-4), row._replace(ours=float("nan"), mode="bfloat16")]
    assert not any(each.right for each in wrong)
    assert [text.split()[-1] for text in hard_passes.table([row, *wrong, row])] == ["WRONG", "WRONG"]
