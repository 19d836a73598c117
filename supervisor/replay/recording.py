"""A recorded attempt: its facts in order of time, from any source.

Steps may be kept one by one or, for the old part of a long training, folded into buckets of ten seconds. A bucket is
unfolded into at most twenty of its steps, evenly spaced, whose losses have its mean, with its extremes and its NaN
among them: what a rule would have seen within ten seconds is right in kind and in time to the bucket, not to the step.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.store.records import StepBucket

UNFOLDED = 20
"""Steps that are made of a bucket; all of 62 hours at 18 a second would be judged no better, and in minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One attempt."""

    job: str
    attempt: int
    launched_at: Moment
    gpus_used: tuple[str, ...] = ()
    rules: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The settings that its rules had, as in `[jobs.NAME.rules]`."""
    made_of: str = ""
    """Where it comes from, for a person."""
    facts: Sequence[ev.Event] = ()
    """All but the steps, in the order of time."""
    buckets: Sequence[StepBucket] = ()
    """Old steps, folded."""
    steps: Sequence[StepRecord] = ()
    """Newer steps, one by one."""

    def events(self) -> Iterator[ev.Event]:
        """Return everything in the order of time; steps come a second's worth together, as a daemon reads them."""
        return heapq.merge(self.facts, self._steps_made(), key=when)

    @property
    def length_s(self) -> float:
        """From the launch to the end of the attempt; to the last fact where its end is none of them."""
        ended = [fact.at.monotonic_s for fact in self.facts if isinstance(fact, ev.Exited | ev.HostLost)]
        if ended:
            return ended[-1] - self.launched_at.monotonic_s
        last = [when(fact) for fact in self.facts[-1:]] + [record.at.monotonic_s for record in self.steps[-1:]]
        last += [self.moment(step_bucket.last_unix_s).monotonic_s for step_bucket in self.buckets[-1:]]
        return max(last, default=self.launched_at.monotonic_s) - self.launched_at.monotonic_s

    def moment(self, unix_s: float) -> Moment:
        """Return a wall time as a moment on the clock of this attempt."""
        return Moment(self.launched_at.monotonic_s + unix_s - self.launched_at.unix_s, unix_s)

    def _steps_made(self) -> Iterator[ev.StepsMade]:
        for _, records in groupby(self._all_steps(), key=lambda record: int(record.at.monotonic_s)):
            made = tuple(records)
            yield ev.StepsMade(at=made[-1].at, job=self.job, attempt=self.attempt, records=made)

    def _all_steps(self) -> Iterator[StepRecord]:
        newer_from = self.steps[0].step if self.steps else None
        for bucket in self.buckets:
            for record in unfolded(bucket, self.moment):
                if newer_from is None or record.step < newer_from:
                    yield record
        yield from self.steps


def unfolded(bucket: StepBucket, moment: Callable[[float], Moment]) -> Iterator[StepRecord]:
    """Return the steps of a bucket, evenly spaced; `moment` turns Unix seconds into a Moment."""
    count = max(min(bucket.steps, UNFOLDED), min(bucket.non_finite, bucket.steps))
    span_s = bucket.last_unix_s - bucket.first_unix_s
    losses = _list_losses(bucket, count)
    first = moment(bucket.first_unix_s)
    for place in range(count):
        share = place / (count - 1) if count > 1 else 1.0
        yield StepRecord(
            at=first.plus(share * span_s),
            step=bucket.step_first + round(share * (bucket.step_last - bucket.step_first)),
            epoch=bucket.epoch,
            loss=losses[place],
            lr=bucket.lr_last,
            grad_norm=bucket.grad_norm_max,
            gpu_memory_bytes=bucket.gpu_memory_max_bytes,
            data_wait_s=bucket.data_wait_mean_s,
        )


def _list_losses(bucket: StepBucket, count: int) -> list[float | None]:
    """Return a loss a step: NaN first, as many as there were, then the extremes, the mean, and the last."""
    nan = min(bucket.non_finite, count)
    finite = count - nan
    values: list[float | None] = [bucket.loss_mean] * finite
    for place, value in ((0, bucket.loss_min), (1, bucket.loss_max), (finite - 1, bucket.loss_last)):
        if 0 <= place < finite and value is not None:
            values[place] = value
    return [float("nan")] * nan + values


def when(event: ev.Event) -> float:
    """Return where in the order of time an event stands: an absence where it began, for nothing was judged in it."""
    return event.at.monotonic_s - (event.away_s if isinstance(event, ev.DaemonAway) else 0.0)
