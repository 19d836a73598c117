"""Reads the daemon's record while it is not running: its database, read-only, and its attempts' output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from supervisor.cli.app import App, CliError, NoDaemonError
from supervisor.config import Settings, check
from supervisor.config.derive import database_url
from supervisor.config.read import NAME
from supervisor.control import types
from supervisor.control.alerts import alerts_report
from supervisor.control.checkpoint_list import listed
from supervisor.control.present import incident_entry, job_account, shadow_entry, story_lines
from supervisor.control.present_remedies import remedy_report
from supervisor.control.tail import tail
from supervisor.core import attempt_files as fo
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.timelines import lives

T = TypeVar("T")


def incidents(app: App, job: str | None, limit: int) -> dict[str, Any]:
    """Return what GET /v1/incidents would."""
    found = _query(lambda archive: archive.incidents(job, limit), app)
    if not found:
        _check_known(app, job)
    return _to_plain(types.History(incidents=[incident_entry(match) for match in found]))


def shadows(app: App, job: str | None, limit: int) -> dict[str, Any]:
    """Return what GET /v1/shadows would."""
    found = _query(lambda archive: archive.notes(job, limit), app)
    if not found:
        _check_known(app, job)
    return _to_plain(types.Shadows(flags=[shadow_entry(note) for note in found]))


def incident(app: App, incident_id: str) -> dict[str, Any]:
    """Return what GET /v1/incidents/ID would."""
    story = _query(lambda archive: archive.incident(incident_id), app)
    if story is None:
        raise CliError(
            f"no incident {incident_id!r} is recorded", "supervisorctl history lists them", "no_such_incident"
        )
    return _to_plain(types.IncidentDetail(incident=incident_entry(story.incident), story=story_lines(story)))


def checkpoints(app: App, job: str) -> dict[str, Any]:
    """Return what GET /v1/jobs/JOB/checkpoints would."""
    found = _query(lambda archive: archive.checkpoints(job), app)
    return _to_plain(
        types.Checkpoints(job=job, checkpoints=listed(known_checkpoint.checkpoint for known_checkpoint in found))
    )


def account(app: App, job: str) -> dict[str, Any]:
    """Return what GET /v1/jobs/JOB/account would."""
    return _to_plain(job_account(job, _query(lambda archive: lives(archive, job), app), app.now()))


def remedies(app: App, job: str | None, limit: int) -> dict[str, Any]:
    """Return what GET /v1/remedies would."""

    def read(archive: Archive) -> types.RemedyReport:
        jobs = [known for known in archive.jobs() if job in (None, known.name)]
        return remedy_report(jobs, archive.remedies(job, limit), archive.experience())

    return _to_plain(_query(read, app))


def alerts(app: App, limit: int) -> dict[str, Any]:
    """Return what GET /v1/alerts would, except whether an address can be read, which only the daemon can check."""
    floors = {name: receiver.min_severity for name, receiver in settings(app).alerts.items()}
    return _to_plain(_query(lambda archive: alerts_report(archive, floors, {}, limit), app))


def output(app: App, job: str, lines: int) -> dict[str, Any]:
    """Return what GET /v1/jobs/JOB/output would, from the newest attempt's folder."""
    jobs = Path(settings(app).supervisor.state_dir) / "jobs"
    if NAME.fullmatch(job) is None or not (jobs / job).is_dir():
        raise CliError(f"{jobs} has no folder of a job {job!r}", "see supervisorctl config check", "no_such_job")
    newest = (jobs / job / fo.CURRENT).resolve()
    try:
        part = tail(newest, fo.FOLDED, None, lines)
    except OSError as error:
        raise NoDaemonError(f"{newest / fo.FOLDED}: {error.strerror}", "", "unreadable") from error
    attempt = int(newest.name) if newest.name.isdecimal() else 0
    return _to_plain(types.Output(job=job, attempt=attempt, text=part.text, next_offset=part.next_offset))


def _check_known(app: App, job: str | None) -> None:
    """Raise CliError for a job that is neither configured nor recorded."""
    recorded = [] if job is None else [known.name for known in _query(lambda archive: archive.jobs(), app)]
    known = sorted({*recorded, *settings(app).jobs})
    if job is not None and job not in known:
        raise CliError(
            f"no job {job!r} is configured or recorded", f"known: {', '.join(known) or 'none'}", "no_such_job"
        )


def settings(app: App) -> Settings:
    """Return the settings, or the defaults if there is no file; raise CliError if the file is invalid."""
    if app.config_given is None and not app.config.exists():
        return Settings()
    checked = check(app.config)
    if checked.settings is None:
        raise CliError(str(checked.problems[0]), f"supervisorctl config check {app.config}", "bad_config")
    return checked.settings


def _query(question: Callable[[Archive], T], app: App) -> T:
    try:
        archive = Archive.at(database_url(settings(app).supervisor))
        archive.check()
        return question(archive)
    except ArchiveError as error:
        message = f"the daemon cannot be reached, and {error}"
        raise NoDaemonError(message, "systemctl start rocm-supervisor", "not_running") from error


def _to_plain(answer: types.Answer) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain
