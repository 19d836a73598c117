"""Pure functions that convert facts of the core to rows of the tables."""

from __future__ import annotations

from dataclasses import asdict

from typing_extensions import assert_never

from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.flags import RedFlag
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job
from supervisor.core.measured import measures_of
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading, ProcessReading
from supervisor.core.remedies.trials import Trial
from supervisor.store.encode import kind_of, text, to_json
from supervisor.store.jobs import encode
from supervisor.store.steps import INTEGER_MAX, Row

_GPU = ("gpu", "name", "unique_id", "gfx_version", "vram_total_bytes", "gtt_total_bytes")


def gpu_row(reading: GpuReading) -> Row:
    """Return the properties of a GPU that do not change."""
    return {**{name: getattr(reading, name) for name in _GPU}, "seen_unix_s": reading.at.unix_s}


def gpu_sample_row(reading: GpuReading) -> Row:
    """Return the row of one reading of a GPU."""
    return {
        "at_unix_s": reading.at.unix_s,
        "gpu": reading.gpu,
        "source": reading.source,
        **_measured_values(GpuReading, reading),
    }


def _measured_values(kind: type, reading: object) -> Row:
    """Return the values of the fields that a reading declares as recorded."""
    return {name: getattr(reading, name) for name, measure in measures_of(kind).items() if measure.record}


def host_sample_row(reading: HostReading) -> Row:
    """Return the row of one reading of the host."""
    disks = [asdict(disk) for disk in reading.disks]
    return {"at_unix_s": reading.at.unix_s, **_measured_values(HostReading, reading), "disks": to_json(disks)}


def process_sample_row(job: str, attempt: int, reading: ProcessReading) -> Row:
    """Return the row of one reading of an attempt's process tree."""
    return {
        "at_unix_s": reading.at.unix_s,
        "job": job,
        "attempt": attempt,
        "processes": reading.processes,
        "rss_bytes": reading.rss_bytes,
        "cpu_percent": reading.cpu_percent,
        "uninterruptible": len(reading.uninterruptible_pids),
    }


def job_row(job: Job, boot_id: str, now: Moment) -> Row:
    """Return the row of a job."""
    return {
        "name": job.name,
        "phase": job.phase.value,
        "desired_state": job.desired_state.value,
        "attempt": job.number,
        "reason": _limit_text(job.reason),
        "since_unix_s": job.since.unix_s,
        "state": encode(job),
        "boot_id": boot_id,
        "saved_monotonic_s": now.monotonic_s,
        "saved_unix_s": now.unix_s,
    }


def incident_row(incident: Incident) -> Row:
    """Return the row of an incident."""
    return {
        "id": incident.id,
        "job": incident.job,
        "attempt": incident.attempt,
        "opened_unix_s": incident.flag.at.unix_s,
        "rule": incident.flag.rule,
        "fault": incident.flag.fault,
        "message": text(incident.flag.message),
        "decision": incident.decision,
        "outcome": incident.outcome,
        "last_step": incident.last_step,
        "resumed_from": incident.resumed_from.path if incident.resumed_from else None,
        "resumed_unix_s": incident.resumed_at.unix_s if incident.resumed_at else None,
        "lost_steps": incident.lost_steps,
        "downtime_s": incident.downtime_s,
        "evidence": incident.evidence,
        "reason": _limit_text(incident.reason),
        "closed": incident.closed,
        "state": encode(incident),
    }


def flag_row(job: str, attempt: int, flag: RedFlag) -> Row:
    """Return the row of a raised flag."""
    return {
        "job": job,
        "attempt": attempt,
        "at_unix_s": flag.at.unix_s,
        "rule": flag.rule,
        "severity": flag.severity.label,
        "subject": flag.subject or None,
        "fault": flag.fault,
        "message": text(flag.message),
        "since_unix_s": flag.since.unix_s if flag.since else None,
        "since_step": flag.since_step,
        "can_save": flag.can_save,
    }


def decision_row(decision: de.Decision) -> Row:
    """Return the row of a decision."""
    flag = None if isinstance(decision, (de.Launch, de.Kill, de.LastResort, de.Triage, de.Finish)) else decision.flag
    return {
        "job": decision.job,
        "attempt": decision.attempt,
        "at_unix_s": decision.at.unix_s,
        "kind": kind_of(decision),
        "reason": text(_build_reason(decision)),
        "rule": flag.rule if flag else None,
        "body": to_json(decision),
    }


def _build_reason(decision: de.Decision) -> str:
    if isinstance(decision, de.Warn | de.Note):
        return decision.flag.message
    if isinstance(decision, de.Retry) and decision.remedy is not None:
        return f"{decision.reason}; remedy {decision.remedy}: {decision.why}"
    return decision.reason


