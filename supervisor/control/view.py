"""The Protocol through which the control server calls the daemon.

Every method is called from threads of the server and must be safe there; it should answer within a second and is given
up after ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from supervisor.control import record_types, types
from supervisor.control.record_view import RecordView
from supervisor.core.events import Ask
from supervisor.metrics.known import Known


class View(Protocol):
    """The daemon as seen from the socket. Methods that name a job raise NoSuchJob for one that is not configured."""

    @property
    def record(self) -> RecordView:
        """Answers what can be read from the record, whether a daemon runs or not (READS)."""
        ...

    def status(self, *, watched: bool = True) -> types.Status:
        """Return the state of the daemon, its jobs, GPUs and host; `watched`: with the gauges of the jobs' rules."""
        ...

    def metrics(self) -> Known:
        """Return what metrics are made of, as it is now."""
        ...

    def ask(self, job: str, ask: Ask, by: str, *, fresh: bool) -> None:
        """Put a request into the inbox; raise Refused where it makes no sense in the job's state."""
        ...

    def keep_estimate(self, job: str, given: types.EstimateBody) -> types.EstimateKept:
        """Keep an estimate of its memory for the job's remedies; raise Refused where it is of another command."""
        ...

    def send_test_alert(self, receiver: str) -> str:
        """Queue a test alert and return its id; raise NoSuchReceiver, or Refused where it cannot be sent to."""
        ...

    def mute_alerts(self, receiver: str | None, seconds: float) -> types.AlertsMuted:
        """Send one receiver, or all, nothing for a time; 0 s ends a mute. Raise NoSuchReceiver."""
        ...

    def acknowledge_alert(self, incident: str) -> types.AlertAcknowledged:
        """End the reminders of the training that was given up in this incident; raise NoSuchIncident or Refused."""
        ...

    def forget(self, job: str) -> record_types.Forgotten:
        """Remove the record and the folder of a job that is not configured; raise NoSuchJob or Refused."""
        ...

    def doctor(self) -> Sequence[types.DoctorLine]:
        """Return the results of the daemon's own checks."""
        ...

    def reload(self, *, dry_run: bool = False) -> types.ReloadReport:
        """Read the configuration again and apply what can be applied; a dry run only reports it."""
        ...


class Tuning(Protocol):
    """The tuner as seen from the socket; its routes are served where there is one."""

    def tune(self, job: str, given: types.TuneBody) -> record_types.TuneReport:
        """Begin, stop or undo a tune and return how it stands; raise NoSuchJob or Refused."""
        ...

    def tune_report(self, job: str) -> record_types.TuneReport:
        """Return the tune of a job under way, or its last one; raise NoSuchJob or Refused."""
        ...
