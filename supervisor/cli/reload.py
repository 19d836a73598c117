"""`supervisorctl reload`: have the daemon read its configuration again, and say what came of each change."""

from __future__ import annotations

import click

from supervisor.cli import exits
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.core.harmless import one_line


@click.command("reload")
@json_option
@pass_app
def command(app: App) -> None:
    """Have the daemon read its configuration again. Trainings go on; with a mistake in the file nothing changes."""
    report = app.post("/v1/reload")
    if app.json:
        app.print_json(report)
    else:
        applied = [f"applied: {one_line(one)}" for one in report["applied"]]
        waiting = [f"waiting: {one_line(one)}" for one in report["needs_restart"]]
        if applied or waiting or not report["problems"]:
            app.print("\n".join([*applied, *waiting]) or "nothing changed")
        for problem in report["problems"]:
            click.echo(f"error: {one_line(problem)}", err=True)
    if report["problems"]:
        end(exits.FAILED)
