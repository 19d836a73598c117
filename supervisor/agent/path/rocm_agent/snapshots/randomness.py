"""Captures and restores the state of every random generator that a training draws from, without drawing."""

from __future__ import annotations

import random
import sys
from typing import Any, Dict


def capture(torch: Any) -> Dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's generators, with those of every GPU that is in use."""
    return {
        "python": random.getstate(),
        "numpy": _numpy_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
    }


def restore(torch: Any, state: Dict[str, Any]) -> None:
    """Put every generator where it was; a GPU that is not there now is passed over."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if state["numpy"] is not None and "numpy" in sys.modules:
        numpy = sys.modules["numpy"]
        name, words, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(words, dtype=numpy.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] is not None and torch.cuda.is_available():
        for device, item in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(item.cpu(), device)


def _numpy_state() -> Any:
    if "numpy" not in sys.modules:
        return None
    name, words, *rest = sys.modules["numpy"].random.get_state(legacy=True)
    return (name, words.tolist(), *rest)
