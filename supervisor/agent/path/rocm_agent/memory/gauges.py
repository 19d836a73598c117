"""Where the bytes of a training are read: from the GPU's allocator, or from an account of its tensors on the CPU."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Dict, Optional

from .trace import CountedTrace, Trace

OLDEST_FOR_ACCOUNT = (2, 1)
"""Before torch 2.1 a storage has no lasting object, so that its end cannot be seen."""


class GpuGauge:
    """The allocator of the GPU that the training uses."""

    kind = "cuda"

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._forward_bytes: Optional[int] = None
        self._backward_bytes: Optional[int] = None
        """The peaks of passes that have ended since `take_peak_bytes`; None: of none."""
        self._is_backward = False
        self.computes = True
        self.trace: Any = Trace(torch)
        """What is recorded of the allocator."""

    def follow_passes(self) -> None:
        """Have the peaks of forward and backward pass known apart: with few samples another one is higher."""
        self.trace.install()
        original = self._torch.autograd.backward

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_backward:  # of activations that are computed again within one
                return original(*args, **kwargs)
            self._forward_bytes = max(self._forward_bytes or 0, self._end_peak())
            self._is_backward = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_backward = False
                self._backward_bytes = max(self._backward_bytes or 0, self._end_peak())

        self._torch.autograd.backward = backward

    def _end_peak(self) -> int:
        """Return the most bytes allocated since the last such peak."""
        cuda = self._torch.cuda
        peak = int(cuda.max_memory_allocated())
        cuda.reset_peak_memory_stats()
        return peak

    def begin(self) -> None:
        """Nothing has to be switched on."""

    def loader_works(self, *, works: bool) -> None:
        """What a loader makes in this process lies in host memory."""

    def batch_drawn(self, batch: Any) -> None:
        """A batch lies in host memory until the training moves it, which the allocator counts."""

    def take_peak_bytes(self) -> int:
        """Return the most bytes allocated since the last call."""
        peak = max(self._end_peak(), self._forward_bytes or 0, self._backward_bytes or 0)
        self._forward_bytes = self._backward_bytes = None
        return peak

    def pass_peaks(self) -> Dict[str, Optional[int]]:
        """Return the most bytes allocated before and within backward passes, since `take_peak_bytes`."""
        return {"forward_bytes": self._forward_bytes, "backward_bytes": self._backward_bytes}

    def allocated_bytes(self) -> int:
        """Return the bytes allocated now."""
        return int(self._torch.cuda.memory_allocated())

    def synchronize(self) -> None:
        """Wait until the GPU has done what was asked of it."""
        self._torch.cuda.synchronize()

    def describe(self) -> Dict[str, Any]:
        """Return the GPU's facts; `other_bytes` is what is used outside of the allocator, by other programs too."""
        cuda = self._torch.cuda
        cuda.synchronize()
        free, total = cuda.mem_get_info()
        reserved = int(cuda.memory_reserved())
        return {
            "device": "cuda",
            "gpu": cuda.get_device_name(),
            "card_bytes": int(total),
            "reserved_bytes": reserved,
            "other_bytes": max(0, int(total) - int(free) - reserved),
        }


class CpuGauge:
    """An account of the tensors of a training on the CPU."""

    kind = "cpu"

    def __init__(self, *, counts: bool = True, needs_values: Callable[[str], None] = lambda _: None) -> None:
        self._counts = counts
        self._needs_values = needs_values
        self.computes = False
        """Whether all is computed; else large tensors have no values: `needs_values` is called where some are read."""
        self.trace: Any = CountedTrace()
        self._account: Optional[Any] = None
        self._shapes: Optional[Any] = None

    def follow_passes(self) -> None:
        """The account of tensors knows them apart."""

    def begin(self) -> None:
        """Count from now on: at the first batch the model is made, and data sets in memory are no GPU's business."""
        if self._account is not None or not self._counts:
            return
        from .account import Account  # noqa: PLC0415 - needs torch
        from .as_on_gpu import AsOnGpu  # noqa: PLC0415 - as above

        if not self.computes:
            from .shapes_only import ShapesOnly  # noqa: PLC0415 - as above

            self._shapes = ShapesOnly(self._needs_values)
        self._account = Account(self._shapes)
        self.trace.follow(self._account)
        self._account.add_modules()
        AsOnGpu(self._shapes).install()
        self._account.__enter__()

    def loader_works(self, *, works: bool) -> None:
        """What a loader makes in this process is no tensor of the GPU."""
        if self._account is not None:
            self._account.paused = works

    def batch_drawn(self, batch: Any) -> None:
        """A batch that the loader made counts as if it were moved to the GPU."""
        from .account import tensors_in  # noqa: PLC0415 - needs torch

        if self._account is not None:
            for tensor in tensors_in(batch):
                self._account.add(tensor)

    def take_peak_bytes(self) -> int:
        """Return the most bytes alive since the last call."""
        if self._account is None:
            return 0
        peak = int(self._account.peak_bytes)
        self._account.reset_peak()
        return peak

    def pass_peaks(self) -> Dict[str, Optional[int]]:
        """Return the most bytes alive within the backward pass and outside of it, since `take_peak_bytes`."""
        account = self._account
        if account is None:
            return {"forward_bytes": None, "backward_bytes": None}
        return {"forward_bytes": account.forward_peak_bytes, "backward_bytes": account.backward_peak_bytes}

    def allocated_bytes(self) -> int:
        """Return the bytes alive now."""
        return 0 if self._account is None else int(self._account.live_bytes)

    def synchronize(self) -> None:
        """The CPU has done it already."""

    def describe(self) -> Dict[str, Any]:
        """Return that no GPU was there."""
        return {
            "device": "cpu",
            "gpu": None,
            "card_bytes": None,
            "reserved_bytes": None,
            "other_bytes": None,
            "shapes_only": self._shapes is not None,
        }


def why_no_account(torch: Any) -> Optional[str]:
    """Return why this torch cannot be measured without a GPU; None where it can."""
    numbers = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    if numbers < OLDEST_FOR_ACCOUNT:
        return "torch %s cannot be measured without a GPU: it takes torch 2.1" % torch.__version__
    return None
