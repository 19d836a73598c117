"""The progress that a training without hooks prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a line says the training stands; what it does not say is None."""

    shape: str
    """Whose way of printing it is: ultralytics, lightning, huggingface, epoch_bar, bar, batches, ..."""
    epoch: int | None = None
    """Counted from 0, whatever is printed."""
    epochs: int | None = None
    batch: int | None = None
    """Batches done in this epoch, or of the whole where no epoch is named; a bar's first frames lag behind."""
    batches: int | None = None
    samples: int | None = None
    part: float | None = None
    """Epochs done, with their fraction."""
    rate_per_s: float | None = None
    """Batches a second, as printed."""
    losses: Mapping[str, float | None] = field(default_factory=dict)
    """None for one that is printed as no number."""
    grad_norm: float | None = None
    lr: float | None = None
    not_finite: tuple[str, ...] = ()
    """Names of what was printed as NaN or infinite."""

    @property
    def is_nan(self) -> bool:
        """Whether anything that was printed is NaN or infinite."""
        return bool(self.not_finite)

    @property
    def loss(self) -> float | None:
        """Sum of the losses of training; None where one of them is no number, or none is printed."""
        known = [value for name, value in self.losses.items() if not name.startswith(("val", "eval"))]
        numbers = [value for value in known if value is not None]
        return sum(numbers) if numbers and len(numbers) == len(known) else None

    @property
    def step(self) -> int | None:
        """Batches done over the whole training, where that can be told."""
        if self.batch is None:
            return None
        if self.epoch is None:
            return self.batch if self.shape in ("iterations", "batches") else None
        return None if self.batches is None else self.epoch * self.batches + self.batch

    @property
    def place(self) -> int | None:
        """What changes as the training goes on: its step, or else whatever it counts."""
        known = (self.step, self.samples, self.batch, None if self.part is None else round(self.part * 1e6))
        return next((entry for entry in known if entry is not None), None)

    @property
    def steps(self) -> int | None:
        """Batches of the whole training."""
        return self.epochs * self.batches if self.epochs is not None and self.batches is not None else None
