"""`supervisorctl bench conv2d`: every Conv2d of a job's own interpreter, checked, timed and put side by side.

It measures in a process of that interpreter and asks no daemon; a card should do nothing else meanwhile.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

import supervisor
from supervisor.cli import exits
from supervisor.cli.app import App, CliError, end, json_option, pass_app
from supervisor.cli.table import Cell
from supervisor.core.harmless import one_line
from supervisor.core.miopen import CONV2D_SETTINGS

SCRIPT = Path(supervisor.__file__).resolve().parent / "agent" / "bench_conv2d.py"
MIB = 1 << 20
NAMES = (*(name for name in CONV2D_SETTINGS if name not in ("auto", "off")), "no-library", "native")
"""Ours, ATen's own kernels (torch.backends.cudnn.enabled = False), and what torch does by itself."""


@click.group("bench")
def command() -> None:
    """Measure on this machine."""


@command.command("conv2d", short_help="Every Conv2d that avoids MIOpen, beside native.")
@click.option("--job", help="Run in the interpreter of this job of the configuration.")
@click.option("--python", type=click.Path(path_type=Path), help="Run in this interpreter (default: the one that runs).")
@click.option(
    "--model", default="", help="Layers and training step of a model: yolov8n.yaml, or torchvision's resnet50."
)
@click.option("--batch", type=click.IntRange(1, 4096), default=4, show_default=True)
@click.option(
    "--size", type=click.IntRange(32, 4096), default=640, show_default=True, help="Pixels of an image's side."
)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32", show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--only", "algorithms", multiple=True, type=click.Choice(NAMES), help="Only this one; may be repeated.")
@click.option(
    "--runs", type=click.IntRange(1, 100000), default=7, show_default=True, help="Of which the median counts."
)
@click.option("--threads", type=click.IntRange(0), default=0, help="On a CPU; 0 leaves torch's own.")
@click.option("--images", type=click.IntRange(1), help="With --model and --epochs: estimate a training's hours.")
@click.option("--epochs", type=click.IntRange(1), default=100, show_default=True)
@click.option(
    "--log", type=click.Path(path_type=Path, dir_okay=False), help="Write every measurement there, as JSON lines."
)
@json_option
@pass_app
def conv2d_command(app: App, /, job: str | None, python: Path | None, log: Path | None, **given: Any) -> None:
    """Check and time the six layers of the published benchmark, or a model's own layers and its whole training step.

    On ROCm "native" is MIOpen, which may hang: it is run only where asked for, with --only native.
    """
    images, epochs = given.pop("images"), given.pop("epochs")
    interpreter = python or (_of_job(app, job) if job else Path(sys.executable))
    lines = _measured(interpreter, given, log, quiet=app.json)
    hours = _hours(lines, images, epochs, given["batch"])
    if app.json:
        app.print_json({"schema": 1, "options": given, "measurements": lines, "hours": hours})
    else:
        app.print(_report(app, lines, hours))
    if any("problem" in line or line.get("right") is False for line in lines):
        end(exits.FAILED)


def _of_job(app: App, /, job: str) -> Path:
    from supervisor.config import ConfigError, load  # noqa: PLC0415  # other commands need none of it
    from supervisor.runner.proving import interpreter_of  # noqa: PLC0415  # the same

    try:
        settings = load(app.config).jobs.get(job)
    except ConfigError as error:
        raise CliError(str(error), "supervisorctl config check") from error
    if settings is None:
        raise CliError(f"no job {job!r} in {app.config}", "name one of its jobs, or an interpreter: --python PATH")
    path = settings.env.get("PATH", os.environ.get("PATH", os.defpath))
    found = interpreter_of(settings.command, settings.cwd or "/", path)
    if found is None:
        raise CliError(f"the interpreter of job {job!r} cannot be told from its command", "name it: --python PATH")
    return found