def checkpoint_row(job: str, attempt: int, checkpoint: Checkpoint, now: Moment) -> Row:
    """Return the row of a checkpoint, in its present state."""
    return {
        "job": job,
        "path": text(checkpoint.path),
        "size_bytes": checkpoint.fingerprint.size_bytes,
        "modified_ns": checkpoint.fingerprint.modified_ns,
        "inode": _to_signed(checkpoint.fingerprint.inode),
        "attempt": attempt,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "verdict": checkpoint.verdict.value if checkpoint.verdict else None,
        "reason": _limit_text(checkpoint.reason),
        "kind": text(checkpoint.kind),
        "source": _limit_text(checkpoint.source),
        "fitness": checkpoint.fitness,
        "kept_by": _limit_text(checkpoint.kept_by),
        "first_seen_unix_s": now.unix_s,
        "judged_unix_s": now.unix_s if checkpoint.verdict else None,
    }


def checkpoint_of(row: Row) -> Checkpoint:
    """Return the checkpoint of a row."""
    inode = row["inode"] if row["inode"] >= 0 else row["inode"] + 2**64
    return Checkpoint(
        path=row["path"],
        fingerprint=Fingerprint(size_bytes=row["size_bytes"], modified_ns=row["modified_ns"], inode=inode),
        epoch=row["epoch"],
        step=row["step"],
        verdict=Verdict(row["verdict"]) if row["verdict"] else None,
        reason=row["reason"],
        kind=row["kind"] or "checkpoint",
        source=row["source"],
        fitness=row["fitness"],
        kept_by=row["kept_by"],
    )


def remedy_row(job: str, trial: Trial) -> Row:
    """Return the row of a remedy that was tried."""
    return {
        "job": job,
        "attempt": trial.attempt,
        "at_unix_s": trial.at.unix_s,
        "cause": trial.cause,
        "remedy": trial.remedy,
        "step": trial.step,
        "reason": text(trial.reason),
        "outcome": trial.outcome.value,
        "settled_unix_s": trial.settled_at.unix_s if trial.settled_at else None,
    }


def opened_row(launch: de.Launch, folder: str) -> Row:
    """Return the columns of an attempt that are known at its launch."""
    resume_from = launch.resume_from
    return {
        "job": launch.job,
        "number": launch.attempt,
        "launched_unix_s": launch.at.unix_s,
        "folder": text(folder),
        "resume_from": text(resume_from.path) if resume_from else None,
        "resume_epoch": resume_from.epoch if resume_from else None,
        "resume_step": resume_from.step if resume_from else None,
        "reason": text(launch.reason),
    }


def closed_row(job: str, attempt: Attempt, at: Moment) -> Row:
    """Return the columns of an attempt that are known once all its processes have ended."""
    status = attempt.exit
    return {
        "job": job,
        "number": attempt.number,
        "ended_unix_s": at.unix_s,
        "exit_code": status.code if status else None,
        "exit_signal": status.signal if status else None,
        "error": _limit_text(attempt.launch_error or (status.error if status else None)),
        "host_lost": _limit_text(attempt.host_lost),
        "max_rss_bytes": status.max_rss_bytes if status else None,
    }


def event_row(event: ev.Event) -> Row | None:
    """Return the row of an event that is rare enough to be recorded, None for the others."""
    if not _is_rare(event):
        return None
    return {
        "at_unix_s": event.at.unix_s,
        "kind": kind_of(event),
        "job": getattr(event, "job", None),
        "attempt": getattr(event, "attempt", None),
        "body": to_json(event),
    }


def _is_rare(event: ev.Event) -> bool:
    match event:
        case ev.Tick() | ev.StepsMade() | ev.RecorderIdle() | ev.GpusRead() | ev.HostRead() | ev.ProcessesRead():
            return False
        case ev.PeerWaitsSeen() | ev.PeerStageSeen() | ev.AlertTried():
            return False
        case ev.OutputSeen() | ev.KernelReported():
            return bool(event.findings)
        case ev.UserRequest() | ev.StartAsked() | ev.Launched() | ev.LaunchFailed() | ev.Signalled() | ev.Continued():
            return True
        case ev.Exited() | ev.HostLost() | ev.EvidenceTaken() | ev.ResortEnded() | ev.TriageEnded():
            return True
        case ev.ResumePointFound() | ev.CheckpointSeen() | ev.StageEntered() | ev.AgentReported():
            return True
        case ev.CheckpointNotKept() | ev.CheckpointsClosed() | ev.ExistingFound():
            return True
        case ev.SourceChanged() | ev.RuleChanged() | ev.ClockStepped() | ev.DaemonAway() | ev.SupervisionChanged():
            return True
    assert_never(event)


def _limit_text(value: str | None) -> str | None:
    return None if value is None else text(value)


def _to_signed(inode: int) -> int:
    """Convert an unsigned inode number to SQLite's signed 64 bits; `checkpoint_of` converts it back."""
    return inode if inode <= INTEGER_MAX else inode - 2**64
