"""A job's progress and its success criteria, as lines of text."""

from __future__ import annotations

from typing import Any

from supervisor.cli.formatting import clock_time, span
from supervisor.cli.table import Pen
from supervisor.core.sanitize import one_line

MARKS = {"met": ("[x]", "green"), "not_met": ("[ ]", "red"), "unknown": ("[?]", "yellow")}


def progress_lines(job: dict[str, Any], now: float, pen: Pen) -> list[str]:
    """Return when the job will be done, with bounds, and each criterion with its verdict.

    A daemon of an older version reports neither: then there are no lines.
    """
    criteria = [_criterion_line(item, pen) for item in job.get("expectations") or []]
    end = _describe_end(job, now)
    name = one_line(job["name"])
    if end is None and not criteria:
        return []
    return ["", pen.paint(name, "bold") + (f"  {end}" if end else ""), *criteria]


def _describe_end(job: dict[str, Any], now: float) -> str | None:
    eta, early, late = (job.get(field) for field in ("eta", "eta_early", "eta_late"))
    if eta is None or early is None or late is None:
        return None
    text = f"done {clock_time(eta)[:16]} (in {span(early - now)} to {span(late - now)})"
    epoch_s, expected, step = job.get("epoch_s"), job.get("steps_expected"), job.get("step")
    if epoch_s is not None:
        text += f", an epoch takes {span(epoch_s)}"
    if expected is not None and step is not None:
        text += f", {step} of {expected} steps expected by now"
    return text


def _criterion_line(entry: dict[str, Any], pen: Pen) -> str:
    mark, colour = MARKS.get(entry["verdict"], MARKS["unknown"])
    return f"  {pen.paint(mark, colour)} {one_line(entry['name'])}: {one_line(entry['text'])}"
