"""`supervisorctl version`: the installed version; that of the running daemon is in `status`."""

from __future__ import annotations

import click

from supervisor import __version__
from supervisor.cli.app import App, json_option, pass_app


@click.command("version")
@json_option
@pass_app
def command(app: App) -> None:
    """Print the version."""
    if app.json:
        app.print_json({"schema": 1, "version": __version__})
    else:
        app.print(f"rocm-supervisor {__version__}")
