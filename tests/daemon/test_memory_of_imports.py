"""What the daemon imports, which is most of its memory: nothing of a command line, a migration or a training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("imports of the daemon")  # they are made once

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, sys
import psutil
import supervisor.daemon.main
from supervisor.daemon.process.startup import return_freed_memory
return_freed_memory()
print(json.dumps({"modules": sorted(sys.modules), "rss_bytes": psutil.Process().memory_info().rss}))
"""
RSS_LIMIT_BYTES = 54_000_000
"""Of the 60 MB that the daemon may take beside one training; what it does there takes less than the rest."""
NEVER = (
    "alembic",
    "apprise",
    "mako",
    "numpy",
    "smtplib",
    "sqlalchemy",
    "supervisor.agent",
    "supervisor.cli",
    "supervisor.demo",
    "supervisor.replay",
    "supervisor.simulation",
    "supervisor.web",
    "torch",
    "ultralytics",
    "urllib.request",
    "urllib3",
    "xml",
)
"""Packages and modules that a daemon beside a training that goes well has no use for."""


@pytest.fixture(scope="module")
def imported() -> dict[str, Any]:
    """What a daemon has imported when it begins, and what that takes."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NEVER)
def test_the_daemon_does_not_import(imported: dict[str, Any], name: str) -> None:
    assert [module for module in imported["modules"] if module == name or module.startswith(f"{name}.")] == []


def test_what_the_daemon_imports_leaves_room_for_what_it_does(imported: dict[str, Any]) -> None:
    assert imported["rss_bytes"] < RSS_LIMIT_BYTES


def test_the_process_that_looks_at_checkpoints_for_it_imports_nothing_of_its_readings() -> None:
    """Each daemon has one, which imports what it is asked for: readings took it as long as all else together."""
    program = "import sys; sys.path.append(sys.argv[1])\nfrom supervisor.children import file_server\n"
    program += "from supervisor.daemon.checkpoints import candidates, unreadable\n"
    program += "from supervisor.runner import generation_store\nprint(*sys.modules)"
    command = [sys.executable, "-S", "-I", "-c", program, str(ROOT)]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "supervisor.runner.generation_store" in names
    assert [name for name in names if name in ("logging", "msgspec", "supervisor.core.readings")] == []
