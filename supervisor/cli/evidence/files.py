"""The files of an incident's evidence, from the daemon or, while it is not running, from the folder."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from supervisor.cli.app import App
from supervisor.control.client import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence of one incident; its folder is usually not readable by this user."""

    app: App
    incident: str
    folder: str

    def files(self) -> list[dict[str, Any]]:
        """Return name and size of each file; raise CliError if they are not available."""
        answer = self.app.get_recorded(f"/v1/incidents/{quoted(self.incident)}/evidence")
        found: list[dict[str, Any]] = answer["files"]
        return found

    def read(self, name: str, limit_bytes: int) -> bytes:
        """Return the end of one file; raise CliError if it is not available."""
        route = f"/v1/incidents/{quoted(self.incident)}/evidence/file"
        return b64decode(self.app.get_recorded(route, name=name, limit=limit_bytes)["content"])
