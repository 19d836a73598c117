"""The sizes that a convolution's arguments mean, and F.conv2d's errors for invalid ones. Touches no data."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, List, Tuple

Pair = Tuple[int, int]


@dataclass(frozen=True, eq=False)
class Geometry:
    """One convolution with every argument resolved; pairs are (height, width), padding is the same on both sides.

    Equal to itself alone, which makes it a cheap key: `geometry` returns the same object for the same arguments.
    """

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    out: Pair


def integer(name: str, value: Any) -> int:
    """Return `value` as an int; raise TypeError as native does for a bool or anything that is no integer."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"conv2d() received an invalid combination of arguments: {name}={value!r} is not made of integers")


def is_pair(value: Any) -> bool:
    """Whether `value` is what a module holds: a tuple of two integers."""
    return type(value) is tuple and len(value) == 2 and type(value[0]) is int and type(value[1]) is int


def pair(name: str, value: Any) -> Pair:
    """Return an int, or a sequence of one or two, as (height, width); raise as native does for anything else."""
    if is_pair(value):
        return value
    entries = value if isinstance(value, (tuple, list)) else (value,)
    numbers = [integer(name, entry) for entry in entries]
    if len(numbers) == 1:
        numbers *= 2
    if len(numbers) != 2:
        raise RuntimeError(
            f"expected {name} to be a single integer value or a list of 2 values to match the convolution dimensions, "
            f"but got {name}={numbers}"
        )
    return numbers[0], numbers[1]


def named_padding(name: str, kernel: Pair, stride: Pair, dilation: Pair) -> Tuple[Pair, Pair]:
    """Return the padding that "same" or "valid" asks for, and what goes below and to the right in addition.

    Raise RuntimeError for another name, and for "same" with a stride, as native does.
    """
    if name == "valid":
        return (0, 0), (0, 0)
    if name != "same":
        raise RuntimeError(f"Invalid padding string: '{name}'")
    if stride != (1, 1):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    return (total[0] // 2, total[1] // 2), (total[0] % 2, total[1] % 2)


def check_dimensions(x_shape: Tuple[int, ...], weight_shape: Tuple[int, ...]) -> None:
    """Raise RuntimeError as native does unless x is (C, H, W) or (N, C, H, W) and weight (O, C, kh, kw)."""
    if len(x_shape) not in (3, 4):
        raise RuntimeError(
            f"Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: {list(x_shape)}"
        )
    if len(weight_shape) < 3:
        raise RuntimeError("weight should have at least three dimensions")
    if len(weight_shape) != 4:
        wanted = len(weight_shape)
        raise RuntimeError(
            f"Expected {wanted}-dimensional input for {wanted}-dimensional weight{list(weight_shape)}, but got "
            f"4-dimensional input of size {_with_batch(x_shape)} instead"
        )


@lru_cache(maxsize=1024)
def geometry(  # noqa: PLR0913, PLR0917 - what decides a convolution's sizes, and the cache's key
    x_shape: Tuple[int, ...],
    weight_shape: Tuple[int, ...],
    bias_shape: Tuple[int, ...] | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> Geometry:
    """Return the geometry of a convolution of (C, H, W) or (N, C, H, W); raise RuntimeError as native does.

    The cache holds the shapes of a model: a training at one image size computes each of them once. Its bound is for
    training at many sizes.
    """
    kernel = (weight_shape[2], weight_shape[3])
    _check_numbers(stride, padding, dilation, groups)
    _check_channels(x_shape, weight_shape, bias_shape, groups)
    size = (x_shape[-2], x_shape[-1])
    padded = (size[0] + 2 * padding[0], size[1] + 2 * padding[1])
    reach = (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)
    _check_sizes(x_shape, kernel, padded, reach)
    out = ((padded[0] - reach[0]) // stride[0] + 1, (padded[1] - reach[1]) // stride[1] + 1)
    return Geometry(kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, out=out)


def _with_batch(x_shape: Tuple[int, ...]) -> List[int]:
    return list(x_shape) if len(x_shape) == 4 else [1, *x_shape]


def _check_numbers(stride: Pair, padding: Pair, dilation: Pair, groups: int) -> None:
    if min(padding) < 0:
        raise RuntimeError("negative padding is not supported")
    if min(stride) <= 0:
        raise RuntimeError("non-positive stride is not supported")
    if min(dilation) <= 0:
        raise RuntimeError(f"dilation should be greater than zero, but got {list(dilation)}")
    if groups <= 0:
        raise RuntimeError("non-positive groups is not supported")


def _check_channels(
    x_shape: Tuple[int, ...], weight_shape: Tuple[int, ...], bias_shape: Tuple[int, ...] | None, groups: int
) -> None:
    weight = list(weight_shape)
    if weight[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, but got weight of size "
            f"{weight} instead"
        )
    if weight[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of "
            f"size [{weight}] instead"
        )
    if x_shape[-3] != weight[1] * groups:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {weight}, expected input{_with_batch(x_shape)} to have "
            f"{weight[1] * groups} channels, but got {x_shape[-3]} channels instead"
        )
    if bias_shape is not None and tuple(bias_shape) != (weight[0],):
        raise RuntimeError(
            f"Given weight of size {weight}, expected bias to be 1-dimensional with {weight[0]} elements, but got bias "
            f"of size {list(bias_shape)} instead"
        )


def _check_sizes(x_shape: Tuple[int, ...], kernel: Pair, padded: Pair, reach: Pair) -> None:
    if min(kernel) <= 0:
        raise RuntimeError(
            f"kernel size should be greater than zero, but got kernel_height: {kernel[0]} kernel_width: {kernel[1]}"
        )
    if padded[0] < reach[0] or padded[1] < reach[1]:
        raise RuntimeError(
            f"Calculated padded input size per channel: ({padded[0]} x {padded[1]}). Kernel size: ({reach[0]} x "
            f"{reach[1]}). Kernel size can't be greater than actual input size"
        )
    if 0 in x_shape[-3:]:
        raise RuntimeError(f"Only zero batch inputs are supported, but got input shape: {list(x_shape)}")
