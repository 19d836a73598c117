"""The models of an ultralytics trainer: the one that learns, its average, and the average's shell that is written."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Dict


def unwrapped(torch: Any, model: Any) -> Any:
    """Return the model inside DistributedDataParallel and torch.compile."""
    while isinstance(getattr(model, "module", None), torch.nn.Module):
        model = model.module
    return getattr(model, "_orig_mod", model)


def models(torch: Any, trainer: Any) -> Dict[str, Any]:
    """Return the model and its average."""
    return {"model": unwrapped(torch, trainer.model), "ema": trainer.ema.ema}


def skeleton(trainer: Any) -> Any:
    """Return the average's module on the CPU, to be filled and written."""
    ema = trainer.ema.ema
    criterion = getattr(ema, "criterion", None)
    if criterion is None:
        return deepcopy(ema).cpu()
    try:
        ema.criterion = None  # it belongs to the training and holds what is on the device
        return deepcopy(ema).cpu()
    finally:
        ema.criterion = criterion
