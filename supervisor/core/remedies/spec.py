"""The form of a remedy: what it changes at a launch, on what condition, and what of the agent it needs.

The agent gets factors and not results: only inside the training is it known what they are applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from supervisor.core.remedies.context import Situation


class Need(Enum):
    """What of the agent a remedy needs."""

    NOTHING = "nothing"
    AGENT = "agent"
    """The agent in the training's interpreter."""
    TORCH = "torch"
    """An agent that met torch, whatever the framework; it reports what it set."""
    TRAINER = "trainer"
    """A hook, or a script, that can change `RemedySpec.setting`; it reports what it set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """How much each remedy changes, from `[jobs.NAME.remedies]`."""

    lr_factor: float = 0.5
    clip_norm: float = 1.0
    batch_factor: float = 0.5
    scale_lr: bool = False
    """Whether a smaller batch lowers the learning rate by the same factor."""
    image_factor: float = 0.75
    skip_steps: int = 5
    """Batches left out before and after the fault."""
    conv2d_workspace_mb: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A remedy that every attempt gets until it is ended."""

    remedy: str
    cause: str
    attempt: int
    """The first attempt that has it."""
    step: int | None = None
    gpu: str | None = None
    """PCI address: the GPU to run on (`other_gpu`), or the one that was lost (`cpu_profile`)."""
    environment: str | None = None
    """Name of the environment to run in (`other_environment`)."""
    times: int | None = None
    """How often its factor is applied at once; None: once."""
    applied: str | None = None
    """What the agent reported that it set; None: nothing was reported."""


@dataclass(frozen=True, slots=True)
class Multiply:
    """A factor for a setting of the training; in force twice it is applied twice."""

    name: str
    by: float


@dataclass(frozen=True, slots=True)
class Assign:
    """A value for a setting of the training."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Env:
    """A variable of the training's environment."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ReplaceConv2d:
    """Conv2d is computed without MIOpen."""


@dataclass(frozen=True, slots=True)
class UseCpu:
    """The training runs by the CPU profile."""


@dataclass(frozen=True, slots=True)
class UseGpu:
    """The training runs on another GPU, by its PCI address."""

    gpu: str | None


@dataclass(frozen=True, slots=True)
class UseEnvironment:
    """The training runs in another of its configured environments, by name."""

    environment: str | None


Change: TypeAlias = Multiply | Assign | Env | ReplaceConv2d | UseCpu | UseGpu | UseEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedySpec:
    """One remedy."""

    name: str
    words: str
    """What it does, for people."""
    ladder: Mapping[str, int | tuple[int, ...]]
    """Its place in the default ladder of each cause, the lowest tried first; with two places it is taken twice."""
    changes: Callable[[InForce, Amounts], tuple[Change, ...]] = lambda _held, _amounts: ()
    """What it changes at each launch while it is in force."""
    condition: Callable[[Situation], bool] = lambda _situation: True
    """Whether it is available, beyond its needs."""
    needs: Need = Need.NOTHING
    setting: str = ""
    """With `Need.TRAINER`: the setting that the hook or the script must be able to change."""
    lasts: bool = True
    """Whether it stays in force for all later attempts; else it concerns one launch."""
    on_gpu: bool = False
    """Whether it is of no use to a training on the CPU."""
    unused: str = ""
    """What no report means once steps were made with it, where the agent reports its use and not that it is set."""
    costly: bool = False
    """Whether it helps in most cases at a high cost, so that success does not bring it forward."""

    @property
    def reported(self) -> bool:
        """Whether the agent reports that it was applied; without a report it was not tried."""
        return self.needs in (Need.TORCH, Need.TRAINER)

    def places(self, cause: str) -> tuple[int, ...]:
        """Return its places in the default ladder of a cause."""
        place = self.ladder.get(cause, ())
        return (place,) if isinstance(place, int) else place

    def is_available(self, situation: Situation) -> bool:
        """Whether it can be tried after this end of an attempt."""
        agent, ended = situation.context.agent, situation.ended
        match self.needs:
            case Need.AGENT if not agent:
                return False
            case Need.TORCH if not (agent and ended.torch):
                return False
            case Need.TRAINER if not (agent and self.setting in ended.adjustable):
                return False
            case _:
                return not (self.on_gpu and situation.on_cpu) and self.condition(situation)
