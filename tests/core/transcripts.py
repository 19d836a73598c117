"""Transcripts: what the stories of `tests/core` come to, word for word, as it was last reviewed.

A transcript is a text file in `tests/core/transcripts/`. Where words, limits or severities are changed on purpose,
`python -m tests.core.transcripts` writes the files again; the diff is then reviewed like code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.flags import Diagnosis, RedFlag
from supervisor.core.gauge import Gauge
from supervisor.core.moments import Moment
from tests.rigs.declared import check_declared

from .stories import START

FOLDER = Path(__file__).with_name("transcripts")
WRITTEN_BY = tuple(f"test_every_{what}" for what in ("rule", "decision", "event", "report", "tune", "leading"))
"""Modules with a mapping `TRANSCRIPTS` of names to functions that return the text."""


def read(name: str) -> str:
    """Return a transcript as it was last read by a person."""
    return (FOLDER / f"{name}.txt").read_text()


def show(value: object) -> str:
    """Return a value in one line: numbers with six digits, moments in seconds since the story began."""
    if isinstance(value, Moment):
        return f"{value.seconds_since(START):.6g} s"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(show, value)) + ")"
    if isinstance(value, Checkpoint):
        return f"{value.path} (step {value.step}, {show(value.verdict)})"
    if hasattr(value, "__dataclass_fields__"):
        return f"{type(value).__name__}({', '.join(list_fields(value))})"
    return str(value) if isinstance(value, str) else repr(value)


def list_fields(value: Any) -> Iterator[str]:
    """Yield `name=value` of each field that says something; every one of them is what it is declared to be."""
    check_declared(value)
    for field in fields(value):
        item = getattr(value, field.name)
        if not (item is None or item is False or item in ((), "") or callable(item)):
            yield f"{field.name}={show(item)}"


def show_gauge(gauge: Gauge) -> str:
    """Return a gauge in one line."""
    share = "" if gauge.share is None else f" share={gauge.share:.6g}"
    return f"  {'REACHED' if gauge.reached else 'gauge'} {' '.join(list_fields(gauge))}{share}"


def show_flag(flag: RedFlag, cause: str | None = None) -> Iterator[str]:
    """Yield a flag in several lines."""
    yield f"  FLAG {flag.severity.label}" + ("" if cause is None else f" ({cause})") + f": {flag.message}"
    rest = [text for text in list_fields(flag) if text.partition("=")[0] in ("since", "since_step", "subject", "fault")]
    rest += ["can_save"] * flag.can_save + ([] if flag.start_failure is None else [flag.start_failure])
    if rest:
        yield f"    {', '.join(rest)}"


def show_diagnosis(diagnosis: Diagnosis | None) -> Iterator[str]:
    """Yield a diagnosis, a line for each sentence."""
    if diagnosis is not None:
        yield from (f"    ruled out: {text}" for text in diagnosis.ruled_out)
        yield from (f"    cause: {text}" for text in diagnosis.causes)
        yield from (f"    advice: {text}" for text in diagnosis.advice)


def main() -> None:
    """Write every transcript anew."""
    FOLDER.mkdir(exist_ok=True)
    for module in WRITTEN_BY:
        transcripts: Mapping[str, Callable[[], str]] = importlib.import_module(f"tests.core.{module}").TRANSCRIPTS
        for name, tell in transcripts.items():
            (FOLDER / f"{name}.txt").write_text(tell())


if __name__ == "__main__":
    main()
