"""Checkpoint overdue: long work that no checkpoint holds. Counted in steps where saves are told of, else in hours."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from supervisor.core.flags import Act, Diagnosis, RedFlag, Severity
from supervisor.core.history import History
from supervisor.core.robust import median
from supervisor.core.unseen import no_steps_due
from supervisor.core.watched import Group, Watched, beyond, unwatched


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOverdue:
    """`overdue_factor` times the usual steps between two saves (or one epoch) were made since the last one.

    Where nobody tells of saves: `limit_s` without a file that was seen. It tells by default: an epoch can be long, and
    with `act` it saves and restarts.
    """

    name: ClassVar[str] = "checkpoint_overdue"
    group: ClassVar[Group] = "storage"
    enabled: bool = True
    act: Act = False
    overdue_factor: float = 2.2
    limit_s: float = 14400.0

    def check(self, history: History) -> RedFlag | None:
        """Flag work that would be lost."""
        if history.over or history.train_ended or not history.steps:
            return None
        usual = _usual_steps(history)
        if usual is None:
            return self._by_time(history)
        made, known = _made(history)
        if not beyond(made, self.overdue_factor * usual, strict=True):
            return None
        what = "since the last checkpoint" if known else "in this attempt and none was seen saved"
        return self._flag(history, f"{made} steps were made {what} (usual: every {usual:.0f})")

    def _by_time(self, history: History) -> RedFlag | None:
        since_s = _since_s(history)
        if since_s is None or since_s < self.limit_s:
            return None
        return self._flag(history, f"no checkpoint was seen for {since_s / 3600:.1f} h")

    def watch(self, history: History) -> tuple[Watched, ...]:
        """Return how much was done since the last checkpoint."""
        why = no_steps_due(history) or (None if history.steps else "no step was made yet")
        if why is not None:
            return unwatched(self.name, "work that no checkpoint holds", why)
        usual = _usual_steps(history)
        severity = Severity.acting(act=self.act)
        if usual is None:
            what, since_s = "time without a checkpoint", _since_s(history)
            why = "no step was made yet" if since_s is None else None
            return (
                Watched(
                    rule=self.name,
                    what=what,
                    unit="s",
                    now=since_s,
                    limit=self.limit_s,
                    severity=severity,
                    not_watched=why,
                ),
            )
        return (
            Watched(
                rule=self.name,
                what="steps since the last checkpoint",
                unit="steps",
                now=_made(history)[0],
                limit=self.overdue_factor * usual,
                strict=True,
                learned=True,
                severity=severity,
            ),
        )

    def _flag(self, history: History, text: str) -> RedFlag:
        return RedFlag(
            rule=self.name,
            severity=Severity.acting(act=self.act),
            at=history.now,
            message=f"{text}: a crash now costs all of it",
            can_save=True,
            diagnosis=OVERDUE,
        )


def _made(history: History) -> tuple[int, bool]:
    """Return the steps since the last save or try of one, and whether there was any."""
    last, first = history.steps[-1].step, history.pace.first
    saved = (history.saved[-1][1] if history.saved else None, history.saving_step)
    known = [one for one in saved if one is not None]
    return last - max(known, default=first.step - 1 if first else last), bool(known)


def _since_s(history: History) -> float | None:
    """Return the seconds since the newest checkpoint file, or the first step; None before that."""
    if history.first_step_at is None:
        return None
    since_s = history.now.seconds_since(history.first_step_at)
    return since_s if history.saved_unix_s is None else min(since_s, history.now.unix_s - history.saved_unix_s)


def _usual_steps(history: History) -> float | None:
    """Return the steps between two saves; for a framework that saves each epoch, those of an epoch; None: unknown."""
    known = [step for _, step in history.saved if step is not None]
    gaps = [later - earlier for earlier, later in pairwise(known) if later > earlier]
    if len(gaps) >= 2:
        return median(gaps)
    return float(history.batches_per_epoch) if history.batches_per_epoch else None


OVERDUE = Diagnosis(
    ruled_out=("not a stall: steps are made",),
    causes=(
        "saving is switched off (save=False) or rarer than it was",
        "saves fail and the training goes on: a full disk, rights, a model that cannot be pickled [owner's record]",
        "the script saves where nobody looks",
    ),
    advice=("[jobs.NAME.checkpoints] paths names files that are to be seen; supervisorctl checkpoints JOB shows them",),
)
