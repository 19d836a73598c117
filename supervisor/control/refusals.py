"""The refusals of a request: each has a code for programs, an HTTP status, and a text and a hint for people."""

from __future__ import annotations

from collections.abc import Sequence


class Refusal(Exception):  # noqa: N818  # an answer, not an error
    """A request that cannot be served; the text is for the person who made it."""

    code = "refused"
    status = 409

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


class Refused(Refusal):
    """The request makes no sense in the state of the job."""


def list_choices(known: Sequence[str], what: str) -> str:
    """Return the hint at the names that can be given; `what` is what they are, with its article."""
    return ("one of: " if len(known) > 1 else "") + ", ".join(known) or f"configure {what} first"


class NoSuchJob(Refusal):
    """No job of that name is configured; or, where the record is asked, recorded."""

    code = "no_such_job"
    status = 404

    def __init__(self, job: str, known: Sequence[str], *, or_recorded: bool = False) -> None:
        found = "configured or recorded" if or_recorded else "configured"
        super().__init__(f"no job {job!r} is {found}", list_choices(known, "a job"))


class NoSuchIncident(Refusal):
    """No incident of that id is recorded."""

    code = "no_such_incident"
    status = 404


class NoSuchReceiver(Refusal):
    """No receiver of alerts of that name is configured."""

    code = "no_such_receiver"
    status = 404

    def __init__(self, receiver: str, known: Sequence[str]) -> None:
        super().__init__(f"no receiver {receiver!r} is configured", list_choices(known, "a receiver"))


class NoSuchEvidence(Refusal):
    """No evidence was collected, or it was removed."""

    code = "no_evidence"
    status = 404


class Unreadable(Refusal):
    """A file of the record may not be read, or reading it failed."""

    code = "unreadable"
    status = 503


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


class NoRoom(Refusal):
    """The machine has no room for a thread that would answer."""

    code = "no_room"
    status = 503


class NotAllowed(Refusal):
    """The peer may read but not act."""

    code = "not_allowed"
    status = 403
