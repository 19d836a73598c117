"""`supervisorctl export JOB FOLDER`: a recorded attempt as a folder that replays elsewhere; it changes no record."""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.app import App, CliError, pass_app
from supervisor.cli.recorded import recorded
from supervisor.cli.words import span
from supervisor.core.harmless import one_line


@click.command("export")
@click.argument("job")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--attempt", type=click.IntRange(1), help="Which one; the newest where none is named.")
@pass_app
def command(app: App, job: str, folder: Path, attempt: int | None) -> None:
    """Write an attempt of JOB into a new FOLDER: its steps, readings, kernel findings and events.

    It holds lines of the training's output that told of a fault, and paths; read it before you hand it on.
    """
    from supervisor.replay.folder import write  # noqa: PLC0415 - imported where it is used: --help need not wait

    recording = recorded(app, job, attempt)
    try:
        write(recording, folder)
    except OSError as error:
        remedy = "name a folder that is not there yet"
        raise CliError(f"{folder}: {error.strerror}", remedy, "unwritable") from error
    app.print(
        f"{folder}: {one_line(job)}, attempt {recording.attempt}, {span(recording.length_s)}; "
        f"supervisorctl replay {folder}"
    )
