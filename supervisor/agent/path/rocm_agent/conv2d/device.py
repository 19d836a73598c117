"""How wide a device computes; it asks nothing else of it."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache(maxsize=64)
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors (compute units) of a card; 1 for a CPU, where operators cost little."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
