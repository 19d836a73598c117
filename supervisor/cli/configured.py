"""The settings of the configuration in use; apart from what reads the record, which costs twice the memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from supervisor.cli.errors import CliError
from supervisor.config import Settings, check


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
    """Return the settings, or the defaults if there is no file; raise CliError if the file is invalid."""
    if app.config_given is None and not app.config.exists():
        return Settings()
    checked = check(app.config)
    if checked.settings is None:
        raise CliError(str(checked.problems[0]), f"supervisorctl config check {app.config}", "bad_config")
    return checked.settings
