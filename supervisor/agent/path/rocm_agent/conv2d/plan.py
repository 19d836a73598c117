"""The functions that compute one convolution's passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from . import pointwise
from .candidates import BOTH, FORWARD, INPUT, WEIGHT

if TYPE_CHECKING:
    import torch

    from .case import Case
    from .geometry import Geometry


class Plan:
    """The functions for one convolution; `both`, where there is one, makes the two gradients together.

    forward(x, weight, bias, shape), input_gradient(dy, weight, (H, W), shape), weight_gradient(dy, x, shape),
    both(dy, x, weight, shape). Of halves the weight's gradient is float32, to be rounded once by whoever asks. Until
    its first use a pass is what chooses; then what was chosen takes its place.
    """

    __slots__ = ("both", "case", "forward", "input_gradient", "weight_gradient")

    def __init__(
        self,
        forward: Callable[..., torch.Tensor],
        input_gradient: Callable[..., torch.Tensor],
        weight_gradient: Callable[..., torch.Tensor],
        both: Optional[Callable[..., Tuple[torch.Tensor, torch.Tensor]]] = None,
        case: Optional[Case] = None,
    ) -> None:
        self.case = case
        self.forward = forward
        self.input_gradient = input_gradient
        self.weight_gradient = weight_gradient
        self.both = both

    def give(self, kind: str, run: Callable[..., Any]) -> None:
        """Have `run` compute the pass from now on."""
        setattr(self, {FORWARD: "forward", INPUT: "input_gradient", WEIGHT: "weight_gradient", BOTH: "both"}[kind], run)

    def join(self, shape: Geometry) -> None:
        """Have both gradients made together where that is the same two products, with less to ask for."""
        apart = (self.input_gradient, self.weight_gradient)
        if apart == (pointwise.input_gradient, pointwise.weight_gradient) and shape.stride == (1, 1):
            self.both = pointwise.both_gradients
