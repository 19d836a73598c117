"""Whether launches bring a training further: what clears the restarts in a row, and which saved states bring nothing.

Progress is a step further than any launch came before, or a state to resume from that is newer than all before it.
Unknown is neither progress nor the lack of it: a launch that only counts its own steps, or that worked for a while
and never showed a step. One that ended early without a step has made none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.core.fleet.culprit import Culprit
from supervisor.core.fleet.evidence import RankEvidence
from supervisor.core.fleet.resume import Offer


class LaunchProgress:
    """Of one training, over all its launches."""

    def __init__(
        self, steps: int | None = None, resumed: Offer | None = None, fruitless: Mapping[str, int] | None = None
    ) -> None:
        self.steps = steps
        """The furthest step that any launch made."""
        self.resumed = resumed
        """What the present launch resumed from."""
        self.fruitless = dict(fruitless or {})
        """Launches in a row from a state without a step beyond those known before, by its name."""
        self._newest = resumed
        """The newest state that a launch resumed from."""
        self._launched_s: float | None = None
        self._made: int | None = None
        """The step that the present launch has reached."""
        self._counts_itself = False
        """Whether it makes steps that may be new or repeated."""

    def launch(self, offer: Offer | None, now_s: float) -> bool:
        """Take in a launch; return whether what it resumes from is progress."""
        self.resumed, self._launched_s, self._made, self._counts_itself = offer, now_s, None, False
        if offer is None:
            return False
        self.fruitless[offer.name] = self.fruitless.get(offer.name, 0) + 1
        before, is_newer = self._newest, _is_newer(offer, self._newest)
        if is_newer or before is None or not before.digest:
            self._newest = offer
        return is_newer

    def take_steps(self, steps: int | None, *, counts_itself: bool) -> bool:
        """Take in what the present launch says of its steps; return whether restarts before it are no row any more."""
        begins = counts_itself and not self._counts_itself  # it has made steps, whichever they are
        self._counts_itself = self._counts_itself or counts_itself
        if steps is None:
            return begins
        self._made = max(steps, self._made or 0)
        if steps <= (self.steps or 0):
            return begins
        self.steps, self.fruitless = steps, {}
        return True

    def is_known(self, now_s: float, settle_s: float) -> bool:
        """Whether the present launch is known to have made progress or none."""
        if self._counts_itself:
            return False
        if self._made is not None or self.steps is not None:
            return True
        return self._launched_s is not None and now_s - self._launched_s < settle_s

    def end(self, culprit: Culprit, evidence: Sequence[RankEvidence]) -> None:
        """Take in why the present launch ended: what came from outside while it made steps is not its state's doing."""
        named = [rank for rank in evidence if rank.rank in culprit.ranks]
        if self.resumed is not None and self._went_on() and named and all(rank.ended_from_outside for rank in named):
            self.fruitless.pop(self.resumed.name, None)

    def _went_on(self) -> bool:
        """Whether the present launch made a step beyond the state from which it resumed."""
        assert self.resumed is not None
        if self._counts_itself:
            return True
        return self._made is not None and self.resumed.step is not None and self._made > self.resumed.step

    def find_passed_over(self, after: int) -> frozenset[str]:
        """Return the states that `after` launches in a row resumed from without a new step."""
        return frozenset(name for name, times in self.fruitless.items() if times >= after)


def _is_newer(offer: Offer, before: Offer | None) -> bool:
    """Whether a state was saved further on than the newest before it; False also where that is not known."""
    if before is None:
        return True
    if not before.digest or before.name == offer.name:
        return False  # of a leader before this one only the name is known
    if offer.step is not None and before.step is not None:
        return offer.step > before.step
    return offer.step is None and before.step is None and offer.order > before.order
