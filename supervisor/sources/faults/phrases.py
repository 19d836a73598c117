"""Phrases by which a driver says that all is well, or what a line is about: found by their literals first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from supervisor.sources.faults.prefilter import EDGE, needle_of, pattern_of_any


class Phrases:
    """Regular expressions, in any case. One is tried where its literal was found: few, for few lines."""

    def __init__(self, expressions: Iterable[str]) -> None:
        self._expressions = {expression: (needle_of(expression) or "").strip(EDGE) for expression in expressions}
        self._begun: dict[str, tuple[re.Pattern[str], ...]] = {}

    @property
    def unfindable(self) -> list[str]:
        """The expressions without a literal, which would be tried for no line."""
        return [expression for expression, literal in self._expressions.items() if not literal]

    def are_in(self, text: str) -> bool:
        """Return whether one of them is in a text."""
        lower, at = text.lower(), 0
        while (hit := self._any_literal.search(lower, at)) is not None:
            if any(expression.search(text) for expression in self._begun_by(hit[0])):
                return True
            at = hit.start() + 1
        return False

    def _begun_by(self, hit: str) -> tuple[re.Pattern[str], ...]:
        """Return the expressions whose literal begins with what was found, which is the shortest of them."""
        if hit not in self._begun:
            self._begun[hit] = tuple(
                re.compile(expression, re.ASCII | re.IGNORECASE)
                for expression, literal in self._expressions.items()
                if literal.lower().startswith(hit)
            )
        return self._begun[hit]

    @cached_property
    def _any_literal(self) -> re.Pattern[str]:
        return re.compile(pattern_of_any(literal.lower() for literal in self._expressions.values()))
