"""How every second of a job's life was spent, each in one class.

The measure at its head is the effective training time ratio: time that brought the training forward, divided by all
time in which it was wanted (ByteRobust, SOSP 2025, which reaches 0.97). Work that a resume threw away was not
effective, whatever it looked like when it was done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from supervisor.core.reports.timeline import EFFECTIVE, Life, Use, timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The sums over a stretch of a job's life."""

    began_unix_s: float | None = None
    ended_unix_s: float | None = None
    seconds: Mapping[Use, float] = field(default_factory=dict)
    cost_s: Mapping[str, float] = field(default_factory=dict)
    """By cause: work lost, time down, and the set-up that came after it."""
    faults: Mapping[str, int] = field(default_factory=dict)
    """How often each cause ended an attempt."""

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(self.seconds.values())

    @property
    def ettr(self) -> float | None:
        """Effective training time over wanted time; None where no training was wanted or none was observed."""
        wanted = self.total_s - self.seconds.get(Use.WAITING, 0.0)
        if wanted <= 0 or self.seconds.get(Use.UNSEEN, 0.0) > 0:
            return None
        return sum(self.seconds.get(use, 0.0) for use in EFFECTIVE) / wanted


def account(lives: Sequence[Life], until_unix_s: float, window_s: float | None = None) -> Account:
    """Return the account of a job's attempts, oldest first, up to `until_unix_s`, or of its last `window_s`."""
    segments = list(timeline(lives, until_unix_s))
    if window_s is not None:
        parts = (segment.within(until_unix_s - window_s, until_unix_s) for segment in segments)
        segments = [segment for segment in parts if segment is not None]
    if not segments:
        return Account()
    seconds: dict[Use, float] = defaultdict(float)
    cost_s: dict[str, float] = defaultdict(float)
    for segment in segments:
        seconds[segment.use] += segment.seconds - segment.data_wait_s
        if segment.data_wait_s:
            seconds[Use.DATA_WAIT] += segment.data_wait_s
        if segment.cause is not None:
            cost_s[segment.cause] += segment.seconds
    began, ended = segments[0].began_unix_s, segments[-1].ended_unix_s
    return Account(
        began_unix_s=began,
        ended_unix_s=ended,
        seconds=dict(seconds),
        cost_s=dict(cost_s),
        faults=_count_faults(lives, began, ended),
    )


def _count_faults(lives: Iterable[Life], began: float, ended: float) -> dict[str, int]:
    counted: dict[str, int] = defaultdict(int)
    for life in lives:
        if life.cause is not None and life.ended_unix_s is not None and began <= life.ended_unix_s <= ended:
            counted[life.cause] += 1
    return dict(counted)
