"""The fused optimizer, switched in a living training: proven on its own step before one step is made with it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from . import Refused, list_params, refuse, replay

FUSED_ON_CPU = (2, 4)
TOLERANCE = 1e-3
"""Of an update, beyond what rounding of the weights explains."""


class FusedOptimizer:
    """`fused=True` in every group of the optimizer that steps."""

    def __init__(self, torch: Any, optimizer: Any, calls: replay.Calls) -> None:
        self._torch, self._optimizer, self._calls = torch, optimizer, calls
        self._before: Optional[List[Dict[str, Any]]] = None
        self._saving: Any = None

    def why_not(self) -> Optional[str]:
        """Return why this optimizer has no fused form here."""
        torch, optimizer = self._torch, self._optimizer
        kind = type(optimizer)
        if kind not in {torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD}:
            return "%s has no fused form" % kind.__name__
        if any("fused" not in group for group in optimizer.param_groups):
            return "torch %s has no fused %s" % (torch.__version__, kind.__name__)
        if any(group.get("differentiable") or group.get("capturable") for group in optimizer.param_groups):
            return "the optimizer is differentiable or captured in a graph"
        if any(not isinstance(group["lr"], float) for group in optimizer.param_groups):
            return "its learning rate is a tensor"
        params = list_params(optimizer)
        devices = {param.device.type for param in params}
        if not devices <= ({"cuda", "cpu"} if _version(torch) >= FUSED_ON_CPU else {"cuda"}):
            return "torch %s has no fused form on %s" % (torch.__version__, ", ".join(sorted(devices)))
        if not all(param.is_floating_point() for param in params):
            return "not all its weights are real numbers"
        if not hasattr(optimizer, "register_state_dict_post_hook"):
            return "torch %s would save the switch with its state" % torch.__version__
        if all(param.grad is None for param in params):
            return "its gradients are gone at the end of a step: a fused one cannot be proven on them"
        return None

    @property
    def on(self) -> bool:
        """Whether every group is fused."""
        return all(group.get("fused") for group in self._optimizer.param_groups)

    def apply(self, value: Any) -> None:
        """Switch it on, if a step made with it moves the weights as the owner's step does."""
        if self._before is not None or self.on:
            return
        refuse(self.why_not())
        try:
            if not self._calls.trusted:
                self._prove()
        except RuntimeError as error:
            raise Refused("a fused step fails: %s" % error) from None
        self._switch_on()
        self._saving = self._optimizer.register_state_dict_post_hook(self._as_owners)

    def _as_owners(self, _: Any, saved: Dict[str, Any]) -> Dict[str, Any]:
        """Return a saved state as the owner's form of the optimizer has it: who loads it is not tuned."""
        groups = [{**group, **before} for group, before in zip(saved["param_groups"], self._before or ())]
        return {**saved, "param_groups": groups, "state": {key: _on_host(row) for key, row in saved["state"].items()}}

    def revert(self) -> None:
        """Switch it off; where the count of steps is kept on a GPU it goes back to where it was."""
        if self._before is None:
            return
        for group, before in zip(self._optimizer.param_groups, self._before):
            group.update(before)
        self._move_steps(fused=False)
        self._before = None
        if self._saving is not None:
            self._saving.remove()
            self._saving = None

    def _switch_on(self) -> None:
        groups = self._optimizer.param_groups
        self._before = [{name: group[name] for name in ("fused", "foreach")} for group in groups]
        for group in groups:
            group.update(fused=True, foreach=False)
        self._move_steps(fused=True)

    def _move_steps(self, *, fused: bool) -> None:
        """Keep each count of steps where this form expects it: on the device of its weights, or on the processor."""
        for param, state in self._optimizer.state.items():
            made = state.get("step")
            if hasattr(made, "device"):
                state["step"] = made.to(param.device if fused else "cpu")

    def _prove(self) -> None:
        """Make the owner's step twice and a fused one from the same state and gradients, and put all back."""
        torch, optimizer = self._torch, self._optimizer
        step = getattr(type(optimizer).step, "_bare_step", None)
        params = [param for param in list_params(optimizer) if param.grad is not None]
        if step is None or not params:
            raise Refused("no gradients are there to try it on")
        kept = _keep(optimizer, params)
        try:
            with torch.no_grad():
                before = [param.detach().clone() for param in params]
                moved = [self._move(step, params, kept, before) for _ in range(2)]
                self._switch_on()
                try:
                    fused = self._move(step, params, kept, before)
                finally:
                    self.revert()
        finally:
            _put_back(optimizer, params, kept)
        for weight, first, second, arm in zip(before, moved[0], moved[1], fused):
            _compare(weight, first, second, arm)

    def _move(self, step: Any, params: List[Any], kept: Any, before: List[Any]) -> List[Any]:
        _put_back(self._optimizer, params, kept)
        if self._before is not None:
            self._move_steps(fused=True)
        step(self._optimizer)
        return [param.detach() - old for param, old in zip(params, before)]


def _on_host(state: Any) -> Any:
    """Return the state of one weight with its count of steps on the processor, where there is one."""
    made = state.get("step") if isinstance(state, dict) else None
    return {**state, "step": made.cpu()} if hasattr(made, "cpu") else state


def _compare(weight: Any, first: Any, second: Any, arm: Any) -> None:
    """Raise Refused where an update differs by more than the owner's own two differ, and rounding explains."""
    size = float(first.norm())
    spread, differs = float((first - second).norm()), float((arm - first).norm())
    rounding = 4 * _epsilon(weight) * float(weight.norm())
    if not differs <= max(3 * spread, TOLERANCE * size + rounding):
        raise Refused(
            "its update of a weight of shape %s differs by %.2g of it" % (tuple(weight.shape), differs / size)
        )


def _epsilon(tensor: Any) -> float:
    return {"torch.float64": 2.2e-16, "torch.float32": 1.2e-7, "torch.float16": 9.8e-4}.get(str(tensor.dtype), 7.8e-3)


def _keep(optimizer: Any, params: List[Any]) -> Tuple[List[Any], List[Any], List[Any]]:
    """Return copies of the weights, the gradients and the optimizer's state."""
    states = [_copy_state(optimizer.state.get(param)) for param in params]
    return [param.detach().clone() for param in params], [param.grad.detach().clone() for param in params], states


def _put_back(optimizer: Any, params: List[Any], kept: Tuple[List[Any], List[Any], List[Any]]) -> None:
    """Put the copies back into the very tensors that the training holds."""
    for param, weight, grad, state in zip(params, *kept):
        param.data.copy_(weight)
        param.grad.data.copy_(grad)
        if state is None:
            optimizer.state.pop(param, None)
            continue
        held = optimizer.state[param]
        for name in [name for name in held if name not in state]:
            del held[name]
        for name, value in state.items():
            if hasattr(value, "copy_") and getattr(held.get(name), "device", None) == value.device:
                held[name].copy_(value)
            else:
                held[name] = value.clone() if hasattr(value, "clone") else value


def _copy_state(state: Any) -> Any:
    if state is None:
        return None
    return {name: value.detach().clone() if hasattr(value, "clone") else value for name, value in state.items()}


def _version(torch: Any) -> Tuple[int, int]:
    major, minor = str(torch.__version__).split(".")[:2]
    return (int(major), int(minor))
