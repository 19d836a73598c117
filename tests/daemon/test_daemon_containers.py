"""No attempt starts while the container of an earlier one may run, and none is refused the name of one that is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from supervisor.config.settings import JobSettings
from supervisor.core.attempt_files import CONTAINER
from supervisor.daemon.launch.containers import Containers
from supervisor.daemon.launch.short_run import ShortRuns
from supervisor.runner.launcher import EngineError


@dataclass
class Runs:
    """What podman answers."""

    problem: str | None = None
    commands: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def folder(self, job: str, number: int) -> Iterator[Path]:
        yield Path(job) / str(number)

    def run(
        self, folder: Path, number: int, argv: Sequence[str], *, cwd: str, env: Mapping[str, str], limit_s: float
    ) -> str | None:
        self.commands.append(" ".join(argv[-5:]))
        return self.problem


def make(state: Path, runs: Runs, boot: str) -> Containers:
    (state / "jobs" / "yolo").mkdir(parents=True, exist_ok=True)
    return Containers(state, cast("ShortRuns", runs), lambda _: JobSettings(command=["true"]), boot)


@pytest.mark.parametrize("boot", ["the same", "a later one"])
def test_the_container_of_an_earlier_attempt_is_removed_once(tmp_path: Path, boot: str) -> None:
    runs = Runs()
    make(tmp_path, runs, "the same").keep("yolo", 3, "rocm-supervisor-yolo")
    containers = make(tmp_path, runs, boot)
    containers.clear("yolo", 3)
    assert runs.commands == [], "the attempt that is about to start"
    containers.clear("yolo", 4)
    containers.clear("yolo", 4)
    assert runs.commands == ["rm --force --ignore --time=0 rocm-supervisor-yolo"]
    assert not (tmp_path / "jobs/yolo" / CONTAINER).exists()


def test_an_engine_that_does_not_answer_lets_none_start_before_the_next_boot(tmp_path: Path) -> None:
    runs = Runs(problem="it did not end within 20 s")
    containers = make(tmp_path, runs, "the same")
    containers.keep("yolo", 3, "rocm-supervisor-yolo")
    with pytest.raises(EngineError, match="is not known: podman rm rocm-supervisor-yolo: it did not end"):
        containers.clear("yolo", 4)
    make(tmp_path, runs, "a later one").clear("yolo", 4)
    assert not (tmp_path / "jobs/yolo" / CONTAINER).exists()
