"""`supervisorctl agent-path`: the directory of the agent, to use it in a training that the daemon did not start."""

from __future__ import annotations

from pathlib import Path

import click

import supervisor


@click.command("agent-path")
def command() -> None:
    """Print the directory of the agent: PYTHONPATH="$(supervisorctl agent-path)" python train.py."""
    click.echo(Path(supervisor.__file__).resolve().parent / "agent" / "path")
