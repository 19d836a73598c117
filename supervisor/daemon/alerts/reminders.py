"""Reminders of trainings that stand given up, until a person acknowledges that or they are started again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from supervisor.alerts.payload import Notice, remind
from supervisor.alerts.schedule import count_reminders
from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.json_bytes import encode_json
from supervisor.store.store import Store

ACKNOWLEDGED = "alerts acknowledged"
"""Key of the note that has, by the name of each training that was acknowledged, when it was given up; Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reminders:
    """Works in the deciding thread; what is due follows from the trainings and the time alone."""

    store: Store
    host: str
    jobs: Callable[[], Iterable[Job]]

    def list_due(self, now: Moment) -> tuple[Notice, ...]:
        """Return the newest reminder of each training that stands given up and is not acknowledged."""
        given_up = [job for job in self.jobs() if job.phase is Phase.FAILED]
        if not given_up:
            return ()
        known = self._read_acknowledged()
        counted = [(job, count_reminders(now.seconds_since(job.since))) for job in given_up if not _is_in(known, job)]
        return tuple(remind(job, number, now, self.host) for job, number in counted if number > 0)

    def acknowledge(self, job: Job) -> None:
        """Send no more reminders of a training until it is given up again."""
        given_up = {other.name for other in self.jobs() if other.phase is Phase.FAILED}
        known = {name: since for name, since in self._read_acknowledged().items() if name in given_up}
        text = encode_json({**known, job.name: job.since.unix_s}).decode()
        self.store.set_note(ACKNOWLEDGED, text)

    def _read_acknowledged(self) -> dict[str, float]:
        try:
            return msgspec.json.decode(self.store.note(ACKNOWLEDGED) or "{}", type=dict[str, float])
        except msgspec.MsgspecError:
            return {}


def _is_in(acknowledged: dict[str, float], job: Job) -> bool:
    since = acknowledged.get(job.name)
    return since is not None and abs(since - job.since.unix_s) < 1.0
