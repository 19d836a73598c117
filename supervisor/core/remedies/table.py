"""Every remedy, a row each: adding one is adding a row, and for one that the agent applies its part in the agent."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from supervisor.core.attempt_files import ENV_CONV2D_WORKSPACE
from supervisor.core.findings import FaultClass
from supervisor.core.remedies.causes import (
    ADDING_UP,
    BLAS,
    COLLECTIVE,
    COMPILE,
    CRASH,
    FRAGMENTATION,
    GPU_HANG,
    GPU_LOST,
    HARDWARE,
    LOADER,
    MIOPEN,
    NO_KERNEL_IMAGE,
    NON_FINITE,
    OOM_GPU,
    OOM_HOST,
    SLOW_START,
    STALL,
    STALL_DATA,
)
from supervisor.core.remedies.context import Situation
from supervisor.core.remedies.spec import (
    Amounts,
    Assign,
    Change,
    Env,
    InForce,
    Multiply,
    Need,
    RemedySpec,
    ReplaceConv2d,
    UseCpu,
    UseEnvironment,
    UseGpu,
)
from supervisor.core.scale import is_beyond, on_training

HIDE_ALL_GPUS = (Env("HIP_VISIBLE_DEVICES", "-1"), Env("CUDA_VISIBLE_DEVICES", "-1"), Env("ROCR_VISIBLE_DEVICES", ""))
"""ROCr takes the empty list literally; it is the layer that would open a GPU that is lost."""
WORKERS_FACTOR = 0.5
XLA_SHARE = 0.95
"""Of a GPU's memory, where JAX gives XLA 75 %; the rest is what the driver and the libraries take."""


def _may_be_at_fault(situation: Situation) -> bool:
    """Whether the checkpoint that the attempt was resumed from may be at fault.

    One from which a training came beyond every earlier fault is good, unless numbers or memory are the cause, and none
    is why a program finds no GPU.
    """
    ended = situation.ended
    if ended.fault == FaultClass.NO_GPU.value:
        return False
    if not ended.resumed or ended.cause in ADDING_UP:
        return ended.resumed
    places = [on_training(step) for step in situation.earlier_steps]
    return not places or not all(is_beyond(on_training(ended.step), place) is True for place in places)


def _skip_batches(held: InForce, amounts: Amounts) -> tuple[Change, ...]:
    if held.step is None:
        return ()
    return (Assign("skip_batches", (max(1, held.step - amounts.skip_steps), held.step + amounts.skip_steps)),)


def _shrink_batch(held: InForce, amounts: Amounts) -> tuple[Change, ...]:
    factor = amounts.batch_factor ** (held.times or 1)
    lr = (Multiply("lr_factor", factor),) if amounts.scale_lr else ()
    return (Multiply("batch_factor", factor), *lr)


def _may_compute_on_gpu(situation: Situation) -> bool:
    """Whether kernels of a GPU may have been called; a training that reports the CPU calls none of MIOpen's."""
    return situation.context.device != "cpu"


def _is_offered(kind: str, situation: Situation) -> bool:
    resorts = situation.context.resorts
    allowed = any(resort.kind == kind and resort.on and resort.refused is None for resort in resorts)
    return allowed and kind not in situation.ended.resorts_taken


