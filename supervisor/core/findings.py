"""What a log tells of faults: classes, how bad they are, and one dataclass a kind of finding; it reads no line."""

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
    """How bad a finding is for whoever uses what it is about: `fatal` means that it cannot go on."""

    INFO = 0
    WARN = 1
    FATAL = 2

    @property
    def word(self) -> str:
        """The name that tables, people and programs see."""
        return self.name.lower()


LAST_BOOT = "last boot"
"""Origin of what the log of the boot before this one ended with."""

About: TypeAlias = Literal["card", "pci", "disk", "host", "none"]
"""What a finding is about: a card, some PCI device (which may be a card), a disk, the machine, or nothing named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFinding:
    """One event that the kernel told of, in one line or many; a later one of the same `key` tells it anew."""

    at: Moment
    """Time of its first line."""
    fatal_at: Moment | None = None
    """Time of the last line of it that was fatal, None where none was or no later one than the first."""
    sequence: int
    """Of its first line, in the numbering of its origin."""
    fault: FaultClass
    severity: FaultSeverity
    """Fatal: a training on that card cannot go on, as the driver's documentation or source tells."""
    gpu: str | None
    """PCI address, or None where no line names a card."""
    line: str
    """Its first line."""
    about: About = "card"
    device: str | None = None
    """Name of what is no PCI device: a disk."""
    remedy: str | None = None
    """What cures it."""
    source: str | None = None
    """Where the wording comes from."""
    what: str | None = None
    """The fault in words, where the class says too little (`Xid 79: GPU has fallen off the bus`)."""
    pid: int | None = None
    process: str | None = None
    of_process: bool = False
    """Whether it takes only the process that it names, and leaves the card well."""
    lines: int = 1
    origin: str = "kmsg"
    """Where it was read: `kmsg`, `journal`, `uevent`, or `LAST_BOOT`."""

    @property
    def fatal(self) -> bool:
        """Whether whoever uses the device cannot go on."""
        return self.severity is FaultSeverity.FATAL

    @property
    def told_at(self) -> Moment:
        """When it last told of something that counts: a job launched later is not concerned."""
        return self.fatal_at or self.at

    @property
    def key(self) -> tuple[str, int]:
        """Findings of the same key are the same event, as far as it was read."""
        return (self.origin, self.sequence)

    @property
    def words(self) -> str:
        """What happened, for a person."""
        return f"{self.what or self.fault.value}: {self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFinding:
    """One line of the training's own output that means something."""

    at: Moment
    fault: FaultClass
    line: str
    fatal: bool = True
    """Whether a training that says so ends of it, as a rule."""
    remedy: str | None = None
