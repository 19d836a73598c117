"""What the daemon imports, which is most of its memory: nothing of a command line, a migration or a training."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import gc, json, sys
import supervisor.daemon.main
from dataclasses import is_dataclass
from supervisor.core.events import Tick
shared = Tick.__repr__
types = [item for item in gc.get_objects() if isinstance(item, type)]
classes = [item for item in types if str(item.__module__).startswith("supervisor.")]
own = [item for item in classes if is_dataclass(item) and item.__dict__.get("__repr__", shared) is not shared]
print(json.dumps({
    "modules": sorted(sys.modules),
    "dataclasses": sorted(item.__qualname__ for item in classes if is_dataclass(item)),
    "own": sorted(f"{item.__module__}.{item.__qualname__}" for item in own),
}))
"""
NEVER = (
    "alembic",
    "apprise",
    "mako",
    "numpy",
    "smtplib",
    "sqlalchemy.ext",
    "sqlalchemy.orm",
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
def imported() -> dict[str, list[str]]:
    """What a daemon has imported when it begins."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", NEVER)
def test_the_daemon_does_not_import(imported: dict[str, list[str]], name: str) -> None:
    assert [module for module in imported["modules"] if module == name or module.startswith(f"{name}.")] == []


def test_the_daemons_classes_do_not_each_have_generated_methods_that_all_could_share(
    imported: dict[str, list[str]],
) -> None:
    assert len(imported["dataclasses"]) > 200
    few = len(imported["dataclasses"]) // 20
    assert len(imported["own"]) <= few, f"import dataclass from supervisor.core.lean_dataclass: {imported['own']}"
