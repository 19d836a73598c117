"""bfloat16 autocast around the calls of a training's models that have none: weights, loss and optimizer stay single.

The class of each model gets a `__call__` of its own, which state dicts, copies and pickles of the model do not see, and
loses it again. Calls in evaluation stay as they are; results go back to single precision.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

from . import Refused, list_params, proofs, refuse, replay, reverted_on_error


class Autocast:
    """bfloat16 in the forward pass of every model that the training calls."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls) -> None:
        self._torch, self._optimizer, self._calls = torch, optimizer, calls
        self._kinds: List[Any] = []

    def why_not(self) -> Optional[str]:
        """Return why it cannot be used here."""
        params = list_params(self._optimizer)
        if any(param.dtype != self._torch.float32 for param in params):
            return "its weights are not all in single precision"
        kinds = {param.device.type for param in params}
        if len(kinds) != 1 or not kinds <= {"cuda", "cpu"}:
            return "its weights lie on %s" % (", ".join(sorted(kinds)) or "no device")
        if kinds == {"cuda"} and not self._torch.cuda.is_bf16_supported():
            return "the GPU computes no bfloat16"
        return None

    @property
    def on(self) -> bool:
        """Whether the training computes under autocast by itself."""
        return self._calls.casting and not self._kinds

    def apply(self, value: Any) -> None:
        """Compute under autocast, if results and gradients of its own batches are what rounding explains."""
        if self._kinds:
            return
        refuse(self.why_not() or self._calls.why_not())
        if str(value) != "bfloat16":
            raise Refused("%s is no precision that is known" % value)
        if self._calls.casting:
            raise Refused("the training computes under autocast by itself")
        params = list_params(self._optimizer)
        proof = proofs.Proof(self._torch, self._calls, params, replay.BFLOAT16)
        for kind in {type(model) for model in self._calls.models()}:
            if "__call__" in vars(kind):
                raise Refused("%s is called in a way of its own" % kind.__name__)
        with reverted_on_error(self.revert):
            for kind in {type(model) for model in self._calls.models()}:
                kind.__call__ = _wrap(self._torch, params[0].device.type)
                self._kinds.append(kind)
            proof.compare()

    def revert(self) -> None:
        """Have every model called as its script has it."""
        for kind in self._kinds:
            if "__call__" in vars(kind):
                del kind.__call__
        self._kinds = []


def _wrap(torch: Any, device: str) -> Callable[..., Any]:
    bare = torch.nn.Module

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it takes that method's place
        if not self.training or torch.is_autocast_enabled():
            return bare.__call__(self, *args, **kwargs)
        with torch.autocast(device, dtype=torch.bfloat16):
            return _in_single(torch, bare.__call__(self, *args, **kwargs))

    return __call__


def _in_single(torch: Any, value: Any) -> Any:
    """Return a result with its tensors of half precision in single."""
    if hasattr(value, "dtype") and hasattr(value, "float"):
        return value.float() if value.dtype is torch.bfloat16 else value
    if isinstance(value, dict):
        held: Dict[Any, Any] = {name: _in_single(torch, item) for name, item in value.items()}
        return held if type(value) is dict else type(value)(**held)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_in_single(torch, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_in_single(torch, item) for item in value)
    return value
