"""channels_last in a living training: weights, their gradients and the optimizer's state together, or none of them.

Under a fused optimizer, weights whose state has other strides are updated silently wrong; so all of them are changed
at one step boundary. Activations follow the weights; before one step is made, the model is run on its own newest
batches in both layouts.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import list_params, proofs, refuse, replay, reverted_on_error


class ChannelsLast:
    """The memory format of every 4-D weight that the optimizer changes."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls) -> None:
        self._torch, self._optimizer, self._calls = torch, optimizer, calls
        self._changed: List[Any] = []
        self._saving: Any = None

    def why_not(self) -> Optional[str]:
        """Return why the layout cannot be changed here."""
        weights = self._weights()
        if not weights:
            return "no weight has four dimensions"
        if not hasattr(self._optimizer, "register_state_dict_post_hook"):
            return "torch %s would save the optimizer's state in it" % self._torch.__version__
        if not all(weight.is_contiguous() or _is_last(self._torch, weight) for weight in weights):
            return "weights lie in memory in an order of their own"
        return None

    @property
    def on(self) -> bool:
        """Whether every 4-D weight that could be either lies so already."""
        weights = [weight for weight in self._weights() if not _is_either(self._torch, weight)]
        return bool(weights) and all(_is_last(self._torch, weight) for weight in weights)

    def apply(self, value: Any) -> None:
        """Change the layout, if the model then gives the same results and gradients on its own batches."""
        if self._changed:
            return
        refuse(self.why_not() or self._calls.why_not())
        proof = proofs.Proof(self._torch, self._calls, list_params(self._optimizer), self._calls.rounding)
        with reverted_on_error(self.revert):
            self._change()
            proof.compare()
        self._saving = self._optimizer.register_state_dict_post_hook(self._as_owners)

    def _as_owners(self, _: Any, saved: Dict[str, Any]) -> Dict[str, Any]:
        """Return a saved state in the owner's layout: its strides would outlive the weights that had them."""
        numbers = {id(param): number for number, param in enumerate(list_params(self._optimizer))}
        changed = {numbers.get(id(weight)) for weight in self._changed}
        rows = {key: _contiguous(row) if key in changed else row for key, row in saved["state"].items()}
        return {**saved, "state": rows}

    def revert(self) -> None:
        """Put every tensor back into the order it had."""
        for weight in self._changed:
            self._convert(weight, self._torch.contiguous_format)
        self._changed = []
        if self._saving is not None:
            self._saving.remove()
            self._saving = None

    def _change(self) -> None:
        for weight in self._weights():
            if not _is_last(self._torch, weight):
                self._convert(weight, self._torch.channels_last)
                self._changed.append(weight)

    def _convert(self, weight: Any, order: Any) -> None:
        state: Dict[str, Any] = self._optimizer.state.get(weight) or {}
        with self._torch.no_grad():
            weight.data = weight.data.contiguous(memory_format=order)
            if weight.grad is not None:
                weight.grad = weight.grad.contiguous(memory_format=order)
            for name, value in state.items():
                if getattr(value, "dim", int)() == 4 and tuple(value.shape) == tuple(weight.shape):
                    state[name] = value.contiguous(memory_format=order)

    def _weights(self) -> List[Any]:
        return [param for param in list_params(self._optimizer) if param.dim() == 4]


def _contiguous(state: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value.contiguous() if getattr(value, "dim", int)() == 4 else value for name, value in state.items()}


def _is_last(torch: Any, weight: Any) -> bool:
    return bool(weight.is_contiguous(memory_format=torch.channels_last))


def _is_either(torch: Any, weight: Any) -> bool:
    return bool(weight.is_contiguous()) and _is_last(torch, weight)
