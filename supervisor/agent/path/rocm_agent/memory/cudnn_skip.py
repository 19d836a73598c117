"""Leaves cuDNN out of a probe once it prepares convolutions for seconds, where a later proof has it.

For a depthwise convolution in half precision cuDNN compiles kernels for each new shape, a sixth of a second each; those
of a ConvNeXt took 3 s at every micro-batch. PyTorch's own kernels take the same tensors: what a ConvNeXt had allocated
at its peak differed by 0.1 % at most, a ResNet-50 or an EfficientNet by 0.6 %, a DeepLab by 1.9 %.
"""

from __future__ import annotations

from typing import Any

LONG_S = 0.1
"""A call that takes so long prepares something: to launch a convolution takes some microseconds."""
LIMIT_S = 0.5
"""Of such calls in one probe, beyond which cuDNN is left out of the rest of it and of those that follow."""


class Convolutions:
    """The convolutions of a training on a GPU, as modules are called."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
        self._may_skip = False
        self._calls = 0
        self._prepared_s = 0.0
        self.is_skipped = False
        """Whether cuDNN is left out."""

    def begin(self, *, may_skip: bool) -> None:
        """Begin with a probe; one that may not skip it has cuDNN again."""
        torch = self._torch
        self._may_skip = may_skip and torch.cuda.is_available() and getattr(torch.version, "hip", None) is None
        self._calls, self._prepared_s = 0, 0.0
        if self.is_skipped and not self._may_skip:
            torch.backends.cudnn.enabled = True
            self.is_skipped = False

    def follows(self, called: Any) -> bool:
        """Whether the time of a module's call is to be known; not while a compiler traces it, which knows no clock."""
        if not self._may_skip or self.is_skipped or self._is_compiling():
            return False
        return isinstance(called, self._torch.nn.modules.conv._ConvNd)

    def note_call(self, call_s: float) -> None:
        """A convolution was asked for; the first call of all loads cuDNN itself."""
        cudnn = self._torch.backends.cudnn
        self._calls += 1
        if self._calls > 1 and call_s >= LONG_S:
            self._prepared_s += call_s
        # Where the quickest kernels are looked for, workspaces are what memory differs by.
        if self._prepared_s >= LIMIT_S and cudnn.enabled and not cudnn.benchmark:
            cudnn.enabled = False
            self.is_skipped = True
