"""Single changes of the state's disk fail: no job loses by it. `failing_writes.py` fails each that there is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from failing_writes import ERRORS, Failure, play

from supervisor.runner.code_copy import FOLDER, CodeCopies

KINDS = (
    "write state/daemon.lock",
    "create state/supervisor.db",
    "write state/supervisor.db-wal",
    "fsync state/supervisor.db-wal",
    "mkdir state/jobs/one/N",
    "rename state/jobs/one/N/.launch.json.draft",
    "rename state/jobs/one/N/code.tmp",
    "create state/jobs/one/N/output.txt",
    "mkdir state/jobs/one/N/evidence/one-N",
    "write state/jobs/one/generations/.taking-N/state-N.safetensors",
    "rename state/jobs/one/generations/.taking-N",
    "rename state/jobs/one/generations/N/generation.json.tmp",
)
"""One of each part of the state."""
SEED, LIVES = 1, 3


@pytest.fixture(scope="module")
def code(make_folder_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """What the first launch of an installation copies and compiles for trainings."""
    return make_folder_once("code", lambda state: CodeCopies(state, same_user=True).current()) / FOLDER


@pytest.mark.mounts
@pytest.mark.waits
@pytest.mark.parametrize(("kind", "error"), [*zip(random.Random(SEED).sample(KINDS, LIVES), ERRORS, strict=True)])
def test_a_job_loses_nothing_by_a_single_change_that_its_disk_refuses(kind: str, error: str, code: Path) -> None:
    outcome = play([Failure(error=error, kind=kind, number=1)], code)
    assert outcome.failed, f"not reached: {kind}"
    assert outcome.broken is None, outcome.broken
