"""Ranks that ask for NCCL get gloo, and their gradients' mean through the host's memory, with equal weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Attempts

from supervisor.core import attempt_files as at
from supervisor.core.rank_failure import is_consequence
from tests.rigs.warm import RANKS, Warm

HERE = Path(__file__).resolve().parent


def asked_for(attempts: Attempts, backend: str) -> None:
    """Have the next attempt's daemon ask for a backend, as a remedy does."""
    folder = attempts.folder / str(len(attempts.attempts))
    folder.mkdir()
    note = {"ranks_backend": {"value": backend, "remedies": ["ranks_host"]}}
    (folder / at.REMEDIES).write_text(json.dumps({"version": 1, "settings": note}))


@pytest.mark.train
def test_the_mean_through_the_hosts_memory_is_that_of_gloo_to_the_bit_and_a_dead_rank_is_named(
    train_python: Path, tmp_path: Path
) -> None:
    attempts = Attempts(train_python, tmp_path, HERE / "mean_by_hand.py")
    asked_for(attempts, "host")
    finished = attempts.run_ranks(2, GLOO_SOCKET_IFNAME="lo")
    attempt = attempts.attempts[-1]
    assert attempt.failures() == []
    rows = [line.split() for line in finished.output.splitlines() if line.startswith("rank ")]
    assert {row[1] for row in rows} == {"0", "1"}, finished.output
    assert {row[2] for row in rows} == {"gloo"}
    assert len({digest for row in rows for digest in row[3:5]}) == 1, "of both ranks, by either hook"
    assert {row[5] for row in rows} == {"True"}, "the script's own hook took the place of ours"
    raised = next(line for line in finished.output.splitlines() if line.startswith("raised "))
    assert "rank 1 is gone" in raised
    assert is_consequence("RuntimeError", raised), "no cause of its own"
    assert "averaged through the host's memory" in " ".join(
        report["set"] for report in attempt.list_reports("remedy_applied")
    )


@pytest.mark.train
def test_the_jobs_setting_asks_for_half_the_bytes_and_all_ranks_still_have_the_same_weights(
    train_python: Path, tmp_path: Path
) -> None:
    attempts = Attempts(train_python, tmp_path, HERE / "mean_by_hand.py")
    setting = {at.ENV_RANKS_BACKEND: "host-bf16"}
    finished = attempts.run_ranks(3, "--end", GLOO_SOCKET_IFNAME="lo", **setting)
    assert finished.code == 0, finished.output
    assert attempts.attempts[-1].failures() == []
    rows = [line.split() for line in finished.output.splitlines() if line.startswith("rank ")]
    assert len(rows) == 3
    halved, whole = {row[3] for row in rows}, {row[4] for row in rows}
    assert (len(halved), len(whole)) == (1, 1)
    assert halved != whole, "bfloat16 rounds"


ASKS = """
import sys, torch.distributed as dist
try:
    dist.init_process_group(sys.argv[1], store=dist.HashStore(), rank=0, world_size=int(sys.argv[2]))
except (RuntimeError, ValueError) as error:
    print(error)
"""


@pytest.mark.train
@pytest.mark.parametrize("asked", ["nccl 2", "nccl 1", "gloo 1"])
def test_ranks_that_ask_for_nccl_are_reported_before_it_can_hang(
    asked: str, current_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script = tmp_path / "asks.py"
    script.write_text(ASKS)
    attempt = Attempt(tmp_path / "0", tmp_path, warm(current_python, *RANKS))
    finished = attempt.run([current_python, script, *asked.split()])
    assert finished.code == 0, finished.output
    named = [report["setting"] for report in attempt.list_reports("setting_asked")]
    assert named == (["ranks_backend"] if asked == "nccl 2" else [])
