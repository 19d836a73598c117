"""The proof of another environment: made for each start; once for those that a tune measures, while it is as it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from supervisor.config.settings import EnvironmentSettings, JobSettings
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint
from supervisor.core.job import Attempt, Job, Phase, RetryPlan
from supervisor.core.moments import Moment
from supervisor.core.tuning.start_order import StartOrder, TunedStart
from supervisor.daemon.launch.environment_proof import EnvironmentProof
from supervisor.daemon.launch.environment_stamp import read_stamp

if TYPE_CHECKING:
    from supervisor.daemon.launch.containers import Containers
    from supervisor.daemon.launch.short_run import ShortRuns

NOW = Moment(1000.0, 1_700_000_000.0)
SNAPSHOT = Checkpoint(path="/s/7.pt", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1))
QUICK = TunedStart(knobs=(("environment", "quick"),), environment="quick")


@dataclass
class Runs:
    """Counts the proofs."""

    problem: str | None = None
    made: int = 0

    @contextlib.contextmanager
    def folder(self, job: str, number: int) -> Iterator[Path]:
        yield Path(job) / str(number)

    def run(self, *_: object, **__: object) -> str | None:
        self.made += 1
        return self.problem


class NoContainers:
    """Keeps none."""

    def clear(self, job: str, before: int) -> None:
        """Do nothing."""


@dataclass
class Bench:
    """A job with another environment."""

    prefix: Path
    runs: Runs = field(default_factory=Runs)
    settings: JobSettings = field(default_factory=lambda: JobSettings(command=["true"]))

    def __post_init__(self) -> None:
        """Install a torch."""
        self.torch = self.prefix / "lib/python3.11/site-packages/torch"
        self.torch.mkdir(parents=True)
        (self.torch / "version.py").write_text("2.12.0")
        (self.prefix / "bin").mkdir()
        (self.prefix / "bin/python").touch()
        quick = EnvironmentSettings(python=str(self.prefix / "bin/python"))
        self.settings = JobSettings(command=["true"], environments={"quick": quick})
        runs, containers = cast("ShortRuns", self.runs), cast("Containers", NoContainers())
        self.proof = EnvironmentProof(
            runs=runs, containers=containers, settings=lambda _: self.settings, job=lambda _: None
        )

    def prove(self, snapshot: Checkpoint = SNAPSHOT, order: StartOrder | None = None) -> str | None:
        order = order or StartOrder(start=QUICK, is_lent=True)
        retry = RetryPlan(not_before=NOW, reason="for a tune", order=order)
        attempt = Attempt(number=3, launched_at=NOW)
        job = Job(name="one", since=NOW, phase=Phase.BACKOFF, attempt=attempt, retry=retry, tuned=QUICK)
        return self.proof.find_problem(job, snapshot)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "venv")


def test_the_starts_that_a_tune_measures_are_proven_once(bench: Bench) -> None:
    for order in (None, StartOrder(start=QUICK, is_lent=True), StartOrder(start=QUICK)):
        assert bench.prove(order=order) is None
    assert bench.runs.made == 1


def test_every_other_start_is_proven(bench: Bench) -> None:
    for _ in range(2):
        bench.prove(order=StartOrder(start=QUICK, measures=False))
    assert bench.runs.made == 2


def test_a_proof_that_failed_is_made_again(bench: Bench) -> None:
    bench.runs.problem = "no such library"
    assert bench.prove() is not None
    bench.runs.problem = None
    assert bench.prove() is None
    assert bench.runs.made == 2


def test_what_has_changed_is_proven_again(bench: Bench) -> None:
    bench.prove()
    bench.prove(replace(SNAPSHOT, path="/s/8.pt"))
    (bench.torch / "version.py").write_text("2.13.0+cpu")
    bench.prove(replace(SNAPSHOT, path="/s/8.pt"))
    assert bench.runs.made == 3
    quick = bench.settings.environments["quick"]
    bench.settings = JobSettings(command=["true"], environments={"quick": quick}, env={"A": "1"})
    bench.prove(replace(SNAPSHOT, path="/s/8.pt"))
    assert bench.runs.made == 4
    bench.prove(replace(SNAPSHOT, path="/s/8.pt"))
    assert bench.runs.made == 4


def test_an_environment_whose_torch_is_not_found_is_always_proven(bench: Bench) -> None:
    (bench.torch / "version.py").unlink()
    for _ in range(2):
        bench.prove()
    assert bench.runs.made == 2


def test_what_pip_installs_or_removes_and_another_interpreter_change_the_stamp(bench: Bench) -> None:
    python = bench.prefix / "bin/python"
    stamps = [read_stamp(str(python))]
    os.utime(bench.torch.parent, ns=(1, 1))
    package = bench.torch.parent / "numpy-2.0.dist-info"
    package.mkdir()
    stamps.append(read_stamp(str(python)))
    os.utime(bench.torch.parent, ns=(1, 1))
    stamps.append(read_stamp(str(python)))
    python.write_text("another")
    stamps.append(read_stamp(str(python)))
    assert None not in stamps
    assert len(set(stamps)) == len(stamps)
