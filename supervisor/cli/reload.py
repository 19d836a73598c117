"""`supervisorctl reload`: reload the daemon's configuration and print what was applied."""

from __future__ import annotations

import click

from supervisor.cli import exit_codes
from supervisor.cli.app import App, end, json_option, pass_app
from supervisor.core.sanitize import one_line


@click.command("reload")
@click.option("--dry-run", is_flag=True, help="Print what would be applied and what refused; change nothing.")
@json_option
@pass_app
def command(app: App, *, dry_run: bool) -> None:
    """Reload the daemon's configuration. Trainings continue; if the file has an error, nothing changes.

    Exits with 1 if the configuration is refused; with --dry-run, if it would be.
    """
    report = app.post("/v1/reload", dry_run=True) if dry_run else app.post("/v1/reload")
    if app.json:
        app.print_json(report)
    else:
        verb = "would be applied" if dry_run else "applied"
        applied = [f"{verb}: {one_line(item)}" for item in report["applied"]]
        restart = [f"needs a restart: {one_line(item)}" for item in report["needs_restart"]]
        if applied or restart or not report["problems"]:
            app.print("\n".join([*applied, *restart]) or ("nothing would change" if dry_run else "nothing changed"))
        for problem in report["problems"]:
            click.echo(f"error: {one_line(problem)}", err=True)
    if report["problems"]:
        end(exit_codes.FAILED)