def _measured(python: Path, given: dict[str, Any], log: Path | None, *, quiet: bool) -> list[dict[str, Any]]:
    """Run the script and return its lines, each written to `log` as it comes; raise CliError where it fails."""
    argv = [str(python), str(SCRIPT), json.dumps(given)]
    lines: list[dict[str, Any]] = []
    try:
        file = log.open("w") if log else None
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise CliError(
            f"{error.filename}: {error.strerror}", "name the interpreter of a training: --python PATH"
        ) from error
    assert process.stdout is not None
    try:
        for text in process.stdout:
            if not text.startswith('{"kind"'):
                continue  # what libraries have to say
            if file is not None:
                file.write(text)
                file.flush()
            lines.append(json.loads(text))
            if not quiet:
                _show_progress(lines[-1])
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        if file is not None:
            file.close()
    if status != 0:
        raise CliError(f"the measurement ended with status {status}", "read what it wrote above")
    return lines


def _show_progress(line: dict[str, Any]) -> None:
    if sys.stderr.isatty() and line["kind"] == "layer":
        click.echo(f"layer {line['layer']} of {line['of']}: {one_line(line['algorithm'])}", err=True)


def _hours(lines: list[dict[str, Any]], images: int | None, epochs: int, batch: int) -> dict[str, float]:
    """Return the hours of a training by algorithm, from the whole step; loading data and validating are not in them."""
    if images is None:
        return {}
    steps = math.ceil(images / batch) * epochs
    return {line["algorithm"]: line["step_ms"] * steps / 3.6e6 for line in lines if "step_ms" in line}


def _report(app: App, lines: list[dict[str, Any]], hours: dict[str, float]) -> str:
    device = lines[0]
    parts = [one_line(f"{device['name']}, torch {device['torch']}, {device['python']}"), ""]
    layers = [line for line in lines if line["kind"] == "layer"]
    names = list(dict.fromkeys(line["algorithm"] for line in layers))
    head = ["layer", "times", *names]
    rows = []
    for number in dict.fromkeys(line["layer"] for line in layers):
        of_layer = {line["algorithm"]: line for line in layers if line["layer"] == number}
        first = next(iter(of_layer.values()))
        title = f"{'x'.join(map(str, first['input']))} by {'x'.join(map(str, first['weight']))} s{first['stride']}"
        rows.append([Cell(title), Cell(str(first["count"]), right=True), *(_time(of_layer[name]) for name in names)])
    parts += ["Forward and backward, ms:", app.pen.table(head, rows), "", "All layers:", _totals(app, layers, names)]
    if steps := [line for line in lines if line["kind"] == "step"]:
        cells = [
            [
                Cell(one_line(line["algorithm"])),
                _number(line.get("step_ms")),
                _bytes(line.get("peak_bytes")),
                _number(hours.get(line["algorithm"])),
                Cell(one_line(line.get("problem", ""))),
            ]
            for line in steps
        ]
        parts += ["", "The whole training step:", app.pen.table(["algorithm", "ms", "peak MiB", "hours", ""], cells)]
    return "\n".join(parts)


def _totals(app: App, layers: list[dict[str, Any]], names: list[str]) -> str:
    """Return a table of sums over the layers, each counted as often as the model has it."""
    rows = []
    for name in names:
        mine = [line for line in layers if line["algorithm"] == name]
        whole = [line for line in mine if "problem" not in line]
        worst = max((error for line in whole for error in line["errors"]), default=math.nan)
        verdict = "right" if all(line.get("right") for line in mine) else "WRONG, or failed"
        sums = [
            None if any(line.get(key) is None for line in mine) else sum(line[key] * line["count"] for line in mine)
            for key in ("forward_ms", "backward_ms", "total_ms", "held_bytes")
        ]
        peak = max((line["peak_bytes"] or 0 for line in whole), default=0) or None
        cells = [Cell(one_line(name)), *map(_number, sums[:3]), _bytes(sums[3]), _bytes(peak)]
        rows.append([*cells, Cell(f"{worst:.1e}", right=True), Cell(verdict, None if verdict == "right" else "red")])
    head = ["algorithm", "forward ms", "backward ms", "total ms", "held MiB", "peak MiB", "error", "against float64"]
    return app.pen.table(head, rows)


def _time(line: dict[str, Any]) -> Cell:
    return Cell("failed", "red", right=True) if "problem" in line else _number(line["total_ms"])


def _number(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value:.2f}", right=True)


def _bytes(value: float | None) -> Cell:
    return Cell("-" if value is None else f"{value / MIB:.0f}", right=True)
