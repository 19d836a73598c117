"""What was measured, one dataclass a kind of reading; unknown is None, never 0."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from signal import Signals

from supervisor.core.measured import Column, measured
from supervisor.core.moments import Moment

HOT_C = 95.0
"""From here on a temperature of a GPU is shown as too high; what acts on it are the rules' limits."""


class Stage(Enum):
    """The stage of an attempt, as the training reports it."""

    SETUP = "setup"
    WARMUP = "warmup"
    STEP = "step"
    DATA_WAIT = "data_wait"
    """Inside a step: it waits for its batch."""
    COMPILE = "compile"
    """Inside a step: kernels are searched for or compiled, for a shape that was not seen before or by torch.compile."""
    LOOP = "loop"
    """A call that makes many steps in one compiled loop (lax.scan): they are not seen, nor is their number."""
    VALIDATE = "validate"
    CHECKPOINT = "checkpoint"
    ENDED = "ended"
    EXITING = "exiting"
    """The program has come to its end, by itself or with `sys.exit`: threads are joined, exit handlers run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer or batch step that the training made, as the flight recorder holds it."""

    at: Moment
    step: int
    """Counted from 1 over all attempts of the training: a resumed attempt continues where its checkpoint ended."""
    epoch: int | None = None
    """Counted from 0."""
    loss: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    gpu_memory_bytes: int | None = None
    data_wait_s: float | None = None
    skipped: bool = False
    """Whether a gradient scaler is known to have left the weights as they were."""
    samples: int | None = None
    """Drawn from the data for this step by this rank, over all its accumulated batches."""
    tokens: int | None = None
    """Of text, padding included."""
    tuning: bool = False
    """Whether a tune was trying settings: its time and its loss are not the owner's."""
    begins: bool = False
    """Whether it is the first of an optimizer that leads, in its process or in place of another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process on a GPU, as reported by the source of that GPU's reading."""

    pid: int
    name: str | None = None
    vram_bytes: int | None = None
    gtt_bytes: int | None = None
    busy_percent: float | None = None
    engine_s: float | None = None
    """Time on the GPU's engines since the process began, without ROCm's compute queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One reading of one GPU by one source."""

    at: Moment
    gpu: str
    """PCI address in lower case (`0000:0a:00.0`): a GPU keeps this name when indices change.

    Only where a saved text names no address is it the tool's own number (`gpu0`).
    """
    source: str
    name: str | None = None
    unique_id: str | None = None
    gfx_version: str | None = None
    gpu_busy_percent: float | None = measured(record=True, api=True)
    memory_busy_percent: float | None = measured(record=True)
    vram_used_bytes: int | None = measured(record=True, api=True)
    vram_total_bytes: int | None = measured(api=True)
    gtt_used_bytes: int | None = measured(record=True)
    gtt_total_bytes: int | None = None
    edge_c: float | None = measured(record=True, api=True, column=Column("EDGE", "{:.0f} C", hot_at=HOT_C))
    junction_c: float | None = measured(record=True, api=True, column=Column("JUNC", "{:.0f} C", hot_at=HOT_C))
    memory_c: float | None = measured(record=True, api=True, column=Column("MEM", "{:.0f} C", hot_at=HOT_C))
    power_w: float | None = measured(record=True, api=True, column=Column("POWER", "{:.0f} W"))
    power_cap_w: float | None = measured(record=True, api=True, column=Column("CAP", "{:.0f} W"))
    fan_rpm: int | None = measured(record=True, api=True, column=Column("FAN", "{} rpm"))
    sclk_hz: int | None = measured(record=True, column=Column("CLOCK", "{:.0f} MHz", scale=1e-6))
    mclk_hz: int | None = measured(record=True)
    runtime_status: str | None = measured(record=True, api=True)
    """Linux runtime power management: `active`, `suspended`, ..."""
    index: int | None = None
    """The tool's own number of the GPU, which another boot may change."""
    partition: int | None = None
    """Partition number of a partitioned GPU (CPX, TPX); None for an unpartitioned one."""
    compute_partition: str | None = None
    memory_partition: str | None = None
    unified_memory: bool | None = None
    """Whether the GPU shares the machine's memory (an APU): its VRAM is a carve-out, and models live in GTT."""
    vram_used_percent: float | None = None
    """Only where the tool reports a share and no bytes."""
    performance_level: str | None = None
    throttled_by: tuple[str, ...] | None = measured(api=True)
    """What holds the clocks down, of the limits that the firmware names: `power`, `thermal_hotspot`, ..."""
    pcie_lanes: int | None = None
    pcie_gts: float | None = None
    """Gigatransfers per second and lane; idle GPUs lower it."""
    pcie_replays: int | None = measured(api=True)
    ecc_correctable: int | None = measured(api=True)
    ecc_uncorrectable: int | None = measured(api=True)
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def memory_used_bytes(self) -> int | None:
        """What is taken of the memory that a training can have: VRAM, on an APU with GTT."""
        return self._add_gtt(self.vram_used_bytes, self.gtt_used_bytes)

    @property
    def memory_total_bytes(self) -> int | None:
        """The memory that a training can have: VRAM, on an APU with GTT."""
        return self._add_gtt(self.vram_total_bytes, self.gtt_total_bytes)

    def _add_gtt(self, vram: int | None, gtt: int | None) -> int | None:
        return vram + gtt if self.unified_memory and vram is not None and gtt is not None else vram


