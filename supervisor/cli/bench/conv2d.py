"""`supervisorctl bench conv2d`: verifies and times every Conv2d implementation in a job's interpreter.

It measures in a process of that interpreter, without the daemon; the GPU should be otherwise idle.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import click

import supervisor
from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.cli.bench.picture import picture
from supervisor.cli.bench.report import report
from supervisor.cli.errors import CliError, WrongUsageError
from supervisor.core.remedies.miopen import CONV2D_SETTINGS
from supervisor.core.sanitize import one_line

SCRIPTS = Path(supervisor.__file__).resolve().parent / "agent"
SCRIPT = "bench_conv2d.py"
NAMES = (*(name for name in CONV2D_SETTINGS if name not in ("auto", "off")), "no-library", "native")
"""Ours, ATen's own kernels (torch.backends.cudnn.enabled = False), and torch's default."""

_file = click.Path(path_type=Path, dir_okay=False)


@click.group("bench")
def command() -> None:
    """Run benchmarks on this machine."""


@command.command("conv2d", short_help="Compare every Conv2d that avoids MIOpen with native.")
@click.option("--job", help="Run in the interpreter of this job of the configuration.")
@click.option(
    "--python", type=click.Path(path_type=Path), help="Run in this interpreter (default: that of this command)."
)
@click.option(
    "--model", default="", help="Layers and training step of a model: yolov8n.yaml, or torchvision's resnet50."
)
@click.option("--batch", type=click.IntRange(1, 4096), default=4, show_default=True)
@click.option(
    "--size", type=click.IntRange(32, 4096), default=640, show_default=True, help="Side length of the images in pixels."
)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), default="float32", show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option(
    "--only", "algorithms", multiple=True, type=click.Choice(NAMES), help="Only this implementation; may be repeated."
)
@click.option(
    "--scope",
    type=click.Choice(["modules", "all"]),
    default="modules",
    show_default=True,
    help="Replace what conv2d_scope would replace.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 100000),
    default=7,
    show_default=True,
    help="Runs per measurement; the median is reported.",
)
@click.option(
    "--stability",
    type=click.IntRange(8),
    help="Then repeat N times and check that time, memory and results are stable.",
)
@click.option("--threads", type=click.IntRange(0), default=0, help="CPU threads; 0: torch's default.")
@click.option("--images", type=click.IntRange(1), help="With --model and --epochs: estimate the hours of a training.")
@click.option("--epochs", type=click.IntRange(1), default=100, show_default=True)
@click.option("--log", type=_file, help="Write each measurement to this file as a JSON line.")
@click.option("--picture", "drawing", type=_file, help="Write a bar chart per layer to this SVG file.")
@json_option
@pass_app
def conv2d_command(
    app: App, /, job: str | None, python: Path | None, log: Path | None, drawing: Path | None, **given: Any
) -> None:
    """Verify and time the six layers of the published benchmark, or a model's layers and its complete training step.

    On ROCm "native" is MIOpen, which may hang: it is run only with --only native.
    """
    images, epochs = given.pop("images"), given.pop("epochs")
    if images is not None and not given["model"]:
        raise WrongUsageError(
            "--images needs a model: the hours are computed from its training step", "add --model NAME"
        )
    interpreter = find_interpreter(app, job, python)
    with ExitStack() as stack:
        files = [stack.enter_context(_open_for_writing(path)) if path else None for path in (log, drawing)]
        lines = []
        for line in run_script(interpreter, given, SCRIPT):
            lines.append(line)
            if files[0] is not None:
                files[0].write(json.dumps(line) + "\n")
                files[0].flush()
            if not app.json:
                _show_progress(line)
        if files[1] is not None:
            files[1].write(picture(lines))
    _print_report(app, given, lines, _estimate_hours(lines, images, epochs, given["batch"]))


def _open_for_writing(path: Path) -> IO[str]:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}", "give a writable file") from error


def _print_report(app: App, /, given: dict[str, Any], lines: list[dict[str, Any]], hours: dict[str, float]) -> None:
    if app.json:
        app.print_json({"schema": 1, "options": given, "measurements": lines, "hours": hours})
    else:
        app.print(report(app.pen, lines, hours, bars=sys.stdout.isatty()))
    if any("problem" in line or line.get("right") is False or line.get("steady") is False for line in lines):
        end(exit_codes.FAILED)


def find_interpreter(app: App, job: str | None, python: Path | None) -> Path:
    """Return the interpreter to measure in: of a job, the one that is named, or this program's."""
    if job and python:
        raise WrongUsageError("--job and --python both name an interpreter", "give one of them")
    return python or (_of_job(app, job) if job else Path(sys.executable))


def _of_job(app: App, /, job: str) -> Path:
    from supervisor.cli.paths import refuse_silent  # noqa: PLC0415  # other commands do not need it
    from supervisor.config import ConfigError, load  # noqa: PLC0415  # the same
    from supervisor.runner.proving import interpreter_of  # noqa: PLC0415  # the same

    refuse_silent(app.config)
    try:
        settings = load(app.config).jobs.get(job)
    except ConfigError as error:
        raise CliError(str(error), "supervisorctl config check") from error
    if settings is None:
        raise CliError(f"no job {job!r} in {app.config}", "give one of its jobs, or an interpreter: --python PATH")
    path = settings.env.get("PATH", os.environ.get("PATH", os.defpath))
    found = interpreter_of(settings.command, settings.cwd or "/", path)
    if found is None:
        raise CliError(
            f"the interpreter of job {job!r} cannot be determined from its command", "give it: --python PATH"
        )
    return found


def run_script(python: Path, given: dict[str, Any], script: str) -> Iterator[dict[str, Any]]:
    """Run a script of the agent's room and yield its lines as they come; raise CliError if it fails or refuses."""
    try:
        process = subprocess.Popen(
            [str(python), str(SCRIPTS / script), json.dumps(given)], stdout=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise CliError(
            f"{error.filename}: {error.strerror}", "give the interpreter of a training: --python PATH"
        ) from error
    assert process.stdout is not None
    try:
        for text in process.stdout:
            if not text.startswith('{"kind"'):
                continue  # output of libraries
            line = json.loads(text)
            if line["kind"] == "refused":
                raise CliError(line["message"], line["remedy"])
            yield line
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if status != 0:
        raise CliError(f"the measurement ended with status {status}", "see its output above")


def _show_progress(line: dict[str, Any]) -> None:
    if not sys.stderr.isatty():
        return
    name = one_line(line.get("algorithm", ""))
    if line["kind"] == "layer":
        click.echo(f"layer {line['layer']} of {line['of']}: {name}", err=True)
    elif line["kind"] == "progress":
        click.echo(f"{line['done']} of {line['of']}: {name}, median {line['median_ms']:.2f} ms", err=True)


def _estimate_hours(lines: list[dict[str, Any]], images: int | None, epochs: int, batch: int) -> dict[str, float]:
    """Return the hours of a training by algorithm, from the training step, without loading data and validation."""
    if images is None:
        return {}
    steps = math.ceil(images / batch) * epochs
    return {line["algorithm"]: line["step_ms"] * steps / 3.6e6 for line in lines if "step_ms" in line}
