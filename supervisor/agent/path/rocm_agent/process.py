"""Starts the agent in one Python process, at no cost for programs that train nothing."""

# ruff: noqa: PLC0415 - imported where first needed: the programs of a job that do not train shall not pay for it

from __future__ import annotations

import os
import sys

from . import claim, end_word, events, exceptions, finder, remedies, stacks, tuning
from .fence import fenced
from .layout import ENV_CONV2D, ENV_CONV2D_SCOPE, ENV_MEMORY_PROBE, ENV_TRIAGE

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Callable, Dict, List


KERAS_CALLBACKS = (
    "keras.src.callbacks.callback_list",
    "keras.src.callbacks",
    "keras.callbacks",
    "tf_keras.src.callbacks",
)
ORBAX_CHECKPOINTERS = (
    "orbax.checkpoint._src.checkpointers.checkpointer",
    "orbax.checkpoint._src.checkpointers.async_checkpointer",
    "orbax.checkpoint.checkpointer",
    "orbax.checkpoint.async_checkpointer",
    "orbax.checkpoint.checkpoint_manager",
)


def start(folder: str) -> None:
    """Start the agent for the attempt in `folder`; a part that fails is reported, the others start."""
    _begin_parts(folder)
    prepare(folder)
    fenced(_report_alive)()


def prepare(folder: str) -> None:
    """Set every hook, with the remedies in `folder`; their reports are held until `events.begin`."""
    steps = [
        lambda: remedies.begin(folder),
        _look_at_steps,
        _measure_memory,
        _report_allocator,
        exceptions.begin,
        lambda: finder.install(_list_hooks()),
        lambda: os.register_at_fork(after_in_child=_handle_fork),
    ]
    for step in steps:
        fenced(step)()


