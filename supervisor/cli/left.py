"""What the daemon left behind, read while it is away: its database, read-only, and its attempts' output."""

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
from supervisor.control.saved import listed
from supervisor.control.shapes import incident_entry, job_account, shadow_entry, story_lines
from supervisor.control.tail import tail
from supervisor.control.treatment import remedy_report
from supervisor.core import folder as fo
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.lives import lives

T = TypeVar("T")


def incidents(app: App, job: str | None, limit: int) -> dict[str, Any]:
    """Return what GET /v1/incidents would."""
    found = _asked(lambda archive: archive.incidents(job, limit), app)
    return _plain(types.History(incidents=[incident_entry(one) for one in found]))


def shadows(app: App, job: str | None, limit: int) -> dict[str, Any]:
    """Return what GET /v1/shadows would."""
    found = _asked(lambda archive: archive.notes(job, limit), app)
    return _plain(types.Shadows(flags=[shadow_entry(one) for one in found]))


def incident(app: App, incident_id: str) -> dict[str, Any]:
    """Return what GET /v1/incidents/ID would."""
    story = _asked(lambda archive: archive.incident(incident_id), app)
    if story is None:
        raise CliError(
            f"no incident {incident_id!r} is recorded", "supervisorctl history lists them", "no_such_incident"
        )
    return _plain(types.IncidentDetail(incident=incident_entry(story.incident), story=story_lines(story)))


def checkpoints(app: App, job: str) -> dict[str, Any]:
    """Return what GET /v1/jobs/JOB/checkpoints would."""
    found = _asked(lambda archive: archive.checkpoints(job), app)
    return _plain(types.Checkpoints(job=job, checkpoints=listed(one.checkpoint for one in found)))


def account(app: App, job: str) -> dict[str, Any]:
    """Return what GET /v1/jobs/JOB/account would."""
    return _plain(job_account(job, _asked(lambda archive: lives(archive, job), app), app.now()))


def remedies(app: App, job: str | None, limit: int) -> dict[str, Any]:
    """Return what GET /v1/remedies would."""

    def read(archive: Archive) -> types.RemedyReport:
        jobs = [one for one in archive.jobs() if job in (None, one.name)]
        return remedy_report(jobs, archive.remedies(job, limit), archive.experience())

    return _plain(_asked(read, app))


def output(app: App, job: str, lines: int) -> dict[str, Any]:
    """Return what GET /v1/jobs/JOB/output would, from the newest attempt's folder."""
    jobs = Path(settings(app).supervisor.state_dir) / "jobs"
    if NAME.fullmatch(job) is None or not (jobs / job).is_dir():
        raise CliError(f"{jobs} holds nothing of a job {job!r}", "see supervisorctl config check", "no_such_job")
    newest = (jobs / job / fo.CURRENT).resolve()
    try:
        part = tail(newest / fo.FOLDED, None, lines)
    except OSError as error:
        raise NoDaemonError(f"{newest / fo.FOLDED}: {error.strerror}", "", "unreadable") from error
    attempt = int(newest.name) if newest.name.isdecimal() else 0
    return _plain(types.Output(job=job, attempt=attempt, text=part.text, next_offset=part.next_offset))


def settings(app: App) -> Settings:
    """Return the settings; the defaults where there is no file, CliError where it is wrong."""
    if app.config_given is None and not app.config.exists():
        return Settings()
    checked = check(app.config)
    if checked.settings is None:
        raise CliError(str(checked.problems[0]), f"supervisorctl config check {app.config}", "bad_config")
    return checked.settings


def _asked(question: Callable[[Archive], T], app: App) -> T:
    try:
        archive = Archive.at(database_url(settings(app).supervisor))
        archive.check()
        return question(archive)
    except ArchiveError as error:
        message = f"the daemon cannot be reached, and {error}"
        raise NoDaemonError(message, "systemctl start rocm-supervisor", "not_running") from error


def _plain(answer: types.Answer) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(answer)
    return plain
