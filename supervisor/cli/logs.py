"""`supervisorctl logs JOB`: the output of the training, sanitized for the terminal."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.name_completion import complete_job
from supervisor.control.client import quoted
from supervisor.core.sanitize import sanitize

POLL_INTERVAL_S = 0.5


@click.command("logs")
@click.argument("job", shell_complete=complete_job)
@click.option("-n", "--lines", type=click.IntRange(0, 10_000), default=50, show_default=True, help="Number of lines.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing new output until interrupted.")
@json_option
@pass_app
def command(app: App, job: str, lines: int, *, follow: bool) -> None:
    """Print the last lines of JOB's output; with --json as one object per line."""
    route = f"/v1/jobs/{quoted(job)}/output"
    part = app.get(route, lines=lines) if follow else app.get_recorded(route, lines=lines)
    _print_part(app, part)
    while follow:
        attempt = part["attempt"]
        part = app.get(route, after=part["next_offset"], attempt=attempt, lines=10_000)
        if part["attempt"] != attempt:
            click.echo(f"--- attempt {part['attempt']} of {job}", err=True)
        if part["text"]:
            _print_part(app, part)
        else:
            time.sleep(POLL_INTERVAL_S)


def _print_part(app: App, part: dict[str, Any]) -> None:
    text = sanitize(part["text"], len(part["text"]) + 1)
    if app.json:
        click.echo(json.dumps({**part, "text": text}, ensure_ascii=False))
    else:
        click.echo(text, nl=False)