REMEDIES: tuple[RemedySpec, ...] = (
    RemedySpec(
        name="restart",
        words="restart without changes",
        lasts=False,
        ladder={
            FRAGMENTATION: 10,
            SLOW_START: 10,
            STALL: 10,
            STALL_DATA: 10,
            GPU_HANG: 10,
            BLAS: 10,
            LOADER: 10,
            COLLECTIVE: 10,
            CRASH: 10,
            HARDWARE: 10,
        },
    ),
    RemedySpec(
        name="older_generation",
        words="resumed from an older checkpoint, where there is one",
        lasts=False,
        condition=_may_be_at_fault,
        ladder={NON_FINITE: 20, CRASH: 20},
    ),
    RemedySpec(
        name="skip_step",
        words="steps whose gradients are not finite are skipped",
        needs=Need.TORCH,
        changes=lambda _held, _amounts: (Assign("skip_non_finite", value=True),),
        unused="no skipped step was reported",
        ladder={NON_FINITE: 10},
    ),
    RemedySpec(
        name="lower_lr",
        words="learning rate lowered",
        needs=Need.TORCH,
        changes=lambda _held, amounts: (Multiply("lr_factor", amounts.lr_factor),),
        ladder={NON_FINITE: 30},
    ),
    RemedySpec(
        name="clip_gradients",
        words="gradients clipped",
        needs=Need.TORCH,
        changes=lambda _held, amounts: (Assign("clip_norm", amounts.clip_norm),),
        ladder={NON_FINITE: 40},
    ),
    RemedySpec(
        name="amp_off",
        words="no automatic mixed precision",
        needs=Need.TORCH,
        changes=lambda _held, _amounts: (Assign("amp", value=False),),
        ladder={NON_FINITE: 50, BLAS: 20},
    ),
    RemedySpec(
        name="skip_data",
        words="the batches around the fault skipped",
        needs=Need.TRAINER,
        setting="skip_batches",
        changes=_skip_batches,
        ladder={NON_FINITE: 60},
    ),
    RemedySpec(
        name="allocator",
        words="allocator set to split less and to release sooner",
        needs=Need.TORCH,
        on_gpu=True,
        changes=lambda _held, _amounts: (Assign("allocator", value=True),),
        ladder={OOM_GPU: 10, FRAGMENTATION: 20},
    ),
    RemedySpec(
        name="xla_memory",
        words="XLA takes 95 % of the GPU's memory",
        needs=Need.TRAINER,
        setting="xla_memory",
        on_gpu=True,
        changes=lambda _held, _amounts: (Assign("xla_memory", XLA_SHARE),),
        ladder={OOM_GPU: 15},
    ),
    RemedySpec(
        name="conv2d_workspace",
        words="workspace of the Conv2d patch capped",
        needs=Need.AGENT,
        on_gpu=True,
        condition=lambda situation: situation.ended.patched,
        changes=lambda _held, amounts: (Env(ENV_CONV2D_WORKSPACE, str(amounts.conv2d_workspace_mb)),),
        ladder={OOM_GPU: 20, FRAGMENTATION: 30},
    ),
    RemedySpec(
        name="half_batch",
        words="half the batch, twice the accumulation",
        needs=Need.TRAINER,
        setting="batch_factor",
        changes=_shrink_batch,
        ladder={OOM_GPU: (30, 40), OOM_HOST: 30, FRAGMENTATION: (40, 50)},
    ),
    RemedySpec(
        name="smaller_images",
        words="smaller images",
        needs=Need.TRAINER,
        setting="image_factor",
        costly=True,
        changes=lambda _held, amounts: (Multiply("image_factor", amounts.image_factor),),
        ladder={OOM_GPU: 50, FRAGMENTATION: 60},
    ),
    RemedySpec(
        name="fewer_workers",
        words="half the loader workers",
        needs=Need.TORCH,
        changes=lambda _held, _amounts: (Multiply("workers_factor", WORKERS_FACTOR),),
        ladder={OOM_HOST: 10, LOADER: 20},
    ),
    RemedySpec(
        name="no_workers",
        words="no loader workers, no pinned memory",
        needs=Need.TORCH,
        changes=lambda _held, _amounts: (Assign("workers", 0),),
        ladder={
            OOM_HOST: 20,
            SLOW_START: 50,
            STALL: 20,
            STALL_DATA: 20,
            GPU_HANG: 30,
            LOADER: 30,
        },
    ),
    RemedySpec(
        name="conv2d",
        words="Conv2d without MIOpen",
        needs=Need.AGENT,
        on_gpu=True,
        condition=lambda situation: (
            situation.context.conv2d_auto and not situation.ended.patched and _may_compute_on_gpu(situation)
        ),
        changes=lambda _held, _amounts: (ReplaceConv2d(),),
        ladder={
            MIOPEN: 10,
            SLOW_START: 20,
            STALL: 30,
            GPU_HANG: 20,
            NO_KERNEL_IMAGE: 10,
        },
    ),
    RemedySpec(
        name="cudnn_off",
        words="MIOpen and cuDNN disabled",
        needs=Need.TORCH,
        on_gpu=True,
        condition=_may_compute_on_gpu,
        changes=lambda _held, _amounts: (Assign("cudnn", value=False),),
        ladder={MIOPEN: 20, SLOW_START: 30, NO_KERNEL_IMAGE: 20},
    ),
    RemedySpec(
        name="rccl_no_p2p",
        words="RCCL or NCCL without direct transfers between GPUs",
        on_gpu=True,
        changes=lambda _held, _amounts: (Env("NCCL_P2P_DISABLE", "1"),),
        ladder={COLLECTIVE: 20},
    ),
    RemedySpec(
        name="rccl_simple",
        words="RCCL or NCCL by its simple protocol",
        on_gpu=True,
        changes=lambda _held, _amounts: (Env("NCCL_PROTO", "Simple"),),
        ladder={COLLECTIVE: 30},
    ),
    RemedySpec(
        name="ranks_host",
        words="gradients averaged through the host's memory, without RCCL or NCCL",
        needs=Need.TRAINER,
        setting="ranks_backend",
        on_gpu=True,
        costly=True,
        changes=lambda _held, _amounts: (Assign("ranks_backend", "host"),),
        ladder={COLLECTIVE: 40, SLOW_START: 15, STALL: 25},
    ),
    RemedySpec(
        name="compile_off",
        words="compilation disabled",
        changes=lambda _held, _amounts: (Env("TORCHDYNAMO_DISABLE", "1"), Assign("compile", value=False)),
        ladder={SLOW_START: 40, COMPILE: 10},
    ),
    RemedySpec(
        name="other_environment",
        words="another environment",
        costly=True,
        condition=lambda situation: bool(situation.context.environments),
        changes=lambda held, _amounts: (UseEnvironment(held.environment),),
        ladder={
            CRASH: 30,
            MIOPEN: 25,
            SLOW_START: 55,
            STALL: 35,
            COLLECTIVE: 50,
            NO_KERNEL_IMAGE: 25,
        },
    ),
    RemedySpec(
        name="other_gpu",
        words="another GPU",
        on_gpu=True,
        costly=True,
        condition=lambda situation: bool(situation.context.free_gpus),
        changes=lambda held, _amounts: (UseGpu(held.gpu),),
        ladder={
            SLOW_START: 60,
            STALL: 40,
            GPU_HANG: 40,
            GPU_LOST: 10,
            NO_KERNEL_IMAGE: 30,
            BLAS: 30,
            HARDWARE: 20,
        },
    ),
    RemedySpec(
        name="cpu_profile",
        words="CPU profile",
        costly=True,
        condition=lambda situation: situation.context.cpu_profile and not situation.on_cpu,
        changes=lambda _held, _amounts: (UseCpu(), *HIDE_ALL_GPUS, Assign("device", "cpu")),
        ladder={
            OOM_GPU: 60,
            MIOPEN: 30,
            SLOW_START: 70,
            STALL: 50,
            GPU_HANG: 50,
            GPU_LOST: 20,
            NO_KERNEL_IMAGE: 40,
            BLAS: 40,
            HARDWARE: 30,
        },
    ),
    RemedySpec(
        name="reset_gpu",
        words="GPU reset",
        lasts=False,
        on_gpu=True,
        costly=True,
        condition=lambda situation: _is_offered("reset_gpu", situation),
        ladder={GPU_HANG: 60, GPU_LOST: 30},
    ),
    RemedySpec(
        name="reboot",
        words="machine rebooted",
        lasts=False,
        costly=True,
        condition=lambda situation: _is_offered("reboot", situation),
        ladder={GPU_HANG: 70, GPU_LOST: 40},
    ),
)
BY_NAME: Mapping[str, RemedySpec] = MappingProxyType({spec.name: spec for spec in REMEDIES})


def describe_remedy(name: str, times: int | None = None) -> str:
    """Return what a remedy does, for people; `times`: how often its factor is applied at once."""
    words = BY_NAME[name].words if name in BY_NAME else name
    return words if times is None else f"{words}, {times} times"


def default_ladder(cause: str) -> tuple[str, ...]:
    """Return the remedies against a cause in the order in which they are tried."""
    places = [(place, spec.name) for spec in REMEDIES for place in spec.places(cause)]
    return tuple(name for _, name in sorted(places))
