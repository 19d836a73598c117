"""What lines of a training's own output mean: two tables, each row with the source of its wording.

A row is found by its `needle` first (a plain substring, which is cheap over megabytes) and then confirmed by its
`pattern`. The first row that fits a line wins, so the particular stands before the general.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from supervisor.core.readings import FaultClass

LINE_LIMIT = 2000
"""Characters of a line that are looked at and kept."""


@dataclass(frozen=True, slots=True)
class Row:
    """One wording of one failure."""

    fault: FaultClass
    needle: str
    source: str
    pattern: re.Pattern[str] | None = None

    def fits(self, line: str) -> bool:
        """Whether the line says this."""
        return self.needle in line and (self.pattern is None or self.pattern.search(line) is not None)


def _row(fault: FaultClass, needle: str, source: str, pattern: str | None = None) -> Row:
    return Row(fault, needle, source, re.compile(pattern) if pattern else None)


_F = FaultClass
ROWS: tuple[Row, ...] = (
    # --- memory of the card: torch 1.13 says RuntimeError or torch.cuda.OutOfMemoryError, 2.5 torch.OutOfMemoryError
    _row(_F.OOM_GPU, "OutOfMemoryError", "torch/cuda, >= 1.13", r"^(?:\S*\s)?torch\.(?:cuda\.)?OutOfMemoryError\b"),
    # Ultralytics 8.4 halves its batch by itself in the first epoch and says so: that is no failure.
    _row(_F.OOM_GPU, "out of memory", "c10/cuda/CUDACachingAllocator.cpp",
         r"(?:CUDA|HIP) out of memory(?! with batch)"),
    _row(_F.OOM_GPU, "error: out of memory", "c10/cuda/CUDAException.cpp", r"(?:CUDA|HIP) error: out of memory"),
    _row(_F.OOM_GPU, "hipErrorOutOfMemory", "hip_runtime_api.h"),
    _row(_F.OOM_GPU, "cudaErrorMemoryAllocation", "driver_types.h"),
    # --- shared memory of the data loader says "No space left" too
    _row(_F.DATA_LOADER, "unable to allocate shared memory(shm)", "torch/csrc: MapAllocator.cpp, 2.13 recorded"),
    _row(_F.DATA_LOADER, "DataLoader worker", "torch/utils/data/_utils/signal_handling.py, dataloader.py",
         r"DataLoader worker \(pid(?:\(s\))? [^)]*\) (?:is killed by|exited unexpectedly)"),
    _row(_F.DATA_LOADER, "insufficient shared memory (shm)", "torch/csrc/DataLoader.cpp"),
    # --- memory of the machine
    _row(_F.OOM_HOST, "DefaultCPUAllocator", "c10/core/impl/alloc_cpu.cpp", r"can't allocate memory|not enough memory"),
    _row(_F.OOM_HOST, "MemoryError", "Python, numpy/_core/_exceptions.py",
         r"^(?:numpy\.\S*_ArrayMemoryError|MemoryError)\b"),
    _row(_F.OOM_HOST, "std::bad_alloc", "libstdc++"),
    _row(_F.OOM_HOST, "[Errno 12]", "errno ENOMEM", r"OSError: \[Errno 12\]"),
    _row(_F.OOM_HOST, "Insufficient memory (Failed to allocate", "opencv modules/core/src/alloc.cpp"),
    # --- no code for this card; before ILLEGAL_ACCESS, because a wrong HSA_OVERRIDE_GFX_VERSION shows as both
    _row(_F.NO_KERNEL_IMAGE, "hipErrorNoBinaryForGpu", "clr hip_fatbin.cpp, pytorch#132570"),
    _row(_F.NO_KERNEL_IMAGE, "no kernel image is available for execution", "CUDA and HIP error 209"),
    _row(_F.NO_KERNEL_IMAGE, "invalid device function", "CUDA and HIP error 98",
         r"error: invalid device function|InvalidDeviceFunction"),
    _row(_F.NO_KERNEL_IMAGE, "device kernel image is invalid", "CUDA and HIP error 200"),
    _row(_F.NO_KERNEL_IMAGE, "hipErrorInvalidDeviceFunction", "hip_runtime_api.h"),
    _row(_F.NO_KERNEL_IMAGE, "HSA_STATUS_ERROR_INVALID_ISA", "ROCR-Runtime hsa.h"),
    _row(_F.NO_KERNEL_IMAGE, "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION", "ROCR-Runtime hsa.h"),
    # --- the kernel touched memory that is not its own
    _row(_F.ILLEGAL_ACCESS, "Memory access fault by GPU node", "ROCR-Runtime runtime.cpp, legacy-rocm-build#1535"),
    _row(_F.ILLEGAL_ACCESS, "an illegal memory access was encountered", "CUDA and HIP error 700"),
    _row(_F.ILLEGAL_ACCESS, "hipErrorIllegalAddress", "hip_runtime_api.h"),
    _row(_F.ILLEGAL_ACCESS, "error: misaligned address", "CUDA error 716"),
    _row(_F.ILLEGAL_ACCESS, "unspecified launch failure", "CUDA and HIP error 719"),
    _row(_F.ILLEGAL_ACCESS, "HSA_STATUS_ERROR_MEMORY_", "ROCR-Runtime hsa.h",
         r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)"),
    # --- the card itself, as the runtime sees it
    _row(_F.GPU_HANG, "HW Exception by GPU node", "ROCR-Runtime runtime.cpp", r"reason\s*:\s*GPU Hang"),
    # --- MIOpen: failures only. Its warnings (a missing system database) come with every healthy run on such a card
    _row(_F.MIOPEN, "miopenStatus", "miopen.h; pytorch throws the bare name",
         r"\bmiopenStatus(?:UnknownError|InternalError|NotImplemented|BadParm|AllocFailed|InvalidValue|NotInitialized"
         r"|UnsupportedOp|VersionMismatch)\b"),
    _row(_F.MIOPEN, "MIOpen Error:", "MIOpen src/errors.cpp, MIOpen#1204"),
    _row(_F.MIOPEN, "MIOpen", "MIOpen src/logger.cpp, legacy-rocm-build#2355",
         r"\bMIOpen(?:\(\w+\))?: Error \["),
    # --- matrix libraries
    _row(_F.BLAS, "BLAS_STATUS_", "cublas_v2.h, hipblas.h",
         r"\b(?:CU|HIP)BLAS_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED|INVALID_VALUE|ARCH_MISMATCH|MAPPING_ERROR"
         r"|EXECUTION_FAILED|INTERNAL_ERROR|NOT_SUPPORTED|UNKNOWN)"),
    _row(_F.BLAS, "rocBLAS error", "rocBLAS tensile_host.cpp", r"rocBLAS error(?: from hip error code)?:"),
    _row(_F.BLAS, "rocblas_status_", "rocblas-types.h", r"\brocblas_status_(?!success\b)\w+"),
    # --- nowhere to write
    _row(_F.DISK_FULL, "No space left on device", "errno ENOSPC"),
    _row(_F.DISK_FULL, "Disk quota exceeded", "errno EDQUOT"),
    _row(_F.DISK_FULL, "PytorchStreamWriter failed writing file", "caffe2/serialize/inline_container.cc"),
)  # fmt: skip


def findings(segments: Iterable[str], limit: int = 20) -> Iterator[tuple[FaultClass, str]]:
    """Yield fault and line for each line that says one of `ROWS`, each line's wording once, at most `limit`."""
    text = "\n".join(segments)
    rows = [row for row in ROWS if row.needle in text]
    if not rows:
        return
    seen: set[tuple[FaultClass, str]] = set()
    for line in text.split("\n"):
        if not any(row.needle in line for row in rows):
            continue
        shown = line[:LINE_LIMIT]
        fault = next((row.fault for row in rows if row.fits(shown)), None)
        if fault is None or (fault, shown) in seen:
            continue
        seen.add((fault, shown))
        yield fault, shown
        if len(seen) >= limit:
            return


