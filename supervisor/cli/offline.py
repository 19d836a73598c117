"""Answers from the daemon's record while it is not running: the same questions (READS), the same bodies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from supervisor.cli.configured import GlobalOptions, settings
from supervisor.cli.errors import CliError, NoDaemonError
from supervisor.config.derive import database_url
from supervisor.control.configured_facts import ConfiguredFacts
from supervisor.control.record_view import Parameters, RecordView, find_read
from supervisor.control.refusals import Refusal, Unreadable
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError


def answer(app: GlobalOptions, route: str, query: Mapping[str, str | int | None]) -> dict[str, Any]:
    """Return what GET `route` would; parameters that are None are left out. Raises CliError."""
    found = find_read(route)
    if found is None:
        raise CliError(f"{route} is not available while the daemon is away", "systemctl start rocm-supervisor")
    read, path = found
    given = Parameters(path, {name: str(value) for name, value in query.items() if value is not None})
    known = settings(app)
    try:
        archive = Archive.at(database_url(known.supervisor))
        archive.check()
        facts = ConfiguredFacts(settings=known, archive=archive, now=app.now)
        body = read.answer(RecordView(archive, Path(known.supervisor.state_dir), facts), given)
    except Refusal as refusal:
        kind = NoDaemonError if isinstance(refusal, Unreadable) else CliError
        raise kind(str(refusal), refusal.remedy, refusal.code) from refusal
    except ArchiveError as error:
        message = f"the daemon cannot be reached, and {error}"
        raise NoDaemonError(message, "systemctl start rocm-supervisor", "not_running") from error
    plain: dict[str, Any] = msgspec.to_builtins(body)
    return plain
