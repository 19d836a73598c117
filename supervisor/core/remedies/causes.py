"""The causes that remedies are chosen by, and the cause of each class of fault; each rule names its own."""

from __future__ import annotations

NON_FINITE = "non_finite"
OOM_GPU = "oom_gpu"
OOM_HOST = "oom_host"
FRAGMENTATION = "fragmentation"
MIOPEN = "miopen"
SLOW_START = "slow_start"
STALL = "stall"
STALL_DATA = "stall_data"
GPU_HANG = "gpu_hang"
GPU_LOST = "gpu_lost"
NO_KERNEL_IMAGE = "no_kernel_image"
BLAS = "blas"
COMPILE = "compile"
LOADER = "loader"
COLLECTIVE = "collective"
"""RCCL or NCCL failed between GPUs, or its watchdog gave a collective up."""
CRASH = "crash"
HARDWARE = "hardware"
"""Numbers that are not finite because a GPU computed them wrong: the finding of a triage."""

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
    GPU_LOST,
    NO_KERNEL_IMAGE,
    BLAS,
    COMPILE,
    LOADER,
    COLLECTIVE,
    CRASH,
    HARDWARE,
)
"""Every cause; each is a key of `[jobs.NAME.remedies]`."""

ADDING_UP = frozenset({NON_FINITE, OOM_GPU, OOM_HOST, FRAGMENTATION, MIOPEN})
"""Causes whose remedies add up, so that one that was not enough stays in force with the next. For the others each
remedy is an alternative, and one that failed is ended."""

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
    "gpu_reset_failed": GPU_LOST,
    "gpu_init_failed": GPU_LOST,
    "gpu_lost": GPU_LOST,
    "pcie": GPU_LOST,
    "ecc_uncorrectable": GPU_LOST,
    "no_kernel_image": NO_KERNEL_IMAGE,
    "blas": BLAS,
    "compile": COMPILE,
    "nccl_error": COLLECTIVE,
    "nccl_timeout": COLLECTIVE,
    "data_loader": LOADER,
    "stall_data": STALL_DATA,
}
"""By the class of the fault, which is more specific than the rule. An illegal access is a crash: ByteRobust found
user code behind it twice as often as hardware (arXiv 2509.16293, table 2)."""
