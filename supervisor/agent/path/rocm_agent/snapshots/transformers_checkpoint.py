"""The form that the Hugging Face Trainer gives its own checkpoints, and reads when it resumes."""

# ruff: noqa: PLC0415 - numpy is the user's: imported where it is sure to be loaded already

from __future__ import annotations

import os
import shutil
from dataclasses import fields
from typing import Any, Dict

STATE = "trainer_state.json"
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "adapter_model.safetensors")


def unpack(torch: Any, trainer: Any, folder: str, found: Dict[str, Any], ours: Dict[str, Any]) -> None:
    """Write what the Trainer reads by itself; its own random states only where it has no batch to pass over.

    `found` is the snapshot, and `ours` what in it lies under our key, empty where that is of no use any more.
    """
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    parts = {"optimizer.pt": found["optimizer"], "scheduler.pt": found["scheduler"], "scaler.pt": found["scaler"]}
    if ours and (ours["data"] is None or not ours["data"]["batches"]):
        several = trainer.args.world_size > 1
        name = "rng_state_%d.pth" % trainer.args.process_index if several else "rng_state.pth"
        parts[name] = _as_theirs(ours["random"], several=several)
    for name, part in parts.items():
        if part is not None:
            torch.save(part, os.path.join(folder, name))
    with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:
        file.write(found["trainer_state"])


def facts_of(trainer: Any) -> Dict[str, Any]:
    """Return the Trainer's state as it would save it itself: its fields; older versions add the model to it."""
    facts = {field.name: getattr(trainer.state, field.name) for field in fields(trainer.state)}
    facts["log_history"] = list(trainer.state.log_history)
    facts["total_flos"] = float(trainer.state.total_flos) + float(getattr(trainer, "current_flos", 0))
    if "stateful_callbacks" not in facts:  # up to 4.40 the Trainer raises at what is no field of its state
        return facts
    callbacks: Dict[str, Any] = {}
    for item in [*trainer.callback_handler.callbacks, trainer.control]:
        if hasattr(item, "state") and hasattr(item, "from_state"):
            callbacks.setdefault(type(item).__name__, []).append(item.state())
    facts["stateful_callbacks"] = {name: some[0] if len(some) == 1 else some for name, some in callbacks.items()}
    return facts


def _as_theirs(random: Dict[str, Any], *, several: bool) -> Dict[str, Any]:
    """Return random states as the Trainer saves them."""
    import numpy

    name, words, *rest = random["numpy"]
    version, internal, gauss = random["python"]
    theirs = {
        "python": (version, tuple(internal), gauss),
        "numpy": (name, numpy.array(words, dtype=numpy.uint32), *rest),
        "cpu": random["torch"],
    }
    if random["cuda"]:
        theirs["cuda"] = random["cuda"] if several else random["cuda"][0]
    return theirs
