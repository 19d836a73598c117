"""A rank that missed a collective has begun fewer of them than those that wait in it, and its recorder says so."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from agent_by_hand import Attempt, wait_for

from supervisor.cluster.rank_evidence import read_sequence
from supervisor.core import attempt_files as at
from tests.rigs.warm import RANKS, Warm

pytestmark = pytest.mark.train

HERE = Path(__file__).resolve().parent


def test_a_rank_that_missed_a_collective_is_behind(train_python: Path, tmp_path: Path, warm: Warm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    attempt = Attempt(tmp_path / "0", tmp_path, warm(train_python, *RANKS))
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command: list[str | Path] = [train_python, HERE / "missed_by_hand.py", "20"]
    started = [attempt.start(command, RANK=str(rank), GLOO_SOCKET_IFNAME="lo", **world) for rank in range(2)]
    try:
        run = attempt.folder / at.RUN
        wait_for(lambda: all(read_sequence(attempt.folder, rank) is not None for rank in range(2)))
        numbers = [read_sequence(attempt.folder, rank) or 0 for rank in range(2)]
        assert numbers[0] - numbers[1] == 1, f"{numbers} in {list(run.iterdir())}"
    finally:
        for process in started:
            process.kill()
            process.communicate()