# --- progress of a training that no hook reports on ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a progress bar says the training stands."""

    epoch: int
    """As printed: counted from 1."""
    epochs: int
    batch: int
    """Batches done in this epoch, as printed; a bar's first frames lag behind."""
    batches: int
    loss: float | None
    """Sum of the printed losses (running means over the epoch); None where one of them is no number."""
    is_nan: bool
    """Whether a printed loss is NaN or infinite."""


# Ultralytics 8.0.100 to 8.4.190, and before the last colon all versions alike:
#   "        1/2         0G  5.582e-05     0.3137  3.198e-05         10         64:  33%|███▎      | 2/6 [00:00<..."
#   "        1/2         0G   0.001161     0.3149  0.0007035          9         64: 16% ━━────────── 1/6 2.2it/s ..."
_ULTRALYTICS = re.compile(
    r"^\s*(?P<epoch>\d{1,7})/(?P<epochs>\d{1,7})\s+\d+(?:\.\d+)?G\s+"
    r"(?P<losses>(?:(?:[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf)|nan)\s+){1,8}?)"
    r"\d+\s+\d+:\s+\d+%\s*(?:\|[^|]*\||[━─╸╺╴ ]*)\s*(?P<batch>\d{1,9})/(?P<batches>\d{1,9})(?:\s|$)",
    re.IGNORECASE,
)


def progress(segments: Iterable[str]) -> Progress | None:
    """Return what the last ultralytics training bar among the segments says; None where there is none."""
    for segment in reversed(list(segments)):
        # The cheap question first: most lines of an output are no progress bar.
        if "%" in segment and "G " in segment and (found := _ULTRALYTICS.match(segment[:LINE_LIMIT])):
            losses = [float(word) for word in found["losses"].split()]
            finite = all(map(math.isfinite, losses))
            return Progress(
                epoch=int(found["epoch"]),
                epochs=int(found["epochs"]),
                batch=int(found["batch"]),
                batches=int(found["batches"]),
                loss=sum(losses) if finite else None,
                is_nan=not finite,
            )
    return None
