"""Steps as they are recorded: each bucket when it is complete, until the user interrupts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from supervisor.cli.errors import CliError
from supervisor.store.records import StepBucket

POLL_INTERVAL_S = 2.0
READ_BACK_S = 3600.0
"""Read again before the newest bucket, and before now: a clock that was set back gives later steps an earlier time."""
AHEAD_S = 60.0
FAILURES_PASSED_OVER = 60
"""Polls in a row that may fail: while a daemon restarts, upgrades its record or replaces a damaged one."""


class Pause:
    """The time between two polls; a writer that gathers rows sets `flush`, so that nothing waits for a later row."""

    def __init__(self) -> None:
        self.flush: Callable[[], None] | None = None

    def wait(self) -> None:
        """Have what was gathered written, and sleep."""
        if self.flush is not None:
            self.flush()
        time.sleep(POLL_INTERVAL_S)


def follow(read: Callable[[float | None], Sequence[StepBucket]], wait: Callable[[], None]) -> Iterator[StepBucket]:
    """Yield buckets in order of attempt and step; KeyboardInterrupt out of either yields the newest one, and ends.

    `read` returns the buckets since a Unix time. Steps are recorded in their order, so a bucket is complete as soon as
    there is a later one: a daemon that was away adds to the newest one only. Only a clock that was set back adds to an
    earlier one, which is yielded again with all its steps. Raises CliError where the record cannot be read at first, or
    for long; the newest bucket is yielded before.
    """
    yielded: dict[tuple[int, int], int] = {}
    """The steps that each bucket had."""
    done_unix_s: float | None = None
    newest: list[StepBucket] = []
    read_on = _passing_over_failures(read)
    while True:
        try:
            recorded = read_on(None if done_unix_s is None else done_unix_s - READ_BACK_S)
        except (CliError, KeyboardInterrupt) as error:
            yield from newest
            if isinstance(error, CliError):
                raise
            return
        # A record that took the place of a lost one need not have the newest.
        fresh = {_place_of(bucket): bucket for bucket in newest}
        fresh |= {_place_of(bucket): bucket for bucket in recorded if bucket.steps > yielded.get(_place_of(bucket), 0)}
        found = sorted(fresh.values(), key=lambda bucket: (bucket.attempt, bucket.step_last, bucket.bucket_unix_s))
        for bucket in found[:-1]:
            yielded[_place_of(bucket)], done_unix_s = bucket.steps, bucket.bucket_unix_s
            yield bucket
        newest = found[-1:]
        try:
            wait()
        except KeyboardInterrupt:
            yield from newest
            return


def spans_to_read(since_unix_s: float | None, now_unix_s: float) -> list[tuple[float | None, float | None]]:
    """Return the times (since, until) of what may have been recorded meanwhile; None: without a limit.

    `since_unix_s` is what `follow` asks for. Where the clock was set back there are two: before that, and about now.
    """
    if since_unix_s is None:
        return [(None, None)]
    until_unix_s = since_unix_s + READ_BACK_S + AHEAD_S
    about_now = (now_unix_s - READ_BACK_S, now_unix_s + AHEAD_S)
    if about_now[1] < since_unix_s:
        return [about_now, (since_unix_s, until_unix_s)]
    return [(min(since_unix_s, about_now[0]), max(until_unix_s, about_now[1]))]


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


def _place_of(bucket: StepBucket) -> tuple[int, int]:
    return bucket.attempt, bucket.bucket_unix_s