def _list_hooks() -> Dict[str, Callable[[ModuleType], object]]:
    """Return what is called when a module has been imported, by the module's name."""
    hooks = (
        (_torch_imported, "torch"),
        (exceptions.watch_printing, "traceback"),
        (_threads_imported, "threading"),
        (_children_imported, "multiprocessing.popen_fork", "multiprocessing.popen_forkserver"),
        (_compiler_imported, "torch._dynamo.callback"),
        (_older_compiler_imported, "torch._dynamo.convert_frame"),
        (_process_groups_imported, "torch.distributed.distributed_c10d"),
        (_ddp_imported, "torch.nn.parallel.distributed"),
        (_extension_locks_imported, "torch.utils.file_baton"),
        (_state_dicts_imported, "torch.distributed.checkpoint.state_dict"),
        (_elastic_imported, "torch.distributed.elastic.multiprocessing.api"),
        (_safetensors_imported, "safetensors.torch"),
        (_trainer_imported, "ultralytics.engine.trainer", "ultralytics.yolo.engine.trainer"),
        (_validator_imported, "ultralytics.engine.validator", "ultralytics.yolo.engine.validator"),
        (_transformers_imported, "transformers.trainer"),
        (_precisions_imported, "transformers.training_args", "accelerate.accelerator"),
        (_deepspeed_imported, "deepspeed.runtime.engine"),
        (_lightning_imported, "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
        (_keras_imported, *KERAS_CALLBACKS),
        (_jax_imported, "jax"),
        (_optax_imported, "optax"),
        (_orbax_imported, *ORBAX_CHECKPOINTERS),
    )
    return {name: hook for hook, *names in hooks for name in names}


def begin(folder: str) -> None:
    """Report to the attempt in `folder` from now on, with the hooks that `prepare` has set."""
    _begin_parts(folder)
    fenced(_report_alive)()


def _begin_parts(folder: str) -> None:
    claim.begin(folder)
    events.begin(folder, claim.rank)
    tuning.begin(folder)
    fenced(end_word.hold)()
    fenced(lambda: stacks.begin(folder))()


def _look_at_steps() -> None:
    if os.environ.get(ENV_TRIAGE):
        from . import triage

        triage.begin()


def _measure_memory() -> None:
    if os.environ.get(ENV_MEMORY_PROBE):
        from .memory import probe

        probe.begin()


def _report_allocator() -> None:
    if remedies.wanted("allocator"):
        from . import allocator

        setting = allocator.configure()
        if not _is_helper():
            remedies.report_applied("allocator", setting)


def _report_alive() -> None:
    if not _is_helper():
        events.write("alive", python=sys.executable, argv=_command_line())


def _handle_fork() -> None:
    fenced(claim.fork)()
    fenced(stacks.fork)()


def _torch_imported(torch: ModuleType) -> None:
    if remedies.any_wanted():
        from . import torch_remedies  # before the hook: it counts a step with all that belongs to it

        fenced(torch_remedies.install)(torch)
    from . import torch_hook

    fenced(torch_hook.install)(torch)
    if os.environ.get(ENV_TRIAGE):
        from . import triage

        fenced(triage.install)(torch)
    algorithm = os.environ.get(ENV_CONV2D, "")
    if algorithm not in {"", "off"}:
        from . import conv2d

        scope = os.environ.get(ENV_CONV2D_SCOPE) or "modules"
        conv2d.patch(algorithm, scope)
        _avoid_miopen(torch)
        if not _is_helper():
            events.write("patched", conv2d=algorithm, scope=scope, torch=str(torch.__version__))
    if os.environ.get(ENV_MEMORY_PROBE):
        from .memory import probe

        fenced(probe.install)(torch)


def _precisions_imported(module: ModuleType) -> None:
    if os.environ.get(ENV_MEMORY_PROBE):
        from .memory import half_precision

        fenced(half_precision.allow)(module)


def _threads_imported(module: ModuleType) -> None:
    from . import exiting

    exiting.watch_program(module, claim.find_other_trainer)


def _children_imported(module: ModuleType) -> None:
    from . import exiting

    fenced(exiting.install)(module)


def _safetensors_imported(module: ModuleType) -> None:
    """Note what is loaded before the first step, as torch_hook does of torch.load."""
    from . import origin

    module.load_file = origin.watch_load(module.load_file, "filename")


def _compiler_imported(module: ModuleType) -> None:
    from . import compiling

    compiling.install(module)


def _older_compiler_imported(module: ModuleType) -> None:
    from . import compiling

    compiling.install_older(module)


def _state_dicts_imported(module: ModuleType) -> None:
    from . import torch_hook

    torch_hook.watch_state_dicts(module)


def _process_groups_imported(module: ModuleType) -> None:
    from .ranks import backend

    backend.install(module)


def _ddp_imported(module: ModuleType) -> None:
    from .ranks import backend

    backend.install_ddp(module)


def _extension_locks_imported(module: ModuleType) -> None:
    from . import extension_locks

    extension_locks.install(module)


def _elastic_imported(module: ModuleType) -> None:
    from . import elastic_hook

    elastic_hook.install(module)


def _avoid_miopen(torch: ModuleType) -> None:
    """Keep the rest of a patched training from MIOpen: on ROCm, BatchNorm, LSTM and CTC loss call it too, and hang.

    It stands for every scope. With "all", convolutions and BatchNorm stay away from it even where a program turns the
    switch on again; recurrent layers and CTC loss rely on it.
    """
    if getattr(torch.version, "hip", None) is not None:
        torch.backends.cudnn.enabled = False


def _trainer_imported(module: ModuleType) -> None:
    from . import ultralytics_hook, ultralytics_remedies, ultralytics_resume

    ultralytics_hook.install(module)
    ultralytics_resume.install(module)
    ultralytics_remedies.install(module)
    if os.environ.get(ENV_TRIAGE):
        from . import triage

        triage.install_trainer(module)


def _validator_imported(module: ModuleType) -> None:
    from . import ultralytics_hook

    ultralytics_hook.install_validator(module)


def _transformers_imported(module: ModuleType) -> None:
    from .snapshots import transformers

    transformers.install(module)


def _deepspeed_imported(module: ModuleType) -> None:
    from . import deepspeed_hook

    deepspeed_hook.install(module)


def _lightning_imported(module: ModuleType) -> None:
    from .snapshots import lightning

    lightning.install(module)


def _keras_imported(module: ModuleType) -> None:
    from . import keras_hook

    keras_hook.install(module)


def _jax_imported(module: ModuleType) -> None:
    if remedies.any_wanted():
        from . import xla_memory

        fenced(xla_memory.apply)()
    from . import optax_hook

    optax_hook.install_jax(module)


def _optax_imported(module: ModuleType) -> None:
    from . import optax_hook

    optax_hook.install(module)


def _orbax_imported(module: ModuleType) -> None:
    from . import orbax_hook

    orbax_hook.install(module)


def _command_line() -> List[str]:
    """Return this interpreter's command line; `sys.orig_argv` exists since Python 3.10."""
    if hasattr(sys, "orig_argv"):
        return list(sys.orig_argv)
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def _is_helper() -> bool:
    """Whether multiprocessing started this interpreter (a spawned worker, the fork server, the resource tracker)."""
    words = _command_line()
    return "--multiprocessing-fork" in words or any(word.startswith("from multiprocessing.") for word in words)
