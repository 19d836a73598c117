"""What the page needs of the configuration, read in a process of its own, which then ends.

To check a configuration takes the settings of every rule and remedy: 5 MB that the page would keep while it runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from supervisor.json_bytes import encode_json
from supervisor.shipped import module_command

LIMIT_S = 30.0
IDLE_S = 90.0
"""After so long without a question the page that runs as a service ends."""


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the record is, and [web]."""

    database: str = ""
    hosts: list[str] = msgspec.field(default_factory=list)
    """Names that the page answers to besides those of the loopback."""
    tls_certificate: str | None = None
    tls_key: str | None = None

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """The files of the certificate and of its key, where both are named."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return Path(self.tls_certificate), Path(self.tls_key)


class NotConfiguredError(ValueError):
    """The configuration cannot be used; the text says why."""


class SettingsReading:
    """The process that reads the settings; it runs while its parent makes the imports of a server."""

    def __init__(self, config: Path, *, must_exist: bool) -> None:
        """Begin to read; a file that need not exist has the defaults. Raises NotConfiguredError."""
        self._config = config
        command = [*module_command(__name__), str(config), *(["must-exist"] if must_exist else [])]
        try:
            self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        except OSError as error:
            raise NotConfiguredError(f"{config} was not read: {error}") from error

    def await_settings(self) -> PageSettings:
        """Return the settings; raise NotConfiguredError where there are none that can be used."""
        try:
            output, errors = self._child.communicate(timeout=LIMIT_S)
            if self._child.returncode == 0:
                return msgspec.json.decode(output, type=PageSettings)
        except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
            self._child.kill()
            raise NotConfiguredError(f"{self._config} was not read: {error}") from error
        why = output or errors[-1000:]
        raise NotConfiguredError(why.decode("utf-8", "replace").strip())


def main() -> None:
    """Print the settings as JSON; or, with exit status 1, what is wrong."""
    from supervisor.config import Settings  # noqa: PLC0415  # in the child alone: this is what costs memory
    from supervisor.config.derive import database_url  # noqa: PLC0415  # the same
    from supervisor.config.load import check_if_it_answers  # noqa: PLC0415  # the same
    from supervisor.store.errors import StoreError  # noqa: PLC0415  # the same
    from supervisor.store.files import database_path  # noqa: PLC0415  # the same

    config, must_exist = Path(sys.argv[1]), len(sys.argv) > 2
    checked, answers = check_if_it_answers(config)
    absent = answers and not must_exist and not config.exists()
    settings = Settings() if absent else checked.settings
    if settings is None:
        sys.stdout.write(str(checked.problems[0]))
        sys.exit(1)
    web = settings.web
    try:
        database = str(database_path(database_url(settings.supervisor)))
    except StoreError as error:
        sys.stdout.write(str(error))
        sys.exit(1)
    page = PageSettings(
        database=database, hosts=list(web.hosts), tls_certificate=web.tls_certificate, tls_key=web.tls_key
    )
    sys.stdout.buffer.write(encode_json(page))


if __name__ == "__main__":
    main()
