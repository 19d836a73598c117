"""A training submitted to a real Slurm: a killed rank, a dead node, a requeue without it, the end."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest
from cluster_by_hand import LAUNCHER, RANK, Cluster

from supervisor.cluster.slurm import REVOKED_S
from supervisor.core.fleet.training import LeaderLimits
from tests.rigs.laid_code import lay_code
from tests.rigs.slurm import Slurm, missing, slurm

pytestmark = [
    pytest.mark.waits,
    pytest.mark.xdist_group("slurm"),  # each has the same addresses
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

SPARES_S = 3.0
"""For which the leader waits for further nodes by default."""
DIES = """
while not (folder / "finish").exists():
    (folder / f"alive-{os.environ['RANK']}-{os.uname().nodename}").touch()
    if (folder / f"kill-{os.environ['RANK']}").exists():
        (folder / f"kill-{os.environ['RANK']}").unlink()
        os.kill(os.getpid(), 9)
    time.sleep(0.05)
"""


class Submitted:
    """A training of two nodes in a cluster of three."""

    def __init__(self, cluster: Slurm, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        beginning, _, _ = RANK.partition("while not")
        where = "(folder / f\"node-{os.environ['RANK']}\").write_text(os.uname().nodename)\n"
        placed = beginning.replace("with (folder", where + "with (folder", 1)  # before the rank is there to be seen
        (folder / "rank.py").write_text(placed + DIES)
        (folder / "launcher.py").write_text(LAUNCHER)

    def supervisorctl(self, *words: str) -> str:
        ran = self.cluster.run(sys.executable, "-m", "supervisor.cli", *words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def submit(self) -> str:
        """Submit the training; return the number of its job."""
        command = [sys.executable, "-S", str(self.folder / "launcher.py"), str(self.folder / "rank.py")]
        asked = ["--nodes", "2", "--name", "run", "--folder", str(self.folder), "--local-dir", str(self.folder / "own")]
        found = re.match(r"job (\d+):", self.supervisorctl("submit", *asked, "--", *command, str(self.folder)))
        assert found is not None
        return found[1]

    def await_launch(self, epoch: str) -> Mapping[int, str]:
        """Wait until all ranks of a launch run; return the node of each."""

        def begun() -> bool:
            files = list(self.folder.glob("rank-*"))
            return (
                sum(Cluster.read_rank(path)[-1:] != [] and Cluster.read_rank(path)[-1][0] == epoch for path in files)
                == 4
            )

        self.cluster.await_condition(begun, f"four ranks of {epoch}\n{self.log()}")
        return {rank: (self.folder / f"node-{rank}").read_text() for rank in range(4)}

    def read_launches(self) -> list[tuple[float, float]]:
        """Return of the first launch in each allocation when its last node joined and when it was ordered."""
        found = re.findall(
            r"^(\S+ \S+) info (leader\.joined|cluster\.launch epoch=\"run\.\d\.1\")", self.log(whole=True), re.M
        )
        events = sorted((datetime.fromisoformat(when.replace(",", ".")).timestamp(), what) for when, what in found)
        return [
            (at_s, after_s)
            for (at_s, what), (after_s, then) in itertools.pairwise(events)
            if what == "leader.joined" and then != what
        ]

    def find_logged_s(self, pattern: str) -> float:
        """Return when a line was logged last, in Unix seconds."""
        found = re.findall(rf"^(\S+ \S+) \w+ {pattern}", self.log(whole=True), re.M)
        return datetime.fromisoformat(max(found).replace(",", ".")).timestamp()

    def log(self, *, whole: bool = False) -> str:
        path = self.folder / "slurm.log"
        return (
            path.read_text()[0 if whole else -3000 :] if path.exists() else shlex.join(map(str, self.folder.iterdir()))
        )


@pytest.fixture
def submitted(tmp_path: Path, code_copies: Path) -> Iterator[Submitted]:
    rig, training = tmp_path / "rig", tmp_path / "training"
    rig.mkdir()
    training.mkdir()
    with slurm(rig, 3) as cluster:
        for name in cluster.names:
            lay_code(code_copies, training / "nodes" / name)
        yield Submitted(cluster, training)


def read_restart(cluster: Slurm, job: str) -> tuple[float, float]:
    """Return when the controller requeued a job, and when it gave it nodes again, in Unix seconds."""
    text = (cluster.folder / "slurmctld.log").read_text()
    # Either of Slurm's two schedulers may be the first to find nodes for it.
    start = rf"sched: Allocate JobId={job} |sched/backfill: _start_job: Started JobId={job} "
    found = re.findall(rf"^\[(\S+)\] (Requeuing JobId={job}$|{start})", text, re.M)
    events = [(datetime.fromisoformat(when).timestamp(), what.startswith("sched")) for when, what in found]
    restarts = (
        (requeued, begun)
        for (requeued, was_start), (begun, is_start) in itertools.pairwise(events)
        if is_start and not was_start
    )
    restart = next(restarts, None)
    assert restart is not None, "\n".join(line for line in text.splitlines() if f"JobId={job}" in line)
    return restart


def test_a_training_outlives_a_killed_rank_and_a_dead_node(submitted: Submitted) -> None:
    job = submitted.submit()
    nodes = submitted.await_launch("run.0.1")
    (submitted.folder / "kill-3").touch()
    assert submitted.await_launch("run.0.2") == nodes, "on the same nodes: no machine is at fault"
    submitted.cluster.kill_node(nodes[3])
    after = submitted.await_launch("run.1.1")
    assert nodes[3] not in after.values(), "requeued without the dead node, though its user is no administrator"
    assert submitted.cluster.job(job)["ExcNodeList"] == nodes[3]
    requeued_s, begun_s = read_restart(submitted.cluster, job)
    assert begun_s - requeued_s >= REVOKED_S, "a node refuses what is allocated in the second in which it ended the job"
    assert "down" not in submitted.cluster.states()[nodes[3]], "long before Slurm took the node for dead"
    assert not list(Path.cwd().glob("slurm_job_*")), "scontrol's scripts for a job that goes on with fewer nodes"
    waits_s = [launched - joined for joined, launched in submitted.read_launches()]
    assert len(waits_s) == 2
    assert waits_s[0] < SPARES_S, "no other node can come"
    assert waits_s[1] < LeaderLimits(nodes=3).fence_s, "the ranks of the dead node had that long to end"
    incidents = json.loads(submitted.supervisorctl("training", "history", str(submitted.folder), "--json"))["incidents"]
    assert [(incident["id"], incident["rung"]) for incident in incidents] == [
        ("run.0.1", "same_nodes"),
        ("run.0.2", "requeue"),
    ]
    assert incidents[0]["culprit"]["reason"] == f"rank 3 ({nodes[3]}) ended first: killed by SIGKILL"
    assert incidents[1]["excluded"] == [nodes[3]]
    (submitted.folder / "finish").touch()
    submitted.cluster.await_condition(lambda: submitted.cluster.job(job).get("JobState") == "COMPLETED", "its end")
    assert "finished" in submitted.supervisorctl("training", "status", str(submitted.folder))


def test_the_ranks_of_a_cut_off_node_have_ended_before_those_of_the_requeued_job_begin(submitted: Submitted) -> None:
    """The job is requeued while they may still run; their node ends them by its lease."""
    submitted.submit()
    nodes = submitted.await_launch("run.0.1")
    submitted.cluster.cut_node(nodes[3])
    after = submitted.await_launch("run.1.1")
    assert nodes[3] not in after.values()
    began_s = min((submitted.folder / f"node-{rank}").stat().st_mtime for rank in after)
    cut_off = [path for rank in (2, 3) for path in submitted.folder.glob(f"alive-{rank}-{nodes[3]}")]
    assert len(cut_off) == 2
    ended_s = max(path.stat().st_mtime for path in cut_off)
    assert ended_s < began_s
    waited_s = began_s - submitted.find_logged_s(r"slurm\.requeue")
    assert waited_s > LeaderLimits(nodes=2).fence_s - 0.5, "as long as they might have run"
