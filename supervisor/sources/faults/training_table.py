"""The table of faults in a training's output, loaded once from `tables/training.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from supervisor.core.findings import FaultClass, FaultSeverity, OutputFinding
from supervisor.core.moments import Moment
from supervisor.sources.faults.table import LINE_LIMIT, Grammar, load

TABLE = Path(__file__).with_name("tables") / "training.toml"
FINDINGS_LIMIT = 20
"""Findings per read of the output; further lines of a flood of errors add nothing."""

QUOTED = re.compile(r"\s+(?:raise|except|assert|return|if|elif|with)\b")
"""A source line quoted by a traceback: it contains a message that was not necessarily printed."""


@cache
def training_grammar() -> Grammar:
    """Return the table, read at its first use."""
    return load(TABLE)


def findings(segments: Iterable[str], now: Moment, limit: int = FINDINGS_LIMIT) -> Iterator[OutputFinding]:
    """Yield the findings in the lines, each distinct line once, at most `limit`."""
    grammar = training_grammar()
    text = "\n".join(segments)
    if not grammar.may_match(text):
        return
    seen: set[tuple[FaultClass, str]] = set()
    for line in text.split("\n"):
        found = None if QUOTED.match(line) else grammar.match(line)
        if found is None or (found.fault, line[:LINE_LIMIT]) in seen:
            continue
        seen.add((found.fault, line[:LINE_LIMIT]))
        fatal = found.severity is FaultSeverity.FATAL
        yield OutputFinding(at=now, fault=found.fault, line=line[:LINE_LIMIT], fatal=fatal, remedy=found.remedy)
        if len(seen) >= limit:
            return
