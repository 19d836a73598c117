"""Leaves cuDNN out of depthwise convolutions of a probe where it compiles kernels for them, or takes long to begin.

For one in half precision with its channels last it compiles kernels for each new shape, a sixth of a second each, and
more than a second for the first; those of a ConvNeXt took 3 s at every micro-batch. PyTorch's own kernels take the same
tensors. All other convolutions have cuDNN at any time: what workspaces it takes for them is part of what is measured.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Callable

from rocm_agent.fence import fenced

LONG_S = 0.1
"""A call that takes so long prepares something: to launch a convolution takes some microseconds."""
LIMIT_S = 0.3
"""Of such calls in one probe, beyond which cuDNN is left out of the rest of it and of those that follow."""
ITS_BACKWARD = "ConvolutionBackward"


class Convolutions:
    """The convolutions of a training on a GPU, as modules are called."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
        self._may_skip = False
        self._calls = 0
        self._prepared_s = 0.0
        self.is_skipped = False
        """Whether cuDNN is left out of depthwise convolutions."""

    def begin(self, *, may_skip: bool, is_skipped: bool = False) -> None:
        """Begin with a probe; `is_skipped`: whether earlier ones have shown that cuDNN is to be left out."""
        torch = self._torch
        self._may_skip = may_skip and torch.cuda.is_available() and getattr(torch.version, "hip", None) is None
        self._calls, self._prepared_s = 0, 0.0
        self.is_skipped = self._may_skip and (self.is_skipped or is_skipped)

    def follows(self, called: Any) -> bool:
        """Whether a module's call is a convolution's that is to be followed; not while a compiler traces it."""
        if not self._may_skip or self._is_compiling():
            return False
        # Where the quickest kernels are looked for, workspaces are what memory differs by.
        cudnn = self._torch.backends.cudnn
        return isinstance(called, self._torch.nn.modules.conv._ConvNd) and cudnn.enabled and not cudnn.benchmark

    def call(self, called: Any, given: Any, run: Callable[[], Any]) -> Any:
        """Return what the call of a convolution with a tensor gives, without cuDNN where that is left out of it."""
        if not self._is_depthwise(called):
            self._calls += 1
            return run()
        self.is_skipped = self.is_skipped or bool(fenced(self._is_compiled)(given))
        cudnn = self._torch.backends.cudnn
        began_s = perf_counter()
        cudnn.enabled = not self.is_skipped
        try:
            result = run()
        finally:
            cudnn.enabled = True
        self._note_call(perf_counter() - began_s)
        fenced(self._follow_backward)(result)
        return result

    def _is_depthwise(self, called: Any) -> bool:
        is_plane = isinstance(called, self._torch.nn.Conv2d)
        return is_plane and called.groups > 1 and called.groups == called.in_channels

    def _is_compiled(self, given: Any) -> bool:
        """Whether cuDNN compiles kernels for a depthwise convolution of a tensor: in half precision, channels last."""
        torch = self._torch
        is_half = given.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled()
        is_last = given.is_contiguous(memory_format=torch.channels_last) and not given.is_contiguous()
        return bool(is_half and is_last)

    def _note_call(self, call_s: float) -> None:
        """A depthwise convolution was asked for; the first call of all loads cuDNN itself."""
        self._calls += 1
        if self._calls > 1 and call_s >= LONG_S:
            self._prepared_s += call_s
        self.is_skipped = self.is_skipped or self._prepared_s >= LIMIT_S

    def _follow_backward(self, result: Any) -> None:
        """Have the backward pass of this call alone go without cuDNN, if that is left out by then."""
        node = result.grad_fn
        if not type(node).__name__.startswith(ITS_BACKWARD):
            return
        cudnn = self._torch.backends.cudnn

        def begin(_: Any) -> None:
            cudnn.enabled = not self.is_skipped

        def end(*_: Any) -> None:
            cudnn.enabled = True

        result.register_hook(begin)
        node.register_hook(end)
