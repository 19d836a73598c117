"""What every room's tests share: where the training environments and the corpus are, and that CI skips nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
"""How fast examples are made says something of the machine and nothing of the code."""

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"current": "ROCM_SUPERVISOR_TRAIN_PYTHON", "owner": "ROCM_SUPERVISOR_OWNER_PYTHON"}
NOT_TO_BE_HAD = re.compile(r"torch sees no GPU here|torch 1\.13\.\S+ has no ")
"""Reasons that stand under CI too: hardware, and what a fixed version of torch does not have."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a test that is skipped for a missing part has failed: CI installs the parts."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not NOT_TO_BE_HAD.search(reason):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: {reason} (nothing may be skipped under CI)"
    return report


def _interpreter(environment: str) -> Path:
    variable = ENVIRONMENTS[environment]
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} names no interpreter of a training environment (make test sets it)")
    return Path(value)


@pytest.fixture(params=sorted(ENVIRONMENTS))
def train_python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of each training environment in turn: the current one and the owner's (torch 1.13.1)."""
    return _interpreter(str(request.param))


@pytest.fixture
def current_python() -> Path:
    """The interpreter of the current training environment."""
    return _interpreter("current")


@pytest.fixture
def owner_python() -> Path:
    """The interpreter of the owner's training environment: Python 3.10, torch 1.13.1."""
    return _interpreter("owner")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Real kernel logs, tool outputs and training logs that lie beside the checkout."""
    folder = ROOT.parent / "shared" / "corpus"
    if not folder.is_dir():
        pytest.skip("no ../shared/corpus beside this checkout")
    return folder
