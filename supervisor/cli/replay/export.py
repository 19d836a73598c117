"""`supervisorctl export JOB FOLDER`: an attempt as a folder that replays elsewhere; with --to the steps of all."""

from __future__ import annotations

from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import span
from supervisor.cli.name_completion import complete_job
from supervisor.cli.replay.source import recorded, recorded_steps
from supervisor.cli.unneeded_root import refuse_root
from supervisor.core.sanitize import one_line

TENSORBOARD = "tensorboard"
KINDS = ("csv", "ndjson", TENSORBOARD)


@click.command("export")
@click.argument("job", shell_complete=complete_job)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--attempt", type=click.IntRange(1), help="Attempt of JOB (default: the newest; with --to all).")
@click.option("--to", "kind", type=click.Choice(KINDS), help="Write the steps of JOB in this format instead.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="With --to: the new file (default: stdout) or, for tensorboard, the new folder (default: JOB-tensorboard).",
)
@pass_app
def command(  # noqa: PLR0913 - one for each option
    app: App, job: str, folder: Path | None, *, attempt: int | None, kind: str | None, output: Path | None
) -> None:
    """Write an attempt of JOB into a new FOLDER: its steps, readings, kernel findings and events.

    It contains paths, and lines of the training's output that reported a fault; review it before you share it.

    With --to, write the recorded steps of all attempts instead, ten seconds a row, for other programs: loss, learning
    rate, gradient norm, pace, waiting for data and memory.
    """
    if kind is not None:
        if folder is not None:
            raise click.UsageError("--to takes no FOLDER; name the target with --output")
        refuse_root(app, f"export --to {kind} {job}")
        _export_steps(app, job, attempt, kind, output)
    elif folder is None or output is not None:
        raise click.UsageError("give a FOLDER, or a format with --to")
    else:
        refuse_root(app, f"export {job} {folder}")
        _export_recording(app, job, attempt, folder)


def _export_recording(app: App, job: str, attempt: int | None, folder: Path) -> None:
    from supervisor.replay.folder import write  # noqa: PLC0415 - imported on use: keeps --help fast

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


def _export_steps(app: App, job: str, attempt: int | None, kind: str, output: Path | None) -> None:
    from supervisor.cli.replay import step_files  # noqa: PLC0415 - imported on use: keeps --help fast

    buckets = recorded_steps(app, job, attempt)
    if kind != TENSORBOARD and output is None:
        for line in step_files.lines(kind, buckets):
            click.echo(line, nl=False)
        return
    target = output or Path(f"{job}-{TENSORBOARD}")
    try:
        if kind == TENSORBOARD:
            step_files.write_runs(target, buckets)
        else:
            step_files.write_table(target, kind, buckets)
    except OSError as error:
        remedy = "give a path that does not exist yet, in a folder that you can write"
        raise CliError(f"{target}: {error.strerror}", remedy, "unwritable") from error
    attempts = len({bucket.attempt for bucket in buckets})
    app.print(f"{one_line(str(target))}: {one_line(job)}, {len(buckets)} rows of {attempts} attempts")
