"""A disk that a node's attempts cannot be written to: nothing is launched on any node, and the node is named."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_by_hand import Cluster, until

from tests.rigs.hanging_fs import HangingFs, hanging
from tests.rigs.laid_code import lay_code

pytestmark = [pytest.mark.mounts, pytest.mark.waits]


@pytest.fixture
def cluster(tmp_path: Path, code_copies: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 2, code_copies=code_copies) as made:
        yield made


@pytest.fixture
def jobs(cluster: Cluster, code_copies: Path) -> Iterator[HangingFs]:
    """The disk of the jobs of one node."""
    lay_code(code_copies, cluster.folder / "n1")
    with hanging(cluster.folder / "n1" / "jobs", cluster.folder / "behind") as disk:
        yield disk
        disk.failure = None


def test_no_launch_is_spent_while_a_nodes_disk_refuses_writes(cluster: Cluster, jobs: HangingFs) -> None:
    cluster.start()
    before = cluster.await_epoch(1)
    jobs.failure = errno.EIO
    os.kill(before[0], signal.SIGKILL)
    named = r"n1: OSError: \[Errno 5\] Input/output error; it cannot be written, so nothing is launched until it can be"
    until(
        lambda: re.search(named, str(cluster.state()["resume_problem"])) or len(cluster.pids(2)), "what is waited for"
    )
    refused = jobs.failed
    until(lambda: jobs.failed > refused + 4 or cluster.pids(2), "many more writes to be refused")
    assert cluster.pids(2) == {}
    assert [(item["kind"], item["closed"]) for item in cluster.incidents()] == [
        ("rank_exit", False),
        ("rank_exit", True),
    ]
    jobs.failure = None
    cluster.await_epoch(2)
    until(lambda: cluster.state()["resume_problem"] is None, "nothing is waited for")
