"""What systemctl is asked at the unit of a job, to stop or to start it, is the user's request as at the command line.

The unit's ExecStop= leaves a note in the attempt's folder (systemd/rocm-run@.service), and so does the shim of an
attempt that is over and is started again. Both run as the training's user, who may stop and start it anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from supervisor import untrusted_files
from supervisor.children.files_apart import Look, here
from supervisor.core import attempt_files as names
from supervisor.core import events as ev
from supervisor.core.job import ENDED, Job, Phase
from supervisor.core.moments import Moment
from supervisor.daemon.clock import Clock
from supervisor.daemon.stop_requests import StopRequests
from supervisor.runner import standby

log = logging.getLogger(__name__)

STARTS_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRequests:
    """Turns the notes into requests; each is made once."""

    clock: Clock
    put: Callable[[ev.Event], None]
    kept: StopRequests
    jobs: Callable[[], Iterable[Job]]
    folder: Callable[[str, int], Path]
    look: Look = here
    _made: set[tuple[str, int, ev.Ask]] = field(default_factory=set)

    def find_stop(self, job: str, attempt: int) -> None:
        """Look whether the unit of an attempt was stopped, and then ask for that; for the reader of its files."""
        folder = self.folder(job, attempt)
        for place in (folder, standby.folder_of(folder)):  # an attempt that stood by runs in a unit of its own
            self.find_stop_at(place, job, attempt)

    def find_stop_at(self, place: Path, job: str, attempt: int) -> bool:
        """As `find_stop`, where what ran in the unit has another folder: a replay; return whether it was stopped."""
        noted_unix_s = self._find_note(place, names.STOP_ASKED)
        if noted_unix_s is not None:
            self._ask(job, attempt, ev.Ask.STOP, noted_unix_s)
        return noted_unix_s is not None

    def find_starts(self) -> None:
        """Ask for what was started after it had ended; a stop that was asked for later outranks it."""
        for job in self.jobs():
            if job.attempt is None or job.phase not in (*ENDED, Phase.BACKOFF):
                continue
            noted_unix_s = self._find_note(self.folder(job.name, job.number), names.START_ASKED)
            stopped_unix_s = self.kept.asked_unix_s(job.name)
            if noted_unix_s is not None and (stopped_unix_s is None or stopped_unix_s < noted_unix_s):
                self._ask(job.name, job.number, ev.Ask.START, noted_unix_s)

    def _find_note(self, folder: Path, name: str) -> float | None:
        """Return when a note was left in a folder; None where there is none."""
        try:
            status = self.look(untrusted_files.file_status, folder, name)
        except OSError:
            return None
        return None if status is None else status.st_mtime

    def _ask(self, job: str, attempt: int, ask: ev.Ask, unix_s: float) -> None:
        if (job, attempt, ask) in self._made:
            return
        self._made.add((job, attempt, ask))
        now = self.clock.now()
        at = Moment(now.monotonic_s - max(0.0, now.unix_s - unix_s), min(unix_s, now.unix_s))
        log.info("unit.asked", extra={"fields": {"job": job, "attempt": attempt, "ask": ask.value}})
        self.kept.ask(ev.UserRequest(at=at, job=job, ask=ask, by=f"systemctl {ask.value}"), self.put)
