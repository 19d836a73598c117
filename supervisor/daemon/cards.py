"""Which of the machine's cards a job runs on, and what they are; it reads no card itself."""

from __future__ import annotations

from supervisor.config.settings import JobSettings
from supervisor.daemon.view import Newest


class CardsUsed:
    """Answers from the newest readings: a card that never answered is not known."""

    def __init__(self, newest: Newest) -> None:
        self._newest = newest

    def used_by(self, settings: JobSettings) -> tuple[str, ...]:
        """Return the PCI addresses that a job's `gpus` name; empty: every card.

        An index counts the cards in the order of their addresses, as ROCm and the kernel number them.
        """
        ordered = sorted(self._newest.gpus)
        named = []
        for one in settings.gpus:
            if not one.isdecimal():
                named.append(one.lower())
            elif int(one) < len(ordered):
                named.append(ordered[int(one)])
        return tuple(named)

    def gfx_versions(self, settings: JobSettings) -> tuple[str, ...]:
        """Return the gfx targets of the cards that a job runs on, as far as they are known."""
        used = self.used_by(settings)
        readings = self._newest.gpus.values()
        return tuple(one.gfx_version for one in readings if one.gfx_version and (not used or one.gpu in used))
