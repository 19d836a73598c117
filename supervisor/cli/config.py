"""`supervisorctl config check`: validate the configuration as the daemon does, without the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli import exit_codes
from supervisor.cli.app import App, UncheckedPath, end, json_option, pass_app
from supervisor.core.sanitize import one_line

if TYPE_CHECKING:
    from supervisor.config import Checked


@click.group("config")
def command() -> None:
    """Check the configuration."""


@command.command("check", short_help="Report every error and warning.")
@click.argument("file", required=False, type=UncheckedPath())
@json_option
@pass_app
def check_command(app: App, file: Path | None) -> None:
    """Report every error and warning in FILE (default: the configuration in use) and in `conf.d` next to it.

    Exits with 1 if there is an error.
    """
    from supervisor.cli.configured import refuse_unreadable  # noqa: PLC0415  # other commands do not need it
    from supervisor.config.load import check_if_it_answers  # noqa: PLC0415  # likewise

    path = file or app.config
    checked, answers = check_if_it_answers(path)
    if answers:
        refuse_unreadable(path)
    if app.json:
        app.print_json(_as_object(path, checked))
    else:
        for problem in checked.problems:
            click.echo(one_line(str(problem)), err=True)
        if checked.settings is not None:
            jobs, alerts = len(checked.settings.jobs), len(checked.settings.alerts)
            more = len(checked.files) - 1
            read = one_line(str(path)) + (f" and {more} file{'s' if more > 1 else ''} in conf.d" if more else "")
            app.print(f"{read}: ok, jobs: {jobs}, alerts: {alerts}")
    if checked.settings is None:
        end(exit_codes.FAILED)


def _as_object(path: Path, checked: Checked) -> dict[str, object]:
    problems = [
        {
            "level": problem.level.value,
            "file": problem.file,
            "key": problem.key,
            "problem": problem.problem,
            "value": problem.value,
            "allowed": problem.allowed,
            "line": problem.line,
            "column": problem.column,
        }
        for problem in checked.problems
    ]
    files = list(checked.files) or [str(path)]
    return {"schema": 1, "file": str(path), "files": files, "valid": checked.settings is not None, "problems": problems}
