"""What only a card can show: autocast there, errors that name it, and that recording a model calls no MIOpen."""

from __future__ import annotations

import functools
import random
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from checking import Skip
from checks_yolo import assert_trains_alike, losses, resnet_losses
from comparing import differences, unlike
from comparing import operands as on_cpu
from everything import everything, everywhere, random_layer, result_or_refusal
from patching import patched, small
from profiling import card_kernels, library_kernels
from rocm_agent.conv2d import ALGORITHMS, conv2d, limits
from rocm_agent.conv2d.case import Case
from rocm_agent.conv2d.geometry import geometry
from torch.nn.functional import conv2d as native


def card() -> str:
    """Return the device, with float32 products as precise as on the CPU; skip where torch sees no card."""
    if not torch.cuda.is_available():
        raise Skip("torch sees no GPU here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return "cuda"


def operands(*shapes: Any) -> tuple[torch.Tensor, ...]:
    """Return x, weight and bias on the card, wanting gradients."""
    device = card()
    return tuple(tensor.detach().to(device).requires_grad_() for tensor in on_cpu(*shapes))


def check_results_and_gradients_on_the_gpu_are_natives() -> None:
    for algorithm in ALGORITHMS:
        function = functools.partial(conv2d, algorithm=algorithm)
        for groups, padding in ((1, 1), (2, "same"), (8, 0)):
            made = operands((4, 8, 17, 16), (16, 8 // groups, 3, 2))
            options = {"groups": groups, "padding": padding}
            assert not differences(function, native, made, options, bound=5e-6), (algorithm, options)


def check_each_family_passes_its_trial_on_the_gpu_and_gives_natives_results() -> None:
    planned = functools.partial(conv2d, algorithm="planned")
    for x, weight, options in (
        ((8, 16, 160, 160), (24, 16, 3, 3), {"padding": 1}),
        ((8, 8, 320, 320), (16, 8, 3, 3), {"padding": 1, "stride": 2}),
        ((8, 128, 40, 40), (128, 128, 3, 3), {"padding": 1}),
        ((8, 64, 40, 40), (32, 64, 1, 1), {}),
        ((8, 64, 40, 40), (64, 1, 3, 3), {"padding": 1, "groups": 64}),
    ):
        made = operands(x, weight)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                found = differences(planned, native, made, options, bound=1e-5)
                assert not found, (weight, found)


def check_a_planned_convolution_holds_no_more_than_native_until_backward() -> None:
    x, weight, bias = operands((8, 32, 160, 160), (32, 32, 3, 3))
    held = []
    for function in (native, functools.partial(conv2d, algorithm="planned")):
        function(x, weight, bias, padding=1)
        before = torch.cuda.memory_allocated()
        y = function(x, weight, bias, padding=1)
        held.append(torch.cuda.memory_allocated() - before)
        del y
    assert held[1] <= held[0] * 1.02 + 4096, held


def check_autocast_on_the_gpu_gives_natives_dtypes_and_results() -> None:
    made = operands((4, 8, 17, 16), (16, 4, 3, 3))
    for algorithm in ALGORITHMS:
        function = functools.partial(conv2d, algorithm=algorithm)
        for dtype, bound in ((torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
            with torch.autocast("cuda", dtype=dtype):
                assert function(*made, groups=2).dtype is dtype
                assert not differences(function, native, made, {"groups": 2}, bound=bound), (algorithm, dtype)


def check_autocast_of_another_device_changes_nothing() -> None:
    made = operands((4, 8, 17, 16), (16, 4, 3, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert conv2d(*made, groups=2).dtype is torch.float32


def check_operands_on_two_devices_are_refused_as_native_refuses_them() -> None:
    x, weight, bias = operands((4, 8, 17, 16), (16, 8, 3, 3))
    for arguments in ((x.cpu(), weight, bias), (x, weight.cpu(), bias), (x, weight, bias.cpu())):
        for function in (native, conv2d):
            try:
                function(*arguments)
            except RuntimeError as error:
                assert "should be the same" in str(error) or "same device" in str(error)  # noqa: PT017 - no pytest
            else:
                raise AssertionError(function)


def library_calls(function: Any) -> set[str]:
    """Return the convolutions of cuDNN or MIOpen that ran on the way through `function`."""
    with torch.profiler.profile() as profile:
        function()
    names = {event.key for event in profile.key_averages()}
    return {name for name in names if "cudnn_conv" in name or "miopen_" in name}


def check_tracing_on_the_gpu_records_convolutions_without_the_vendors_library() -> None:
    device = card()
    model, x = small().to(device), torch.randn(2, 3, 8, 8, device=device)
    expected = model(x)
    if not torch.backends.cudnn.enabled or not library_calls(lambda: model(x)):
        raise Skip("native does not use the vendor's library here")
    traced = []
    with patched():
        assert not library_calls(lambda: traced.append(torch.jit.trace(model, x, check_trace=False)))
    assert torch.backends.cudnn.enabled
    assert str(traced[0].inlined_graph).count("aten::_convolution") == 3
    assert not unlike("y", traced[0](x), expected, bound=1e-5)


def check_no_layer_runs_a_library_kernel_on_the_gpu_with_everything_replaced() -> None:
    device = card()
    x = torch.randn(2, 4, 9, 10, device=device)

    def train() -> None:
        everything().to(device)(x).backward()

    assert card_kernels(train), "native runs them, and the profile shows them"
    # The operators of the library's BatchNorm are called still, and hold our kernels.
    doors = {f"aten::{library}_batch_norm{way}" for library in ("cudnn", "miopen") for way in ("", "_backward")}
    with everywhere():
        assert torch.backends.cudnn.enabled, "it does not rest on the switch"
        assert not library_kernels(train) - doors
        assert not card_kernels(train), card_kernels(train)


def check_every_layer_on_the_gpu_gives_natives_gradients_and_statistics() -> None:
    device, found = card(), []
    for context in (everywhere(), nullcontext()):
        model = everything().to(device).double()
        x = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(1)).double().to(device).requires_grad_()
        with context:
            y = model(x)
            y.backward()
        found.append([y, x.grad, *(p.grad for p in model.parameters()), *(b for b in model.buffers())])
    for which, (a, e) in enumerate(zip(*found, strict=True)):
        assert not unlike(str(which), a, e, 1e-11), which


def check_random_layers_on_the_gpu_give_natives_results_or_are_refused_as_by_native() -> None:
    device, chance = card(), random.Random(6)
    for _ in range(300):
        function, (x, weight, bias), options = random_layer(chance)
        made = tuple(None if o is None else o.detach().to(device).requires_grad_() for o in (x, weight, bias))
        expected = result_or_refusal(function, made, options)
        with everywhere():
            got = result_or_refusal(function, made, options)
        about = (function.__name__, x.shape, weight.shape, options)
        if isinstance(expected, str) or isinstance(got, str):
            # The library has words of its own for what it refuses.
            assert isinstance(expected, str) == isinstance(got, str), about
            continue
        for name, a, e in zip(("y", "dx", "dw", "db"), got, expected, strict=True):
            assert not unlike(name, a, e, 1e-12), about


def check_autocast_with_everything_replaced_trains_on_the_gpu_as_native_does() -> None:
    device, found = card(), []
    for context in (everywhere(), nullcontext()):
        model = everything().to(device)
        x = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(1)).to(device)
        with context, torch.autocast("cuda", dtype=torch.float16):
            y = model(x)
        y.backward()
        found.append([y, *(p.grad for p in model.parameters())])
    for which, (a, e) in enumerate(zip(*found, strict=True)):
        assert a.dtype is e.dtype
        assert float((a - e).norm()) <= 2e-2 * float(e.norm()) + 1e-3, which


def check_compiled_models_run_ours_on_the_gpu_in_either_memory_format() -> None:
    if not hasattr(torch, "compile"):
        raise Skip(f"torch {torch.__version__} has no torch.compile")
    device = card()
    for last in (False, True):
        model = small().to(device)
        x = torch.randn(2, 3, 8, 8, device=device)
        if last:
            model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
        expected = model(x)
        torch._dynamo.reset()
        with everywhere():
            compiled = torch.compile(model)
            y = compiled(x)
            y.sum().backward()
            assert not library_kernels(lambda: compiled(x).sum().backward()), last  # noqa: B023 - called at once
        assert not unlike("y", y, expected, 1e-5)
    torch._dynamo.reset()


def check_a_yolo_and_a_resnet_train_on_the_gpu_with_natives_losses() -> None:
    device = card()
    assert_trains_alike(resnet_losses, device)
    assert_trains_alike(losses, device)


def check_pytorchs_own_depthwise_kernels_give_natives_results_on_the_gpu() -> None:
    device, seen = torch.device(card(), 0), set()
    for dtype, bound in ((torch.float32, 5e-6), (torch.float16, 2e-3)):
        for outputs, size, options in (
            (8, (3, 3), {"padding": (1, 1)}),
            (8, (3, 5), {"padding": (2, 1), "stride": (2, 1)}),
            (24, (3, 3), {"padding": (1, 1), "stride": (2, 2)}),
            (8, (5, 5), {"padding": (4, 4), "dilation": (2, 2)}),
        ):
            made = [tensor.to(dtype) for tensor in operands((4, 8, 18, 17), (outputs, 1, *size))]
            seen |= compare_own_kernels(made, options, bound, device)
    assert seen == {"forward", "input", "weight", "both"}


def compare_own_kernels(made: Any, options: dict[str, Any], bound: float, device: torch.device) -> set[str]:
    """Compare every pass that PyTorch's depthwise kernels take with native's in float64; return the passes."""
    x, weight, bias = made
    given = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **options}
    shape = geometry(tuple(x.shape), tuple(weight.shape), tuple(bias.shape), **given, groups=8)
    case = Case(tuple(x.shape), tuple(weight.shape), x.dtype, device, shape, limits.Limits(folder=None))
    wide = [tensor.detach().double().requires_grad_() for tensor in made]
    y = native(*wide, **given, groups=8)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(device, x.dtype)
    dx, dw = torch.autograd.grad(y, wide[:2], dy.double())
    size, taken = tuple(x.shape[2:]), set()
    passes = {
        "forward": ((x, weight, bias, shape), (y,)),
        "input": ((dy, weight, size, shape), (dx,)),
        "weight": ((dy, x, shape), (dw,)),
        "both": ((dy, x, weight, shape), (dx, dw)),
    }
    with torch.no_grad():
        for kind, (arguments, expected) in passes.items():
            if "aten" in case.candidates(kind):
                results = case.function(kind, case.candidates(kind)["aten"])(*arguments)
                for result, exact in zip(results if isinstance(results, tuple) else (results,), expected, strict=True):
                    assert result.is_contiguous(), (kind, shape)
                    assert not unlike(f"{kind} {shape}", result.double(), exact.detach(), bound)
                taken.add(kind)
    assert torch.backends.cudnn.enabled
    return taken


def check_depthwise_layers_on_the_gpu_run_no_kernel_of_the_vendors_library() -> None:
    device = card()
    for scope in ("modules", "all"):
        layer = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32).to(device)
        x = torch.randn(4, 32, 28, 28, device=device, requires_grad=True)
        with patched(scope=scope):
            for _ in range(2):
                layer(x).sum().backward()
            assert not card_kernels(lambda: layer(x).sum().backward()), scope  # noqa: B023 - called at once
