"""What a state directory takes on the disk: each job's attempts, evidence, snapshots and generations, and the rest."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from supervisor import untrusted_files
from supervisor.control import record_types
from supervisor.core import attempt_files as names

CODE = "code"
DATABASE_SUFFIXES = ("", "-wal", "-shm", ".ballast")


def disk_use(state: Path, database: Path, configured: Collection[str]) -> record_types.DiskUse:
    """Return the disk use in bytes, the largest job first; raise OSError where a folder of the daemon is unreadable.

    Folders that a training's user has closed to the daemon are not counted.
    """
    found = untrusted_files.list_names(state).names
    jobs = untrusted_files.list_names(state, "jobs").names if "jobs" in found else ()
    listed = [job_disk(state / "jobs", job, configured=job in configured) for job in jobs if not job.startswith(".")]
    return record_types.DiskUse(
        state_dir=str(state),
        jobs=sorted(listed, key=lambda job: (-total_bytes(job), job.job)),
        code_bytes=untrusted_files.tree_bytes(state, CODE),
        database_bytes=sum(_file_bytes(database.with_name(database.name + suffix)) for suffix in DATABASE_SUFFIXES),
    )


def job_disk(jobs: Path, job: str, *, configured: bool) -> record_types.JobDisk:
    """Return what the folder of one job takes; raise OSError where it is unreadable."""
    inside = untrusted_files.list_names(jobs / job).names
    attempts = [name for name in inside if name.isascii() and name.isdecimal()]
    evidence = sum(untrusted_files.tree_bytes(jobs, f"{job}/{name}/{names.EVIDENCE}") for name in attempts)
    snapshots, generations = (untrusted_files.tree_bytes(jobs, f"{job}/{name}") for name in _SAVED)
    total = untrusted_files.tree_bytes(jobs, job)
    return record_types.JobDisk(
        job=job,
        configured=configured,
        attempts=len(attempts),
        attempts_bytes=max(0, total - evidence - snapshots - generations),
        evidence_bytes=evidence,
        snapshots_bytes=snapshots,
        generations_bytes=generations,
    )


def total_bytes(job: record_types.JobDisk) -> int:
    """Return everything that a job's folder takes."""
    return job.attempts_bytes + job.evidence_bytes + job.snapshots_bytes + job.generations_bytes


_SAVED = (names.SNAPSHOTS, names.GENERATIONS)


def _file_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:
        return 0
