"""The planner's limits, read once from the environment.

The daemon sets the variables from the job's table; by hand they may be set as well. A value that is no number counts as
its default: a training is not refused for one.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

from rocm_agent.layout import ENV_CONV2D_FOLDER, ENV_CONV2D_TUNE, ENV_CONV2D_WINOGRAD, ENV_CONV2D_WORKSPACE, ENV_FOLDER

WORKSPACE_MB = 512.0
TUNE_S = 60.0


class Limits(NamedTuple):
    """What the planner may do."""

    workspace_mb: float = WORKSPACE_MB
    """Memory that one pass may take in addition to its operands and its result, in MiB; larger batches are divided."""
    winograd: bool = True
    """Whether float32 may be computed by Winograd's transforms, with ten times the rounding of a direct sum."""
    tune_s: float = TUNE_S
    """Seconds that one process may spend on timing algorithms; 0: the rules choose."""
    folder: Optional[str] = None
    """Where plans are kept; None: nowhere."""


def _read_number(name: str, default: float) -> float:
    try:
        value = float(os.environ.get(name, ""))
    except ValueError:
        return default
    return value if 0 <= value < float("inf") else default


def _find_folder() -> Optional[str]:
    """Return the folder that the environment names, or the supervised job's, or the user's cache; None for "off"."""
    given = os.environ.get(ENV_CONV2D_FOLDER, "")
    if given:
        return None if given == "off" else given
    attempt = os.environ.get(ENV_FOLDER, "")
    if os.path.isabs(attempt):
        # STATE/jobs/JOB/ATTEMPT/run
        return os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(attempt))), "conv2d")
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        home = os.path.expanduser("~")
        if not os.path.isabs(home) or not os.path.isdir(home):
            return None
        cache = os.path.join(home, ".cache")
    return os.path.join(cache, "rocm-supervisor", "conv2d")


def from_environment() -> Limits:
    """Return the limits that the environment sets."""
    return Limits(
        workspace_mb=max(1.0, _read_number(ENV_CONV2D_WORKSPACE, WORKSPACE_MB)),
        winograd=os.environ.get(ENV_CONV2D_WINOGRAD, "") != "off",
        tune_s=_read_number(ENV_CONV2D_TUNE, TUNE_S),
        folder=_find_folder(),
    )
