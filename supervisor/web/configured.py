"""What the page needs of the configuration, read in a process of its own, which then ends.

To check a configuration takes the settings of every rule and remedy: 5 MB that the page would keep while it runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from supervisor.shipped import module_command

LIMIT_S = 30.0


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


def read_settings(config: Path, *, must_exist: bool) -> PageSettings:
    """Return the settings, or the defaults of a file that need not exist; raise NotConfiguredError."""
    command = [*module_command(__name__), str(config), *(["must-exist"] if must_exist else [])]
    try:
        child = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        if child.returncode == 0:
            return msgspec.json.decode(child.stdout, type=PageSettings)
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        raise NotConfiguredError(f"{config} was not read: {error}") from error
    why = child.stdout or child.stderr[-1000:]
    raise NotConfiguredError(why.decode("utf-8", "replace").strip())


def main() -> None:
    """Print the settings as JSON; or, with exit status 1, what is wrong."""
    from supervisor.config import Settings, check  # noqa: PLC0415  # in the child alone: this is what costs memory
    from supervisor.config.derive import database_url  # noqa: PLC0415  # the same
    from supervisor.store.errors import StoreError  # noqa: PLC0415  # the same
    from supervisor.store.files import database_path  # noqa: PLC0415  # the same

    config, must_exist = Path(sys.argv[1]), len(sys.argv) > 2
    checked = check(config) if must_exist or config.exists() else None
    settings = Settings() if checked is None else checked.settings
    if settings is None:
        assert checked is not None
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
    sys.stdout.buffer.write(msgspec.json.encode(page))


if __name__ == "__main__":
    main()
