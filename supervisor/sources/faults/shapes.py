"""Builds the pattern of a shape: what a driver reports by a word of trouble about an object, in wordings not listed.

A row of a table is one message. A shape is a sentence: a speaker, an object it is about, a word of trouble, and no word
by which the driver says that all is well, or that the line is about what no training depends on (a monitor).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from supervisor.sources.faults.prefilter import EDGE

_LETTER = re.compile(r"[A-Za-z]")


def pattern_of(about: str, trouble: Sequence[str]) -> str:
    """Return the pattern that follows the speaker; `about` is a regular expression, in any case."""
    words = "|".join(re.escape(word) for word in sorted(trouble, key=len, reverse=True))
    return rf"(?=.*(?i:{about}))(?=.*(?i:(?<!\w)(?:{words})(?!\w)))"


def needles_of(trouble: Iterable[str]) -> tuple[str, ...]:
    """Return the words of trouble as drivers write them: in lower case, with a capital, in capitals."""
    written = {form for word in trouble for form in (word, _capitalize(word), word.upper())}
    return tuple(EDGE + form + EDGE for form in sorted(written))


def _capitalize(word: str) -> str:
    return _LETTER.sub(lambda letter: letter[0].upper(), word, count=1)
