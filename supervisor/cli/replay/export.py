"""`supervisorctl export JOB FOLDER`: an attempt as a folder that replays elsewhere; with --to the steps of all."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from supervisor.cli.app import App, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import span
from supervisor.cli.name_completion import complete_job
from supervisor.cli.replay.source import recorded, recorded_steps
from supervisor.cli.unneeded_root import refuse_root
from supervisor.core.sanitize import one_line
from supervisor.store.records import StepBucket

if TYPE_CHECKING:
    from supervisor.cli.replay.follow import Pause

TENSORBOARD, PARQUET, MLFLOW, WANDB = "tensorboard", "parquet", "mlflow", "wandb"
KINDS = ("csv", "ndjson", TENSORBOARD, PARQUET, MLFLOW, WANDB)
TARGETS = {
    TENSORBOARD: f"{{job}}-{TENSORBOARD}",
    PARQUET: f"{{job}}.{PARQUET}",
    MLFLOW: f"{{job}}-{MLFLOW}.db",
    WANDB: f"{{job}}-{WANDB}",
}
"""What is written where --output names nothing; the others go to standard output."""


@click.command("export")
@click.argument("job", shell_complete=complete_job)
@click.argument("folder", type=click.Path(path_type=Path), required=False)
@click.option("--attempt", type=click.IntRange(1), help="Attempt of JOB (default: the newest; with --to all).")
@click.option("--to", "kind", type=click.Choice(KINDS), help="Write the steps of JOB in this format instead.")
@click.option(
    "--output",
    help="With --to: the new file (default: stdout; JOB.parquet; JOB-mlflow.db), the new folder (default: "
    "JOB-tensorboard, JOB-wandb) or, for mlflow, the http address of a server.",
)
@click.option("--follow", is_flag=True, help="With --to: go on with what is recorded from now on, until interrupted.")
@pass_app
def command(  # noqa: PLR0913 - one for each option
    app: App, job: str, folder: Path | None, *, attempt: int | None, kind: str | None, output: str | None, follow: bool
) -> None:
    """Write an attempt of JOB into a new FOLDER: its steps, readings, kernel findings and events.

    It contains paths, and lines of the training's output that reported a fault; review it before you share it.

    With --to, write the recorded steps of all attempts instead, ten seconds a row, for other programs: loss, learning
    rate, gradient norm, pace, waiting for data and memory. With --follow a row is written when the next one has begun,
    and again if the clock was set back and further steps fall into it.

    A Parquet file can be read once it is complete: with --follow there is a folder of such files, read as one table.
    parquet, mlflow and wandb need the extra of that name (pip install 'rocm-supervisor[parquet]'). wandb writes runs
    that `wandb sync` uploads; nothing is sent anywhere before.
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
        raise _explain_unwritten(error, folder, "a folder") from error
    app.print(
        f"{folder}: {one_line(job)}, attempt {recording.attempt}, {span(recording.length_s)}; "
        f"supervisorctl replay {folder}"
    )


def _export_steps(  # noqa: PLR0913 - the command's options
    app: App, job: str, attempt: int | None, kind: str, output: str | None, *, follow: bool
) -> None:
    from supervisor.cli.replay import step_files  # noqa: PLC0415 - imported on use: keeps --help fast
    from supervisor.cli.replay.follow import Pause  # noqa: PLC0415 - the same

    written: Counter[int] = Counter()
    pause = Pause() if follow else None
    buckets = _count_written(_find_buckets(app, job, attempt, pause), written)
    if kind not in TARGETS and output is None:
        for line in step_files.lines(kind, buckets):
            click.echo(line, nl=False)
        return
    target = output or TARGETS[kind].format(job=job)
    try:
        _write_steps(kind, target, job, buckets, pause)
    except OSError as error:
        raise _explain_unwritten(error, target, "a path") from error
    app.print(f"{one_line(target)}: {one_line(job)}, {written.total()} rows of {len(written)} attempts")


def _write_steps(kind: str, target: str, job: str, buckets: Iterable[StepBucket], pause: Pause | None) -> None:
    """Write the steps in one of the formats, whose modules are imported on use: most need a library of their own."""
    from supervisor.cli.replay import step_files  # noqa: PLC0415 - the same
    from supervisor.cli.replay.follow import Pause  # noqa: PLC0415 - the same

    match kind:
        case "tensorboard":
            step_files.write_runs(Path(target), buckets)
        case "parquet":
            from supervisor.cli.replay.parquet import write_parquet, write_parts  # noqa: PLC0415 - the same

            if pause is None:
                write_parquet(Path(target), buckets)
            else:
                write_parts(Path(target), buckets, pause)
        case "mlflow":
            from supervisor.cli.replay.mlflow_runs import write_mlflow  # noqa: PLC0415 - the same

            write_mlflow(target, job, buckets, pause or Pause())
        case "wandb":
            from supervisor.cli.replay.wandb_runs import write_wandb  # noqa: PLC0415 - the same

            write_wandb(Path(target), job, buckets)
        case _:
            step_files.write_table(Path(target), kind, buckets)


def _explain_unwritten(error: OSError, target: Path | str, what: str) -> CliError:
    """Return what to tell about an export that could not be written, or not to its end."""
    remedies = {
        errno.EEXIST: f"give {what} that does not exist yet",
        errno.ENOSPC: f"free space on the disk of {target}, remove what was written of it, and export again",
        errno.EDQUOT: f"raise this user's quota, remove what was written of {target}, and export again",
        errno.EIO: "the disk failed: see dmesg, and export to another one",
    }
    remedy = remedies.get(error.errno or 0, f"give {what} in a folder that you can write")
    return CliError(f"{target}: {error.strerror}", remedy, "unwritable")


def _find_buckets(app: App, job: str, attempt: int | None, pause: Pause | None) -> Iterable[StepBucket]:
    """Return the recorded steps, with a pause also those to come; raise CliError before anything is written."""
    found = recorded_steps(app, job, attempt)
    if pause is None:
        return found
    from supervisor.cli.replay import follow as following  # noqa: PLC0415 - the same

    def read(since_unix_s: float | None) -> tuple[StepBucket, ...]:
        spans = following.spans_to_read(since_unix_s, app.now())
        return tuple(bucket for span in spans for bucket in recorded_steps(app, job, attempt, *span))

    return following.follow(read, pause.wait)


def _count_written(buckets: Iterable[StepBucket], written: Counter[int]) -> Iterator[StepBucket]:
    for bucket in buckets:
        written[bucket.attempt] += 1
        yield bucket
