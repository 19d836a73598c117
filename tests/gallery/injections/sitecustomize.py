"""Hurts a training from outside, and counts its steps; put on PYTHONPATH, no script is edited for it.

GALLERY_INJECTIONS names a folder. A file `oom` in it makes the next step raise what the framework raises when a card is
out of memory; a file `nan` makes all weights NaN, once. Either is taken away by the first process that acts on it.
Each step is a line in `steps`: attempt, rank, Unix time; after it the process rests for GALLERY_REST_S seconds, so that
a busy machine has room for more than one training. GALLERY_STEPS names what a step is: of a torch optimizer, one
backward pass, one batch of Keras, or one call of a function `train_step` that flax.nnx compiled.
"""

import os
import sys
import time
from importlib.machinery import PathFinder

FOLDER = os.environ.get("GALLERY_INJECTIONS")
REST_S = float(os.environ.get("GALLERY_REST_S", "0"))
RANK = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
LINE = " ".join((os.environ.get("ROCM_SUPERVISOR_ATTEMPT", "1"), RANK))
TORCH_MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 5.98 GiB of which 1.10 GiB is free."
)
JAX_MESSAGE = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes."


def take(name):
    """Whether this process is the one that finds the injection."""
    try:
        os.unlink(os.path.join(FOLDER, name))
    except FileNotFoundError:
        return False
    return True


class Steps:
    """Writes down each step, and rests after it."""

    def __init__(self):
        self._log = os.open(os.path.join(FOLDER, "steps"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def made(self):
        """One more step was made."""
        os.write(self._log, ("%s %r\n" % (LINE, time.time())).encode())
        time.sleep(REST_S)


def raise_out_of_memory():
    """Raise what torch raises, or, in a training without torch, what JAX raises."""
    if "jax" in sys.modules and os.environ.get("KERAS_BACKEND") != "torch":
        import jax

        raise jax.errors.JaxRuntimeError(JAX_MESSAGE)
    import torch

    raise torch.OutOfMemoryError(TORCH_MESSAGE)


def hook_optimizers(module):
    """Every optimizer of torch."""
    steps = Steps()

    def before(optimizer, args, kwargs):
        if take("oom"):
            raise_out_of_memory()

    def after(optimizer, args, kwargs):
        if take("nan"):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.data.fill_(float("nan"))
        steps.made()

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def leaves_of(loss):
    """Return the parameters that a loss was computed from."""
    found, seen, todo = [], set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found


def hook_backward(module):
    """Every backward pass of torch, for a script that changes its weights by itself."""
    steps, backward = Steps(), module.backward

    def hurt(tensors, *args, **kwargs):
        if take("oom"):
            raise_out_of_memory()
        parameters = leaves_of(tensors) if os.path.exists(os.path.join(FOLDER, "nan")) and take("nan") else []
        backward(tensors, *args, **kwargs)
        for parameter in parameters:
            parameter.data.fill_(float("nan"))
        steps.made()

    module.backward = hurt


def hook_keras(module):
    """Every batch that Keras fits."""
    steps, kind = Steps(), module.CallbackList
    begin, end = kind.on_train_batch_begin, kind.on_train_batch_end

    def on_train_batch_begin(self, *args, **kwargs):
        if take("oom"):
            raise_out_of_memory()
        if take("nan"):
            getattr(self._model, "jax_state_sync", lambda: None)()
            for variable in self._model.trainable_variables:
                variable.assign(variable * float("nan"))
        begin(self, *args, **kwargs)

    def on_train_batch_end(self, *args, **kwargs):
        end(self, *args, **kwargs)
        steps.made()

    kind.on_train_batch_begin, kind.on_train_batch_end = on_train_batch_begin, on_train_batch_end


def hook_flax(module):
    """Every call of a compiled function that is named train_step, which is given the model first."""
    steps, jit = Steps(), module.jit

    def hurt_jit(*args, **kwargs):
        compiled = jit(*args, **kwargs)
        if getattr(args[0] if args else None, "__name__", "") != "train_step":
            return compiled

        def call(model, *others):
            import jax
            from flax import nnx

            if take("oom"):
                raise_out_of_memory()
            if take("nan"):
                nnx.update(model, jax.tree.map(lambda value: value * float("nan"), nnx.state(model, nnx.Param)))
            result = compiled(model, *others)
            steps.made()
            return result

        return call

    module.jit = hurt_jit


HOOKS = {
    "optimizer": ("torch.optim.optimizer", hook_optimizers),
    "backward": ("torch.autograd", hook_backward),
    "keras": ("keras.src.callbacks.callback_list", hook_keras),
    "flax": ("flax.nnx.transforms.compilation", hook_flax),
}


class Finder:
    """Finds one module, as Python's own finder does, and hooks it when it has been executed."""

    def __init__(self, hooked, hook):
        self._hooked, self._hook = hooked, hook

    def find_spec(self, name, path=None, target=None):
        """Return the spec of the hooked module."""
        if name != self._hooked:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            self._hook(module)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder(*HOOKS[os.environ.get("GALLERY_STEPS", "optimizer")]))
