"""`supervisorctl export JOB FOLDER`: an attempt as a folder that replays elsewhere; with --to the steps of all."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import span
from supervisor.cli.name_completion import complete_job
from supervisor.cli.replay.source import recorded, recorded_steps
from supervisor.cli.unneeded_root import refuse_root
from supervisor.core.sanitize import one_line
from supervisor.store.records import StepBucket

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
@click.option("--follow", is_flag=True, help="With --to: go on with what is recorded from now on, until interrupted.")
@pass_app
def command(  # noqa: PLR0913 - one for each option
    app: App, job: str, folder: Path | None, *, attempt: int | None, kind: str | None, output: Path | None, follow: bool
) -> None:
    """Write an attempt of JOB into a new FOLDER: its steps, readings, kernel findings and events.

    It contains paths, and lines of the training's output that reported a fault; review it before you share it.

    With --to, write the recorded steps of all attempts instead, ten seconds a row, for other programs: loss, learning
    rate, gradient norm, pace, waiting for data and memory. With --follow a row is written when the next one has begun.
    """
    if kind is not None:
        if folder is not None:
            raise click.UsageError("--to takes no FOLDER; name the target with --output")
        refuse_root(app, f"export --to {kind} {job}")
        _export_steps(app, job, attempt, kind, output, follow=follow)
    elif folder is None or output is not None or follow:
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


def _export_steps(  # noqa: PLR0913 - the command's options
    app: App, job: str, attempt: int | None, kind: str, output: Path | None, *, follow: bool
) -> None:
    from supervisor.cli.replay import step_files  # noqa: PLC0415 - imported on use: keeps --help fast

    written: Counter[int] = Counter()
    buckets = _count(_find_buckets(app, job, attempt, follow=follow), written)
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
    app.print(f"{one_line(str(target))}: {one_line(job)}, {written.total()} rows of {len(written)} attempts")


def _find_buckets(app: App, job: str, attempt: int | None, *, follow: bool) -> Iterable[StepBucket]:
    """Return the recorded steps, with `follow` also those to come; raise CliError before anything is written."""
    found = recorded_steps(app, job, attempt)
    if not follow:
        return found
    from supervisor.cli.replay import follow as following  # noqa: PLC0415 - the same

    return following.follow(
        lambda since_unix_s: recorded_steps(app, job, attempt, since_unix_s, app.now() + following.AHEAD_S),
        lambda: time.sleep(following.POLL_INTERVAL_S),
    )


def _count(buckets: Iterable[StepBucket], written: Counter[int]) -> Iterator[StepBucket]:
    for bucket in buckets:
        written[bucket.attempt] += 1
        yield bucket
