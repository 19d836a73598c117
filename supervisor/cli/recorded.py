"""Finds what a command wants replayed, and with which rules; it replays nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from supervisor.cli import left
from supervisor.cli.app import App, CliError
from supervisor.config.derive import database_url
from supervisor.core.rules import RULES, Rule
from supervisor.replay.folder import RecordingError
from supervisor.replay.from_record import of_attempt
from supervisor.replay.recording import Recording
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def recorded(app: App, job: str, attempt: int | None) -> Recording:
    """Return an attempt out of the daemon's database, with the rules that its job has now."""
    settings = left.settings(app)
    known = settings.jobs.get(job)
    rules = dict(known.rules) if known is not None else {}
    try:
        archive = Archive.at(database_url(settings.supervisor))
        archive.check()
        return of_attempt(archive, job, attempt, rules)
    except (ArchiveError, RecordingError) as error:
        raise CliError(str(error), "supervisorctl status names the jobs", "not_recorded") from error


def rules_in(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rules' settings in a TOML file: a table a rule, or what stands below `[rules]`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}", "give a TOML file that can be read", "unreadable") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: {error}", "write it as the rules in config.toml are written", "bad_rules") from error
    found = table.get("rules", table)
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise CliError(f"{path}: holds no tables of rules", "write [stall], then limit_s = 30", "bad_rules")
    return found


def rules_of(given: dict[str, dict[str, Any]]) -> tuple[Rule, ...]:
    """Return every rule with these settings; raise CliError for a rule or a setting that there is not."""
    known = {rule.name: rule for rule in RULES}
    for name in given.keys() - known.keys():
        raise CliError(f"no rule {name!r}", f"there are {', '.join(sorted(known))}", "bad_rules")
    made = []
    for name, rule in known.items():
        settings = given.get(name, {})
        fields = set(getattr(rule, "__dataclass_fields__", {}))
        for wrong in settings.keys() - fields:
            remedy = f"it has {', '.join(sorted(fields))}"
            raise CliError(f"rule {name} has no setting {wrong!r}", remedy, "bad_rules")
        made.append(rule(**settings))
    return tuple(made)
