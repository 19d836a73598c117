"""Progress parsed from the output of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress that one line reports; None for what it does not contain."""

    shape: str
    """The format of the line: ultralytics, lightning, huggingface, epoch_bar, bar, batches, ..."""
    epoch: int | None = None
    """Counted from 0, also where the line counts from 1."""
    epochs: int | None = None
    batch: int | None = None
    """Batches done in this epoch, or in the training if no epoch is printed."""
    batches: int | None = None
    samples: int | None = None
    part: float | None = None
    """Epochs done, with the fraction of the present one."""
    rate_per_s: float | None = None
    """Batches a second, as printed."""
    losses: Mapping[str, float | None] = field(default_factory=dict)
    """By printed name; None for a value that is NaN or infinite."""
    grad_norm: float | None = None
    lr: float | None = None
    not_finite: tuple[str, ...] = ()
    """Names of what was printed as NaN or infinite."""

    @property
    def is_nan(self) -> bool:
        """Whether any printed value is NaN or infinite."""
        return bool(self.not_finite)

    @property
    def loss(self) -> float | None:
        """Sum of the training losses; None if one of them is not finite or none is printed."""
        known = [value for name, value in self.losses.items() if not name.startswith(("val", "eval"))]
        numbers = [value for value in known if value is not None]
        return sum(numbers) if numbers and len(numbers) == len(known) else None

    @property
    def step(self) -> int | None:
        """Batches done since the start of the training, None if the line does not determine it."""
        if self.batch is None:
            return None
        if self.epoch is None:
            return self.batch if self.shape in ("iterations", "batches") else None
        return None if self.batches is None else self.epoch * self.batches + self.batch

    @property
    def place(self) -> int | None:
        """A count that grows as the training advances: its step, or else samples, batches or epochs (in millionths)."""
        known = (self.step, self.samples, self.batch, None if self.part is None else round(self.part * 1e6))
        return next((entry for entry in known if entry is not None), None)

    @property
    def bar_steps(self) -> int | None:
        """Batches of a bar that may be a download or the preparation of the data, since it names no epoch."""
        return self.batches if self.shape == "bar" and self.epoch is None else None

    @property
    def steps(self) -> int | None:
        """Batches of the complete training."""
        return self.epochs * self.batches if self.epochs is not None and self.batches is not None else None
