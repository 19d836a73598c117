"""Evidence from other programs: native stacks by py-spy, the output of the GPU vendors' tools.

A program that is not installed is not reported as missing. A program that hangs (in the kernel, for a GPU in reset) is
killed at its deadline and not waited for.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from supervisor import programs
from supervisor.core.sanitize import HIDDEN, without_secrets
from supervisor.runner.evidence_folder import EvidenceFolder

PROGRAM_LIMIT_S = 3.0
OUTPUT_LIMIT_BYTES = 1 << 20
PROCESSES_LIMIT = 16
GPU_TOOLS = ("rocm-smi --showallinfo", "amd-smi metric", "nvidia-smi -q")
"""The commands that print the state of each vendor's GPUs."""
ROCM_TOOLS = ("rocm-smi", "amd-smi")
AMDGPU = Path("/sys/module/amdgpu")
"""Exists while the amdgpu driver is loaded or built in; without it each of those takes 0.1 s of processor time."""
ENVIRONMENT = re.compile(
    "(?:AMD|CUDA|GPU|HCC|HIP|HSA|KMP|MIOPEN|MKL|NCCL|NVIDIA|OMP|PYTORCH|RCCL|ROCBLAS|ROCM|ROCR|TORCH|TORCHINDUCTOR|YOLO)_"
)
"""Prefixes of the variables that concern the hardware; no others are read."""

SECRET_NAME = re.compile(r"(?i)key|pass|pwd|token|secret|auth|cred|cookie|session|signature")
"""A variable with such a name may contain a secret: its name is written, its value is not."""


def native_stacks(pids: Iterable[int], target: EvidenceFolder) -> list[str]:
    """Write each process's native and Python stacks with py-spy, if it is installed; return what is missing."""
    program = find("py-spy")
    if program is None:
        return []
    missing = []
    for pid in list(pids)[:PROCESSES_LIMIT]:
        text, problem = run([program, "dump", "--native", "--pid", str(pid)])
        if text:
            target.write(f"native-stacks-{pid}.txt", without_secrets(text))
        if problem is not None:
            missing.append(f"native stacks of {pid}: {problem}")
    return missing


def write_gpu_tools(target: EvidenceFolder, tools: Sequence[str] = GPU_TOOLS, amdgpu: Path = AMDGPU) -> list[str]:
    """Write the output of the installed tools whose driver is loaded into gpus.txt; return what is missing."""
    missing, texts = [], []
    for tool in tools:
        name, *options = tool.split()
        program = find(name)
        if program is None or (name in ROCM_TOOLS and not amdgpu.exists()):
            continue
        text, problem = run([program, *options])
        if problem is not None:
            missing.append(f"{name}: {problem}")
        if text:
            texts.append(f"== {tool}\n{text}\n")
    if texts:
        target.write("gpus.txt", "".join(texts))
    return missing


def environment(env: dict[str, str]) -> str:
    """Return the variables that concern the hardware, one per line, without secrets."""
    chosen = sorted((name, value) for name, value in env.items() if ENVIRONMENT.match(name))
    shown = ((name, HIDDEN if SECRET_NAME.search(name) else value) for name, value in chosen)
    return without_secrets("".join(f"{name}={value}\n" for name, value in shown))


def find(name: str) -> str | None:
    """Return the path of a program on PATH or in this interpreter's folder; None if it is not installed."""
    path = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(path) if os.access(path, os.X_OK) else None)


def run(command: Sequence[str], limit_s: float = PROGRAM_LIMIT_S) -> tuple[str, str | None]:
    """Run a program in its own process group; return its output, and why it is incomplete or failed, or None."""
    try:
        ran = programs.run(command, limit_s, together=True)
    except OSError as error:
        return "", str(error.strerror or error)
    text = _decode_output(ran.stdout)
    if ran.status is None:
        return text, f"not finished within {limit_s:.0f} s"
    last = text.strip().splitlines()[-1:] or [""]
    return text, None if ran.status == 0 else f"status {ran.status} {last[0]}".strip()[:200]


def _decode_output(printed: bytes) -> str:
    return printed[:OUTPUT_LIMIT_BYTES].decode("utf-8", "backslashreplace")
