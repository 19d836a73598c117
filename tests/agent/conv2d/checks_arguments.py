"""Wrong arguments: the same error as native's, in its words where they help."""

from __future__ import annotations

import functools
from typing import Any

import torch
from rocm_agent.conv2d import ALGORITHMS, conv2d
from torch.nn.functional import conv2d as native

X, W = (1, 4, 5, 6), (6, 4, 3, 3)

SAME_WORDS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, dict[str, Any]]] = {
    "a matrix as input": ((4, 5), W, None, {}),
    "a volume as input": ((1, 4, 5, 6, 7), W, None, {}),
    "a matrix as weight": (X, (6, 4), None, {}),
    "too few channels": ((1, 3, 5, 6), W, None, {}),
    "too few channels, unbatched": ((3, 5, 6), W, None, {}),
    "channels of all groups in the weight": (X, W, None, {"groups": 2}),
    "outputs that groups do not divide": (X, (5, 2, 3, 3), None, {"groups": 2}),
    "fewer outputs than groups": (X, (2, 1, 3, 3), None, {"groups": 4}),
    "no outputs": (X, (0, 4, 3, 3), None, {}),
    "no groups": (X, W, None, {"groups": 0}),
    "negative groups": (X, W, None, {"groups": -1}),
    "stride 0": (X, W, None, {"stride": 0}),
    "a negative stride": (X, W, None, {"stride": (1, -1)}),
    "dilation 0": (X, W, None, {"dilation": 0}),
    "a negative padding": (X, W, None, {"padding": (0, -1)}),
    "three strides": (X, W, None, {"stride": (1, 1, 1)}),
    "no strides": (X, W, None, {"stride": ()}),
    "three paddings": (X, W, None, {"padding": (1, 1, 1)}),
    "three dilations": (X, W, None, {"dilation": [1, 1, 1]}),
    "a padding of another name": (X, W, None, {"padding": "full"}),
    "same with a stride": (X, W, None, {"padding": "same", "stride": 2}),
    "a kernel larger than the input": (X, (6, 4, 6, 3), None, {}),
    "a dilated kernel larger than the padded input": (X, W, None, {"padding": (1, 0), "dilation": 4}),
    "a large kernel on an empty batch": ((0, 4, 5, 6), (6, 4, 6, 3), None, {"padding": "valid"}),
    "a kernel without rows": (X, (6, 4, 0, 3), None, {}),
    "a bias of another length": (X, W, (4,), {}),
    "a bias that is a matrix": (X, W, (6, 1), {}),
    "a bias that is a number": (X, W, (), {}),
}

SAME_TYPE: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "a weight of another dtype": (torch.ones(X), torch.ones(W).double(), None, {}),
    "a bias of another dtype": (torch.ones(X), torch.ones(W), torch.ones(6).double(), {}),
    "a volume as weight": (torch.ones(X), torch.ones(*W, 3), None, {}),
    "a line as weight": (torch.ones(X), torch.ones(6, 4, 3), None, {}),
    "an input without rows": (torch.ones(1, 4, 0, 6), torch.ones(6, 4, 1, 1), None, {"padding": 1}),
    "no input": (None, torch.ones(W), None, {}),
    "no weight": (torch.ones(X), None, None, {}),
    "a list as input": ([1.0], torch.ones(W), None, {}),
    "a number as bias": (torch.ones(X), torch.ones(W), 1.0, {}),
    "a fractional stride": (torch.ones(X), torch.ones(W), None, {"stride": 1.5}),
    "a fractional padding": (torch.ones(X), torch.ones(W), None, {"padding": (1.0, 1)}),
    "no stride": (torch.ones(X), torch.ones(W), None, {"stride": None}),
    "a truth as stride": (torch.ones(X), torch.ones(W), None, {"stride": True}),
    "a truth as groups": (torch.ones(X), torch.ones(W), None, {"groups": None}),
}


def refusal(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Exception:
    """Return what `function` raises for these arguments; fail where it raises nothing."""
    try:
        function(*arguments, **options)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        return error
    raise AssertionError(f"accepted {options}")


def check_wrong_shapes_and_numbers_are_refused_in_natives_words() -> None:
    for case, (x, weight, bias, options) in SAME_WORDS.items():
        arguments = (torch.ones(x), torch.ones(weight), None if bias is None else torch.ones(bias))
        expected = refusal(native, arguments, options)
        for algorithm in ALGORITHMS:
            got = refusal(functools.partial(conv2d, algorithm=algorithm), arguments, options)
            assert (type(got), str(got)) == (type(expected), str(expected)), (case, got, expected)


def check_wrong_types_are_refused_with_natives_type_of_error() -> None:
    for case, (x, weight, bias, options) in SAME_TYPE.items():
        expected = refusal(native, (x, weight, bias), options)
        got = refusal(conv2d, (x, weight, bias), options)
        assert type(got) is type(expected), (case, got, expected)


def check_mixed_dtypes_and_devices_are_named_in_the_error() -> None:
    text = str(refusal(conv2d, (torch.ones(X), torch.ones(W).double()), {}))
    assert "torch.float32" in text
    assert "torch.float64" in text
    text = str(refusal(conv2d, (torch.ones(X), torch.ones(W, device="meta")), {}))
    assert "cpu" in text
    assert "meta" in text


def check_an_unknown_algorithm_is_refused_with_those_that_exist() -> None:
    error = refusal(conv2d, (torch.ones(X), torch.ones(W)), {"algorithm": "fast"})
    assert type(error) is ValueError
    assert all(name in str(error) for name in ("fast", *ALGORITHMS))


def check_a_refused_shape_is_refused_again() -> None:
    """The cache of shapes holds answers, not refusals."""
    for _ in range(2):
        assert isinstance(refusal(conv2d, (torch.ones(X), torch.ones(W)), {"stride": 0}), RuntimeError)
    assert conv2d(torch.ones(X), torch.ones(W)).shape == (1, 6, 3, 4)
