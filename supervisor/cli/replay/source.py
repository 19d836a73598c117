"""Loads the recording and the rules that a command is to replay."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from supervisor.cli import configured
from supervisor.cli.app import App
from supervisor.cli.errors import CliError
from supervisor.config.derive import database_url, disks_of, gpus_of, rule_settings
from supervisor.config.read import Reader
from supervisor.config.settings import JobSettings
from supervisor.replay.folder import RecordingError
from supervisor.replay.from_record import of_attempt
from supervisor.replay.recording import Recording
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.records import StepBucket

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def recorded(app: App, job: str, attempt: int | None) -> Recording:
    """Return an attempt from the daemon's database, with the current rules of its job."""
    settings = configured.settings(app)
    known = settings.jobs.get(job)
    rules = rule_settings(known) if known is not None else {}
    disks = disks_of(settings.supervisor, known) if known is not None else None
    try:
        archive = Archive.at(database_url(settings.supervisor))
        archive.check()
        gpus = _find_gpus(archive, job, known) if known is not None else ()
        return of_attempt(archive, job, attempt, rules, gpus_used=gpus, disks=disks, now_unix_s=app.now())
    except (ArchiveError, RecordingError) as error:
        raise CliError(str(error), "supervisorctl status lists the jobs", "not_recorded") from error


def _find_gpus(archive: Archive, job: str, settings: JobSettings) -> tuple[str, ...]:
    """Return the GPUs that a job is judged by; none, which is all, where a remedy has moved it in the meantime."""
    moved = any(item.name == job and item.course.gpu is not None for item in archive.jobs())
    return () if moved else gpus_of(settings, (item.gpu for item in archive.gpus()))


def recorded_steps(
    app: App, job: str, attempt: int | None, since_unix_s: float | None = None, until_unix_s: float | None = None
) -> tuple[StepBucket, ...]:
    """Return the steps of a job, or of one attempt, ten seconds each, in order of attempt and time."""
    try:
        archive = Archive.at(database_url(configured.settings(app).supervisor))
        archive.check()
        found = archive.step_metrics(job, attempt, since_unix_s, until_unix_s)
    except ArchiveError as error:
        raise CliError(str(error), "supervisorctl status lists the jobs", "not_recorded") from error
    if not found and since_unix_s is None:
        which = "" if attempt is None else f", attempt {attempt}"
        raise CliError(f"no step of {job}{which} is recorded", "supervisorctl status lists the jobs", "not_recorded")
    return found


def rules_in(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rules' settings in a TOML file: one table per rule, or the tables under `[rules]`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}", "give a readable TOML file", "unreadable") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: {error}", "use the format of the rules in config.toml", "bad_rules") from error
    return checked(table.get("rules", table), str(path), "rules" if "rules" in table else "")


def checked(given: object, file: str, path: str = "") -> dict[str, dict[str, Any]]:
    """Return validated settings of rules; raise CliError if they are invalid."""
    reader = Reader(file)
    settings = reader.rules(given, path)
    if reader.problems:
        raise CliError(str(reader.problems[0]), "use the format of the rules in config.toml", "bad_rules")
    return settings
