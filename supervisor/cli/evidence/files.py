"""The files of an incident's evidence, from the daemon or, while it is not running, from the folder."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from supervisor.cli.app import App, CliError, explained
from supervisor.control.client import Client, ControlError, UnreachableError, quoted

REMEDY = "start the daemon, which serves it, or read it as the daemon's user: sudo -u rocm-supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of one incident; its folder is usually not readable by this user."""

    app: App
    incident: str
    folder: str

    def files(self) -> list[dict[str, Any]]:
        """Return name and size of each file; raise CliError if they are not available."""
        try:
            answer = Client(self.app.socket).get(f"/v1/incidents/{quoted(self.incident)}/evidence")
        except UnreachableError:
            answer = self._list_offline()
        except ControlError as error:
            raise explained(error) from error
        found: list[dict[str, Any]] = answer["files"]
        return found

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return the end of one file; raise CliError if it is not available."""
        try:
            route = f"/v1/incidents/{quoted(self.incident)}/evidence/file"
            part = Client(self.app.socket).get(route, name=name, limit=limit_bytes)
        except UnreachableError:
            return self._read_offline(name, limit_bytes)
        except ControlError as error:
            raise explained(error) from error
        return b64decode(part["content"])

    def _list_offline(self) -> dict[str, Any]:
        import msgspec  # noqa: PLC0415  # only while the daemon is not running

        from supervisor.control.evidence import evidence_files  # noqa: PLC0415  # as above

        try:
            plain: dict[str, Any] = msgspec.to_builtins(evidence_files(self.folder))
        except OSError as error:
            raise CliError(f"{self.folder}: {error.strerror}", REMEDY, "unreadable") from error
        return plain

    def _read_offline(self, name: str, limit_bytes: int) -> bytes:
        from supervisor.control.evidence import evidence_part  # noqa: PLC0415  # only while the daemon is not running

        try:
            return evidence_part(self.folder, name, limit_bytes).content
        except OSError as error:
            raise CliError(f"{self.folder}/{name}: {error.strerror}", REMEDY, "unreadable") from error
