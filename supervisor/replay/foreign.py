"""Builds a recording from foreign files: a training's log, a kernel log, a table of readings.

Times are taken from the prefix of a line, a telemetry table, or a progress bar's rate. A line without a time has that
of the line before it. A log does not show whether its times are since boot or wall-clock times, so the times of each
file are counted from its first line.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path

from supervisor.core import events as ev
from supervisor.core.findings import OutputFinding
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, Stage, StepRecord
from supervisor.replay.folder import RecordingError
from supervisor.replay.recording import Recording
from supervisor.sources.attempt.folding import clean
from supervisor.sources.attempt.progress import Progress
from supervisor.sources.attempt.progress_lines import progress_in
from supervisor.sources.faults.events import kernel_finding
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import findings_in
from supervisor.sources.faults.training_table import findings
from supervisor.sources.kernel.log_lines import log_line

JOB = "foreign"
LONGEST_BYTES = 1 << 30
BEGAN = Moment(0.0, 0.0)


def of_files(log: Path | None, kernel: Path | None, telemetry: Path | None) -> Recording:
    """Return a recording of the files that are given; raise RecordingError naming the file and the line at fault."""
    parts: list[ev.Event] = []
    steps: tuple[StepRecord, ...] = ()
    if log is not None:
        events, steps = _read_training(_read_text(log))
        parts += events
    if kernel is not None:
        parts += _read_kernel_log(_read_text(kernel), kernel)
    if telemetry is not None:
        parts += _read_readings(_read_text(telemetry), telemetry)
    given = [str(path) for path in (log, kernel, telemetry) if path is not None]
    if not parts and not steps:
        raise RecordingError(f"{', '.join(given)}: contains no known progress, fault or reading")
    facts = tuple(sorted(parts, key=lambda item: item.at.monotonic_s))
    return Recording(job=JOB, attempt=1, launched_at=BEGAN, made_of=", ".join(given), facts=facts, steps=steps)


def _read_training(text: str) -> tuple[list[ev.Event], tuple[StepRecord, ...]]:
    """Return the events in a training's output, and its steps, one per line of progress."""
    clock = _Clock()
    events: list[ev.Event] = []
    steps: list[StepRecord] = []
    for line in text.split("\n"):
        for frame in line.split("\r"):
            shown = clean(frame)
            seen = progress_in(shown)
            at = clock.after(shown, seen)
            found = tuple(findings([shown], at))
            if found:
                events.append(_build_output_event(at, found))
            if seen is not None and seen.step is not None and (not steps or seen.step > steps[-1].step):
                steps.append(_build_step(at, seen))
    if steps:
        events.insert(0, ev.StageEntered(at=steps[0].at, job=JOB, attempt=1, stage=Stage.STEP))
    return events, tuple(steps)


class _Clock:
    """Determines when a line was printed, in seconds since the first."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self._now_s = 0.0
        self._step = 0

    def after(self, line: str, seen: Progress | None) -> Moment:
        """Return the moment of the next line; time does not run back."""
        at_s = log_line(line).at_s
        if at_s is not None:
            self._first_s = at_s if self._first_s is None else self._first_s
            self._now_s = max(self._now_s, at_s - self._first_s)
        elif seen is not None and seen.step is not None and seen.rate_per_s:
            self._now_s += max(0, seen.step - self._step) / seen.rate_per_s
        if seen is not None and seen.step is not None:
            self._step = max(self._step, seen.step)
        return BEGAN.plus(self._now_s)


def _build_output_event(at: Moment, found: tuple[OutputFinding, ...]) -> ev.OutputSeen:
    line = found[-1].line
    return ev.OutputSeen(at=at, job=JOB, attempt=1, new_bytes=len(line), last_line=line, findings=found)


def _build_step(at: Moment, seen: Progress) -> StepRecord:
    losses = [value for name, value in seen.losses.items() if not name.startswith(("val", "eval"))]
    nan = float("nan") if seen.not_finite else None
    return StepRecord(
        at=at,
        step=seen.step or 0,
        epoch=seen.epoch,
        loss=nan if None in losses else seen.loss,
        lr=seen.lr,
        grad_norm=nan if "grad_norm" in seen.not_finite else seen.grad_norm,
    )


def _read_kernel_log(text: str, path: Path) -> Iterator[ev.KernelReported]:
    lines = text.split("\n")
    first_s: float | None = None
    for finding in findings_in(lines, kernel_grammar()):
        at_s = log_line(lines[finding.line_number - 1]).at_s
        first_s = _first_time(lines) if first_s is None else first_s
        at = BEGAN.plus(max(0.0, (at_s or 0.0) - (first_s or 0.0)))
        found = kernel_finding(finding, at=at, sequence=finding.line_number, origin=str(path))
        yield ev.KernelReported(at=at, findings=(found,), sequence=finding.line_number)


def _first_time(lines: list[str]) -> float | None:
    return next((at_s for line in lines if (at_s := log_line(line).at_s) is not None), None)


_TIME = ("unix_s", "at_unix_s", "at", "time", "seconds")
_CONVERT: Mapping[str, Callable[[str], object]] = {"int": lambda text: int(float(text)), "float": float, "str": str}


def _read_readings(text: str, path: Path) -> Iterator[ev.GpusRead]:
    """Yield the readings of a table: CSV with a header, or one JSON object per line; columns as in `GpuReading`."""
    first_s: float | None = None
    for number, row in _read_rows(text, path):
        time = next((row[name] for name in _TIME if row.get(name) not in (None, "")), None)
        try:
            at_s = float(str(time))
            if not isfinite(at_s):
                raise ValueError("not finite")
            first_s = at_s if first_s is None else first_s
            at = BEGAN.plus(max(0.0, at_s - first_s))
            known = {field.name: field.type for field in fields(GpuReading)}
            values = {
                name: _parse_value(str(known[name]), value)
                for name, value in row.items()
                if name in known and name != "at" and value not in (None, "")
            }
            values = {"gpu": "gpu0", "source": str(path), **values}
            yield ev.GpusRead(at=at, readings=(GpuReading(at=at, **values),))  # type: ignore[arg-type] # as named
        except (TypeError, ValueError, OverflowError) as error:
            wanted = f"a time in one of {', '.join(_TIME)}, and columns named as in supervisorctl gpus --json"
            raise RecordingError(f"{path}: line {number}: {error}; expected {wanted}") from None


def _read_rows(text: str, path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    if not text.lstrip().startswith("{"):
        for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
            yield number, {str(name): value for name, value in row.items()}
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield number, dict(json.loads(line))
            except (ValueError, TypeError) as error:
                raise RecordingError(f"{path}: line {number}: {error}") from None


def _parse_value(kind: str, value: object) -> object:
    convert = _CONVERT.get(kind.split(" |", maxsplit=1)[0])
    if convert is None or isinstance(value, (list, dict)):
        raise ValueError(f"a field of type {kind} cannot be a table column")
    return convert(str(value))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_BYTES).decode("utf-8", "backslashreplace")
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}; use a readable file") from None
