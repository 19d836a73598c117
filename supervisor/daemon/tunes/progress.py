"""How far a tune has come, and the report of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.control import record_types
from supervisor.core.sanitize import without_secrets
from supervisor.core.tuning.knob import NotTried
from supervisor.core.tuning.restarts import Restarts
from supervisor.core.tuning.session import Session
from supervisor.core.tuning.trial import Refused


@dataclass(slots=True, kw_only=True)
class Progress:
    """What is known of a tune: written by its thread, read by others."""

    state: str = "diagnosing"
    trying: str = ""
    pairs: int = 0
    session: Session = field(default_factory=Session)
    restarts: Restarts = field(default_factory=Restarts)
    bottleneck_before: str | None = None
    bottleneck_after: str | None = None
    why_before: str = ""
    left: tuple[NotTried, ...] = ()
    samples_before: float | None = None
    samples_after: float | None = None
    per_sample: bool = True
    problem: str | None = None
    steps: int = 0
    made: int = 0

    def show_starts(self, restarts: Restarts) -> None:
        """Note how far the starts of a tune have come."""
        self.restarts, self.pairs = restarts, restarts.pairs
        if restarts.arm is not None:
            turn = "with" if restarts.is_arms_turn else "without"
            self.trying = f"a start {turn} {restarts.arm.knob} {restarts.arm.value}"

    def take_starts(self, found: Restarts) -> None:
        """Take what a sample took before the starts and with what they have proven, where that is known."""
        if found.before_s and found.after_s:
            self.samples_before = self.samples_before or 1 / found.before_s
            self.samples_after = 1 / found.after_s

    def report(self, job: str, state: str | None = None) -> record_types.TuneReport:
        """Return the report; `state` other than what it is says what it will be."""
        state = state or self.state
        done = self.session.trial is None and state == "ended" and self.problem is None
        adopted = self.session.adopted if done else ()
        unconfirmed = _list_unconfirmed(self.session) if state == "ended" and self.problem is not None else []
        return record_types.TuneReport(
            job=job,
            state=state,
            trying=self.trying,
            pairs=self.pairs,
            steps=self.steps,
            made=self.made,
            problem=self.problem,
            unit="samples" if self.per_sample else "steps",
            samples_per_s=record_types.BeforeAfterRate(before=self.samples_before, after=self.samples_after),
            adopted=[
                record_types.KnobAdopted(
                    knob=row.knob,
                    value=row.value,
                    gain=row.gain.gain,
                    low=row.gain.low,
                    high=row.gain.high,
                    remark=row.remark,
                )
                for row in (*adopted, *self.restarts.adopted)
            ],
            refused=_list_refused((*self.session.refused, *unconfirmed, *self.restarts.refused)),
            left=_list_refused(self.left),
            bottleneck=record_types.BeforeAfterName(before=self.bottleneck_before, after=self.bottleneck_after),
            why=self.why_before,
        )


def _list_unconfirmed(session: Session) -> list[Refused]:
    """Return what a tune that ended before its time had proven by itself, or was just trying."""
    rows = [(row.knob, row.value, "proven by itself, and not confirmed with the rest") for row in session.adopted]
    arm = None if session.trial is None else session.trial.arm
    if arm is not None and not arm.leaves_out:
        rows.append((arm.knob, arm.value, "not settled: the tune ended"))
    return [Refused(knob=knob, value=value, why=why) for knob, value, why in rows]


def _list_refused(rows: Iterable[NotTried | Refused]) -> list[record_types.KnobRefused]:
    return [record_types.KnobRefused(knob=row.knob, value=row.value, why=without_secrets(row.why)) for row in rows]
