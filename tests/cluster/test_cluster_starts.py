"""A start on several nodes: a node without rank 0 knows of the first step and of the stage; one that hangs is found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_by_hand import LAUNCHER, Cluster, until

from supervisor.config.derive import SOCKET
from supervisor.control.client import Client

pytestmark = pytest.mark.calm(reason="short limits on silence")

RANK = """
import os, sys, time
from pathlib import Path
import rocm_agent
folder, rank, epoch = Path(sys.argv[1]), int(os.environ["RANK"]), os.environ["ROCM_SUPERVISOR_EPOCH"]
with (folder / f"rank-{rank}").open("a") as file:
    file.write(f"{epoch} {os.getpid()}\\n")

rocm_agent.stage("warmup")
if epoch.endswith(".2"):
    time.sleep(600)
for step in range(1, 1000000):
    time.sleep(0.05)
    if rank < 2 or step < 2:
        rocm_agent.step(loss=1 / step, step=step)
    if rank == 0 and (folder / "save").exists():
        rocm_agent.stage("checkpoint")
        time.sleep(600)
    if rank == 3 and (folder / "die").exists():
        sys.exit(1)
    if rank == 0:
        (folder / "made").write_text(str(step))
"""
"""Of the ranks on the second node one step each is seen, as where a program counts them in its first rank."""
LIMIT_S = 3.0
SETTINGS = f"""
[telemetry]
interval_s = 0.5
[jobs.run]
command = ["true"]
[jobs.run.rules.start_timeout]
setup_limit_s = {LIMIT_S}
warmup_limit_s = {LIMIT_S}
"""


@pytest.fixture
def cluster(tmp_path: Path, code_copies: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 2, code_copies=code_copies) as made:
        (tmp_path / "launcher.py").write_text(LAUNCHER.replace('"-S", ', ""))  # with the agent
        (tmp_path / "rank.py").write_text(RANK)
        made.command.remove("-S")
        made.settings = tmp_path / "settings.toml"
        made.settings.write_text(SETTINGS)
        yield made


def read_status(cluster: Cluster, node: str) -> dict[str, Any]:
    """Return what `supervisorctl status` has of the job on a node."""
    (job,) = Client(cluster.folder / node / SOCKET).get("/v1/status")["jobs"]
    assert isinstance(job, dict)
    return job


def read_made(cluster: Cluster) -> int:
    text = (cluster.folder / "made").read_text() if (cluster.folder / "made").exists() else ""
    return int(text or 0)


def test_a_node_without_rank_0_counts_a_start_until_the_first_step_and_has_the_stage_of_rank_0(
    cluster: Cluster,
) -> None:
    cluster.start()
    # Each step takes 50 ms: longer than the limit of a start by twice.
    until(lambda: read_made(cluster) >= 2 * LIMIT_S / 0.05 or cluster.incidents(), "steps")
    assert cluster.incidents() == []
    until(lambda: read_status(cluster, "n1")["stage"] == "step", "the stage of rank 0 on the other node")
    assert read_status(cluster, "n1")["phase"] == "running"
    (cluster.folder / "save").touch()
    until(lambda: read_status(cluster, "n1")["stage"] == "checkpoint", "the stage that rank 0 has entered")
    (cluster.folder / "die").touch()
    until(lambda: len(cluster.incidents()) == 2, "the end of the first launch")
    (cluster.folder / "die").unlink()
    cluster.await_epoch(2)
    until(lambda: read_status(cluster, "n1")["stage"] == "warmup", "the stage of the next launch")
    until(lambda: len(cluster.incidents()) == 4, "a start that hangs to be found")
    assert [incident["kind"] for incident in cluster.incidents()] == [*["rank_exit"] * 2, *["start_timeout"] * 2]
    assert "in stage warmup" in str(cluster.incidents()[-1]["reason"])
