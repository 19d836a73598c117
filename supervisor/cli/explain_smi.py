"""Prints the readings in a saved output of rocm-smi, amd-smi or nvidia-smi, in this project's own names and units."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from supervisor.cli.app import App, CliError
from supervisor.cli.saved import read_saved
from supervisor.core.harmless import one_line
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources import smi_output

ONE_OUTPUT = "save what the tool prints once"


def explain_smi(source: Path | str) -> list[dict[str, object]]:
    """Return one object a card, every field of the reading type in it: `None` where the tool had no value.

    `source` is a path, or `-` for standard input; text that is no output of these tools gives an empty list. Raises
    CliError where it cannot be read.
    """
    text = read_saved(source, ONE_OUTPUT)
    return [reading_object(reading) for reading in smi_output.read_saved(text, Moment(0.0, 0.0))]


def reading_object(reading: GpuReading) -> dict[str, object]:
    """Return a reading as one JSON object: its time in Unix seconds, 0 and therefore None for saved text."""
    return {**asdict(reading), "at": reading.at.unix_s or None}


def print_smi(app: App, source: Path | str) -> None:
    """Print what `explain_smi` returns: lines, or with --json `{"gpus": [...]}`; CliError where it is nothing."""
    found = explain_smi(source)
    if not found:
        remedy = "save what rocm-smi, amd-smi or nvidia-smi printed, JSON and CSV included"
        raise CliError(f"{source}: no output of these tools that names a card", remedy)
    if app.json:
        app.print_json({"gpus": found})
        return
    app.print("\n\n".join(_lines(one) for one in found))


def _lines(card: dict[str, object]) -> str:
    named = {name: value for name, value in card.items() if name not in ("at", "processes")}
    width = max(map(len, named))
    text = [f"{name:<{width}}  {'null' if value is None else one_line(_shown(value))}" for name, value in named.items()]
    processes = card["processes"]
    for process in processes if isinstance(processes, (list, tuple)) else ():
        shown = ", ".join(f"{key} {value}" for key, value in process.items() if value is not None)
        text.append(f"{'process':<{width}}  {one_line(shown)}")
    return "\n".join(text)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, tuple) else str(value)
