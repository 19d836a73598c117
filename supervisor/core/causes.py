"""From a red flag to the cause that remedies are chosen by; it looks at rule and fault and judges nothing anew."""

from __future__ import annotations

from supervisor.core.flags import RedFlag

NON_FINITE = "non_finite"
OOM_GPU = "oom_gpu"
OOM_HOST = "oom_host"
FRAGMENTATION = "fragmentation"
MIOPEN = "miopen"
SLOW_START = "slow_start"
STALL = "stall"
STALL_DATA = "stall_data"
GPU_HANG = "gpu_hang"
CARD_LOST = "card_lost"
NO_KERNEL_IMAGE = "no_kernel_image"
BLAS = "blas"
COMPILE = "compile"
LOADER = "loader"
CRASH = "crash"
HARDWARE = "hardware"
"""Numbers that are not finite because a card computed them wrong: what a triage found."""

CAUSES = (
    NON_FINITE,
    OOM_GPU,
    OOM_HOST,
    FRAGMENTATION,
    MIOPEN,
    SLOW_START,
    STALL,
    STALL_DATA,
    GPU_HANG,
    CARD_LOST,
    NO_KERNEL_IMAGE,
    BLAS,
    COMPILE,
    LOADER,
    CRASH,
    HARDWARE,
)
"""Every cause; each is a key of `[jobs.NAME.remedies]`."""

OF_FAULT = {
    "non_finite": NON_FINITE,
    "oom_gpu": OOM_GPU,
    "oom_host": OOM_HOST,
    "oom_kill": OOM_HOST,
    "fragmentation": FRAGMENTATION,
    "miopen": MIOPEN,
    "gpu_hang": GPU_HANG,
    "gpu_reset": GPU_HANG,
    "page_fault": GPU_HANG,
    "queue_eviction": GPU_HANG,
    "xid": GPU_HANG,
    "gpu_reset_failed": CARD_LOST,
    "gpu_lost": CARD_LOST,
    "pcie": CARD_LOST,
    "ecc_uncorrectable": CARD_LOST,
    "no_kernel_image": NO_KERNEL_IMAGE,
    "blas": BLAS,
    "compile": COMPILE,
    "data_loader": LOADER,
    "stall_data": STALL_DATA,
}
"""By the class of the fault, which says more than the rule that met it. An illegal access is a crash: ByteRobust found
user code behind it twice as often as hardware (arXiv 2509.16293, table 2)."""

OF_RULE = {
    "non_finite_loss": NON_FINITE,
    "non_finite_grad": NON_FINITE,
    "loss_spike": NON_FINITE,
    "loss_plateau_or_divergence": NON_FINITE,
    "host_memory": OOM_HOST,
    "host_memory_slope": OOM_HOST,
    "vram_high": FRAGMENTATION,
    "vram_leak": FRAGMENTATION,
    "fragmentation": FRAGMENTATION,
    "gpu_fault": GPU_HANG,
    "hang": GPU_HANG,
    "busy_without_progress": GPU_HANG,
    "gpu_lost": CARD_LOST,
    "ecc": CARD_LOST,
    "dead_worker": LOADER,
    "data_starved": STALL_DATA,
    "start_timeout": SLOW_START,
    "stall": STALL,
    "gpu_idle": STALL_DATA,
}
"""By the rule, where the flag names no fault. Cards that idle while a batch is due wait for data."""


def cause_of(flag: RedFlag) -> str:
    """Return the cause of a flag that acts; what is in neither table is a crash."""
    by_fault = OF_FAULT.get(flag.fault) if flag.fault is not None else None
    return by_fault or OF_RULE.get(flag.rule, CRASH)
