"""A start that a tune asks for: with what the training is started, and which of what was saved it goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FACTORS_OUTRANKED_BY = ("allocator", "batch", "batch_factor", "image_factor", "lr_factor")
"""Settings of remedies: what a start multiplies of the batch and the rate belongs together, and holds with none."""
UNUSED = "saved in a start that a tune measured"
"""Why what was saved there is rejected: no fault of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedStart:
    """What a tune has a training started with besides its configuration; values are tuples, for they are stored."""

    knobs: tuple[tuple[str, str], ...]
    """By name, each with its value in words."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables."""
    factors: tuple[tuple[str, float], ...] = ()
    """Settings of the agent, each with what it multiplies; where a remedy changes one of them none holds."""
    environment: str | None = None
    """The environment of the job's that it runs in; None: its own."""
    command: tuple[str, ...] = ()
    """The command that it was measured with; another one is started without it."""

    @property
    def words(self) -> str:
        """What it is, for a person."""
        return ", ".join(f"{knob} {value}" for knob, value in self.knobs)

    @property
    def variables(self) -> Mapping[str, str]:
        """Its variables by name."""
        return dict(self.env)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """One start that a tune asks for."""

    start: TunedStart | None
    """What to start with; None: the configuration alone."""
    is_lent: bool = False
    """Whether it is on trial: what its attempt saves is never resumed from."""
    measures: bool = True
    """Whether its attempt is measured, so that nothing else is to be started meanwhile."""
    saves: bool = False
    """Whether the attempt under way saves before it ends for it."""
    since_unix_s: float | None = None
    """What was saved from then on is not resumed from; None: all that was saved may be."""

    @property
    def words(self) -> str:
        """What for, to complete a sentence about a restart."""
        with_what = f"with {self.start.words}" if self.start is not None else "as configured"
        return f"for a tune, {with_what}" if self.measures else f"after a tune, {with_what}"
