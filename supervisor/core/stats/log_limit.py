"""What is logged once, and again only after a while: a condition that is met at every try must not fill the log."""

from __future__ import annotations


class LogLimit:
    """Allows each text once within `again_s`. Used by one thread, or by several that may each log it once."""

    def __init__(self, again_s: float, kept: int = 16) -> None:
        """`kept`: how many texts are remembered; with more different ones than that all of them are forgotten."""
        self._again_s, self._kept = again_s, kept
        self._logged_s: dict[str, float] = {}

    def allows(self, text: str, now_s: float) -> bool:
        """Return whether `text` is to be logged now, and remember that it was."""
        logged_s = self._logged_s.get(text)
        if logged_s is not None and now_s - logged_s < self._again_s:
            return False
        if len(self._logged_s) >= self._kept:
            self._logged_s.clear()
        self._logged_s[text] = now_s
        return True
