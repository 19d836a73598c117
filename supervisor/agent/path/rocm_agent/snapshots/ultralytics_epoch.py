"""What an ultralytics epoch that is gone on with is given back: its count of batches, its buffer, its rows."""

from __future__ import annotations

import os
from typing import Any


class _Shifted:
    """`accumulate` of one trainer, larger by a shift while a resumed training counts its optimizer's steps from -1."""

    def __init__(self, trainer: Any, shift: int) -> None:
        self.trainer, self._shift = trainer, shift

    def __get__(self, trainer: Any, kind: Any = None) -> Any:
        value = vars(trainer)["accumulate"]
        return value + self._shift if trainer is self.trainer else value

    def __set__(self, trainer: Any, value: Any) -> None:
        vars(trainer)["accumulate"] = value


def shift(trainer: Any, shift: int) -> None:
    """Make the trainer's question `batch - (-1) >= accumulate` the one it would ask had it never been interrupted."""
    type(trainer).accumulate = _Shifted(trainer, shift)


def unshift(trainer: Any) -> None:
    """Have it asked as it always was: the optimizer has stepped in this process."""
    shifted = vars(type(trainer)).get("accumulate")
    if isinstance(shifted, _Shifted) and shifted.trainer is trainer:
        del type(trainer).accumulate


def fill_buffer(dataset: Any, indices: Any) -> None:
    """Load the images that mosaics are drawn from, and have them in their order."""
    if not indices or not isinstance(getattr(dataset, "buffer", None), list):
        return
    del dataset.buffer[:]
    for index in indices:
        dataset.load_image(index)
    dataset.buffer[:] = indices


def cut(csv: str, size: int) -> None:
    """Take away the rows of epochs that will be redone."""
    try:
        if size == 0:
            os.unlink(csv)
        elif os.stat(csv).st_size > size:
            os.truncate(csv, size)
    except FileNotFoundError:
        pass


def on(device: Any, value: Any) -> Any:
    """Return a value with its tensors on a device."""
    if hasattr(value, "to") and hasattr(value, "device"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: on(device, item) for key, item in value.items()}
    return value
