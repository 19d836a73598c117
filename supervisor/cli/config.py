"""`supervisorctl config check`: the daemon's own check of the configuration, without the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import exits
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.core.harmless import one_line

if TYPE_CHECKING:
    from supervisor.config import Checked


@click.group("config")
def command() -> None:
    """Look at the configuration."""


@command.command("check", short_help="Say everything that is wrong.")
@click.argument("file", required=False, type=click.Path(path_type=Path, readable=False))
@json_option
@pass_app
def check_command(app: App, file: Path | None) -> None:
    """Say everything that is wrong with FILE, or with the configuration that counts; exits with 1 for errors."""
    from supervisor.config import check  # noqa: PLC0415  # other commands need none of it

    path = file or app.config
    checked = check(path)
    if app.json:
        app.print_json(_plain(path, checked))
    else:
        for problem in checked.problems:
            click.echo(one_line(str(problem)), err=True)
        if checked.settings is not None:
            jobs, alerts = len(checked.settings.jobs), len(checked.settings.alerts)
            app.print(f"{one_line(str(path))}: in order, jobs: {jobs}, alerts: {alerts}")
    if checked.settings is None:
        end(exits.FAILED)


def _plain(path: Path, checked: Checked) -> dict[str, object]:
    problems = [
        {
            "level": one.level.value,
            "key": one.key,
            "problem": one.problem,
            "value": one.value,
            "allowed": one.allowed,
            "line": one.line,
            "column": one.column,
        }
        for one in checked.problems
    ]
    return {"schema": 1, "file": str(path), "valid": checked.settings is not None, "problems": problems}
