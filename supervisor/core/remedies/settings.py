"""The settings `[jobs.NAME.remedies]`: which remedies are tried against which cause, and how much each changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from supervisor.core.remedies import causes
from supervisor.core.remedies.spec import Amounts
from supervisor.core.remedies.table import BY_NAME, default_ladder

if TYPE_CHECKING:
    Remedy: TypeAlias = str
else:
    Remedy = Literal[tuple(BY_NAME)]  # what a configuration may name is what the table has
Ladder: TypeAlias = tuple[Remedy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies(Amounts):
    """The table `[jobs.NAME.remedies]`: a ladder a cause, tried from its first remedy on.

    A remedy that a ladder has twice is taken twice.
    """

    enabled: bool = True
    """False: every retry is a plain one, as far as the budget goes."""
    forbid: tuple[Remedy, ...] = ()
    """Never taken, and ended where one is in force."""
    learn: bool = True
    """Whether what helped on this machine is tried first, and what failed repeatedly is skipped."""
    same_place_steps: int = 2
    """A fault of the same cause at most this many steps from the last one is at the same place."""
    helped_after_steps: int = 100
    """Steps beyond the fault after which a remedy has helped."""
    give_up_after_failures: int = 3
    """Failures on this machine, without one success, after which a remedy is skipped."""
    back_after_s: float = 300.0
    """How long a GPU must have answered again before a training on the CPU goes back to it."""
    max_returns: int = 3
    """Returns to a GPU that was lost, at most, between two starts by a user."""

    non_finite: Ladder = default_ladder(causes.NON_FINITE)
    oom_gpu: Ladder = default_ladder(causes.OOM_GPU)
    oom_host: Ladder = default_ladder(causes.OOM_HOST)
    fragmentation: Ladder = default_ladder(causes.FRAGMENTATION)
    miopen: Ladder = default_ladder(causes.MIOPEN)
    slow_start: Ladder = default_ladder(causes.SLOW_START)
    stall: Ladder = default_ladder(causes.STALL)
    stall_data: Ladder = default_ladder(causes.STALL_DATA)
    gpu_hang: Ladder = default_ladder(causes.GPU_HANG)
    gpu_lost: Ladder = default_ladder(causes.GPU_LOST)
    no_kernel_image: Ladder = default_ladder(causes.NO_KERNEL_IMAGE)
    blas: Ladder = default_ladder(causes.BLAS)
    compile: Ladder = default_ladder(causes.COMPILE)
    loader: Ladder = default_ladder(causes.LOADER)
    collective: Ladder = default_ladder(causes.COLLECTIVE)
    crash: Ladder = default_ladder(causes.CRASH)
    hardware: Ladder = default_ladder(causes.HARDWARE)

    def ladder(self, cause: str) -> Ladder:
        """Return the ladder of a cause as configured."""
        ladder: Ladder = getattr(self, cause)
        return ladder

    def allows(self, remedy: str) -> bool:
        """Whether it may be in force."""
        return self.enabled and remedy not in self.forbid
