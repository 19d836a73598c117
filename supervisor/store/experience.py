"""How often each remedy helped and failed on this machine, counted from the rows of the trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from supervisor.core.remedies.context import Experience
from supervisor.core.remedies.trials import Outcome
from supervisor.store.steps import Row


def experience_of(rows: Iterable[Row]) -> tuple[Experience, ...]:
    """Return how often each remedy helped and failed against each cause; other outcomes are not counted."""
    helped: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counter = {Outcome.HELPED.value: helped, Outcome.FAILED.value: failed}.get(row["outcome"])
        if counter is not None:
            counter[(row["cause"], row["remedy"])] += 1
    return tuple(
        Experience(cause=cause, remedy=remedy, helped=helped[cause, remedy], failed=failed[cause, remedy])
        for cause, remedy in sorted({*helped, *failed})
    )
