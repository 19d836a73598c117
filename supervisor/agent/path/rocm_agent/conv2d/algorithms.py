"""The convolution algorithms by name.

Each is `algorithm(x, weight, bias, shape)`: `x` is (N, C, H, W) in any memory layout, `weight` (O, C / groups, kh, kw),
`bias` (O,) or None, all of one dtype and already checked against the Geometry `shape`. Gradients of any order come with
each: two are made of operators that autograd differentiates by itself, `planned` brings its own first derivative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict

from .planned import planned
from .unfold import unfold
from .unfold_reference import unfold_reference

if TYPE_CHECKING:
    from torch import Tensor

ALGORITHMS: Dict[str, Callable[..., Tensor]] = {
    "planned": planned,
    "unfold": unfold,
    "unfold_reference": unfold_reference,
}


def algorithm_named(name: str) -> Callable[..., Tensor]:
    """Return the algorithm called `name`; raise ValueError, naming those that exist, where there is none."""
    try:
        return ALGORITHMS[name]
    except (KeyError, TypeError):
        raise ValueError(f"conv2d algorithm {name!r} does not exist; choose one of {', '.join(ALGORITHMS)}") from None
