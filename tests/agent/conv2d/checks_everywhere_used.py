"""Models with everything replaced, as people use them: recorded, compiled, transformed, saved, on two ranks."""

from __future__ import annotations

import copy
import functools
import io
import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from checking import Skip
from checks_saved import load_elsewhere
from comparing import unlike
from everything import everything, everywhere, small_cases
from profiling import library_kernels
from rocm_agent.memory import lean_torch
from torch import nn


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


RANK = """
import os, sys, torch
from contextlib import nullcontext
from patching import patched
from everything import everything
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
        environment["TESTS_LEAN_TORCH"] = lean_torch.__file__  # they compile nothing
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
            output = [process.communicate(timeout=120)[0] for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        assert all("alike" in text for text in output), output
