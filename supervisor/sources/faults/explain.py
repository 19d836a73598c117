"""Finds the faults in a pasted text: a kernel log, a training's output or both.

The training's table is not applied to a line that has a kernel log's prefix or matches the kernel's table, nor to
source lines quoted by a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from supervisor.core.findings import FaultClass, FaultSeverity
from supervisor.sources.attempt.folding import clean
from supervisor.sources.attempt.progress_lines import progress_in
from supervisor.sources.faults.events import Finding
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import findings_in
from supervisor.sources.faults.training_table import QUOTED, training_grammar
from supervisor.sources.kernel.log_lines import log_line


@dataclass(frozen=True, slots=True)
class _Frame:
    """One text shown on a line; a progress bar shows several."""

    number: int
    text: str


def explained(text: str) -> list[Finding]:
    """Return the findings in a text in the order of their first lines, counted from 1."""
    frames = [
        _Frame(number, shown)
        for number, line in enumerate(text.split("\n"), start=1)
        for frame in line.split("\r")
        if (shown := clean(frame))
    ]
    kernel = [
        replace(finding, line_number=frames[finding.line_number - 1].number)
        for finding in findings_in([frame.text for frame in frames], kernel_grammar())
    ]
    training = _find_training_faults(frames)
    return sorted([*kernel, *training], key=lambda finding: finding.line_number)


def _find_training_faults(frames: Sequence[_Frame]) -> Iterable[Finding]:
    grammar = training_grammar()
    asked = [
        frame.text if grammar.may_match(frame.text) and _may_be_training_output(frame.text) else "" for frame in frames
    ]
    for finding in findings_in(asked, grammar):
        yield replace(finding, line_number=frames[finding.line_number - 1].number)
    nan = _find_first_nan(frames)
    if nan is not None:
        yield nan


def _may_be_training_output(text: str) -> bool:
    """Whether a line may be from a training, by its prefix and text."""
    line = log_line(text)
    by_kernel = line.message != text.strip() and not line.user
    return not (by_kernel or QUOTED.match(text) or kernel_grammar().match(line.message, user=line.user))


def _find_first_nan(frames: Sequence[_Frame]) -> Finding | None:
    """Return a finding for the first progress line with a NaN; a running mean repeats it to the end of the epoch."""
    spoilt = [(frame, seen) for frame in frames if (seen := progress_in(frame.text)) is not None and seen.is_nan]
    if not spoilt:
        return None
    frame, seen = spoilt[0]
    return Finding(
        kind="training",
        line_number=frame.number,
        line=frame.text.strip(),
        fault=FaultClass.NAN,
        severity=FaultSeverity.WARN,
        device=None,
        remedy=next(row.remedy for row in training_grammar().rows if row.fault is FaultClass.NAN),
        source=f"progress as {seen.shape} prints it",
        what=f"{', '.join(seen.not_finite)}: NaN or infinite",
        lines=len(spoilt),
    )
