"""Steps as they are recorded: each bucket once, when it is complete, until the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from supervisor.cli.errors import CliError
from supervisor.store.records import StepBucket

POLL_INTERVAL_S = 2.0
READ_BACK_S = 3600.0
"""Read again before the newest bucket: a clock that was set back gives later steps an earlier time."""
AHEAD_S = 60.0
"""Not read yet: steps so far ahead of the clock, whose time a training made up; after them none would be complete."""
FAILURES_PASSED_OVER = 60
"""Polls in a row that may fail: while a daemon restarts, upgrades its record or replaces a damaged one."""


def follow(read: Callable[[float | None], Sequence[StepBucket]], wait: Callable[[], None]) -> Iterator[StepBucket]:
    """Yield buckets in order of attempt and time; KeyboardInterrupt out of either yields the newest one, and ends.

    `read` returns the buckets since a Unix time. Steps are recorded in their order, so a bucket is complete as soon as
    there is a later one: a daemon that was away adds to the newest one only. Raises CliError where the record cannot be
    read at first, or for long; the newest bucket is yielded before.
    """
    done: tuple[int, int] | None = None
    newest: list[StepBucket] = []
    read_on = _passing_over_failures(read)
    while True:
        try:
            recorded = read_on(None if done is None else done[1] - READ_BACK_S)
        except (CliError, KeyboardInterrupt) as error:
            yield from newest
            if isinstance(error, CliError):
                raise
            return
        found = [bucket for bucket in recorded if _is_after(bucket, done)]
        if newest and found and _is_after(found[0], _place(newest[0])):
            found = [*newest, *found]  # a record that took the place of a lost one need not have it
        for bucket in found[:-1]:
            done = _place(bucket)
            yield bucket
        newest = found[-1:] or newest
        try:
            wait()
        except KeyboardInterrupt:
            yield from newest
            return


def _passing_over_failures(
    read: Callable[[float | None], Sequence[StepBucket]],
) -> Callable[[float | None], Sequence[StepBucket]]:
    """Return `read` that, once it has worked, finds nothing where it fails, but for too many failures in a row."""
    failures = FAILURES_PASSED_OVER

    def read_on(since_unix_s: float | None) -> Sequence[StepBucket]:
        nonlocal failures
        try:
            found = read(since_unix_s)
        except CliError:
            if failures == FAILURES_PASSED_OVER:
                raise
            failures += 1
            return ()
        failures = 0
        return found

    return read_on


def _place(bucket: StepBucket) -> tuple[int, int]:
    return bucket.attempt, bucket.bucket_unix_s


def _is_after(bucket: StepBucket, done: tuple[int, int] | None) -> bool:
    return done is None or _place(bucket) > done
