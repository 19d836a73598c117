"""A rank that waits for its storage holds up those of all nodes: none takes that for a stall, nor a stall for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cluster_by_hand import LAUNCHER, Cluster, gone, until

from tests.rigs.hanging_fs import HangingFs

pytestmark = [pytest.mark.mounts, pytest.mark.calm(reason="mostly waits for what hangs")]

RANK = """
import os, sys, time
from pathlib import Path
import rocm_agent
folder, data, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
epoch = os.environ["ROCM_SUPERVISOR_EPOCH"]
with (folder / f"rank-{rank}").open("a") as file:
    file.write(f"{epoch} {os.getpid()}\\n")

def meet(step):
    mine = folder / f"made-{epoch}-{rank}"
    mine.with_suffix(f".{rank}").write_text(str(step))
    mine.with_suffix(f".{rank}").rename(mine)
    others = [folder / f"made-{epoch}-{other}" for other in range(4)]
    while not all(other.exists() and int(other.read_text()) >= step for other in others):
        time.sleep(0.01)

for step in range(1, 1000000):
    time.sleep(0.02)
    if rank == 3:
        data.read_bytes()
        while (folder / "hang").exists() and epoch.endswith(".1"):
            time.sleep(0.1)
    meet(step)
    rocm_agent.step(loss=1 / step, step=step)
"""
"""Its ranks meet at the end of each step, as in an all-reduce, and the last one reads its data from elsewhere."""
STALL_S, WARN_S = 5.0, 15.0
SETTINGS = f"""
[telemetry]
interval_s = 0.2
[jobs.run]
command = ["true"]
[jobs.run.rules.stall]
limit_s = {STALL_S}
[jobs.run.rules.storage_wait]
warn_s = {WARN_S}
"""


@pytest.fixture
def cluster(tmp_path: Path, far: HangingFs, code_copies: Path) -> Iterator[Cluster]:
    home = tmp_path / "home"
    home.mkdir()
    with Cluster(home, 2, code_copies=code_copies) as made:
        (home / "launcher.py").write_text(LAUNCHER.replace('"-S", ', ""))  # with the agent
        (home / "rank.py").write_text(RANK)
        made.command.remove("-S")
        made.command.append(str(far.at / "data"))
        made.settings = home / "settings.toml"
        made.settings.write_text(SETTINGS)
        yield made
        far.end()


def read_made(cluster: Cluster) -> int:
    path = cluster.folder / "made-run.0.1-0"
    return int(path.read_text()) if path.exists() else 0


def read_warnings(cluster: Cluster) -> set[str]:
    """Return what each node's daemon has recorded of waits for storage, by its first word."""
    found: set[str] = set()
    for path in (cluster.folder / "own").glob("*.db"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as record:
            query = "SELECT reason FROM decisions WHERE rule = 'storage_wait' AND kind = 'warn'"
            found |= {row[0] for row in record.execute(query)}
    return found


def test_no_node_stops_a_training_of_which_one_rank_waits_for_its_storage_and_a_stall_after_that_is_found(
    cluster: Cluster, far: HangingFs
) -> None:
    (far.at / "data").write_text("a sample")
    cluster.start()
    before = cluster.await_epoch(1)
    until(lambda: read_made(cluster) > 20, f"steps\n{cluster.logs()}")
    far.hang()
    # Longer than three times the limit of a stall: one node names what its own rank waits for, the other one that node.
    until(lambda: len(read_warnings(cluster)) == 2 or cluster.incidents(), "both nodes to report the wait")
    assert cluster.incidents() == []
    of_other, own = sorted(read_warnings(cluster))
    assert of_other.startswith(f"node n1: process {before[3]} (python")
    # Which file system that is can be seen where no other one on this machine stands still.
    assert f"{far.at} (fuse.hanging" in of_other or "waits for a file system (" in of_other
    assert own.startswith(f"process {before[3]} (python")
    until(lambda: len(cluster.warnings()) == 2, "the leader to have both")
    assert {(line["node"], line["text"]) for line in cluster.warnings()} == {("n0", of_other), ("n1", own)}
    made = read_made(cluster)
    far.go_on()
    until(lambda: read_made(cluster) > made + 20, "the training to go on")
    assert cluster.incidents() == []
    assert not any(gone(pid) for pid in before.values())
    (cluster.folder / "hang").touch()
    cluster.await_epoch(2)
    until(lambda: len(cluster.incidents()) == 2, "the incident is closed")
    incident = cluster.incidents()[-1]
    assert (incident["kind"], incident["node"]) == ("stall", "n0")
