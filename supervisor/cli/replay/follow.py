"""Steps as they are recorded: each bucket once, when it is complete, until the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from supervisor.store.records import StepBucket

POLL_INTERVAL_S = 2.0
READ_BACK_S = 3600.0
"""Read again before the newest bucket: a clock that was set back gives later steps an earlier time."""


def follow(read: Callable[[float | None], Sequence[StepBucket]], wait: Callable[[], None]) -> Iterator[StepBucket]:
    """Yield buckets in order of attempt and time; KeyboardInterrupt out of `wait` yields the newest one, and ends.

    `read` returns the buckets since a Unix time. Steps are recorded in their order, so a bucket is complete as soon as
    there is a later one: a daemon that was away adds to the newest one only.
    """
    done: tuple[int, int] | None = None
    newest: list[StepBucket] = []
    while True:
        found = [bucket for bucket in read(None if done is None else done[1] - READ_BACK_S) if _is_after(bucket, done)]
        for bucket in found[:-1]:
            done = _place(bucket)
            yield bucket
        newest = found[-1:]
        try:
            wait()
        except KeyboardInterrupt:
            yield from newest
            return


def _place(bucket: StepBucket) -> tuple[int, int]:
    return bucket.attempt, bucket.bucket_unix_s


def _is_after(bucket: StepBucket, done: tuple[int, int] | None) -> bool:
    return done is None or _place(bucket) > done
