"""What may be behind each class of crash, in words: causes with their sources, and what the owner can do."""

from __future__ import annotations

import re
from collections.abc import Mapping

from supervisor.core.findings import FaultClass
from supervisor.core.flags import Diagnosis, RedFlag

HOST_LOST = "host_lost"
"""Fault of an attempt that ended with its machine."""
KILLED_BY_SIGNAL = "killed_by_signal"
"""Fault of one that a signal ended, where no memory access was wrong and the kernel logged no want of memory."""
LAST_OUTPUT = "; last output: "
"""In a message, before the last line that the training printed."""
_CRASHED = re.compile(r"\bkilled by SIG(?:ABRT|SEGV|BUS|ILL|FPE|TRAP)\b")
_NOT_ITSELF = "its own end: the training had more to do, and was not asked to stop"
_GPU = Diagnosis(
    ruled_out=("a fault of the script alone: the kernel or the GPU's runtime reports that the GPU failed",),
    causes=(
        "the GPU or its driver failed under load: heat, power, memory, or a defect of the driver (ROCm#2533)",
        "a kernel that never ended was ended by the driver's timeout",
    ),
    advice=(
        "`supervisorctl gpus` and the evidence show temperature, power and errors of that minute",
        "if it comes back on the same GPU only, lower its power cap or clocks, or name other GPUs in `gpus`",
    ),
)
_DIAGNOSES: Mapping[str, Diagnosis] = {
    FaultClass.OOM_GPU.value: Diagnosis(
        causes=(
            "a batch that needs more memory than the GPU has left (yolov5#6904)",
            "memory in pieces: reserved grows, allocated does not (ROCm's allocator, RX 7900 XT, after 35-50 batches)",
        ),
        advice=(
            "a smaller batch or image size; ultralytics takes a smaller batch on resume",
            "PYTORCH_HIP_ALLOC_CONF=garbage_collection_threshold:0.8,max_split_size_mb:128 keeps the pieces larger",
        ),
    ),
    FaultClass.OOM_HOST.value: Diagnosis(
        causes=(
            "loader workers that each hold a copy of the data, or a cache in memory (cache=ram)",
            "memory that grows with each epoch (pytorch#13246: lists copied on write into the workers)",
        ),
        advice=("fewer workers, no cache in memory, or more swap; `supervisorctl show` has the processes' memory",),
    ),
    FaultClass.MIOPEN.value: Diagnosis(
        ruled_out=("the model: the same layers run where MIOpen is not asked",),
        causes=("MIOpen has no working kernel for this GPU, or its database is missing (ROCm/MIOpen#1995)",),
        advice=('conv2d = "planned"; with "auto" the next attempt has it already',),
    ),
    FaultClass.NO_KERNEL_IMAGE.value: Diagnosis(
        causes=("this torch was built without code for the GPU, or HSA_OVERRIDE_GFX_VERSION names a wrong one",),
        advice=("`supervisorctl doctor` shows the GPU's target and the override that is known to work",),
    ),
    FaultClass.ILLEGAL_ACCESS.value: Diagnosis(
        causes=(
            "a kernel of another target under HSA_OVERRIDE_GFX_VERSION, or a defect of a library (ROCm/pytorch#882)",
            "a label out of range: an index that points beyond its tensor",
        ),
        advice=("AMD_SERIALIZE_KERNEL=3 names the kernel; a run on the CPU names a wrong index",),
    ),
    FaultClass.BLAS.value: Diagnosis(
        causes=("rocBLAS has no kernel for the GPU or failed to reserve memory (rocBLAS, two RX 7900 XT)",),
        advice=("a smaller batch; TORCH_BLAS_PREFER_HIPBLASLT=0",),
    ),
    FaultClass.DATA_LOADER.value: Diagnosis(
        ruled_out=("the GPU: a worker of the data loader died, the training only noticed",),
        causes=("a worker was killed for memory, or /dev/shm is too small (pytorch#5040)",),
        advice=("fewer workers or workers=0; a larger /dev/shm",),
    ),
    FaultClass.DISK_FULL.value: Diagnosis(
        ruled_out=("the training itself: it could not write",),
        causes=("checkpoints, plots or logs have filled the disk, or a quota is used up",),
        advice=("make room, then `supervisorctl start`; rule disk_low warns beforehand",),
    ),
    "non_finite": Diagnosis(
        causes=("the loss or the weights are no numbers any more, and the training ended itself over it",),
        advice=("a lower learning rate or amp=False; it goes on from before the first of them",),
    ),
    FaultClass.NAN.value: Diagnosis(
        causes=("the loss or the weights are no numbers any more, and the training ended itself over it",),
        advice=("a lower learning rate or amp=False; it goes on from before the first of them",),
    ),
    FaultClass.NO_GPU.value: Diagnosis(
        causes=(
            "the driver does not show the GPU: it is in reset, off the bus, or its module is not loaded",
            "HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES names no GPU that is there, or this torch is built without",
        ),
        advice=(
            "`supervisorctl doctor` shows which GPUs are visible; its user must be in the groups render and video",
        ),
    ),
    FaultClass.NCCL_TIMEOUT.value: Diagnosis(
        ruled_out=("the rank that says so: it waited for another",),
        causes=("a rank died, hangs, or makes batches of another number (c10d: ProcessGroupNCCL's watchdog)",),
        advice=("see which rank's steps stopped first; all of them go on from one checkpoint",),
    ),
    FaultClass.NCCL_ERROR.value: Diagnosis(
        causes=("the transport between the GPUs failed: a GPU, its link, or too little shared memory (nccl.h)",),
        advice=("NCCL_DEBUG=INFO names the transport; NCCL_P2P_DISABLE=1 goes round a bad link",),
    ),
    FaultClass.ASSERTION.value: Diagnosis(
        ruled_out=("the GPU: a check in the program itself did not hold",),
        causes=(
            "a label beyond the number of classes, an image that cannot be read, settings that do not fit together",
        ),
        advice=("read the traceback in its output; it comes back at every start until it is corrected",),
    ),
    FaultClass.COMPILE.value: Diagnosis(
        causes=("torch.compile or HIPRTC failed to build a kernel for this GPU (torch/_dynamo/exc.py, hiprtc.h)",),
        advice=("compile=False or TORCHDYNAMO_DISABLE=1; the training does not need it",),
    ),
    FaultClass.IO_ERROR.value: Diagnosis(
        causes=("the disk that holds the data or the checkpoints failed to read or write (the kernel's log)",),
        advice=("`smartctl -a` on that disk; put the data on another",),
    ),
    FaultClass.HUNG_TASK.value: Diagnosis(
        causes=("a process waited in the kernel for minutes: the GPU driver, or storage that does not answer",),
        advice=("the kernel's log names the function it waits in; only a reset or a reboot ends it",),
    ),
    FaultClass.KERNEL_PANIC.value: Diagnosis(
        causes=("the kernel itself came to an end: a driver's defect, bad memory, or a failing processor",),
        advice=("the lines in front of it name the driver; a memory test (memtest86+) finds bad memory",),
    ),
    FaultClass.KERNEL_OOPS.value: Diagnosis(
        causes=("the kernel met a defect of its own, mostly in a driver, and ended the process that had called it",),
        advice=("the lines after it name the function; what that process held stays locked: reboot the machine soon",),
    ),
    KILLED_BY_SIGNAL: Diagnosis(
        ruled_out=(_NOT_ITSELF, "a want of memory that the kernel logged: its log names no such kill"),
        causes=("it was killed from outside: a person, a limit of its cgroup, systemd-oomd, earlyoom",),
        advice=("`journalctl -b` around that second shows who",),
    ),
    HOST_LOST: Diagnosis(
        causes=(
            "the machine was reset, froze, or lost power "
            "(robust-thermal-image-object-detection, 9 November 2025: a freeze under load)",
        ),
        advice=("`journalctl -b -1 -e` holds its last words; a power cap or fewer watts test the supply",),
    ),
    "command_missing": Diagnosis(
        causes=("a program, script or folder that the job's command names is not there, or its user may not run it",),
        advice=(
            "correct `command`, `cwd` or PATH of the job, `supervisorctl reload`, then `supervisorctl start`",
            "a disk that holds it must be mounted before the job starts",
        ),
    ),
    "ended_early": Diagnosis(
        ruled_out=("a crash: its status was 0",),
        causes=("early stopping, a time limit of its own, or a script that catches an error and leaves",),
        advice=("the end of its output shows which: `supervisorctl logs`",),
    ),
    **{
        fault.value: _GPU
        for fault in (
            FaultClass.GPU_HANG,
            FaultClass.GPU_RESET,
            FaultClass.GPU_RESET_FAILED,
            FaultClass.GPU_INIT_FAILED,
            FaultClass.GPU_LOST,
            FaultClass.PAGE_FAULT,
            FaultClass.ECC_UNCORRECTABLE,
            FaultClass.ECC_CORRECTABLE,
            FaultClass.THERMAL,
            FaultClass.PCIE,
            FaultClass.SMU,
            FaultClass.QUEUE_EVICTION,
            FaultClass.XID,
        )
    },
}


def is_killed_from_outside(flag: RedFlag) -> bool:
    """Whether SIGKILL ended it and nothing says why: no process sends that to itself because of its data."""
    return flag.fault == KILLED_BY_SIGNAL and "killed by SIGKILL" in flag.message.partition(LAST_OUTPUT)[0]


def has_crashed(flag: RedFlag) -> bool:
    """Whether it ended by a signal that it caused itself, as SIGABRT where an exception of C++ is not caught."""
    return _CRASHED.search(flag.message.partition(LAST_OUTPUT)[0]) is not None


def crash_diagnosis(fault: str) -> Diagnosis | None:
    """Return what is behind a class of crash; None where its message says all that is known."""
    return _DIAGNOSES.get(fault)
