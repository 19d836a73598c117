"""Prints the readings in a saved output of rocm-smi, amd-smi or nvidia-smi, with this project's names and units."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from supervisor.cli.app import App
from supervisor.cli.errors import CliError
from supervisor.cli.explain.pasted_input import read_saved
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.sanitize import one_line
from supervisor.sources.gpu import smi_output

ONE_OUTPUT = "save a single output of the tool"


def explain_smi(source: Path | str) -> list[dict[str, object]]:
    """Return one object per GPU with every field of the reading type: `None` if the tool reported no value.

    `source` is a path, or `-` for standard input; other text gives an empty list. Raises
    CliError if it cannot be read.
    """
    text = read_saved(source, ONE_OUTPUT)
    return [reading_object(reading) for reading in smi_output.read_saved(text, Moment(0.0, 0.0))]


def reading_object(reading: GpuReading) -> dict[str, object]:
    """Return a reading as one JSON object: its time in Unix seconds, 0 and therefore None for saved text."""
    return {**asdict(reading), "at": reading.at.unix_s or None}


def print_smi(app: App, source: Path | str) -> None:
    """Print what `explain_smi` returns: lines, or with --json `{"gpus": [...]}`; CliError if there are none."""
    found = explain_smi(source)
    if not found:
        remedy = "save the output of rocm-smi, amd-smi or nvidia-smi, as text, JSON or CSV"
        raise CliError(f"{source}: no output of these tools with a GPU in it", remedy)
    if app.json:
        app.print_json({"gpus": found})
        return
    app.print("\n\n".join(_describe_gpu(entry) for entry in found))


def _describe_gpu(gpu: dict[str, object]) -> str:
    fields = {name: value for name, value in gpu.items() if name not in ("at", "processes")}
    width = max(map(len, fields))
    text = [
        f"{name:<{width}}  {'null' if value is None else one_line(_format_value(value))}"
        for name, value in fields.items()
    ]
    processes = gpu["processes"]
    for process in processes if isinstance(processes, (list, tuple)) else ():
        shown = ", ".join(f"{key} {value}" for key, value in process.items() if value is not None)
        text.append(f"{'process':<{width}}  {one_line(shown)}")
    return "\n".join(text)


def _format_value(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
