"""Findings in logs: classes of faults, their severities, and one dataclass per kind of finding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Literal, TypeAlias

from supervisor.core.moments import Moment


class FaultClass(Enum):
    """What a line of the kernel log or of a training's output says went wrong."""

    GPU_HANG = "gpu_hang"
    GPU_RESET = "gpu_reset"
    GPU_RESET_FAILED = "gpu_reset_failed"
    GPU_INIT_FAILED = "gpu_init_failed"
    """The driver could not start the GPU: at boot, or when it was loaded."""
    GPU_LOST = "gpu_lost"
    PAGE_FAULT = "page_fault"
    ECC_UNCORRECTABLE = "ecc_uncorrectable"
    ECC_CORRECTABLE = "ecc_correctable"
    THERMAL = "thermal"
    PCIE = "pcie"
    SMU = "smu"
    QUEUE_EVICTION = "queue_eviction"
    XID = "xid"
    OOM_KILL = "oom_kill"
    IO_ERROR = "io_error"
    HUNG_TASK = "hung_task"
    KERNEL_PANIC = "kernel_panic"
    KERNEL_OOPS = "kernel_oops"
    """The kernel met a defect of its own and ended the process in whose name it ran; the machine goes on."""
    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    MIOPEN = "miopen"
    ILLEGAL_ACCESS = "illegal_access"
    NO_KERNEL_IMAGE = "no_kernel_image"
    BLAS = "blas"
    DATA_LOADER = "data_loader"
    DISK_FULL = "disk_full"
    NO_GPU = "no_gpu"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    """NCCL's, and RCCL's, which says NCCL too."""
    ASSERTION = "assertion"
    COMPILE = "compile"
    NAN = "nan"


class FaultSeverity(IntEnum):
    """Severity of a finding for users of the device: `fatal` means that they cannot go on."""

    INFO = 0
    WARN = 1
    FATAL = 2

    @property
    def label(self) -> str:
        """The name that tables, people and programs see."""
        return self.name.lower()


LAST_BOOT = "last boot"
"""Origin of findings at the end of the previous boot's log."""

About: TypeAlias = Literal["gpu", "pci", "disk", "host", "none"]
"""What a finding is about: a GPU, some PCI device (which may be a GPU), a disk, the machine, or nothing named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFinding:
    """One event that the kernel reported, in one line or many; a later finding of the same `key` updates it."""

    at: Moment
    """Time of its first line."""
    fatal_at: Moment | None = None
    """Time of the last line of it that was fatal, None where none was or no later one than the first."""
    sequence: int
    """Of its first line, in the numbering of its origin."""
    fault: FaultClass
    severity: FaultSeverity
    """Fatal: a training on that GPU cannot go on, according to the driver's documentation or source."""
    gpu: str | None
    """PCI address, or None where no line names a GPU."""
    line: str
    """Its first line."""
    about: About = "gpu"
    device: str | None = None
    """Name of a device that is not a PCI device: a disk."""
    remedy: str | None = None
    """What a person can do about it."""
    source: str | None = None
    """Where the wording comes from."""
    what: str | None = None
    """The fault in words, where the class is too general (`Xid 79: GPU has fallen off the bus`)."""
    pid: int | None = None
    process: str | None = None
    of_process: bool = False
    """Whether it ends only the process that it names, and the GPU stays usable."""
    lines: int = 1
    origin: str = "kmsg"
    """Where it was read: `kmsg`, `journal`, `uevent`, or `LAST_BOOT`."""

    @property
    def fatal(self) -> bool:
        """Whether users of the device cannot go on."""
        return self.severity is FaultSeverity.FATAL

    @property
    def reported_at(self) -> Moment:
        """When it was last reported as relevant: a job launched later is not concerned."""
        return self.fatal_at or self.at

    @property
    def key(self) -> tuple[str, int]:
        """Findings of the same key are states of the same event."""
        return (self.origin, self.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFinding:
    """One line of the training's output that indicates a fault."""

    at: Moment
    fault: FaultClass
    line: str
    fatal: bool = True
    """Whether a training that prints it usually ends by it."""
    remedy: str | None = None
