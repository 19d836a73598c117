"""A job or an incident as JSON and back, with its moments converted to the present boot."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import msgspec

from supervisor.core.decisions import Note
from supervisor.core.incident import Incident
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.json_bytes import encode_json
from supervisor.store.encode import to_json

_Fact = TypeVar("_Fact")
_JOB = msgspec.json.Decoder(Job)
_INCIDENT = msgspec.json.Decoder(Incident)
_NOTE = msgspec.json.Decoder(Note)


class UnreadableRowError(ValueError):
    """A stored state that this version cannot decode."""


def encode(fact: Job | Incident) -> str:
    """Return the complete state as JSON. NaN becomes null, since JSON has no NaN."""
    try:
        return encode_json(fact).decode()
    except UnicodeEncodeError:
        # A path that is not UTF-8: the state matters more than its spelling.
        return to_json(fact)


def decode_job(state: str) -> Job:
    """Return the job of a stored state: unknown keys are ignored, missing ones take their default.

    Raises UnreadableRowError where a value has another type or is not a member of its enum.
    """
    try:
        return _JOB.decode(state)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnreadableRowError(str(error)) from error


def decode_incident(state: str) -> Incident:
    """Return the incident of a stored state, as `decode_job` does."""
    try:
        return _INCIDENT.decode(state)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnreadableRowError(str(error)) from error


def decode_note(body: str) -> Note:
    """Return the note of a stored decision, as `decode_job` does."""
    try:
        return _NOTE.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise UnreadableRowError(str(error)) from error


def shift_into_boot(saved: Moment, now: Moment) -> float:
    """Return the seconds to add to monotonic readings of an earlier boot, so that they mean the same in this one.

    Between moments of the earlier boot its own monotonic clock counts, whatever its wall clock did. Only the gap from
    the save to now is reckoned by wall clock, and never below zero: a machine that wakes with its clock in the past
    must not put every deadline into a far future.
    """
    gap_s = max(0.0, now.unix_s - saved.unix_s)
    return now.monotonic_s - gap_s - saved.monotonic_s


def shifted(fact: _Fact, shift_s: float) -> _Fact:
    """Return a fact with `shift_s` added to the monotonic part of every moment in it; wall times stay."""
    moved: Any = _shift_moments(fact, shift_s)
    return moved  # type: ignore[no-any-return]  # rebuilt field by field, so it has the type it had


def _shift_moments(value: object, shift_s: float) -> object:
    if isinstance(value, Moment):
        return Moment(value.monotonic_s + shift_s, value.unix_s)
    if isinstance(value, tuple):
        return tuple(_shift_moments(item, shift_s) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: _shift_moments(getattr(value, field.name), shift_s) for field in fields(value)}
        )
    return value
