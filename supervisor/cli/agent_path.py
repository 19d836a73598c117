"""`supervisorctl agent-path`: the directory that makes any Python training report, for use outside the daemon."""

from __future__ import annotations

from pathlib import Path

import click

import supervisor


@click.command("agent-path")
def command() -> None:
    """Print the directory of the agent: PYTHONPATH="$(supervisorctl agent-path)" python train.py."""
    click.echo(Path(supervisor.__file__).resolve().parent / "agent" / "path")
