"""The Protocol through which the control server calls the daemon, and the refusals of a request.

Every method is called from threads of the server and must be safe there; it should answer within a second and is given
up after ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from supervisor.control import types
from supervisor.core.events import Ask


class View(Protocol):
    """The daemon as seen from the socket. Methods that name a job raise NoSuchJob for one that is not configured."""

    def status(self) -> types.Status:
        """Return the state of the daemon, its jobs, GPUs and host."""
        ...

    def ask(self, job: str, ask: Ask, by: str, *, fresh: bool) -> None:
        """Put a request into the inbox; raise Refused where it makes no sense in the job's state."""
        ...

    def incidents(self, job: str | None, limit: int) -> Sequence[types.IncidentEntry]:
        """Return incidents of one job, or of all, newest first."""
        ...

    def shadows(self, job: str | None, limit: int) -> Sequence[types.ShadowEntry]:
        """Return what rules in shadow would have acted on, of one job or of all, newest first."""
        ...

    def incident(self, incident_id: str) -> types.IncidentDetail | None:
        """Return one incident with its story, or None where there is none of that id."""
        ...

    def evidence(self, incident_id: str) -> types.EvidenceFiles:
        """Return the files of an incident's evidence; raise NoSuchIncident or NoSuchEvidence."""
        ...

    def evidence_part(self, incident_id: str, name: str, limit_bytes: int) -> types.EvidencePart:
        """Return the end of one file of the evidence; raise NoSuchIncident or NoSuchEvidence."""
        ...

    def checkpoints(self, job: str) -> Sequence[types.CheckpointEntry]:
        """Return the checkpoints of a job, the one with the most training first."""
        ...

    def account(self, job: str) -> types.JobAccount:
        """Return how the time of a job was spent."""
        ...

    def remedies(self, job: str | None, limit: int) -> types.RemedyReport:
        """Return the remedies in force and at most `limit` of those tried, of one job or of all."""
        ...

    def alerts(self, limit: int) -> types.AlertsReport:
        """Return the receivers of alerts and at most `limit` of the newest alerts."""
        ...

    def send_test_alert(self, receiver: str) -> str:
        """Queue a test alert and return its id; raise NoSuchReceiver, or Refused where it cannot be sent to."""
        ...

    def output(self, job: str, after: int | None, attempt: int | None, lines: int) -> types.Output:
        """Return folded output after offset `after` of `attempt`.

        With `after` None, or where a newer attempt has begun, its last `lines` lines (`tail.py` does both).
        """
        ...

    def doctor(self) -> Sequence[types.DoctorLine]:
        """Return the results of the daemon's own checks."""
        ...

    def reload(self) -> types.ReloadReport:
        """Read the configuration again and apply what can be applied."""
        ...


class Refusal(Exception):  # noqa: N818  # an answer, not an error
    """A request that cannot be served; the text is for the person who made it."""

    code = "refused"
    status = 409

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class Refused(Refusal):
    """The request makes no sense in the state of the job."""


class NoSuchJob(Refusal):
    """No job of that name is configured."""

    code = "no_such_job"
    status = 404

    def __init__(self, job: str, known: Sequence[str]) -> None:
        super().__init__(f"no job {job!r} is configured", f"configured: {', '.join(known) or 'none'}")


class NoSuchIncident(Refusal):
    """No incident of that id is recorded."""

    code = "no_such_incident"
    status = 404


class NoSuchReceiver(Refusal):
    """No receiver of alerts of that name is configured."""

    code = "no_such_receiver"
    status = 404

    def __init__(self, receiver: str, known: Sequence[str]) -> None:
        super().__init__(f"no receiver {receiver!r} is configured", f"configured: {', '.join(known) or 'none'}")


class NoSuchEvidence(Refusal):
    """No evidence was collected, or it was removed."""

    code = "no_evidence"
    status = 404


class BadRequest(Refusal):
    """The request is malformed."""

    code = "bad_request"
    status = 400


class TooLarge(Refusal):
    """The body is longer than the limit."""

    code = "too_large"
    status = 413


class TooSlow(Refusal):
    """The body was not received, or the daemon did not answer, in time."""

    code = "too_slow"
    status = 503


class NotAllowed(Refusal):
    """The peer may read but not act."""

    code = "not_allowed"
    status = 403
