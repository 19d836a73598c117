"""Tracing, scripting, exporting, compiling and transforming a patched model."""

from __future__ import annotations

import io
from typing import Any

import torch
from checking import Skip
from comparing import unlike
from patching import kernels, patched, small
from torch import nn


def check_traced_and_scripted_models_hold_native_convolutions() -> None:
    model, x = small(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    with patched():
        traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
    assert str(traced.inlined_graph).count("aten::_convolution") == 3
    assert "conv2d" in str(scripted.inlined_graph)
    other = torch.randn(1, 3, 12, 10)
    for module in (traced, scripted):
        assert not unlike("y", module(x), expected)
        assert not unlike("another size", module(other), model(other))


def check_onnx_export_keeps_conv_nodes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=4)).eval()
    x, file = torch.randn(2, 3, 8, 8), io.BytesIO()
    if not torch.__version__.startswith("1."):
        try:
            import onnx  # noqa: F401, PLC0415 - newer exporters need it
        except ImportError:
            raise Skip("this torch exports ONNX only where the package onnx is installed") from None
    options = {} if torch.__version__.startswith("1.") else {"dynamo": False}
    with patched():
        torch.onnx.export(model, x, file, **options)
    names = file.getvalue()
    assert names.count(b"\x22\x04Conv") == 2, "field 4 (op_type) of a node, with the value Conv"
    assert b"MatMul" not in names


def check_torch_export_keeps_convolutions() -> None:
    if not hasattr(getattr(torch, "compiler", None), "is_exporting"):
        raise Skip(f"torch {torch.__version__} has no torch.compiler.is_exporting")
    with patched():
        program = torch.export.export(small(), (torch.randn(2, 3, 8, 8),))
    assert sum("conv2d" in str(node.target) for node in program.graph.nodes) == 3


def check_compiled_models_use_it_without_a_graph_break() -> None:
    if not hasattr(torch, "compile"):
        raise Skip(f"torch {torch.__version__} has no torch.compile")
    model, x = small(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    with patched():
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)
            assert not unlike("y", compiled(x), expected)
            assert not any("conv" in name for name in kernels(compiled, x))
    torch._dynamo.reset()


def check_vmap_and_forward_mode_gradients_pass_through() -> None:
    if not hasattr(torch, "func"):
        raise Skip(f"torch {torch.__version__} has no torch.func")
    model, x = small(), torch.randn(2, 3, 8, 8)
    weights = {name: torch.stack([value, 2 * value]) for name, value in model.state_dict().items()}

    def call(parameters: Any) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,))

    parameters = model.state_dict()
    expected = torch.func.vmap(call)(weights), torch.func.jvp(call, (parameters,), (parameters,))[1]
    with patched():
        got = torch.func.vmap(call)(weights), torch.func.jvp(call, (parameters,), (parameters,))[1]
    for name, a, e in zip(("vmap", "jvp"), got, expected, strict=True):
        assert not unlike(name, a, e)
