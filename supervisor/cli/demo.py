"""`supervisorctl demo`: a real training on the CPU, broken on purpose three times; needs neither a GPU nor root."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from supervisor.demo.night import Night, NotShownError, daemon_command
from supervisor.shipped import module_command


@click.command("demo", short_help="Run a real training, break it three times, resume it three times.")
@click.option(
    "--train-python",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Interpreter with torch and ultralytics (default: the one running this command).",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for data, state and logs (default: a temporary one, removed afterwards).",
)
def command(train_python: Path | None, folder: Path | None) -> None:
    """Train YOLOv8n on generated thermal images; make a batch hang, a loss NaN, send SIGKILL; show each recovery."""
    python = (train_python or Path(sys.executable)).absolute()
    _check_interpreter(python)
    target = (folder or Path(tempfile.mkdtemp(prefix="rocm-supervisor-demo-"))).absolute()
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise click.ClickException(f"{target} is not empty: give a new folder")
    try:
        night = Night(folder=target, train_python=python, daemon=daemon_command(), say=click.echo)
        night.run(breakfast=lambda: _print_history(target / "config.toml"))
    except NotShownError as error:
        click.echo((target / "daemon.log").read_text(errors="replace")[-4000:], err=True)
        raise click.ClickException(f"{error} (its files are kept in {target})") from error
    if folder is None:
        shutil.rmtree(target, ignore_errors=True)


def _print_history(config: Path) -> None:
    click.echo("\nThe incidents (supervisorctl history):\n")
    ask = [*module_command("supervisor.cli.main"), "--config", str(config)]
    subprocess.run([*ask, "history"], check=True)
    click.echo("\nWhat they cost (supervisorctl account night):\n")
    subprocess.run([*ask, "account", "night"], check=True)


def _check_interpreter(python: Path) -> None:
    try:
        probe = subprocess.run(
            [str(python), "-c", "import torch, ultralytics"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise click.ClickException(f"--train-python {python}: {error.strerror}") from error
    if probe.returncode != 0:
        last = probe.stderr.strip().splitlines()[-1:] or ["no error message"]
        raise click.ClickException(
            f"{python} cannot train ({last[0]}); give an interpreter with torch and ultralytics: --train-python PATH"
        )
