"""Gives a training another backend than RCCL, whatever its script asks for: gloo, and the host's memory for gradients.

Frameworks ask for NCCL wherever torch has it, and RCCL calls itself NCCL. Collectives on tensors of a GPU that gloo has
(broadcast, all-reduce, gathers) go through the host; the gradients of DDP, nearly all there is, through `host_mean`.
"""

from __future__ import annotations

import inspect
import os
import re
import weakref
from functools import wraps
from types import ModuleType
from typing import Any, Callable, Optional

from rocm_agent import remedies
from rocm_agent.fence import fenced
from rocm_agent.layout import ENV_RANKS_BACKEND

SETTING = "ranks_backend"
BUCKET_CAP_MB = 8
"""In place of DDP's 25, where the script sets none: the mean of a step's last bucket is waited for."""
BEFORE_BUCKET_CAP = 6
"""Arguments of DDP before it."""
RCCL = re.compile(r"\bnccl\b", re.IGNORECASE)


def wanted() -> str:
    """Return the backend that a remedy or the job's settings ask for; empty: the script's own."""
    return str(remedies.wanted(SETTING) or os.environ.get(ENV_RANKS_BACKEND, ""))


def install(module: ModuleType) -> None:
    """Change the functions of `torch.distributed.distributed_c10d`, from which all other modules take them."""
    if not wanted():
        _watch(module)
        return
    for name in ("init_process_group", "new_group"):
        _replace_backend(module, name)
    barrier = module.barrier

    @wraps(barrier)
    def without_devices(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)  # gloo refuses them
        return barrier(*args, **kwargs)

    module.barrier = without_devices


def _watch(module: ModuleType) -> None:
    """Report that the script asks for RCCL or NCCL, so that the daemon may ask for another backend."""
    original = module.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        _note_backend(module, kwargs.get("backend", args[0] if args else None), kwargs.get("world_size", -1))
        return original(*args, **kwargs)  # which may never return, where RCCL hangs

    module.init_process_group = init_process_group


@fenced
def _note_backend(module: ModuleType, backend: Any, given: int) -> None:
    ranks = given if given > 0 else int(os.environ.get("WORLD_SIZE", "1"))
    here = os.environ.get("LOCAL_WORLD_SIZE", str(ranks))
    chosen = "nccl" if backend is None and module.torch.cuda.is_available() else str(backend)
    if ranks > 1 and here == str(ranks) and RCCL.search(chosen):
        remedies.asked(SETTING)


def _replace_backend(module: ModuleType, name: str) -> None:
    original = getattr(module, name)
    signature = inspect.signature(original)

    @wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        changed = _with_gloo(signature, args, kwargs)
        return original(*args, **kwargs) if changed is None else original(*changed.args, **changed.kwargs)

    setattr(module, name, function)


@fenced
def _with_gloo(signature: inspect.Signature, args: Any, kwargs: Any) -> Optional[inspect.BoundArguments]:
    """Return the arguments with gloo in the place of RCCL; a group that names no backend has that of its parent."""
    bound = signature.bind(*args, **kwargs)
    given = bound.arguments.get("backend")
    if "group_name" in signature.parameters and given is None:
        given = "nccl"  # what torch would take with a GPU
    if given is not None:
        changed = RCCL.sub("gloo", str(given))
        if changed == str(given) and "gloo" not in changed:
            return None  # MPI, UCC: the script's choice
        bound.arguments["backend"] = changed
        remedies.report_applied(SETTING, "%s in place of %s" % (wanted(), given))
    for name in ("device_id", "pg_options"):
        bound.arguments.pop(name, None)  # RCCL's alone
    return bound


# --- gradients ----------------------------------------------------------------------------------------------------


def install_ddp(module: ModuleType) -> None:
    """Have DDP average gradients through the host's memory, unless the script registers a hook of its own."""
    if wanted() not in ("host", "host-bf16"):
        return
    kind = module.DistributedDataParallel
    original, register = kind.__init__, kind.register_comm_hook

    @wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - takes its place
        if len(args) <= BEFORE_BUCKET_CAP and kwargs.get("bucket_cap_mb") is None:
            kwargs["bucket_cap_mb"] = BUCKET_CAP_MB
        original(self, *args, **kwargs)
        fenced(_register)(self, register)

    @wraps(register)
    def register_comm_hook(self: Any, state: object, hook: Callable[..., Any]) -> None:
        chosen = getattr(self, "_rocm_agent_hook", None)
        if chosen is None:
            register(self, state, hook)
        else:
            chosen.state, chosen.call = state, hook

    kind.__init__, kind.register_comm_hook = __init__, register_comm_hook


class _Hook:
    """The hook that DDP has, which can have one only: ours, until the script registers its own."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.state: object = None
        self.call = call


def _register(ddp: Any, register: Callable[..., None]) -> None:
    import torch  # noqa: PLC0415 - this module is imported by torch's own import
    import torch.distributed as dist  # noqa: PLC0415

    from . import host_mean, links  # noqa: PLC0415 - by ranks alone

    parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
    if dist.get_world_size() < 2 or ddp.process_group is not dist.distributed_c10d._get_default_group():
        return
    wire = torch.bfloat16 if wanted() == "host-bf16" else None
    try:
        mean = host_mean.prepare(torch, dist, parameters, wire)
    except links.LinkError as error:
        remedies.report_applied(SETTING, "gloo alone: %s" % error)
        return
    chosen = ddp._rocm_agent_hook = _Hook(mean.hook)

    def average(_state: object, bucket: Any) -> Any:
        return chosen.call(chosen.state, bucket)

    average.__annotations__ = {}  # DDP refuses any but its own
    register(ddp, None, average)
    _broadcast_by(ddp, mean)
    weakref.finalize(ddp, mean.close).atexit = False  # a thread that ends while the interpreter does aborts it
    size = host_mean.bytes_of(parameters) / 2**30
    remedies.report_applied(SETTING, "gradients of %.2f GiB averaged through the host's memory" % size)


def _broadcast_by(ddp: Any, mean: Any) -> None:
    """Have DDP send its buffers through the host's memory too, before each forward pass."""
    original = ddp._distributed_broadcast_coalesced

    def broadcast(tensors: Any, buffer_size: int, authoritative_rank: int = 0) -> None:
        if not mean.broadcast(tensors, authoritative_rank):
            original(tensors, buffer_size, authoritative_rank)

    ddp._distributed_broadcast_coalesced = broadcast
