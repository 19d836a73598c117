"""The changes that any PyTorch training can have: to its steps, autocast and loaders. None without a remedy.

The learning rate is changed within each step alone: whatever a schedule, a warm-up or a checkpoint sets it to, the
step sees the factor, and what is saved is the owner's.
"""

# ruff: noqa: N807 - the functions take the place of __init__ methods

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any, Callable, List, Optional

from . import loader, remedies
from .fence import fenced


def install(torch: Any) -> None:
    """Apply the requested changes."""
    if remedies.wanted("cudnn") is False:
        torch.backends.cudnn.enabled = False
        remedies.report_applied("cudnn", "torch.backends.cudnn.enabled = False")
    if remedies.wanted("amp") is False:
        _without_amp(torch)
    if any(remedies.wanted(name) is not None for name in ("workers", "workers_factor")):
        _with_fewer_workers(torch)
    if remedies.wanted("loader_batch_factor") is not None:
        _with_larger_batches(torch)
    if any(remedies.wanted(name) is not None for name in ("lr_factor", "clip_norm", "skip_non_finite")):
        remedies.lr_factor = float(remedies.wanted("lr_factor") or 1.0)
        _with_treated_steps(torch)


# --- the step -----------------------------------------------------------------------------------------------------


def _with_treated_steps(torch: Any) -> None:
    """Apply the changes to the steps of every optimizer created from now on."""
    base = torch.optim.Optimizer
    for name in ("__init__", "__setstate__"):
        _call_after(base, name, lambda optimizer: _treat_steps_of(torch, type(optimizer)))


def _call_after(kind: type, name: str, hook: Callable[[Any], Any]) -> None:
    original = getattr(kind, name)

    @wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        fenced(hook)(self)
        return result

    setattr(kind, name, method)


def _treat_steps_of(torch: Any, kind: Any) -> None:
    step, norm, skip = kind.step, remedies.wanted("clip_norm"), remedies.wanted("skip_non_finite")
    if hasattr(step, "_treated_by_rocm_agent"):
        return
    inside: List[Any] = []

    @wraps(step)
    def treated(self: Any, *args: Any, **kwargs: Any) -> Any:
        if inside:  # one optimizer that wraps another
            return step(self, *args, **kwargs)
        inside.append(self)
        try:
            if _treat_gradients(torch, self, norm, skip) and not args and not kwargs:
                return None
            return _with_lr(self, remedies.lr_factor, lambda: step(self, *args, **kwargs))
        finally:
            inside.clear()

    treated._treated_by_rocm_agent = True
    kind.step = treated


def _with_lr(optimizer: Any, factor: float, step: Callable[[], Any]) -> Any:
    if factor == 1.0:
        return step()
    before = [group["lr"] for group in optimizer.param_groups]
    for group, lr in zip(optimizer.param_groups, before):
        group["lr"] = lr * factor
    remedies.report_applied("lr_factor", "learning rate x %g" % factor)
    try:
        return step()
    finally:
        for group, lr in zip(optimizer.param_groups, before):
            group["lr"] = lr


@fenced
def _treat_gradients(torch: Any, optimizer: Any, limit: Optional[float], skip: Any) -> bool:
    """Clip the gradients; return whether the step is to be left out, for they are no numbers.

    Under a scaler that leaves unscaling to a fused optimizer the gradients are still scaled, and are not clipped.
    """
    if (limit is None and not skip) or getattr(optimizer, "grad_scale", None) is not None:
        return False
    grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    if not grads:
        return False
    with torch.no_grad():
        norm = torch.norm(torch.stack([torch.norm(grad.detach().float()).to(grads[0].device) for grad in grads]))
        finite = bool(torch.isfinite(norm))
        if not finite:
            if skip:
                remedies.report_applied("skip_non_finite", "a step was skipped: its gradients were not finite")
            return bool(skip)
        if limit is not None:
            remedies.report_applied("clip_norm", "gradients clipped to norm %g" % limit)
            if float(norm) > limit:
                for grad in grads:
                    grad.mul_(limit / (float(norm) + 1e-6))
    return False


# --- autocast -----------------------------------------------------------------------------------------------------


def _without_amp(torch: Any) -> None:
    """Disable every autocast and every scaler created from now on."""
    scalers = {getattr(getattr(torch, "amp", None), "GradScaler", None), torch.cuda.amp.GradScaler}
    for kind in (torch.autocast, *(scaler for scaler in scalers if scaler is not None and "__init__" in vars(scaler))):
        _disable_at_init(kind)
    remedies.report_applied("amp", "autocast and GradScaler do nothing")


def _disable_at_init(kind: Any) -> None:
    original = kind.__init__

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._enabled = False

    kind.__init__ = __init__


# --- loaders ------------------------------------------------------------------------------------------------------


def _with_fewer_workers(torch: Any) -> None:
    _change_loaders(torch, _reduce_workers)


def _with_larger_batches(torch: Any) -> None:
    _change_loaders(torch, lambda *given: _multiply_batch(torch, *given))


def _change_loaders(torch: Any, change: Callable[[inspect.Signature, Any, Any], Any]) -> None:
    """Have every loader made from now on with the arguments that `change` returns, where it returns any."""
    kind = torch.utils.data.DataLoader
    original = kind.__init__
    signature = inspect.signature(original)

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        changed = change(signature, (self, *args), kwargs)
        if changed is None:
            original(self, *args, **kwargs)
        else:
            original(*changed.args, **changed.kwargs)

    kind.__init__ = __init__


@fenced
def _multiply_batch(
    torch: Any, signature: inspect.Signature, args: Any, kwargs: Any
) -> Optional[inspect.BoundArguments]:
    """Return the arguments of a loader with another batch, where it draws in random order: others may validate."""
    bound = signature.bind(*args, **kwargs)
    asked, size = bound.arguments, bound.arguments.get("batch_size", 1)
    is_random = asked.get("shuffle") or loader.draws_at_random(torch, asked.get("sampler"))
    if type(size) is not int or asked.get("batch_sampler") is not None or not is_random:
        return None
    asked["batch_size"] = changed = max(1, int(size * float(remedies.wanted("loader_batch_factor"))))
    remedies.report_applied("loader_batch_factor", "batches of %d -> %d" % (size, changed))
    return bound


@fenced
def _reduce_workers(signature: inspect.Signature, args: Any, kwargs: Any) -> Optional[inspect.BoundArguments]:
    """Return the arguments of a loader with fewer workers; without any, nothing is pinned and nothing prefetched."""
    bound = signature.bind(*args, **kwargs)
    given, asked = bound.arguments.get("num_workers", 0) or 0, remedies.wanted("workers")
    factor = remedies.wanted("workers_factor")
    workers = int(given * (1.0 if factor is None else factor)) if asked is None else min(given, int(asked))
    if workers == given and not bound.arguments.get("pin_memory"):
        return None
    bound.arguments["num_workers"] = workers
    if workers == 0:
        bound.arguments["pin_memory"] = False
        for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context", "worker_init_fn"):
            bound.arguments.pop(name, None)
    change = "loader workers %d -> %d" % (given, workers) + ("" if workers else ", nothing pinned")
    remedies.report_applied("workers" if asked is not None else "workers_factor", change)
    return bound
