"""Recognizes a saved output of rocm-smi, amd-smi or nvidia-smi by its format and parses it."""

from __future__ import annotations

import re
from collections.abc import Callable

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu import amd_smi, amd_smi_text, nvidia_smi, nvidia_smi_text, rocm_smi, rocm_smi_text

Reader = Callable[[str, Moment], tuple[GpuReading, ...]]
READERS: tuple[tuple[str, re.Pattern[str], Reader], ...] = (
    ("nvidia-smi", re.compile(r"^\| NVIDIA-SMI ", re.MULTILINE), nvidia_smi_text.parse_table),
    ("nvidia-smi dmon", re.compile(r"^# gpu\s+\S", re.MULTILINE), nvidia_smi_text.parse_columns),
    ("nvidia-smi -L", re.compile(r"^GPU \d+: .*\(UUID: ", re.MULTILINE), nvidia_smi_text.parse_list),
    ("nvidia-smi --query", re.compile(r"\A\s*[a-z][\w.]*(?: \[\S+\])?, \S+"), nvidia_smi.parse_saved),
    ("rocm-smi --showhw", re.compile(r"^GPU +(?:NODE +)?DID +", re.MULTILINE), rocm_smi_text.parse_hardware),
    ("rocm-smi", re.compile(r"^(?:Device|GPU) .*(?:SCLK|Temp)", re.MULTILINE), rocm_smi_text.parse_concise),
    ("rocm-smi --json", re.compile(r'"card\d+"\s*:'), rocm_smi.parse_saved),
    ("rocm-smi --show", re.compile(r"^GPU\[\d+\]\s*: ", re.MULTILINE), rocm_smi_text.parse_list),
    ("amd-smi --json", re.compile(r'"gpu"\s*:\s*\d'), amd_smi.parse_saved),
    ("amd-smi monitor", re.compile(r"^(?:TIMESTAMP +)?GPU +[A-Z0-9_%]+", re.MULTILINE), amd_smi_text.parse_monitor),
    ("amd-smi metric", re.compile(r"^GPU: \d+\s*$", re.MULTILINE), amd_smi_text.parse_lists),
)
"""Name of a format, the pattern that recognizes it, and its parser; the first that returns a GPU is used."""


def read_saved(text: str, at: Moment) -> tuple[GpuReading, ...]:
    """Return the readings of each GPU in a saved output; () if the format is unknown or it names no GPU."""
    clean = text.replace("\r\n", "\n").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    for _, form, reader in READERS:
        if form.search(clean) and (found := reader(clean, at)):
            return found
    return ()
