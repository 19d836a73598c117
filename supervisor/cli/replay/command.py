"""`supervisorctl replay`: run the rules over a recorded attempt and print their flags; no action is taken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.app import App, json_option, pass_app
from supervisor.cli.errors import CliError
from supervisor.cli.formatting import number, span
from supervisor.cli.table import Cell
from supervisor.core.sanitize import one_line

if TYPE_CHECKING:
    from supervisor.replay.engine import Fired
    from supervisor.replay.recording import Recording

STYLES = {"critical": "red", "warning": "yellow", "info": "dim"}


@click.command("replay")
@click.argument("what", required=False, metavar="[JOB|FOLDER]")
@click.option("--attempt", type=click.IntRange(1), help="Attempt of JOB (default: the newest).")
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Other limits: a TOML file with one table per rule.",
)
@click.option(
    "--log", type=click.Path(path_type=Path), metavar="FILE", help="Output of a training from another source."
)
@click.option("--kernel", type=click.Path(path_type=Path), metavar="FILE", help="Kernel log from another source.")
@click.option("--telemetry", type=click.Path(path_type=Path), metavar="FILE", help="Readings: CSV or JSON lines.")
@json_option
@pass_app
def command(  # noqa: PLR0913, PLR0917 - one an option
    app: App,
    what: str | None,
    attempt: int | None,
    rules: Path | None,
    log: Path | None,
    kernel: Path | None,
    telemetry: Path | None,
) -> None:
    """Run the rules over a recorded attempt and print every flag with the time at which it would have been raised.

    JOB is replayed from the daemon's database, FOLDER as written by `export`; --log, --kernel and --telemetry replay
    files from other sources. --rules tries other limits.
    """
    from supervisor.cli.replay.source import checked, rules_in  # noqa: PLC0415 - imported on use: keeps --help fast
    from supervisor.config.derive import rules_with  # noqa: PLC0415 - the same
    from supervisor.replay.engine import replay  # noqa: PLC0415 - the same

    recording = _load_recording(app, what, attempt, (log, kernel, telemetry))
    given = {**checked(recording.rules, recording.made_of), **(rules_in(rules) if rules else {})}
    fired = list(replay(recording, rules_with(given)))
    if app.json:
        app.print_json(_as_json(recording, fired))
        return
    app.print(f"{one_line(recording.made_of)}: {span(recording.length_s)}, {_count_flags(fired)}")
    if fired:
        app.print(app.pen.table(("AFTER", "STEP", "SEVERITY", "RULE", "MESSAGE"), [_flag_row(flag) for flag in fired]))


def _load_recording(
    app: App, what: str | None, attempt: int | None, files: tuple[Path | None, Path | None, Path | None]
) -> Recording:
    from supervisor.cli.replay.source import recorded  # noqa: PLC0415 - imported on use: keeps --help fast
    from supervisor.replay.folder import RecordingError, read  # noqa: PLC0415 - the same
    from supervisor.replay.foreign import of_files  # noqa: PLC0415 - the same

    if (what is None) == (files == (None, None, None)):
        raise click.UsageError("give a JOB or a FOLDER, or --log, --kernel or --telemetry")
    try:
        if what is None:
            return of_files(*files)
        return read(Path(what)) if "/" in what or Path(what).is_dir() else recorded(app, what, attempt)
    except RecordingError as error:
        raise CliError(str(error), "", "no_recording") from error


def _count_flags(fired: list[Fired]) -> str:
    return "no flag" if not fired else "1 flag" if len(fired) == 1 else f"{len(fired)} flags"


def _flag_row(fired: Fired) -> list[Cell]:
    label = fired.flag.severity.label
    shown = f"{label}, in shadow" if fired.flag.shadow else label
    return [
        Cell(span(fired.after_s), right=True),
        Cell(number(fired.step), right=True),
        Cell(shown, STYLES[label]),
        Cell(fired.flag.rule),
        Cell(one_line(fired.flag.message)),
    ]


def _as_json(recording: Recording, fired: list[Fired]) -> dict[str, Any]:
    flags = [
        {
            "after_s": round(flag.after_s, 3),
            "step": flag.step,
            "rule": flag.flag.rule,
            "severity": flag.flag.severity.label,
            "shadow": flag.flag.shadow,
            "subject": flag.flag.subject,
            "fault": flag.flag.fault,
            "message": flag.flag.message,
        }
        for flag in fired
    ]
    head = {"job": recording.job, "attempt": recording.attempt, "made_of": recording.made_of}
    return {"schema": 1, **head, "length_s": recording.length_s, "flags": flags}
