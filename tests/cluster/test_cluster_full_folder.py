"""A folder that nodes share is full: the training is not lost to it, and who cannot write is named with the reason."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_by_hand import Cluster, gone, until

from tests.rigs.small_disk import mounted

pytestmark = [pytest.mark.mounts, pytest.mark.waits]


@pytest.fixture
def cluster(tmp_path: Path, code_copies: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 2, code_copies=code_copies) as made:
        yield made


def fill(path: Path) -> None:
    """Leave no byte of the disk on which a file lies."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_folder_of_the_leader_costs_no_launch_and_its_incident_is_written_once_there_is_room(
    cluster: Cluster,
) -> None:
    with mounted(cluster.folder / "leader", 4) as folder:
        cluster.start()
        before = cluster.await_epoch(1)
        fill(folder / "ballast")
        os.kill(before[3], signal.SIGKILL)
        until(lambda: len(cluster.pids(2)) == 4, "the next launch")
        log = cluster.folder / "boss.log"
        until(lambda: re.search(f'leader.record_failed why="{folder}/.*No space left', log.read_text()), "the reason")
        assert cluster.incidents() == []
        (folder / "ballast").unlink()
        until(lambda: [item["closed"] for item in cluster.incidents()] == [False, True], "the incident")
        assert cluster.leader is not None
        cluster.leader.send_signal(signal.SIGTERM)
        assert cluster.leader.wait(120) == 0


def test_a_node_whose_folder_is_full_is_named_and_all_are_launched_once_it_has_room(cluster: Cluster) -> None:
    with mounted(cluster.folder / "n1", 64) as folder:
        cluster.settings = cluster.folder / "settings.toml"
        cluster.settings.write_text(
            f'[jobs.run]\ncommand = ["true"]\n[jobs.run.rules.disk_low]\nlimit_bytes = {8 << 20}\n'
        )
        cluster.start()
        before = cluster.await_epoch(1)
        fill(folder / "ballast")
        until(lambda: all(gone(pid) for pid in before.values()), "the end of all ranks, before a checkpoint fails")
        (kind,) = {(item["kind"], item["node"]) for item in cluster.incidents()}
        assert kind == ("disk_low", "n1")
        free = r"0\.00 of 0\.07 GB and \d+ of \d+ inodes are free"
        named = rf"n1: OSError: \[Errno 28\] {free}, too little for a launch: '{folder}'"
        until(lambda: re.search(named, (cluster.folder / "boss.log").read_text()), "the leader's log")
        until(lambda: re.search(named, str(cluster.state()["resume_problem"])), "what `training status` shows")
        assert cluster.state()["stage"] == "choosing"
        (folder / "ballast").unlink()
        cluster.await_epoch(2)
        until(lambda: cluster.state()["resume_problem"] is None, "nothing is waited for")
