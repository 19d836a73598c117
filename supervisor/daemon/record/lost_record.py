"""Takes a job up from the folders of its attempts where the record lacks them: a training outlives the database too.

The newest attempt becomes the job's present one, whether it still runs or not: how it ended is then read from its
folder and judged as after any absence of the daemon. Of the earlier ones the history gets what their folders tell.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from supervisor.core import decisions as de
from supervisor.core.job import Attempt, DesiredState, Job, Phase
from supervisor.core.moments import Moment
from supervisor.runner.found_attempts import FoundAttempt, found_attempt, numbers_found
from supervisor.sources.attempt.recorder import RecorderReader
from supervisor.store.store import Store

log = logging.getLogger(__name__)

REASON = "rebuilt from its folder: the record of it was lost"
REBUILT_LIMIT = 200
"""Attempts that get a row in the history, the newest ones."""
LAST_STEPS_LIMIT = 20
"""Of so many of them the recorder is asked for the last step."""
EVER_S = 1e12


class LostRecord:
    """Completes jobs from their folders, before anything is taken up."""

    def __init__(self, state: Path, store: Store, alive: Callable[[str, Path], bool]) -> None:
        self._state = state
        self._store = store
        self._alive = alive

    def completed(self, job: Job, now: Moment) -> Job:
        """Return the job with what its folders know and the record does not; with nothing of that it is the same."""
        folder = self._state / "jobs" / job.name
        numbers = numbers_found(folder)
        unknown = [number for number in numbers if number > job.number]
        if not unknown:
            return job
        job = replace(job, highest_number=numbers[-1])
        newest = self._find_newest(job.name, folder, unknown, now)
        runs = newest is not None and self._alive(job.name, newest.folder)
        if newest is None or (job.desired_state is DesiredState.STOP and not runs):
            return job
        found = [found_attempt(folder / str(number), now) for number in unknown[-REBUILT_LIMIT:]]
        self._rebuild_history([match for match in found if match is not None], job.name, newest.number)
        job = _take_up_newest(job, newest, unknown, runs=runs)
        log.warning("record.lost", extra={"fields": {"job": job.name, "attempts": len(unknown), "runs": runs}})
        return job

    def _find_newest(self, job: str, folder: Path, unknown: Sequence[int], now: Moment) -> FoundAttempt | None:
        """Return the newest attempt of which something runs; where nothing does, the newest that left any word."""
        newest_first = [folder / str(number) for number in reversed(unknown[-REBUILT_LIMIT:])]
        running = next((place for place in newest_first[:LAST_STEPS_LIMIT] if self._alive(job, place)), None)
        if running is not None:
            return found_attempt(running, now)
        found = (found_attempt(place, now) for place in newest_first)
        return next(
            (match for match in found if match is not None and (match.shim_pid is not None or match.exit)), None
        )

    def _rebuild_history(self, found: Sequence[FoundAttempt], job: str, newest: int) -> None:
        """Write the attempts into the history; the newest is closed by what is read of it from now on."""
        for place, match in enumerate(reversed(found)):
            launch = de.Launch(at=match.launched_at, job=job, attempt=match.number, resume_from=None, reason=REASON)
            self._store.open_attempt(launch, str(match.folder))
            if match.number == newest:
                continue
            last_step = _read_last_step(match.folder) if place < LAST_STEPS_LIMIT else None
            ended = match.exit.at if match.exit is not None else match.launched_at
            lost = None if match.exit is not None else "no exit record was found in its folder"
            attempt = Attempt(
                number=match.number, launched_at=match.launched_at, exit=match.exit, last_step=last_step, host_lost=lost
            )
            self._store.close_attempt(job, attempt, ended)


def _take_up_newest(job: Job, newest: FoundAttempt, unknown: Sequence[int], *, runs: bool) -> Job:
    which = f"attempt {unknown[0]}" if len(unknown) == 1 else f"attempts {unknown[0]} to {unknown[-1]}"
    stands = f"attempt {newest.number} {'still ran' if runs else 'had ended'}"
    return replace(
        job,
        desired_state=DesiredState.RUN,
        phase=Phase.STARTING,
        since=newest.launched_at,
        attempt=Attempt(
            number=newest.number,
            launched_at=newest.launched_at,
            shim_pid=newest.shim_pid,
            training_pid=newest.training_pid,
        ),
        stop=None,
        retry=None,
        rebuilt=f"the record was lost: {which} taken from the folders, {stands}",
    )


def _read_last_step(folder: Path) -> int | None:
    reader = RecorderReader(folder)
    try:
        return reader.step_by(EVER_S)
    finally:
        reader.close()
