"""The account of a job's restarts: what was spent, what progress gave back; it decides nothing.

Restarts in a row without progress are one limit, restarts in a period the other. The first is cleared by progress
alone: a step further than any attempt came before. A restart of which progress is unknown counts in the second only:
unknown is neither progress nor the lack of it (NVRx, progress_tracker: an unknown scored as 0 first counts as no
progress and then as a leap).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from supervisor.core.moments import Moment

ASSUMED_FAULT_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of restarts, from `[jobs.NAME.budget]`."""

    restarts: int = 5
    """Restarts in a row without progress."""
    restarts_per_period: int = 30
    period_s: float = 86400.0
    settle_s: float = 600.0
    """An attempt that ends sooner and was never seen to step made no progress; of a longer one nothing is known."""
    backoff_s: tuple[float, ...] = (0.0, 5.0, 30.0, 120.0, 600.0)
    """Wait before the n-th restart in a row without progress; the last value goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a job has spent."""

    total: int = 0
    """Restarts ever made that counted."""
    in_a_row: int = 0
    """Restarts since the last progress."""
    recent_unix_s: tuple[float, ...] = ()
    """When the restarts of the last period were made; Unix seconds, for they must outlive a reboot."""
    furthest_step: int | None = None
    """The furthest step that any attempt made."""

    def stepped(self, step: int) -> Ledger:
        """Return the account after a step: progress beyond the furthest clears the restarts in a row."""
        if self.furthest_step is not None and step <= self.furthest_step:
            return self
        return replace(self, furthest_step=step, in_a_row=0)

    def restarted(self, at: Moment, budget: Budget, *, progress_known: bool) -> Ledger:
        """Return the account after a restart that counts."""
        kept = tuple(one for one in self.recent_unix_s if 0 <= at.unix_s - one < budget.period_s)
        return replace(
            self,
            total=self.total + 1,
            in_a_row=self.in_a_row + (1 if progress_known else 0),
            recent_unix_s=(*kept, at.unix_s),
        )

    def forgiven(self) -> Ledger:
        """Return the account after a person started the job anew: their word clears what was spent."""
        return replace(self, in_a_row=0, recent_unix_s=())

    def spent(self, at: Moment, budget: Budget) -> str | None:
        """Return why no further restart is allowed, or None where one is."""
        if self.in_a_row >= budget.restarts:
            return f"{self.in_a_row} restarts in a row brought no progress (budget {budget.restarts})"
        recent = sum(1 for one in self.recent_unix_s if 0 <= at.unix_s - one < budget.period_s)
        if recent >= budget.restarts_per_period:
            return f"{recent} restarts within {budget.period_s / 3600:.1f} h (budget {budget.restarts_per_period})"
        return None

    def mean_fault_s(self, at: Moment, began_unix_s: float | None, budget: Budget) -> float:
        """Return about how many seconds lie between two restarts: those of the last period, and one a day before that.

        The day that is assumed keeps a first fault from looking like a rule.
        """
        since = at.unix_s - budget.period_s
        watched_s = at.unix_s - max(since, at.unix_s if began_unix_s is None else began_unix_s)
        recent = sum(1 for one in self.recent_unix_s if one >= since)
        return (max(watched_s, 0.0) + ASSUMED_FAULT_S) / (recent + 1)

    def backoff_s(self, budget: Budget) -> float:
        """Return how long the next restart has to wait."""
        if not budget.backoff_s:
            return 0.0
        return budget.backoff_s[min(self.in_a_row, len(budget.backoff_s) - 1)]
