"""Knobs that are one switch of torch: its threads, cuDNN's benchmark, TF32."""

from __future__ import annotations

import warnings
from typing import Any, Optional

from . import list_params, proofs, refuse, replay, reverted_on_error


class Switch:
    """A value of torch that is read and written at any time."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before: Any = None
        self._applied = False

    def why_not(self) -> Optional[str]:
        """Return None: a switch can be set."""
        return None

    def apply(self, value: Any) -> None:
        """Set it, keeping the owner's value."""
        if not self._applied:
            self._before, self._applied = self.read(), True
        self.write(value)

    def revert(self) -> None:
        """Put the owner's value back."""
        if self._applied:
            self.write(self._before)
            self._applied = False

    def read(self) -> Any:
        """Return the present value."""
        raise NotImplementedError

    def write(self, value: Any) -> None:
        """Set the value."""
        raise NotImplementedError


class Threads(Switch):
    """Threads of the processor within one operation."""

    def read(self) -> Any:
        """Return how many there are."""
        return self._torch.get_num_threads()

    def write(self, value: Any) -> None:
        """Set how many there are."""
        self._torch.set_num_threads(int(value))


class CudnnBenchmark(Switch):
    """Whether cuDNN and MIOpen look for the fastest convolution of each new shape."""

    def read(self) -> Any:
        """Return whether they do."""
        return self._torch.backends.cudnn.benchmark

    def write(self, value: Any) -> None:
        """Set whether they do."""
        self._torch.backends.cudnn.benchmark = bool(value)


class Tf32(Switch):
    """TF32 in matrix products and convolutions, through the one API that this torch prefers."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls) -> None:
        super().__init__(torch)
        self._optimizer, self._calls = optimizer, calls

    def apply(self, value: Any) -> None:
        """Set it, if results and gradients of the model's own batches are what its rounding explains."""
        if self._applied:
            super().apply(value)
            return
        refuse(self._calls.why_not())
        proof = proofs.Proof(self._torch, self._calls, list_params(self._optimizer), replay.TF32)
        with reverted_on_error(self.revert):
            super().apply(value)
            proof.compare()

    @property
    def on(self) -> bool:
        """Whether both have it already."""
        newer, older = self.read()
        return all(value in {True, "tf32"} for value in newer or older or (False,))

    def read(self) -> Any:
        """Return the values of both: by the newer API where there is one, and by the older one where that answers."""
        matmul, conv = self._torch.backends.cuda.matmul, self._torch.backends.cudnn
        try:
            newer = (matmul.fp32_precision, conv.conv.fp32_precision)
        except (AttributeError, AssertionError):  # an assertion: torch 1.13 to 2.8
            newer = None
        try:
            return (newer, (matmul.allow_tf32, conv.allow_tf32))
        except RuntimeError:  # the script has set by the newer API what the older one has no words for
            return (newer, None)

    def write(self, value: Any) -> None:
        """Set both; True and False stand for TF32 and full precision, else what `read` has returned.

        By the older API where it answers: it sets the newer one as well, and a script that reads either gets an answer.
        """
        torch = self._torch
        matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn
        if not isinstance(value, tuple):
            newer, older = self.read()
            value = (None, (value, value)) if older is not None else (("tf32",) * 2 if value else ("ieee",) * 2, None)
        newer, older = value
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the older API is deprecated is no news to the training
            if older is not None:
                matmul.allow_tf32, conv.allow_tf32 = older
            if newer is not None:
                matmul.fp32_precision, conv.conv.fp32_precision = newer
