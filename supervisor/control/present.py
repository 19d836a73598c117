"""Converts facts of `core` into bodies of the control socket; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from supervisor.control import record_types, types
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.core.decisions import Note
from supervisor.core.flags import SHADOW, Diagnosis
from supervisor.core.gauge import Gauge
from supervisor.core.incident import Incident
from supervisor.core.readings import GpuReading, HostReading
from supervisor.core.reports.account import Account, account
from supervisor.core.reports.outages import Unwatched
from supervisor.core.reports.timeline import Life, Use
from supervisor.core.rules import Rule, act_of
from supervisor.core.triage.finding import Finding
from supervisor.store.records import IncidentStory

HOUR_S = 3600.0


def incident_entry(incident: Incident) -> record_types.IncidentEntry:
    """Return an incident as `history` shows it."""
    point, flag = incident.resumed_from, incident.flag
    return record_types.IncidentEntry(
        id=incident.id,
        job=incident.job,
        attempt=incident.attempt,
        at=flag.at.unix_s,
        rule=flag.rule,
        severity=flag.severity.label,
        fault=flag.fault,
        message=flag.message,
        decision=incident.decision,
        outcome=incident.outcome,
        confirmed=incident.confirmed,
        last_step=incident.last_training_step,
        resumed_from=None if point is None else _resumed_from(point),
        loads_itself=incident.loads_itself,
        went_on_step=incident.went_on_step,
        own_file=incident.own_file,
        set_aside=list(incident.set_aside),
        resumed_at=None if incident.resumed_at is None else incident.resumed_at.unix_s,
        lost_steps=incident.lost_steps,
        downtime_s=incident.downtime_s,
        evidence=incident.evidence,
        reason=incident.reason,
        diagnosis=diagnosis_entry(flag.diagnosis),
        cause=incident.cause,
        remedy=incident.remedy,
        remedy_why=incident.remedy_why,
        finding=None if incident.finding is None else _triage_finding(incident.finding),
    )


def _triage_finding(finding: Finding) -> record_types.TriageFinding:
    return record_types.TriageFinding(verdict=finding.verdict, words=finding.words, files=list(finding.files))


def diagnosis_entry(diagnosis: Diagnosis | None) -> record_types.Diagnosis | None:
    """Return the diagnosis of a flag as `show` prints it."""
    if diagnosis is None:
        return None
    return record_types.Diagnosis(
        ruled_out=list(diagnosis.ruled_out), causes=list(diagnosis.causes), advice=list(diagnosis.advice)
    )


def shadow_entry(note: Note) -> record_types.ShadowEntry:
    """Return a flag in shadow as `history --shadow` shows it."""
    flag = note.flag
    return record_types.ShadowEntry(
        job=note.job,
        attempt=note.attempt,
        at=note.at.unix_s,
        rule=flag.rule,
        message=flag.message,
        fault=flag.fault,
        diagnosis=diagnosis_entry(flag.diagnosis),
    )


def watched_status(rule: Rule, watched: Gauge) -> types.WatchedStatus:
    """Return a gauge as `status` shows it."""
    return types.WatchedStatus(
        rule=rule.name,
        group=rule.group,
        what=watched.what,
        unit=watched.unit,
        now=finite(watched.now),
        limit=finite(watched.limit),
        below=watched.below,
        share=watched.share,
        held_s=watched.held_s,
        hold_s=watched.hold_s,
        lacks=watched.lacks,
        reached=watched.reached,
        severity=watched.severity.label,
        learned=watched.learned,
        enabled=rule.enabled,
        shadow=act_of(rule) == SHADOW,
        not_watched=watched.not_watched,
    )


def _resumed_from(point: Checkpoint) -> record_types.ResumedFrom:
    return record_types.ResumedFrom(path=point.path, epoch=point.epoch, step=point.step, source=point.source)


def checkpoint_entry(checkpoint: Checkpoint) -> record_types.CheckpointEntry:
    """Return a checkpoint as `checkpoints` shows it."""
    return record_types.CheckpointEntry(
        path=checkpoint.path,
        saved_at=checkpoint.saved_unix_s,
        size_bytes=checkpoint.fingerprint.size_bytes,
        epoch=checkpoint.epoch,
        step=checkpoint.step,
        verdict=None if checkpoint.verdict is None else checkpoint.verdict.value,
        reason=checkpoint.reason,
        kind=checkpoint.kind,
        source=checkpoint.source,
        kept_by=checkpoint.kept_by,
        fitness=finite(checkpoint.fitness),
    )


def outage_entry(unwatched: Unwatched) -> record_types.OutageEntry:
    """Return an outage of the daemon as `history` shows it."""
    outage = unwatched.outage
    return record_types.OutageEntry(
        job=unwatched.job, attempt=unwatched.attempt, at=outage.began_unix_s, until=outage.ended_unix_s
    )


def job_account(
    job: str, lives: Sequence[Life], unwatched: Sequence[Unwatched], now_unix_s: float
) -> record_types.JobAccount:
    """Return a job's account as `account` shows it: since its first launch, and over the last hour."""
    total, last_hour = account(lives, now_unix_s), account(lives, now_unix_s, HOUR_S)
    outages = {item.outage for item in unwatched}
    return record_types.JobAccount(
        job=job,
        lifetime=_spent_body(total),
        last_hour=_spent_body(last_hour),
        outages=len(outages),
        outages_s=sum(outage.seconds for outage in outages),
    )


def _spent_body(sums: Account) -> record_types.Spent:
    return record_types.Spent(
        began=sums.began_unix_s,
        ended=sums.ended_unix_s,
        ettr=sums.ettr,
        seconds={use.value: sums.seconds.get(use, 0.0) for use in Use},
        cost_s=dict(sums.cost_s),
        faults=dict(sums.faults),
    )


def gpu_status(reading: GpuReading) -> types.GpuStatus:
    """Return the newest reading of a GPU as `status` shows it."""
    shown = {name: getattr(reading, name) for name in types.GpuStatus.__struct_fields__ if name != "at"}
    return types.GpuStatus(at=reading.at.unix_s, **shown)


def host_status(reading: HostReading) -> types.HostStatus:
    """Return the newest reading of the host as `status` shows it."""
    shown = {name: getattr(reading, name) for name in types.HostStatus.__struct_fields__ if name not in ("at", "disks")}
    disks = [
        types.DiskStatus(
            path=disk_reading.path, free_bytes=disk_reading.free_bytes, total_bytes=disk_reading.total_bytes
        )
        for disk_reading in reading.disks
    ]
    return types.HostStatus(at=reading.at.unix_s, disks=disks, **shown)


def finite(value: float | None) -> float | None:
    """Return the number where JSON can carry it; NaN and the infinities become null, the flags say which it was."""
    return value if value is not None and math.isfinite(value) else None


def story_lines(story: IncidentStory) -> list[record_types.StoryLine]:
    """Return an incident's flags and decisions as lines in the order of time."""
    lines = [
        record_types.StoryLine(
            at=flag_record.at_unix_s, what=f"{flag_record.severity} flag {flag_record.rule}", detail=flag_record.message
        )
        for flag_record in story.flags
    ]
    lines += [
        record_types.StoryLine(at=decision.at_unix_s, what=f"decision {decision.kind}", detail=decision.reason or "")
        for decision in story.decisions
    ]
    return sorted(lines, key=lambda story_line: story_line.at)
