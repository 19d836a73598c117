"""The account of a job's restarts: how many were spent, and which of them progress has cleared.

There are two limits: restarts in a row without progress, of all causes together and of each cause, and restarts
within a period. Alternating causes share the first, so they cannot cause endless retries. Only progress clears it: a
step further than any attempt came before. A restart whose progress is unknown counts in the second only:
unknown is neither progress nor the lack of it (NVRx, progress_tracker: an unknown scored as 0 first counts as no
progress and then as a leap).
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from itertools import pairwise

from supervisor.core.moments import Moment
from supervisor.core.scale import Place, is_beyond, on_training
from supervisor.core.units import HOUR_S

ASSUMED_FAULT_S = 14400.0
"""Assumed time between two faults while none is known. It is short because short runs lose the most; a training that
runs longer saves less often (rocm_agent.snapshots.interval)."""
GAPS_COUNTED = 8
"""Only the newest gaps between restarts count: faults repaired since are forgotten."""
SHORTEST_GAP_S = 1.0
REFUSED_WAITS_S = (0.0, 1.0, 5.0, 15.0, 30.0)
"""Wait before the n-th launch in a row after the machine refused one; the last value repeats. A refused launch costs
nothing but the try, and a job that waits longer than what it waits for loses its training's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of restarts, from `[jobs.NAME.budget]`."""

    restarts: int = 10
    """Restarts in a row without progress, whatever their causes."""
    restarts_per_cause: int = 6
    """Restarts in a row without progress that one cause may take of these."""
    restarts_per_period: int = 30
    period_s: float = 86400.0
    settle_s: float = 600.0
    """An attempt that ends sooner and was never seen to step made no progress; for a longer one it is not known."""
    backoff_s: tuple[float, ...] = (0.0, 5.0, 30.0, 120.0, 600.0)
    """Wait before the n-th restart in a row without progress; the last value repeats."""
    jitter_fraction: float = 0.1
    """Share of the wait that is left out by chance, so that jobs that failed together do not start together."""
    never_retry_exit_codes: tuple[int, ...] = ()
    """Statuses after which the job is given up."""
    always_retry_exit_codes: tuple[int, ...] = ()
    """Statuses after which it is restarted whatever was spent; such a restart does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The restarts that a job has spent."""

    total: int = 0
    """Restarts ever made that counted."""
    in_a_row: int = 0
    """Restarts since the last progress."""
    causes: tuple[tuple[str, int], ...] = ()
    """`in_a_row` by cause."""
    free_in_a_row: int = 0
    """Restarts since the last progress that do not count; they wait as well."""
    refused_in_a_row: int = 0
    """Launches in a row that the machine refused for want of something; they lengthen no wait of the job's own."""
    recent_unix_s: tuple[float, ...] = ()
    """When the restarts of the last period were made; Unix seconds, for they must outlive a reboot."""
    furthest_step: int | None = None
    """The furthest step of the training that any attempt made."""
    proven_step: int | None = None
    """The furthest step of the training of which a checkpoint is proven."""

    def stepped(self, place: Place) -> Ledger:
        """Return the account after a step: progress beyond the furthest clears the restarts in a row.

        A step counted by its attempt alone changes nothing: it may be new or repeated.
        """
        if place.on_training is None or is_beyond(place, on_training(self.furthest_step)) is False:
            return self
        return replace(self._clear_restarts(), furthest_step=place.on_training)

    def saved(self, place: Place | None, saved_unix_s: float) -> Ledger:
        """Return the account after a new checkpoint of this training was proven; `place` None: not known.

        The next attempt goes on from it: that is progress, unless one further on was proven before. Proving takes time:
        a restart that came after the save was made is not cleared by it.
        """
        if place is None or place.on_training is None:
            return self._clear_restarts_before(saved_unix_s)
        if is_beyond(place, on_training(self.proven_step)) is False:
            return self
        return replace(self._clear_restarts_before(saved_unix_s), proven_step=place.on_training)

    def _clear_restarts_before(self, unix_s: float) -> Ledger:
        """Return the account after progress was made at a time in the past: the restarts since then stay in it."""
        since = sum(1 for restarted_unix_s in self.recent_unix_s if restarted_unix_s >= unix_s)
        if since == 0:
            return self._clear_restarts()
        causes = tuple((cause, min(count, since)) for cause, count in self.causes)
        return replace(self, in_a_row=min(self.in_a_row, since), causes=causes)

    def _clear_restarts(self) -> Ledger:
        return replace(self, in_a_row=0, causes=(), free_in_a_row=0, refused_in_a_row=0)

    def rescaled(self, factor: float) -> Ledger:
        """Return the account with steps renumbered: an epoch has `factor` times as many of them now."""

        def scaled(step: int | None) -> int | None:
            return None if step is None else round(step * factor)

        return replace(self, furthest_step=scaled(self.furthest_step), proven_step=scaled(self.proven_step))

    def restarted_free(self) -> Ledger:
        """Return the account after a restart that does not count."""
        return replace(self, free_in_a_row=self.free_in_a_row + 1, refused_in_a_row=0)

    def refused(self) -> Ledger:
        """Return the account after a launch that the machine refused: it spends nothing of the job's."""
        return replace(self, refused_in_a_row=self.refused_in_a_row + 1)

    def restarted(self, at: Moment, budget: Budget, *, progress_known: bool, cause: str = "") -> Ledger:
        """Return the account after a restart that counts."""
        by_cause = dict(self.causes)
        if progress_known and cause:
            by_cause[cause] = by_cause.get(cause, 0) + 1
        kept = tuple(value for value in self.recent_unix_s if 0 <= at.unix_s - value < budget.period_s)
        return replace(
            self,
            total=self.total + 1,
            in_a_row=self.in_a_row + (1 if progress_known else 0),
            causes=tuple(by_cause.items()),
            refused_in_a_row=0,
            recent_unix_s=(*kept, at.unix_s),
        )

    def forgiven(self) -> Ledger:
        """Return the account after a person started the job again, which clears all limits."""
        return replace(self._clear_restarts(), recent_unix_s=())

    def spent(self, at: Moment, budget: Budget, cause: str) -> str | None:
        """Return why no further restart is allowed after `cause`, or None where one is."""
        if self.in_a_row >= budget.restarts:
            return f"{self.in_a_row} restarts in a row without progress (budget {budget.restarts})"
        of_cause = dict(self.causes).get(cause, 0)
        if of_cause >= budget.restarts_per_cause:
            limit = f"budget {budget.restarts_per_cause} per cause"
            return f"{of_cause} restarts in a row after {cause} without progress ({limit})"
        recent = sum(1 for value in self.recent_unix_s if 0 <= at.unix_s - value < budget.period_s)
        if recent >= budget.restarts_per_period:
            return f"{recent} restarts within {budget.period_s / HOUR_S:.1f} h (budget {budget.restarts_per_period})"
        return None

    def mean_fault_s(self, at: Moment, began_unix_s: float | None, budget: Budget) -> float:
        """Return about how many seconds lie between two restarts: the geometric mean of those of the last period.

        ASSUMED_FAULT_S counts as one of them, so that a first fault does not dominate. The snapshot interval grows with
        its square root, so a quick reaction to several faults in a row matters more than the weight of one short gap.
        """
        recent = [value for value in self.recent_unix_s if 0 <= at.unix_s - value < budget.period_s]
        known = [*([] if began_unix_s is None or not recent else [began_unix_s]), *recent][-GAPS_COUNTED - 1 :]
        gaps_s = [max(later - earlier, SHORTEST_GAP_S) for earlier, later in pairwise(known)]
        return math.exp(sum(map(math.log, (ASSUMED_FAULT_S, *gaps_s))) / (1 + len(gaps_s)))

    def backoff_s(self, budget: Budget, seed: str = "") -> float:
        """Return how long the next restart has to wait; the same `seed` gives the same jitter."""
        return _wait_s(budget.backoff_s, self.in_a_row + self.free_in_a_row, budget, seed)

    def refused_wait_s(self, budget: Budget, seed: str = "") -> float:
        """Return how long the next launch has to wait after one that the machine refused."""
        return _wait_s(REFUSED_WAITS_S, self.refused_in_a_row, budget, seed)


def _wait_s(waits_s: tuple[float, ...], before: int, budget: Budget, seed: str) -> float:
    if not waits_s:
        return 0.0
    return waits_s[min(before, len(waits_s) - 1)] * (1.0 - budget.jitter_fraction * zlib.crc32(seed.encode()) / 2**32)
