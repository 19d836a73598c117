"""`supervisorctl replay`: what the rules would have said of a recorded attempt, and when; nothing is acted on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from supervisor.cli.app import App, CliError, json_option, pass_app
from supervisor.cli.table import Cell
from supervisor.cli.words import number, span
from supervisor.core.harmless import one_line

if TYPE_CHECKING:
    from supervisor.replay.engine import Fired
    from supervisor.replay.recording import Recording

STYLES = {"critical": "red", "warning": "yellow", "info": "dim"}


@click.command("replay")
@click.argument("what", required=False, metavar="[JOB|FOLDER]")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt of JOB; the newest where none is named.")
@click.option("--rules", type=click.Path(path_type=Path), metavar="FILE", help="Other limits: TOML, a table a rule.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE", help="A training's output from elsewhere.")
@click.option("--kernel", type=click.Path(path_type=Path), metavar="FILE", help="A kernel log from elsewhere.")
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
    """Run the rules, unchanged, over a recorded attempt and print every flag with the second it would have risen.

    JOB is replayed from the daemon's database, FOLDER as `export` wrote it, and with --log, --kernel or --telemetry
    what others kept. --rules tries other limits.
    """
    from supervisor.cli.recorded import checked, rules_in  # noqa: PLC0415 - where it is used: --help need not wait
    from supervisor.config.derive import rules_with  # noqa: PLC0415 - the same
    from supervisor.replay.engine import replay  # noqa: PLC0415 - the same

    recording = _recording(app, what, attempt, (log, kernel, telemetry))
    given = {**checked(recording.rules, recording.made_of), **(rules_in(rules) if rules else {})}
    fired = list(replay(recording, rules_with(given)))
    if app.json:
        app.print_json(_as_json(recording, fired))
        return
    app.print(f"{one_line(recording.made_of)}: {span(recording.length_s)}, {len(fired)} flags")
    if fired:
        app.print(app.pen.table(("AFTER", "STEP", "SEVERITY", "RULE", "SAYS"), [_row(one) for one in fired]))


def _recording(
    app: App, what: str | None, attempt: int | None, files: tuple[Path | None, Path | None, Path | None]
) -> Recording:
    from supervisor.cli.recorded import recorded  # noqa: PLC0415 - where it is used: --help need not wait
    from supervisor.replay.folder import RecordingError, read  # noqa: PLC0415 - the same
    from supervisor.replay.foreign import of_files  # noqa: PLC0415 - the same

    if (what is None) == (files == (None, None, None)):
        raise click.UsageError("name a JOB or a FOLDER, or give --log, --kernel or --telemetry")
    try:
        if what is None:
            return of_files(*files)
        return read(Path(what)) if "/" in what or Path(what).is_dir() else recorded(app, what, attempt)
    except RecordingError as error:
        raise CliError(str(error), "", "no_recording") from error


def _row(one: Fired) -> list[Cell]:
    word = one.flag.severity.word
    shown = f"{word}, in shadow" if one.flag.shadow else word
    return [
        Cell(span(one.after_s), right=True),
        Cell(number(one.step), right=True),
        Cell(shown, STYLES[word]),
        Cell(one.flag.rule),
        Cell(one_line(one.flag.message)),
    ]


def _as_json(recording: Recording, fired: list[Fired]) -> dict[str, Any]:
    flags = [
        {
            "after_s": round(one.after_s, 3),
            "step": one.step,
            "rule": one.flag.rule,
            "severity": one.flag.severity.word,
            "shadow": one.flag.shadow,
            "subject": one.flag.subject,
            "fault": one.flag.fault,
            "message": one.flag.message,
        }
        for one in fired
    ]
    head = {"job": recording.job, "attempt": recording.attempt, "made_of": recording.made_of}
    return {"schema": 1, **head, "length_s": recording.length_s, "flags": flags}
