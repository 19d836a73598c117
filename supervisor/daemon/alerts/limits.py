"""What receivers may still be sent, kept in the record: a restart of the daemon gives no receiver more messages."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from supervisor.alerts.pipeline import Bucket, Budget, full_budget
from supervisor.core.moments import Moment
from supervisor.json_bytes import encode_json
from supervisor.store.store import Store

PAUSED = "alerts paused until"
"""Key of the note that has, by the name of the receiver, until when it asked to be sent nothing; Unix seconds."""
BUDGETS = "alerts budgets"
"""Key of the note that has what each receiver could still be sent after the last message to it."""
PAUSE_LIMIT_S = 3_600.0
"""Longest time that a receiver which asked for it is sent nothing."""


class _KeptBudget(msgspec.Struct, frozen=True, kw_only=True):
    warnings: float
    essentials: float
    at: float
    """Unix seconds."""


@dataclass(slots=True)
class ReceiverLimits:
    """Pauses and budgets by the name of the receiver; works in the deciding thread."""

    store: Store
    _paused: dict[str, Moment] = field(default_factory=dict, init=False)
    _budgets: dict[str, Budget] = field(default_factory=dict, init=False)

    def pause(self, receiver: str, seconds: float, now: Moment) -> None:
        """Send a receiver nothing for as long as it asked, at most an hour."""
        until = self._paused[receiver] = now.plus(min(seconds, PAUSE_LIMIT_S))
        pauses = {**self._read_pauses(), receiver: until.unix_s}
        self.store.set_note(PAUSED, encode_json(pauses).decode())

    def is_paused(self, receiver: str, now: Moment) -> bool:
        """Whether a receiver asked to be sent nothing now.

        A pause that would last longer than the longest there is was made before the clock was set back: it is over.
        """
        until = self._paused.get(receiver)
        if until is None:
            left_s = self._read_pauses().get(receiver, 0.0) - now.unix_s
            until = self._paused[receiver] = now.plus(left_s if left_s <= PAUSE_LIMIT_S else 0.0)
        return until.seconds_since(now) > 0

    def budget(self, receiver: str, now: Moment) -> Budget:
        """Return what a receiver may still be sent."""
        known = self._budgets.get(receiver)
        if known is not None:
            return known
        kept = self._read_budgets().get(receiver)
        if kept is None:
            return full_budget(now)
        at = now.plus(min(0.0, kept.at - now.unix_s))
        return Budget(
            warnings=Bucket(tokens=max(0.0, kept.warnings), at=at),
            essentials=Bucket(tokens=max(0.0, kept.essentials), at=at),
        )

    def spend(self, receiver: str, left: Budget, now: Moment, *, sent: bool) -> None:
        """Keep what is left of a receiver's budget; it is written only after a message was sent."""
        self._budgets[receiver] = left
        if sent:
            kept = _KeptBudget(warnings=left.warnings.tokens, essentials=left.essentials.tokens, at=now.unix_s)
            budgets = {**self._read_budgets(), receiver: kept}
            self.store.set_note(BUDGETS, encode_json(budgets).decode())

    def _read_pauses(self) -> dict[str, float]:
        try:
            return msgspec.json.decode(self.store.note(PAUSED) or "{}", type=dict[str, float])
        except msgspec.MsgspecError:
            return {}

    def _read_budgets(self) -> dict[str, _KeptBudget]:
        try:
            return msgspec.json.decode(self.store.note(BUDGETS) or "{}", type=dict[str, _KeptBudget])
        except msgspec.MsgspecError:
            return {}
