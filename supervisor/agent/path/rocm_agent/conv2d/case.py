"""One convolution of one size, as the planner sees it: its candidates and the names it is stored under.

A layer is what a training keeps while image sizes and batches change. Sizes are put into buckets, a power of two wide
in batch and in pixels of output: a training at many sizes is timed a few times a layer, and not for each size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

import torch

from .batch_parts import fitted, samples_within
from .candidates import BOTH, FORWARD, WEIGHT, Candidate, Candidates, candidates, reference
from .sizes import Sizes

if TYPE_CHECKING:
    from .geometry import Geometry
    from .limits import Limits


class Case:
    """A convolution's sizes, dtype and device under the limits."""

    def __init__(  # noqa: PLR0913, PLR0917 - what decides a plan
        self,
        x: Tuple[int, ...],
        weight: Tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        shape: Geometry,
        limits: Limits,
    ) -> None:
        self.x, self.weight, self.dtype, self.device, self.shape, self.limits = x, weight, dtype, device, shape, limits
        self._workspace = int(limits.workspace_mb * (1 << 20)) // torch.empty((), dtype=dtype).element_size()
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = shape.kernel, shape.stride, shape.padding, shape.dilation
        self.layer = (
            f"{str(dtype).rpartition('.')[2]} {x[1]}>{weight[0]}/{shape.groups} "
            f"k{kh}x{kw} s{sh}x{sw} p{ph}x{pw} d{dh}x{dw}"
        )
        self.bucket = (_round_log2(x[0]), _round_log2(shape.out[0] * shape.out[1]))
        self.exact = f"{self.layer} of {'x'.join(map(str, x))} in {limits.workspace_mb:g} MiB"
        self._found: Dict[str, Candidates] = {}

    @property
    def bucket_name(self) -> str:
        """Return the bucket as a store keeps it."""
        return f"{self.bucket[0]}x{self.bucket[1]}"

    def candidates(self, kind: str) -> Candidates:
        """Return what may compute the pass: allowed, and within the workspace a sample at a time.

        Where nothing keeps to the workspace, it is what needs least, for BOTH nothing.
        """
        if kind not in self._found:
            found = candidates(kind, self.x, self.weight, self.dtype, self.device, self.shape)
            if not self.limits.winograd:
                found = {name: item for name, item in found.items() if name != "winograd"}
            within = {name: item for name, item in found.items() if self._fits_workspace(kind, item)}
            if not within and kind != BOTH:
                least = min(found, key=lambda name: found[name].need.a_sample + found[name].need.fixed)
                within = {least: found[least]}
            self._found[kind] = within
        return self._found[kind]

    def function(self, kind: str, candidate: Candidate) -> Callable[..., Any]:
        """Return the candidate's function, over parts of the batch where the workspace asks for it."""
        return fitted(kind, candidate, self.x[0], self._result_elements(kind), self._workspace)

    def reference(self, kind: str) -> Callable[..., Any]:
        """Return im2col's function for the pass, within the workspace as far as one sample allows."""
        return self.function(kind, reference(kind, Sizes(self.x, self.weight, self.shape, self.dtype, self.device)))

    def _fits_workspace(self, kind: str, candidate: Candidate) -> bool:
        fits = candidate.need.fixed + self.x[0] * candidate.need.a_sample <= self._workspace
        return fits or samples_within(candidate, self._result_elements(kind), self._workspace) > 0

    def _result_elements(self, kind: str) -> int:
        """Return the elements of one sample's result that is made in parts."""
        if kind == FORWARD:
            return self.weight[0] * self.shape.out[0] * self.shape.out[1]
        return 0 if kind == WEIGHT else self.x[1] * self.x[2] * self.x[3]


def _round_log2(number: int) -> int:
    return round(math.log2(max(1, number)))
