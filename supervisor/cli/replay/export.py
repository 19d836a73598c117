"""`supervisorctl export JOB FOLDER`: copy a recorded attempt into a folder that replays elsewhere."""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import span
from supervisor.cli.name_completion import complete_job
from supervisor.cli.replay.source import recorded
from supervisor.cli.unneeded_root import refuse_root
from supervisor.core.sanitize import one_line


@click.command("export")
@click.argument("job", shell_complete=complete_job)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--attempt", type=click.IntRange(1), help="Attempt of JOB (default: the newest).")
@pass_app
def command(app: App, job: str, folder: Path, attempt: int | None) -> None:
    """Write an attempt of JOB into a new FOLDER: its steps, readings, kernel findings and events.

    It contains paths, and lines of the training's output that reported a fault; review it before you share it.
    """
    from supervisor.replay.folder import write  # noqa: PLC0415 - imported on use: keeps --help fast

    refuse_root(app, f"export {job} {folder}")
    recording = recorded(app, job, attempt)
    try:
        write(recording, folder)
    except OSError as error:
        remedy = "give a folder that does not exist yet"
        raise CliError(f"{folder}: {error.strerror}", remedy, "unwritable") from error
    app.print(
        f"{folder}: {one_line(job)}, attempt {recording.attempt}, {span(recording.length_s)}; "
        f"supervisorctl replay {folder}"
    )
