"""What a step is in each framework, and how it is hurt; sitecustomize.py puts these hooks into a training."""

from __future__ import annotations

# ruff: noqa: PLC0415 - imported where it is needed: a training has one of these frameworks
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

FOLDER = os.environ.get("GALLERY_INJECTIONS", "")
REST_S = float(os.environ.get("GALLERY_REST_S", "0"))
RANK = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
LINE = " ".join((os.environ.get("ROCM_SUPERVISOR_ATTEMPT", "1"), RANK))
TORCH_MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 5.98 GiB of which 1.10 GiB is free."
)
JAX_MESSAGE = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."


def take(name: str) -> bool:
    """Whether this process is the one that finds the injection."""
    try:
        Path(FOLDER, name).unlink()
    except FileNotFoundError:
        return False
    return True


class Steps:
    """Writes down each step, and rests after it."""

    def __init__(self) -> None:
        self._log = os.open(Path(FOLDER, "steps"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def made(self) -> None:
        """One more step was made."""
        os.write(self._log, f"{LINE} {time.time()!r}\n".encode())  # noqa: TID251 - compared with the times of files
        time.sleep(REST_S)


def raise_out_of_memory() -> NoReturn:
    """Raise what torch raises, or, in a training without torch, what JAX raises."""
    if "jax" in sys.modules and os.environ.get("KERAS_BACKEND") != "torch":
        import jax  # type: ignore[import-not-found]

        raise jax.errors.JaxRuntimeError(JAX_MESSAGE)
    import torch

    raise torch.OutOfMemoryError(TORCH_MESSAGE)


def hook_one_optimizer(module: ModuleType) -> None:
    """The optimizer of torch that steps first, where several step in each step of the training."""
    hook_optimizers(module, several=False)


def hook_optimizers(module: ModuleType, *, several: bool = True) -> None:
    """Every optimizer of torch."""
    steps = Steps()
    first: list[Any] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if take("oom"):
            raise_out_of_memory()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not several and not first:
            first.append(optimizer)
        if first and optimizer is not first[0]:
            return
        if take("nan"):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.data.fill_(float("nan"))
        steps.made()

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def leaves_of(loss: Any) -> list[Any]:
    """Return the parameters that a loss was computed from."""
    found: list[Any] = []
    seen: set[Any] = set()
    todo = [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found


def hook_backward(module: ModuleType) -> None:
    """Every backward pass of torch, for a script that changes its weights by itself."""
    steps, backward = Steps(), module.backward

    def hurt(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if take("oom"):
            raise_out_of_memory()
        parameters = leaves_of(tensors) if Path(FOLDER, "nan").exists() and take("nan") else []
        backward(tensors, *args, **kwargs)
        for parameter in parameters:
            parameter.data.fill_(float("nan"))
        steps.made()

    module.backward = hurt  # type: ignore[attr-defined]


def hook_keras(module: ModuleType) -> None:
    """Every batch that Keras fits."""
    steps, kind = Steps(), module.CallbackList
    begin, end = kind.on_train_batch_begin, kind.on_train_batch_end

    def on_train_batch_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if take("oom"):
            raise_out_of_memory()
        if take("nan"):
            getattr(self._model, "jax_state_sync", lambda: None)()
            for variable in self._model.trainable_variables:
                variable.assign(variable * float("nan"))
        begin(self, *args, **kwargs)

    def on_train_batch_end(self: Any, *args: Any, **kwargs: Any) -> None:
        end(self, *args, **kwargs)
        steps.made()

    kind.on_train_batch_begin, kind.on_train_batch_end = on_train_batch_begin, on_train_batch_end


def hook_flax(module: ModuleType) -> None:
    """Every call of a compiled function that is named train_step, which is given the model first."""
    steps, jit = Steps(), module.jit

    def hurt_jit(*args: Any, **kwargs: Any) -> Any:
        compiled = jit(*args, **kwargs)
        if getattr(args[0] if args else None, "__name__", "") != "train_step":
            return compiled

        def call(model: Any, *others: Any) -> Any:
            import jax
            from flax import nnx  # type: ignore[import-not-found]

            if take("oom"):
                raise_out_of_memory()
            if take("nan"):
                nnx.update(model, jax.tree.map(lambda value: value * float("nan"), nnx.state(model, nnx.Param)))
            result = compiled(model, *others)
            steps.made()
            return result

        return call

    module.jit = hurt_jit  # type: ignore[attr-defined]


HOOKS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "optimizer": ("torch.optim.optimizer", hook_optimizers),
    "one_optimizer": ("torch.optim.optimizer", hook_one_optimizer),
    "backward": ("torch.autograd", hook_backward),
    "keras": ("keras.src.callbacks.callback_list", hook_keras),
    "flax": ("flax.nnx.transforms.compilation", hook_flax),
}
