"""The settings of the configuration in use; apart from what reads the record, which costs twice the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from supervisor.cli.errors import CliError, RefusedError
from supervisor.cli.paths import refuse_silent
from supervisor.config import Settings, check
from supervisor.control.client import describe_access


class GlobalOptions(Protocol):
    """What of the global options an answer depends on."""

    @property
    def config_given(self) -> Path | None:
        """The configuration file named on the command line."""
        ...

    @property
    def config(self) -> Path:
        """The configuration file in use, whether it exists or not."""
        ...

    @property
    def now(self) -> Callable[[], float]:
        """Returns the time, in Unix seconds."""
        ...


def settings(app: GlobalOptions) -> Settings:
    """Return the settings, or the defaults if there is no file; raise CliError for one that cannot be used."""
    refuse_silent(app.config)
    if app.config_given is None and not app.config.exists():
        return Settings()
    refuse_unreadable(app.config)
    checked = check(app.config)
    if checked.settings is None:
        raise CliError(str(checked.problems[0]), f"supervisorctl config check {app.config}", "bad_config")
    return checked.settings


def refuse_unreadable(config: Path) -> None:
    """Raise RefusedError, which says how to get access, where this user lacks the permission to read the file."""
    try:
        config.open("rb").close()
    except PermissionError:
        raise RefusedError(f"{config}: permission denied", describe_access(config), "permission") from None
    except OSError:
        return  # what else is wrong with it, the check says
