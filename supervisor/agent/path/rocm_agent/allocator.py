"""Sets options of torch's caching allocator that reduce fragmentation, as far as the installed version knows them.

An option that a version does not know ends the training, so the version is asked before torch is imported. Segments
that expand are kept from ROCm: builds before ROCm 7 ignore them, and later ones have hung in them (pytorch#192259).
"""

from __future__ import annotations

import os
import re

OPTIONS = (
    ("garbage_collection_threshold", "0.8", (1, 12)),
    ("max_split_size_mb", "128", (1, 10)),
)
EXPANDABLE = ("expandable_segments", "True", (2, 1))
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
COMMON_SINCE = (2, 9)
"""From here on PYTORCH_ALLOC_CONF is the name for every device, and the others are old ones."""


def configure() -> str:
    """Set the variables for the torch of this environment; return what they say. Before torch is imported."""
    from importlib.metadata import version  # noqa: PLC0415 - only where this remedy is in force

    found = version("torch")
    applied = ""
    for name in variables(found):
        applied = os.environ[name] = options(found, os.environ.get(name, ""))
    return applied


def variables(torch: str) -> tuple:
    """Return the variables that a version of torch reads."""
    if _parse_version(torch) >= COMMON_SINCE:
        return ("PYTORCH_ALLOC_CONF",)
    return VARIABLES[:2] if "rocm" in torch else VARIABLES[:1]


def options(torch: str, theirs: str) -> str:
    """Return the options for a version of torch; what the owner has set stays."""
    mine = OPTIONS if "rocm" in torch else (*OPTIONS, EXPANDABLE)
    named = {part.partition(":")[0].strip() for part in theirs.split(",")}
    more = [
        "%s:%s" % (name, value) for name, value, since in mine if name not in named and _parse_version(torch) >= since
    ]
    return ",".join(filter(None, [theirs, *more]))


def _parse_version(torch: str) -> tuple:
    return tuple(int(item) for item in re.findall(r"\d+", torch)[:2])
