"""Matches every row of a table of fault patterns with its own examples."""

from __future__ import annotations

import re

from supervisor.sources.faults.prefilter import EDGE
from supervisor.sources.faults.rows import Grammar, compiled


def unproven(grammar: Grammar) -> list[str]:
    """Return the errors in the rows' examples: each must be matched by its row and by no earlier one."""
    wrong = []
    for row in grammar.rows:
        place = f"row {row.number} ({row.pattern[:60]})"
        try:
            compiled(row.expression)
        except re.error as error:
            wrong.append(f"{place}: pattern: {error}")
            continue
        several = [needle.strip(EDGE) for needle in row.needles] if len(row.needles) > 1 and not row.tentative else []
        unused = [text for text in several if not any(text in example for example in row.examples)]
        wrong += [f"{place}: no example contains the needle: {text}" for text in unused]
        for example in row.examples:
            found = grammar.match(example, user=row.user)
            if found is None or found.row is not row:
                by = "no row" if found is None else f"row {found.row.number}"
                wrong.append(f"{place}: the example is matched by {by}: {example}")
    return wrong
