"""Knobs of transformers' models: the attention that they compute by, and their checkpointing of activations.

Both are looked up at each forward pass, so a change holds from the next step on: attention in the model's
configuration, checkpointing in a flag of each layer.
"""

from __future__ import annotations

from typing import Any, List, Optional

from . import Refused, list_params, proofs, refuse, replay, reverted_on_error

CARD_SHARE = 0.85
"""Of a GPU's memory that may be in use once a replay without checkpointing is over: longer batches may come."""


class Attention:
    """`sdpa` in place of `eager`, in every part of a model."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls) -> None:
        self._torch, self._optimizer, self._calls = torch, optimizer, calls
        self._changed: List[Any] = []

    def why_not(self) -> Optional[str]:
        """Return why the attention cannot be changed here."""
        models = self._list_models()
        if not models:
            return "no model of transformers with eager attention was called"
        for model in models:
            kind = type(model).__name__
            if not hasattr(model, "set_attn_implementation"):
                return "this version of transformers changes no attention of a living model"
            if not getattr(model, "_supports_sdpa", False):
                return "%s has no sdpa" % kind
            if any(config._attn_implementation != "eager" for config in _list_configs(model)):
                return "parts of %s have another attention than eager" % kind
        return None

    @property
    def value(self) -> Optional[str]:
        """The attention of the first model of transformers that was called; None without any."""
        found = [model.config._attn_implementation for model in self._calls.models() if _has_attention(model)]
        return str(found[0]) if found else None

    def apply(self, value: Any) -> None:
        """Change it, if the model then gives the same results and gradients on its own batches."""
        if self._changed:
            return
        if value != "sdpa":
            raise Refused("%s is no attention that is tried" % value)
        refuse(self.why_not() or self._calls.why_not())
        proof = proofs.Proof(self._torch, self._calls, list_params(self._optimizer), self._calls.rounding)
        try:
            with reverted_on_error(self.revert):
                for model in self._list_models():
                    self._changed.append(model)
                    model.set_attn_implementation(value)
                    if any(config._attn_implementation != value for config in _list_configs(model)):
                        raise Refused("%s did not take it in all its parts" % type(model).__name__)
                proof.compare()
        except (ValueError, ImportError) as error:
            raise Refused(str(error).splitlines()[0][:200]) from None

    def revert(self) -> None:
        """Have every model compute by eager attention again."""
        for model in self._changed:
            model.set_attn_implementation("eager")
        self._changed = []

    def _list_models(self) -> List[Any]:
        return [model for model in self._calls.models() if _has_attention(model) and self.value == "eager"]


class Checkpointing:
    """Activations kept in place of computed twice, where a GPU's memory has room for them."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls) -> None:
        self._torch, self._optimizer, self._calls = torch, optimizer, calls
        self._changed: List[Any] = []

    def why_not(self) -> Optional[str]:
        """Return why it cannot be switched off."""
        if not any(param.is_cuda for param in list_params(self._optimizer)):
            return "what it saves is only weighed against the memory of a GPU"
        return None if self._list_layers() else "no layer of a model of transformers checkpoints"

    @property
    def on(self) -> bool:
        """Whether activations are computed twice."""
        return bool(self._list_layers())

    def apply(self, value: Any) -> None:
        """Switch it off, if results and gradients stay the same and memory has room for what is kept."""
        if self._changed:
            return
        if value is not False:
            raise Refused("it is only switched off: on it is slower")
        refuse(self._calls.why_not())
        proof = proofs.Proof(self._torch, self._calls, list_params(self._optimizer), self._calls.rounding)
        with reverted_on_error(self._revert_and_free):
            for layer in self._list_layers():
                self._changed.append(layer)
                layer.gradient_checkpointing = False
            proof.compare()
            self._check_room()

    def revert(self) -> None:
        """Have the same layers checkpoint again."""
        for layer in self._changed:
            layer.gradient_checkpointing = True
        self._changed = []

    def _revert_and_free(self) -> None:
        self.revert()
        if self._torch.cuda.is_initialized():
            self._torch.cuda.empty_cache()

    def _check_room(self) -> None:
        devices = {param.device for param in list_params(self._optimizer) if param.is_cuda}
        for device in devices:
            free, total = self._torch.cuda.mem_get_info(device)
            if total - free > CARD_SHARE * total:
                share = (total - free) / total
                raise Refused("%.0f %% of the GPU's memory is in use without it (limit %.0f %%)" % (100 * share, 85))

    def _list_layers(self) -> List[Any]:
        modules = [module for model in self._calls.models() for module in model.modules()]
        return [module for module in modules if getattr(module, "gradient_checkpointing", False) is True]


def _has_attention(model: Any) -> bool:
    return hasattr(getattr(model, "config", None), "_attn_implementation")


def _list_configs(model: Any) -> List[Any]:
    """Return the configuration of each part of a model that computes attention."""
    found = [module.config for module in model.modules() if _has_attention(module)]
    return list({id(config): config for config in found}.values())
