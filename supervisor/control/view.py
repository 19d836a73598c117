"""What the control server needs of the daemon: a Protocol, owned here by its user, and how a wish is turned down.

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
        """Return everything at a glance."""
        ...

    def ask(self, job: str, ask: Ask, by: str, *, fresh: bool) -> None:
        """Put a wish into the inbox; raise Refused where it makes no sense now."""
        ...

    def incidents(self, job: str | None, limit: int) -> Sequence[types.IncidentEntry]:
        """Return incidents of one job, or of all, newest first."""
        ...

    def incident(self, incident_id: str) -> types.IncidentDetail | None:
        """Return one incident with its story, or None where there is none of that id."""
        ...

    def checkpoints(self, job: str) -> Sequence[types.CheckpointEntry]:
        """Return the checkpoints of a job, the one with the most training first."""
        ...

    def account(self, job: str) -> types.JobAccount:
        """Return where every second of a job's life went."""
        ...

    def output(self, job: str, after: int | None, attempt: int | None, lines: int) -> types.Output:
        """Return folded output after offset `after` of `attempt`.

        With `after` None, or where a newer attempt has begun, its last `lines` lines (`tail.py` does both).
        """
        ...

    def doctor(self) -> Sequence[types.DoctorLine]:
        """Return what the daemon finds of its surroundings."""
        ...

    def reload(self) -> types.ReloadReport:
        """Read the configuration again and apply what can be applied."""
        ...


class Refusal(Exception):  # noqa: N818  # an answer, not an error
    """A wish that cannot be met; the text is for the person who had it."""

    code = "refused"
    status = 409

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class Refused(Refusal):
    """It makes no sense in the state that the job is in."""


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


class BadRequest(Refusal):
    """The request itself is wrong."""

    code = "bad_request"
    status = 400


class TooLarge(Refusal):
    """The body is longer than any that is served."""

    code = "too_large"
    status = 413


class TooSlow(Refusal):
    """The body did not come, or the daemon did not answer, in time."""

    code = "too_slow"
    status = 503


class NotAllowed(Refusal):
    """The peer may look but not act."""

    code = "not_allowed"
    status = 403
