"""`supervisorctl demo`: a real training on the CPU, hurt on purpose three times; it needs no card and no root."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from supervisor.demo.night import Night, NotShownError, daemon_command


@click.command("demo", short_help="Show it: a real training, hurt three times, resumed three times.")
@click.option(
    "--train-python",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Interpreter with torch and ultralytics (default: the one that runs this command).",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Where to put data, state and logs (default: a temporary folder, removed afterwards).",
)
def command(train_python: Path | None, folder: Path | None) -> None:
    """Train YOLOv8n on generated thermal images, let a batch hang, a loss go NaN and a SIGKILL strike, and watch."""
    python = (train_python or Path(sys.executable)).absolute()
    _check(python)
    place = (folder or Path(tempfile.mkdtemp(prefix="rocm-supervisor-demo-"))).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise click.ClickException(f"{place} is not empty: name a new folder")
    try:
        night = Night(folder=place, train_python=python, daemon=daemon_command(), say=click.echo)
        night.run(breakfast=lambda: _history(place / "config.toml"))
    except NotShownError as error:
        click.echo((place / "daemon.log").read_text(errors="replace")[-4000:], err=True)
        raise click.ClickException(f"{error} (everything is left in {place})") from error
    if folder is None:
        shutil.rmtree(place, ignore_errors=True)


def _history(config: Path) -> None:
    click.echo("\nThe night, as the owner reads it at breakfast (supervisorctl history):\n")
    ask = [sys.executable, "-m", "supervisor.cli.main", "--config", str(config)]
    subprocess.run([*ask, "history"], check=True)
    click.echo("\nAnd what it cost (supervisorctl account night):\n")
    subprocess.run([*ask, "account", "night"], check=True)


def _check(python: Path) -> None:
    try:
        probe = subprocess.run(
            [str(python), "-c", "import torch, ultralytics"], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise click.ClickException(f"--train-python {python}: {error.strerror}") from error
    if probe.returncode != 0:
        last = probe.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise click.ClickException(
            f"{python} cannot train ({last[0]}); name an interpreter with torch and ultralytics: --train-python PATH"
        )
