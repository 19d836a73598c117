"""Slurm as the engine: its allocation, the daemons of its nodes as steps of it, and requeueing without a node.

As an ordinary user: a node is left out by `ExcNodeList` of the own pending job; draining it is its administrator's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.children.start import start
from supervisor.cluster.batch import LAUNCHER_PID
from supervisor.programs import run

log = logging.getLogger(__name__)

COMMAND_LIMIT_S = 20.0
"""squeue and scontrol hang with their controller; no answer means unknown."""
PENDING_LIMIT_S = 60.0
STANDARD_ERROR = 2
"""The job's output; `sys.stderr` may be the logger's."""
PENDING_EVERY_S = 0.2
REVOKED_S = 2.0
"""From the end of a job to its next start. What was allocated in the second in which a node ended it, or before, that
node refuses ("already killed"), and Slurm ends the job for good; the controller's clock may be a second behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What Slurm gave."""

    job: str
    nodes: int
    node_list: str
    restarts: int


def read_allocation(environment: Mapping[str, str]) -> Allocation:
    """Return the allocation that this process runs in. Raises ValueError outside of one."""
    job, nodes = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NUM_NODES", "")
    if not job.isdigit() or not nodes.isdigit():
        raise ValueError(
            "--engine slurm: this is no batch step of a Slurm job; `supervisorctl submit` starts it as one"
        )
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return Allocation(
        job=job,
        nodes=int(nodes),
        node_list=environment.get("SLURM_JOB_NODELIST", ""),
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


class SlurmEngine:
    """Implements `cluster.leader.Engine`."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation, self.fence = allocation, allocation.restarts

    def tick(self) -> None:
        """Do nothing: the batch script starts the daemon of a node again."""

    def requeue(self, excluded: Sequence[str], reason: str) -> None:
        """Requeue the job without some nodes, at once. Raises OSError where that cannot be begun.

        A requeued job waits for its credential to expire (121 s by default) unless its start time is set, which has an
        effect only once it is pending; that is when this process, its batch step, has ended. So a process that ignores
        Slurm's SIGTERM does it, within the time that Slurm gives to steps that do (`KillWait`).
        """
        job = self._allocation.job
        log.warning("slurm.requeue", extra={"fields": {"job": job, "excluded": list(excluded), "reason": reason}})
        _give_back(job, excluded)  # while the job runs: it ends with this process
        start(
            (sys.executable, "-m", "supervisor.cluster.requeue", job, *excluded),
            stdout=STANDARD_ERROR,
            stderr=STANDARD_ERROR,
            new_session=True,
        )


def leave_allocation(job: str, excluded: Sequence[str]) -> None:
    """Requeue a job and change it once it is pending. Raises ValueError."""
    names = ",".join([*read_excluded(job), *excluded])
    _scontrol("requeue", job)
    end = time.perf_counter() + PENDING_LIMIT_S
    if names:
        _repeat(end, "update", f"JobId={job}", f"ExcNodeList={names}")
    while read_state_of(job) != "PENDING":
        if time.perf_counter() >= end:
            raise ValueError(f"job {job} was requeued and is not pending after {PENDING_LIMIT_S:.0f} s")
        time.sleep(PENDING_EVERY_S)
    _end_launcher(os.environ)
    time.sleep(REVOKED_S)
    _repeat(end + REVOKED_S, "update", f"JobId={job}", "StartTime=now")


def list_nodes(node_list: str) -> tuple[str, ...]:
    """Return the names of the nodes of a list as Slurm writes it; none where Slurm does not answer."""
    ran = run(("scontrol", "show", "hostnames", node_list), COMMAND_LIMIT_S)
    return tuple(ran.stdout.decode(errors="replace").split()) if ran.status == 0 else ()


def _give_back(job: str, excluded: Sequence[str]) -> None:
    """Take nodes out of a running job: else one that is dead holds it until Slurm finds that out (300 s by default).

    The host of the batch step stays. Where the site does not allow it (`disable_job_shrink`) the job waits.
    """
    shown = _show(job) or {}
    listed = list(list_nodes(shown.get("NodeList", "")))
    kept = [node for node in listed if node not in excluded or node == shown.get("BatchHost")]
    if kept == listed:
        return
    with tempfile.TemporaryDirectory() as folder:  # scontrol leaves scripts there for who would go on in the job
        try:
            _scontrol("update", f"JobId={job}", f"NodeList={','.join(kept)}", cwd=folder)
        except ValueError as error:
            log.warning("slurm.nodes_kept", extra={"fields": {"job": job, "why": str(error)}})


def _end_launcher(environment: Mapping[str, str]) -> None:
    """End the srun of the allocation that is over: seconds later it would end the new one's step of the same number."""
    pid = environment.get(LAUNCHER_PID, "")
    with contextlib.suppress(OSError):
        if pid.isdigit() and Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "srun\n":
            os.kill(int(pid), signal.SIGKILL)


def _repeat(end: float, *arguments: str) -> None:
    """Repeat a command that Slurm refuses while a job is on its way from running to pending."""
    while True:
        try:
            return _scontrol(*arguments)
        except ValueError:
            if time.perf_counter() >= end:
                raise
        time.sleep(PENDING_EVERY_S)


def read_state_of(job: str) -> str | None:
    """Return the state of a job; None where Slurm does not answer. Raises ValueError where there is no such job."""
    shown = _show(job)
    return None if shown is None else shown.get("JobState")


def read_excluded(job: str) -> list[str]:
    """Return the nodes that a job is not to get, as they were named."""
    shown = _show(job) or {}
    names = shown.get("ExcNodeList", "(null)")
    return [] if names == "(null)" else [names]


def _show(job: str) -> dict[str, str] | None:
    ran = run(("scontrol", "--oneliner", "show", "job", job), COMMAND_LIMIT_S, together=True)
    if ran.status is None:
        return None
    text = ran.stdout.decode(errors="replace")
    if ran.status != 0:
        raise ValueError(f"scontrol show job {job}: {text.strip()}")
    return dict(word.partition("=")[::2] for word in text.split())


def _scontrol(*arguments: str, cwd: str | None = None) -> None:
    ran = run(("scontrol", *arguments), COMMAND_LIMIT_S, together=True, cwd=cwd)
    if ran.status != 0:
        text = "no answer" if ran.status is None else ran.stdout.decode(errors="replace").strip()
        raise ValueError(f"scontrol {' '.join(arguments)}: {text}")