INODES_FRACTION = 0.02
"""A small file system has few inodes: no limit on those that are free is above this share of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskReading:
    """Space on the file system that holds `path`."""

    path: str
    free_bytes: int
    total_bytes: int
    free_inodes: int | None = None
    """How many files can still be made; None where the file system has no fixed number, as btrfs."""
    total_inodes: int | None = None

    def has_few_inodes(self, limit: int) -> bool:
        """Whether fewer inodes than a limit are free; False where the file system has no fixed number of them."""
        if self.free_inodes is None or not self.total_inodes:
            return False
        return self.free_inodes < cap_inodes(self.total_inodes, limit)

    @property
    def used_bytes(self) -> float:
        """How much is in use, or cannot be used by trainings."""
        return float(self.total_bytes - self.free_bytes)

    @property
    def room_words(self) -> str:
        """How much of it is free."""
        inodes = "" if self.free_inodes is None else f" and {self.free_inodes} of {self.total_inodes} inodes"
        return f"{self.free_bytes / 1e9:.2f} of {self.total_bytes / 1e9:.2f} GB{inodes} are free"


def cap_inodes(total: int, limit: int) -> float:
    """Return a limit on free inodes as it applies to a file system with so many in all."""
    return min(limit, total * INODES_FRACTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """One reading of the machine."""

    at: Moment
    memory_total_bytes: int | None = measured(record=True, api=True)
    memory_available_bytes: int | None = measured(record=True, api=True)
    swap_used_bytes: int | None = measured(record=True, api=True)
    load_1m: float | None = measured(record=True, api=True)
    cpu_percent: float | None = measured(record=True, api=True)
    cpu_c: float | None = measured(api=True)
    """The processor's hottest sensor."""
    memory_stall_percent: float | None = measured(api=True)
    """Share of the last ten seconds in which some process waited for memory (PSI)."""
    io_stall_percent: float | None = measured(api=True)
    """The same for storage."""
    disks: tuple[DiskReading, ...] = ()

    def of_disks(self, paths: frozenset[str] | None) -> HostReading:
        """Return it with the disks of these paths alone: others write to the rest; None: with all."""
        if paths is None or all(disk.path in paths for disk in self.disks):
            return self
        return replace(self, disks=tuple(disk for disk in self.disks if disk.path in paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What one process of a tree takes."""

    pid: int
    name: str
    rss_bytes: int
    cpu_percent: float | None = None
    """Of one processor; None at the first reading."""


_OF_FILE_SYSTEMS = re.compile(
    r"_*(fuse|request_wait_answer|nfs|rpc|smb|cifs|ceph|ll_|cl_|ptlrpc|lustre|gpfs|p9_|v9fs|autofs|ext4|xfs|btrfs"
    r"|zfs|txg_|jbd2|folio|wait_on_page|io_schedule|blk|bio_|submit_bio|wait_on_buffer|nvme|scsi|afs_|bch2_|gfs2|ocfs2"
    r"|f2fs|iomap|filemap|inode_dio_wait|balance_dirty_pages|rq_qos_wait|wbt_wait)"
)
"""Functions of the kernel in which a thread waits for a disk, or for the server of one."""
_OF_GPUS = re.compile(r"_*(amdgpu|kfd|svm_|amddrm|amdttm|drm|dma_fence|dma_resv|ttm|nv_|nvidia|nv\d|uvm|i915|xe_)")


def is_of_storage(functions: Iterable[str]) -> bool | None:
    """Whether a thread in these functions of the kernel waits for a file system; False: for a GPU, None: not known."""
    known = tuple(functions)
    if any(map(_OF_GPUS.match, known)):
        return False
    return True if any(map(_OF_FILE_SYSTEMS.match, known)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWait:
    """One thread in state D: no signal reaches it before what it waits for has happened."""

    pid: int
    name: str
    thread: int
    channel: str | None = None
    """The kernel's function in which it waits; None where the kernel does not tell."""
    stack: tuple[str, ...] = ()
    """Functions of the kernel, innermost first; empty for whoever is not root."""
    switches: int | None = None
    """How often it has left the processor in its life: the same number twice is one wait, in which it never ran."""
    is_frozen: bool = False
    """Whether it waits, wherever that is, for its control group of version 1 to be thawed; so does its SIGKILL."""

    @property
    def is_of_disk(self) -> bool | None:
        """Whether it waits for a file system, and for no GPU; None where what the kernel tells is of neither."""
        return is_of_storage([*([self.channel] if self.channel else []), *self.stack])

    @property
    def words(self) -> str:
        """Who waits where, for a person."""
        where = self.channel or (self.stack[0] if self.stack else None)
        by = [text for text in self.stack if text != where]
        called = f" (called by {', '.join(by)})" if by else ""
        which = "" if self.thread == self.pid else f", thread {self.thread},"
        return f"process {self.pid} ({self.name}){which} waits in " + (f"{where}{called}" if where else "the kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageWait:
    """One thread that waits for a disk, or for the server of a file system (NFS, FUSE), asleep or in state D."""

    pid: int
    name: str
    thread: int
    channel: str
    """The kernel's function in which it waits."""
    place: str | None = None
    """Which file system, as `/data (nfs4 of server:/export)`; None where it is not known."""

    @property
    def words(self) -> str:
        """Who waits for what, for a person."""
        thread = "" if self.thread == self.pid else f", thread {self.thread},"
        return f"process {self.pid} ({self.name}){thread} waits for {self.place or 'a file system'} ({self.channel})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """One reading of an attempt's process tree."""

    at: Moment
    processes: int
    rss_bytes: int | None = None
    cpu_percent: float | None = None
    uninterruptible_pids: tuple[int, ...] = ()
    """Processes in state D, which no signal reaches."""
    served_pids: tuple[int, ...] = ()
    """Processes that wait for the server of a file system in state S (FUSE); looked up of those that hardly run."""
    storage_waits: tuple[StorageWait, ...] = ()
    """Threads that wait for a file system, of processes no thread of which is known to wait for a GPU."""
    gpu_wait_pids: tuple[int, ...] = ()
    """Processes whose main thread waits in a GPU's driver; looked up of those that hardly run."""
    timed_pids: tuple[int, ...] = ()
    """Processes whose main thread sleeps by a timer and has not run since the last reading; looked up of the same."""
    asking_pids: tuple[int, ...] = ()
    """Processes that wait for a peer outside of the tree, by a connection of TCP; looked up of the same."""
    largest: tuple[ProcessUse, ...] = ()
    """The processes that take most of the processor, the busiest first."""
    pids: tuple[int, ...] | None = None
    """Every process that is alive, zombies left out; None where the tree was not listed."""
    waits: tuple[KernelWait, ...] = ()
    """The threads in state D of processes whose main thread is in state D or has exited."""
    stopped_pids: tuple[int, ...] = ()
    """Processes that SIGSTOP or a debugger holds: no signal but SIGCONT and SIGKILL reaches them."""
    traced_pids: tuple[int, ...] = ()
    """Those of `stopped_pids` that a debugger holds: SIGCONT does not continue them. Under strace none is held."""
    terminal_pids: tuple[int, ...] = ()
    """Those of `stopped_pids` that have a controlling terminal, whose job control stops and continues them."""
    frozen_pids: tuple[int, ...] = ()
    """Those of `stopped_pids` that are frozen with their control group; no signal reaches them."""
    switches_per_s: float | None = None
    """Context switches per second of all threads; None where not counted, as while a processor is in use."""
    parents: tuple[tuple[int, int], ...] = ()
    """(process, its parent) of every process that is alive."""

    @property
    def held_pids(self) -> tuple[int, ...]:
        """Those of `stopped_pids` that go on once whoever holds them lets them, and by no signal."""
        return (*self.traced_pids, *self.terminal_pids, *self.frozen_pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How the training process ended, as the shim saw it."""

    at: Moment
    code: int | None = None
    signal: int | None = None
    error: str | None = None
    """Why the command could not be started at all."""
    max_rss_bytes: int | None = None
    in_background: int | None = None
    """Programs that it had left in sessions of their own, which were ended after it; None for none."""

    @property
    def clean(self) -> bool:
        """Whether it ended with status 0 of its own will."""
        return self.code == 0 and self.signal is None and self.error is None

    @property
    def words(self) -> str:
        """How it ended, as the end of a sentence about the process."""
        if self.error is not None:
            return f"could not be started: {self.error}"
        if self.signal is not None:
            return f"was killed by {signal_name(self.signal)}"
        return "ended with an unknown status" if self.code is None else f"ended with status {self.code}"


def signal_name(number: int) -> str:
    """Return the name of a Linux signal, as `SIGKILL`; one without a name keeps its number."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
