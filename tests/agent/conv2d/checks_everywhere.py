"""The scope "all": no convolution or BatchNorm is left to a library, whoever calls it, and all compute the same."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from checking import Skip
from checks_saved import load_elsewhere
from comparing import outcome, unlike
from patching import patched
from profiling import library_kernels, operators
from rocm_agent.conv2d import ALGORITHMS, is_patched, patch, unpatch
from torch import nn
from torch.nn.functional import conv2d as imported_before

everywhere = functools.partial(patched, scope="all")

FUNCTIONS = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv_transpose1d,
    (2, True): F.conv_transpose2d,
    (3, True): F.conv_transpose3d,
}


class Everything(nn.Module):  # type: ignore[misc] # torch is not installed where types are checked
    """Every layer that hides a convolution or a BatchNorm, and F.conv2d called by itself, on (N, 4, 9, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Sequential(
            nn.Conv2d(4, 6, 3, padding="same", bias=False),
            nn.BatchNorm2d(6),
            nn.Conv2d(6, 6, 3, stride=2, padding=1, groups=6, padding_mode="reflect"),
            nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
            nn.InstanceNorm2d(4, affine=True),
        )
        # A bias before a normalization would have no gradient but rounding errors.
        self.line = nn.Sequential(
            nn.Conv1d(4, 6, 3, padding=1, bias=False), nn.BatchNorm1d(6), nn.ConvTranspose1d(6, 4, 2)
        )
        self.volume = nn.Sequential(
            nn.Conv3d(4, 2, 3, padding=1, bias=False), nn.BatchNorm3d(2), nn.ConvTranspose3d(2, 2, 2)
        )
        self.weight = nn.Parameter(torch.ones(2, 4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plane = self.plane(x)
        line = self.line(plane.flatten(2))
        volume = self.volume(plane.unsqueeze(2))
        return imported_before(plane, self.weight).square().mean() + line.square().mean() + volume.square().mean()


def everything() -> Everything:
    """Return the model, the same numbers each time."""
    torch.manual_seed(3)
    return Everything()


def check_no_layer_runs_a_library_kernel_forward_or_backward() -> None:
    x = torch.randn(2, 4, 9, 10)

    def train() -> None:
        everything()(x).backward()

    assert len(library_kernels(train)) >= 3, "native runs them, and the profile shows them"
    for algorithm in ALGORITHMS:
        with everywhere(algorithm):
            assert not library_kernels(train), algorithm
            assert any("mm" in name for name in operators(train))


def check_every_layers_results_gradients_and_statistics_are_natives() -> None:
    x = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(1))
    found = []
    for context in (everywhere(), everywhere("unfold"), nullcontext()):
        model, leaf = everything().double(), x.double().requires_grad_()
        with context:
            y = model(leaf)
            y.backward()
        found.append([y, leaf.grad, *(p.grad for p in model.parameters()), *model.buffers()])
    for got in found[:-1]:
        for which, (a, e) in enumerate(zip(got, found[-1], strict=True)):
            assert not unlike(str(which), a, e.double() if a.is_floating_point() else e, 1e-12), which


def random_layer(chance: random.Random) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a function, operands in double precision and options, some of which native refuses."""
    dimensions, transposed = chance.choice((1, 2, 2, 3)), chance.random() < 0.5
    groups = chance.choice((1, 1, 2, 3))
    inputs, outputs = groups * chance.choice((1, 2)), groups * chance.choice((1, 2, 3))

    def each(*values: int) -> list[int]:
        return [chance.choice(values) for _ in range(dimensions)]

    options: dict[str, Any] = {"stride": each(1, 1, 2, 3), "padding": each(0, 1, 2), "dilation": each(1, 1, 2, 3)}
    options["groups"] = groups
    if transposed:
        options["output_padding"] = each(0, 0, 0, 1, 2)
    elif chance.random() < 0.2:
        options["padding"] = chance.choice(("same", "valid"))
    batch = chance.choice(([0], [1], [2], [2], [3], []))
    pair = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    generator = torch.Generator().manual_seed(chance.randrange(1 << 30))
    make = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    x, weight = make([*batch, inputs, *each(3, 5, 8, 11)]), make([*pair, *each(1, 2, 3, 4)])
    if x.dim() == 4 and dimensions == 2 and chance.random() < 0.2:
        x = x.contiguous(memory_format=torch.channels_last)
    bias = make(outputs).requires_grad_() if chance.random() < 0.5 else None
    return FUNCTIONS[dimensions, transposed], (x.requires_grad_(), weight.requires_grad_(), bias), options


def result_or_refusal(function: Any, operands: Any, options: Any) -> Any:
    """Return output and gradients, or the words with which they are refused."""
    try:
        return outcome(function, operands, options)
    except RuntimeError as error:
        return str(error)


def check_random_layers_of_one_to_three_dimensions_give_natives_results_or_its_very_refusals() -> None:
    chance, taken, refused = random.Random(5), 0, 0
    for algorithm, count in (("planned", 500), ("unfold", 100), ("unfold_reference", 100)):
        cases = [random_layer(chance) for _ in range(count)]
        expected = [result_or_refusal(*case) for case in cases]
        with everywhere(algorithm):
            got = [result_or_refusal(*case) for case in cases]
        for (function, operands, options), a, e in zip(cases, got, expected, strict=True):
            about = (algorithm, function.__name__, operands[0].shape, operands[1].shape, options)
            if isinstance(e, str) or isinstance(a, str):
                assert a == e, about
                refused += 1
                continue
            taken += 1
            for name, one, other in zip(("y", "dx", "dw", "db"), a, e, strict=True):
                assert not unlike(name, one, other, 1e-12), about
    assert taken > 400, taken
    assert refused > 100, refused


def samples_of(name: str) -> Any:
    """Return PyTorch's own test material for an operator, which every wheel ships."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 - may be unimportable
    except ImportError as error:
        raise Skip(f"PyTorch's own samples need one more package here: {error}") from None
    return next((info for info in op_db if info.name == "nn.functional." + name), None)


OPERATORS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "batch_norm")


def check_pytorchs_own_samples_of_every_operator_give_natives_results() -> None:
    compared = dict.fromkeys(OPERATORS, 0)
    for name, dtype in itertools.product(OPERATORS, (torch.float32, torch.float64)):
        info = samples_of(name)
        for sample in info.sample_inputs("cpu", dtype, requires_grad=True) if info else ():
            results = []
            for context in (nullcontext(), everywhere()):
                # Running statistics are written to: each run gets its own.
                moved = copy.deepcopy(
                    [value.detach() if isinstance(value, torch.Tensor) else value for value in sample.args]
                )
                with context:
                    results.append(outcome(functools.partial(info.op, **sample.kwargs), (sample.input, *moved), {}))
            for a, e in zip(results[1], results[0], strict=True):
                found = unlike(name, a, e) if isinstance(a, torch.Tensor) else []
                assert not found, (name, sample.input.shape, sample.kwargs, found)
            compared[name] += 1
    assert all(compared[name] >= 8 for name in OPERATORS if samples_of(name)), compared
    assert sum(bool(count) for count in compared.values()) >= 6, compared


def check_pytorchs_own_wrong_inputs_of_every_operator_are_refused_with_its_errors() -> None:
    refused = 0
    with everywhere():
        for info in filter(None, map(samples_of, OPERATORS)):
            for case in info.error_inputs("cpu") if info.error_inputs_func else ():
                sample = case.sample_input
                try:
                    info.op(sample.input, *sample.args, **sample.kwargs)
                except case.error_type as error:
                    assert re.search(case.error_regex, str(error)), (case.error_regex, error)  # noqa: PT017 - no pytest
                    refused += 1
                else:
                    raise AssertionError(f"{info.name} accepted {sample.input.shape} {sample.kwargs}")
    assert refused >= 3


def small_cases() -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield a function with operands in double precision for each dimension and direction."""
    generator = torch.Generator().manual_seed(2)
    for (dimensions, _), function in FUNCTIONS.items():
        for stride in (1, 2):
            x = torch.randn([2, 2, *[3] * dimensions], generator=generator, dtype=torch.float64)
            weight = torch.randn([2, 1, *[2] * dimensions], generator=generator, dtype=torch.float64)
            bias = torch.randn(2, generator=generator, dtype=torch.float64)
            options = {"stride": stride, "padding": 1, "groups": 2}
            yield function, [tensor.requires_grad_() for tensor in (x, weight, bias)], options


def check_gradients_of_first_and_second_order_and_forward_mode_pass_gradcheck() -> None:
    for algorithm, (function, operands, options) in itertools.product(("planned", "unfold"), small_cases()):
        call = functools.partial(function, **options)
        about = (algorithm, function.__name__, options)
        with everywhere(algorithm):
            assert torch.autograd.gradcheck(call, operands, fast_mode=True, check_forward_ad=True), about
            assert torch.autograd.gradgradcheck(call, operands, fast_mode=True), about


def check_batch_norm_of_the_vendors_library_is_computed_by_pytorch_with_all_gradients() -> None:
    generator = torch.Generator().manual_seed(4)
    x, weight, bias, mean = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 4, 5), (4,), (4,), (4,))
    )
    with everywhere():
        for training in (True, False):
            for library in (torch.miopen_batch_norm, torch.cudnn_batch_norm):

                def normalize(*operands: torch.Tensor, library: Any = library, training: bool = training) -> Any:
                    return library(*operands, mean.clone(), mean.square() + 1, training, 0.1, 1e-5)[0]

                leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
                y = normalize(*leaves)
                moments = (mean.clone(), mean.square() + 1)
                assert not unlike("y", y, F.batch_norm(x, *moments, weight, bias, training, 0.1, 1e-5))
                assert torch.autograd.gradcheck(normalize, leaves), (library, training)
                if training:
                    assert torch.autograd.gradgradcheck(normalize, leaves), library


def check_convolutions_called_by_the_librarys_own_names_are_ours() -> None:
    x, weight, bias = torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3), torch.randn(4)
    pairs = ([1, 2], [2, 1], [1, 1])
    with everywhere():
        for library in (torch.miopen_convolution, torch.miopen_depthwise_convolution):
            got = library(x, weight, bias, *pairs, 1, False, False)
            assert not unlike("y", got, F.conv2d(x, weight, bias, pairs[1], pairs[0]))
        got = torch.miopen_convolution_transpose(x, weight, bias, pairs[0], [1, 0], *pairs[1:], 1, False, False)
        assert not unlike("y", got, F.conv_transpose2d(x, weight, bias, pairs[1], pairs[0], [1, 0]))


def check_autocast_gives_natives_dtypes_and_gradients() -> None:
    x = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(2))
    results = []
    for context in (everywhere(), nullcontext()):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
        with context, torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.conv2d(*leaves, padding=1)
            y.float().square().mean().backward()
        results.append([y, *(leaf.grad for leaf in leaves)])
    assert results[0][0].dtype is torch.bfloat16
    for a, e in zip(*results, strict=True):
        assert not unlike("autocast", a, e, 1.6e-2)


def check_traced_scripted_and_exported_models_hold_native_convolutions() -> None:
    model, x = everything().eval(), torch.randn(2, 4, 9, 10)
    expected = model(x)
    with everywhere():
        traced, scripted = torch.jit.trace(model, x), torch.jit.script(model.plane)
        assert not library_kernels(lambda: scripted(x))
    assert str(traced.inlined_graph).count("aten::_convolution") == 8
    assert str(traced.inlined_graph).count("aten::batch_norm") == 3
    assert not unlike("y", traced(x), expected)
    assert not unlike("y", scripted(x), model.plane(x))


def check_onnx_export_keeps_conv_and_batch_normalization_nodes() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 3)).eval()
    if not torch.__version__.startswith("1."):
        try:
            import onnx  # noqa: F401, PLC0415 - newer exporters need it
        except ImportError:
            raise Skip("this torch exports ONNX only where the package onnx is installed") from None
    file, options = io.BytesIO(), {} if torch.__version__.startswith("1.") else {"dynamo": False}
    with everywhere():
        # Not folded: a BatchNorm behind a convolution would become part of it.
        training = torch.onnx.TrainingMode.PRESERVE
        torch.onnx.export(model, torch.randn(2, 4, 8, 8), file, training=training, do_constant_folding=False, **options)
    names = file.getvalue()
    for name in (b"\x22\x04Conv", b"\x22\x12BatchNormalization", b"\x22\x0dConvTranspose"):
        assert names.count(name) == 1, name
    assert b"MatMul" not in names


def check_compiled_models_hold_convolutions_and_run_ours() -> None:
    if not hasattr(torch, "compile"):
        raise Skip(f"torch {torch.__version__} has no torch.compile")
    x = torch.randn(2, 4, 9, 10)
    expected = everything()
    expected(x).backward()
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        model = everything()
        with everywhere():
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            compiled(x)  # compiled outside the profile, whose tracing also runs meta kernels
            model.zero_grad()
            assert not library_kernels(lambda: compiled(x).backward()), backend  # noqa: B023 - called at once
        for (name, a), e in zip(model.named_parameters(), expected.parameters(), strict=True):
            assert not unlike(name, a.grad, e.grad, 1e-4), (backend, name)
    torch._dynamo.reset()


def check_transforms_and_tensors_without_data_pass_through() -> None:
    for function, operands, options in small_cases():
        x, weight, bias = (tensor.detach() for tensor in operands)
        with everywhere():
            meta = function(*(tensor.to("meta") for tensor in (x, weight, bias)), **options)
            assert meta.is_meta
            assert meta.shape == function(x, weight, bias, **options).shape
        if not hasattr(torch, "func"):
            continue
        call = functools.partial(function, bias=bias, **options)
        stacked = torch.stack([weight, 2 * weight])
        results = []
        for context in (everywhere(), nullcontext()):
            with context:
                results.append(
                    [
                        torch.func.vmap(call, (None, 0))(x, stacked),
                        torch.func.jvp(call, (x, weight), (x, weight))[1],
                        torch.func.grad(lambda w: call(x, w).square().sum())(weight),  # noqa: B023 - called at once
                        torch.func.vmap(torch.func.grad(lambda w: call(x, w).square().sum()))(stacked),  # noqa: B023
                    ]
                )
        for a, e in zip(*results, strict=True):
            assert not unlike(function.__name__, a, e, 1e-12)


def check_channels_last_models_keep_their_memory_format() -> None:
    for channels in (1, 4):
        model = nn.Sequential(nn.Conv2d(channels, 6, 3, padding=1), nn.Conv2d(6, 6, 1)).to(
            memory_format=torch.channels_last
        )
        x = torch.randn(2, channels, 8, 9).contiguous(memory_format=torch.channels_last)
        expected = model(x)
        with everywhere():
            y = model(x)
        assert y.stride() == expected.stride()
        assert not unlike("y", y, expected)


def check_checkpointed_segments_expanded_gradients_and_strided_inputs_give_natives_gradients() -> None:
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 - here only

    wide = torch.randn(2, 4, 18, 20)
    for reentrant in (False, True):
        results = []
        for context in (everywhere(), nullcontext()):
            model, x = everything().plane.double(), wide.double()[:, :, ::2, ::2].requires_grad_()
            with context:
                checkpoint(model, x, use_reentrant=reentrant).sum().backward()
            results.append([x.grad, *(parameter.grad for parameter in model.parameters())])
        for which, (a, e) in enumerate(zip(*results, strict=True)):
            assert float((a - e).norm()) <= 1e-11, which


def check_patched_models_of_every_layer_pickle_copy_and_load_where_the_package_is_not() -> None:
    x = torch.randn(2, 4, 9, 10)
    model = everything().plane.eval()
    with everywhere(), tempfile.TemporaryDirectory() as folder:
        y = model(x).detach()
        dumped = pickle.dumps(model)
        assert b"rocm_agent" not in dumped
        for again in (pickle.loads(dumped), copy.deepcopy(model)):
            assert torch.equal(again(x), y)
        torch.save((model, x, y), Path(folder) / "model.pt")
        load_elsewhere(Path(folder) / "model.pt")


def check_unpatch_leaves_no_trace_and_scopes_take_turns() -> None:
    x, weight, line = torch.randn(2, 4, 9, 8), torch.randn(4, 4, 3, 3), torch.randn(3, 9, 2)
    module, native = nn.Conv2d(4, 4, 3), nn.Conv2d.__dict__["_conv_forward"]

    def both() -> set[str]:
        return library_kernels(lambda: (F.conv2d(x, weight), F.conv1d(x[0], line)))

    def modules() -> set[str]:
        return library_kernels(lambda: module(x))

    names, before = set(vars(F)) | set(vars(nn.Conv2d)), both()
    assert before
    for _ in range(2):
        patch("planned", "all")
        assert nn.Conv2d.__dict__["_conv_forward"] is native
        assert is_patched()
        assert not both() | modules()
        patch("unfold", "modules")
        assert both() == before
        assert not modules()
        patch("unfold", "all")
        assert not both() | modules()
        unpatch()
        unpatch()
        assert not is_patched()
        assert both() == before
        assert modules()
    assert set(vars(F)) | set(vars(nn.Conv2d)) == names
    assert nn.Conv2d.__dict__["_conv_forward"] is native
    try:
        torch.miopen_batch_norm(x, *[torch.ones(4)] * 4, True, 0.1, 1e-5)
    except (RuntimeError, NotImplementedError):
        pass
    else:
        raise AssertionError("the library's BatchNorm still has our kernel")


def check_an_unknown_scope_changes_nothing() -> None:
    for wrong in ("everything", "", None):
        try:
            patch("planned", wrong)
        except ValueError as error:
            assert "modules, all" in str(error)  # noqa: PT017 - no pytest in here
        else:
            raise AssertionError(wrong)
        assert not is_patched()


def check_patching_everywhere_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with everywhere():
            pass


RANK = """
import os, sys, torch
from contextlib import nullcontext
from patching import patched
from checks_everywhere import everything
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", f"file://{sys.argv[2]}", rank=rank, world_size=2)
gradients = []
for scope in (None, "modules", "all"):
    model = torch.nn.parallel.DistributedDataParallel(everything())
    x = torch.randn(2, 4, 9, 10, generator=torch.Generator().manual_seed(rank))
    with patched("planned", scope) if scope else nullcontext():
        model(x).backward()
    gradients.append([parameter.grad for parameter in model.parameters()])
for native, *others in zip(*gradients):
    for other in others:
        assert (other - native).norm() <= 1e-4 * native.norm() + 1e-5, (rank, other, native)
print("alike", len(gradients[0]))
torch.distributed.destroy_process_group()
"""


def check_two_ranks_under_ddp_get_natives_gradients() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(Path(folder) / "meeting")],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            said = [process.communicate(timeout=120)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        assert all("alike" in text for text in said), said
