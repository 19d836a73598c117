"""Replaces a layer's pass that raised by im2col, else by native, and reports it once. Errors of the caller are raised.

A pass takes its trial before it is used, but a library may refuse it later, for another size, in another thread or with
less memory. Whatever replaced it has to succeed first: where that raises too, the first error is the caller's to see.
After LAYERS layers the families are left alone and im2col, or native, computes every layer of the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, List, Set, Tuple

from rocm_agent import events

from .candidates import BOTH, FORWARD, INPUT, WEIGHT
from .warn_once import warn_once

if TYPE_CHECKING:
    import torch

    from .geometry import Geometry
    from .plan import Plan

FAILURES = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    NameError,
)
"""What a fault of an algorithm, or of what it calls, raises; a caller's timers and checkpoints raise other classes."""
LAYERS = 3

given_back: Set[str] = set()
"""Layers, as a case names them, that im2col computes."""
when_all_given_back: List[Callable[[], None]] = []
"""Called when im2col is to compute every layer: plans that were made before no longer hold."""
native_layers: Set[Any] = set()
"""Layers, as the patch names them, that native computes."""


def forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: Geometry, chosen: Plan
) -> torch.Tensor:
    """Return the plan's forward pass."""
    try:
        return chosen.forward(x, weight, bias, shape)
    except FAILURES as error:
        return _compute_instead(error, chosen, FORWARD, x, weight, bias, shape)


def input_gradient(
    dy: torch.Tensor, weight: torch.Tensor, size: Tuple[int, ...], shape: Geometry, chosen: Plan
) -> torch.Tensor:
    """Return the plan's gradient of the input."""
    try:
        return chosen.input_gradient(dy, weight, size, shape)
    except FAILURES as error:
        return _compute_instead(error, chosen, INPUT, dy, weight, size, shape)


def weight_gradient(dy: torch.Tensor, x: torch.Tensor, shape: Geometry, chosen: Plan) -> torch.Tensor:
    """Return the plan's gradient of the weight, rounded to the operands' dtype."""
    try:
        made = chosen.weight_gradient(dy, x, shape)
    except FAILURES as error:
        made = _compute_instead(error, chosen, WEIGHT, dy, x, shape)
    return made if made.dtype is dy.dtype else made.to(dy.dtype)


def both_gradients(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, shape: Geometry, chosen: Plan
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the plan's gradients of input and weight, rounded to the operands' dtype."""
    try:
        if chosen.both is not None:
            dx, dw = chosen.both(dy, x, weight, shape)
        else:
            dx, dw = chosen.input_gradient(dy, weight, x.shape[2:], shape), chosen.weight_gradient(dy, x, shape)
    except FAILURES as error:
        dx, dw = _compute_instead(error, chosen, BOTH, dy, x, weight, shape)
    return dx, dw if dw.dtype is dy.dtype else dw.to(dy.dtype)


def is_given_back(layer: str) -> bool:
    """Whether im2col is to compute the layer, or every layer."""
    return layer in given_back or len(given_back) >= LAYERS


def natively(error: Exception, layer: Any, run: Callable[[], torch.Tensor], sizes: str) -> torch.Tensor:
    """Return what native makes of a call that raised `error`, and let it have the layer; raise `error` if it cannot."""
    if _is_memory(error):
        raise error
    try:
        made = run()
    except Exception:
        raise error from None
    native_layers.add(layer)
    _report_failure(str(layer), "forward", sizes, error, "native", len(native_layers))
    return made


def is_native(layer: Any) -> bool:
    """Whether native is to compute the layer, or every layer."""
    return layer in native_layers or len(native_layers) >= LAYERS


def forget() -> None:
    """Take no layer as given back any more."""
    given_back.clear()
    native_layers.clear()


def _compute_instead(error: Exception, chosen: Plan, kind: str, *operands: Any) -> Any:
    """Return what im2col makes of the pass that raised `error`; raise `error` where it cannot either."""
    case = chosen.case
    if case is None or _is_memory(error):
        raise error
    try:
        made = case.reference(kind)(*operands)
    except Exception:
        raise error from None
    for each in (FORWARD, INPUT, WEIGHT):
        chosen.give(each, case.reference(each))
    chosen.both = chosen.case = None
    given_back.add(case.layer)
    if len(given_back) == LAYERS:
        for forget_plans in when_all_given_back:
            forget_plans()
    _report_failure(case.layer, kind, case.exact.rpartition(" of ")[2], error, "unfold", len(given_back))
    return made


def _report_failure(  # noqa: PLR0913, PLR0917 - what is reported
    layer: str, kind: str, sizes: str, error: Exception, instead: str, layers: int
) -> None:
    why = f"{type(error).__name__}: {str(error)[:300]}"
    warn_once(f"the {kind} pass of {layer}, input {sizes}, raised {why}; {instead} computes this layer from now on")
    if layers == LAYERS:
        warn_once(f"{layers} layers raised; {instead} computes every layer from now on")
    events.write(
        "conv2d_failed", layer=layer, kind=kind, sizes=sizes, error=why, instead=instead, everywhere=layers >= LAYERS
    )


def _is_memory(error: Exception) -> bool:
    """Whether there was too little memory, of which another way says nothing."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in ("out of memory", "ALLOC_FAILED"))
