"""A folder that all nodes share hangs: the ranks still end, and so does every daemon, beyond what SIGKILL could do."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_by_hand import RANK, Cluster, gone, until

from tests.rigs.hanging_fs import HangingFs, hanging

pytestmark = [pytest.mark.mounts, pytest.mark.waits]

ENDS_IN_S = 120


@pytest.fixture
def cluster(tmp_path: Path, far: HangingFs, code_copies: Path) -> Iterator[Cluster]:
    home = tmp_path / "home"
    home.mkdir()
    with Cluster(home, 2, code_copies=code_copies) as made:
        yield made
        far.end()


def share(cluster: Cluster, far: HangingFs, *names: str) -> None:
    """Have some folders of a training lie on that file system."""
    for name in names:
        (far.at / name).mkdir()
        (cluster.folder / name).symlink_to(far.at / name)


def test_leader_and_nodes_end_while_the_leaders_folder_and_that_of_the_snapshots_hang(
    cluster: Cluster, far: HangingFs
) -> None:
    share(cluster, far, "leader", "all")
    cluster.start()
    before = cluster.await_epoch(1)
    far.hang(beyond_sigkill=True)
    os.kill(before[3], signal.SIGKILL)
    until(lambda: all(gone(pid) for pid in before.values()), "the end of all ranks")
    until(lambda: "has not answered for" in (cluster.folder / "boss.log").read_text(), "the folder to be named")
    assert cluster.leader is not None
    cluster.leader.send_signal(signal.SIGTERM)
    assert cluster.leader.wait(ENDS_IN_S) == 0
    for daemon in cluster.daemons.values():
        assert daemon.wait(ENDS_IN_S) == 0


def test_while_the_folder_of_the_snapshots_hangs_the_nodes_that_cannot_look_are_named_and_nothing_is_launched(
    cluster: Cluster, far: HangingFs
) -> None:
    share(cluster, far, "all")
    cluster.start()
    before = cluster.await_epoch(1)
    far.hang()
    os.kill(before[3], signal.SIGKILL)
    named = r'leader\.resume_unknown why="n[01]: TimeoutError: .*/all'
    until(lambda: re.search(named, (cluster.folder / "boss.log").read_text()), "the node that cannot look")
    assert cluster.state()["stage"] == "choosing"
    assert cluster.pids(2) == {}
    far.go_on()
    cluster.await_epoch(2)


def test_a_node_whose_own_folder_hangs_ends_its_ranks_when_it_is_cut_off(cluster: Cluster, tmp_path: Path) -> None:
    (cluster.folder / "n0").mkdir()
    with hanging(cluster.folder / "n0" / "jobs", tmp_path / "behind-jobs") as own:
        cluster.start("--lease-s", "2")
        before = cluster.await_epoch(1)
        held = own.held
        own.hang()
        until(lambda: own.held > held, "something that waits")
        assert cluster.leader is not None
        cluster.leader.kill()
        cluster.leader.wait(ENDS_IN_S)
        until(lambda: "cluster.lease_over" in (cluster.folder / "n0.log").read_text(), "the end of the lease")
        own.go_on()  # a killed rank is gone once its output, which lies there, is closed
        until(lambda: all(gone(pid) for pid in before.values()), "the end of all ranks")


def test_a_rank_that_sigkill_does_not_end_is_named_with_what_it_waits_for(cluster: Cluster, far: HangingFs) -> None:
    (far.at / "data").write_text("a sample")
    reads = (
        f"    if (folder / 'read').exists() and os.environ['RANK'] == '3': Path({str(far.at)!r}, 'data').read_text()\n"
    )
    (cluster.folder / "rank.py").write_text(RANK + reads)
    cluster.start()
    before = cluster.await_epoch(1)
    held = far.held
    far.hang(beyond_sigkill=True)
    (cluster.folder / "read").touch()
    until(lambda: far.held > held, "the rank waits for its file")
    os.kill(before[0], signal.SIGKILL)
    until(lambda: any(incident["closed"] for incident in cluster.incidents()), "the end of the incident")
    culprit = cluster.incidents()[-1]["culprit"]
    assert isinstance(culprit, dict)
    assert culprit["nodes"] == ["n1"], "it cannot be used again before that has ended"
    assert f"a process that SIGKILL does not end: process {before[3]} " in culprit["reason"]
    assert "for a file system, which ends when its disk or server answers; no GPU reset does" in culprit["reason"]


def test_a_node_whose_own_folder_hangs_ends_with_its_ranks_when_it_is_asked_to_and_says_why(
    cluster: Cluster, tmp_path: Path
) -> None:
    own_folder = cluster.folder / "n0"
    own_folder.mkdir()
    with hanging(own_folder / "jobs", tmp_path / "behind-jobs") as own:
        config = cluster.folder / "run.toml"
        config.write_text('[jobs.run]\ncommand = ["true"]\nsave_s = 1.0\ngrace_s = 1.0\nkill_wait_s = 4.0\n')
        cluster.settings = config
        cluster.start("--lease-s", "200")
        before = cluster.await_epoch(1)
        own.hang(beyond_sigkill=True)
        until(lambda: "attempt.thread_replaced" in (cluster.folder / "n0.log").read_text(), "the folder to be named")
        cluster.daemons["n0"].send_signal(signal.SIGTERM)
        assert cluster.daemons["n0"].wait(ENDS_IN_S) == 0
        ended = next(line for line in (cluster.folder / "n0.log").read_text().splitlines() if "daemon.ended" in line)
        assert re.search(r"run: [^,]+ is not answered", ended), "whichever part was being read"
        own.go_on()  # a rank that was killed is gone once its output, which lies there, is closed
        until(lambda: all(gone(pid) for rank, pid in before.items() if rank < 2), "the end of its ranks")
