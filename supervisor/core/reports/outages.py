"""Outages: when the daemon did not run, and which attempts lived meanwhile, unwatched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SHORTEST_S = 5.0
"""A restart of the daemon, or a machine that was starved for a moment, takes less and is not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A time in which the daemon did not run, Unix seconds."""

    began_unix_s: float
    ended_unix_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.ended_unix_s - self.began_unix_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLife:
    """When an attempt lived, Unix seconds; `ended_unix_s` is None while it lives."""

    job: str
    number: int
    launched_unix_s: float
    ended_unix_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwatched:
    """An attempt that lived during an outage."""

    job: str
    attempt: int
    outage: Outage


def find_unwatched(outages: Iterable[Outage], lives: Iterable[AttemptLife]) -> tuple[Unwatched, ...]:
    """Return each outage of SHORTEST_S and more with the attempts that lived in it, the newest first.

    An attempt that ended during an outage is listed with the full outage: it was not relaunched before.
    """
    long = [outage for outage in outages if outage.seconds >= SHORTEST_S]
    found = [unwatched for life in lives for unwatched in _list_of(life, long)]
    return tuple(sorted(found, key=lambda unwatched: unwatched.outage.began_unix_s, reverse=True))


def _list_of(life: AttemptLife, outages: Iterable[Outage]) -> Iterator[Unwatched]:
    for outage in outages:
        ended = outage.ended_unix_s if life.ended_unix_s is None else life.ended_unix_s
        if life.launched_unix_s < outage.ended_unix_s and ended > outage.began_unix_s:
            yield Unwatched(job=life.job, attempt=life.number, outage=outage)
