"""Evidence from other programs: native stacks by py-spy, the output of the GPU vendors' tools.

Where a program is not installed there is nothing to miss. One that hangs (a vendor's tool waits in the kernel for a
card in reset) is killed at its deadline and left behind.
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
CARD_TOOLS = ("rocm-smi --showallinfo", "amd-smi metric", "nvidia-smi -q")
"""What each vendor's tool says of a card's state."""
ENVIRONMENT = re.compile(
    "(?:AMD|CUDA|GPU|HCC|HIP|HSA|KMP|MIOPEN|MKL|NCCL|NVIDIA|OMP|PYTORCH|RCCL|ROCBLAS|ROCM|ROCR|TORCH|TORCHINDUCTOR|YOLO)_"
)
"""Beginnings of the variables that say how a training meets its hardware; no others are looked at."""

SECRET_NAME = re.compile(r"(?i)key|pass|pwd|token|secret|auth|cred|cookie|session|signature")
"""A variable with such a name may hold a secret: that it is set is told, its value is not."""


def native_stacks(pids: Iterable[int], target: EvidenceFolder) -> list[str]:
    """Have py-spy, where it is installed, write each process's native and Python stacks; return what is missing."""
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


def cards(target: EvidenceFolder, tools: Sequence[str] = CARD_TOOLS) -> list[str]:
    """Write into cards.txt what the vendors' tools say that are installed here; return what is missing."""
    missing, said = [], []
    for tool in tools:
        name, *options = tool.split()
        program = find(name)
        if program is None:
            continue
        text, problem = run([program, *options])
        if problem is not None:
            missing.append(f"{name}: {problem}")
        if text:
            said.append(f"== {tool}\n{text}\n")
    if said:
        target.write("cards.txt", "".join(said))
    return missing


def environment(env: dict[str, str]) -> str:
    """Return the variables that concern the hardware, a line each, without secrets."""
    chosen = sorted((name, value) for name, value in env.items() if ENVIRONMENT.match(name))
    told = ((name, HIDDEN if SECRET_NAME.search(name) else value) for name, value in chosen)
    return without_secrets("".join(f"{name}={value}\n" for name, value in told))


def find(name: str) -> str | None:
    """Return the path of a program on PATH or beside this interpreter, None where it is not installed."""
    beside = Path(sys.executable).with_name(name)
    return shutil.which(name) or (str(beside) if os.access(beside, os.X_OK) else None)


def run(command: Sequence[str], limit_s: float = PROGRAM_LIMIT_S) -> tuple[str, str | None]:
    """Return what a program printed within its time, and why it is not all; it is started in a group of its own."""
    try:
        ran = programs.run(command, limit_s, together=True)
    except OSError as error:
        return "", str(error.strerror or error)
    text = _text(ran.printed)
    if ran.status is None:
        return text, f"not finished within {limit_s:.0f} s"
    last = text.strip().splitlines()[-1:] or [""]
    return text, None if ran.status == 0 else f"status {ran.status} {last[0]}".strip()[:200]


def _text(printed: bytes) -> str:
    return printed[:OUTPUT_LIMIT_BYTES].decode("utf-8", "backslashreplace")
