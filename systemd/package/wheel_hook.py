"""Build hook of hatchling: manual pages and completions as data of the wheel, below share/ of its environment.

Off unless HATCH_BUILD_HOOK_ENABLE_CUSTOM=true (`make wheel` sets it), for generating them imports every command, and so
everything that the daemon depends on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SharedData(BuildHookInterface):  # type: ignore[type-arg, misc]  # hatchling is there while a wheel is built
    """Adds the generated files to a wheel that is not editable."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the files into a temporary folder, which `finalize` removes."""
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "supervisor.cli.manual", self._folder.name]
        subprocess.run(command, cwd=self.root, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        folder = Path(self._folder.name)
        for path in folder.rglob("*"):
            if path.is_file():
                build_data["shared_data"][str(path)] = f"share/{path.relative_to(folder)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if version != "editable":
            self._folder.cleanup()
