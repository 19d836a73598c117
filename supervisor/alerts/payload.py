"""Notices of what changes in a job, as the record keeps them and webhooks send them; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from supervisor.core import decisions as de
from supervisor.core.flags import Diagnosis, RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Job
from supervisor.core.moments import Moment
from supervisor.core.sanitize import sanitize
from supervisor.core.triage.finding import Finding
from supervisor.json_bytes import encode_json

LARGEST_BODY_BYTES = 20_000
TEXT_LIMIT = 700
NAME_LIMIT = 150
DIAGNOSIS_LIMIT = 200
PATHS_LIMIT = 5
FILES_LISTED = 3
TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One change that is worth an alert, the same for every receiver."""

    type: str
    """`incident.opened`, `incident.triaged`, `incident.resumed`, `job.gave_up`, `job.finished`, `job.last_resort`,
    `flag.warning`, `flag.critical`, `test`."""
    severity: Severity
    key: str
    """What it is about: notices of equal key and type are sent once."""
    job: str | None
    at: Moment
    data: Mapping[str, object]
    outcome: bool = False
    """Whether it ends what was reported before, or what its owner waits for: sent however high the receiver's floor."""

    def wanted(self, floor: Severity) -> bool:
        """Whether a receiver with this floor is sent it."""
        return self.outcome or self.severity >= floor

    def body(self) -> bytes:
        """Return the body of a Standard Webhook, less than 20 kB."""
        data = {"severity": self.severity.label, **self.data}
        encoded = encode_json({"type": self.type, "timestamp": rfc3339(self.at.unix_s), "data": data})
        assert len(encoded) < LARGEST_BODY_BYTES, "every text in it is bounded"
        return encoded


def alert_id(notice: Notice, sink: str) -> str:
    """Return the `webhook-id` of a notice for one receiver: the same however often it is asked."""
    digest = hashlib.sha256("\0".join((notice.key, notice.type, sink)).encode("utf-8", "replace")).hexdigest()
    return f"msg_{digest[:32]}"


def digest_id(ids: Iterable[str]) -> str:
    """Return the id of a message that stands for several notices."""
    return f"msg_{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:32]}"


def rfc3339(unix_s: float) -> str:
    """Return a time as RFC 3339 in UTC, milliseconds."""
    moment = datetime.fromtimestamp(unix_s, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clean(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return a text without what could act on a terminal or deceive a reader, at most `limit` characters.

    Texts come from trainings and kernel logs: escape sequences, control characters and bidirectional overrides go.
    """
    return sanitize(text[: 4 * limit], limit)


def notices(before: Job | None, after: Job, decision: de.Decision | None, at: Moment, host: str) -> tuple[Notice, ...]:
    """Return the notices of a change of a job: by an event (`decision` None) or by a decision.

    Asked again about the same change it returns the same keys, so that nothing is sent twice.
    """
    return tuple(_list_notices(before, after, decision, at, {"host": clean(host, NAME_LIMIT), **_describe_job(after)}))


def self_test(receiver: str, at: Moment, host: str, number: int) -> Notice:
    """Return the notice that `supervisorctl alerts test` sends; `number` tells two of the same moment apart."""
    data = {"host": clean(host, NAME_LIMIT), "message": f"test of the receiver {clean(receiver, NAME_LIMIT)}"}
    key = f"test {at.unix_s} {number}"
    return Notice(type=TEST, severity=Severity.CRITICAL, key=key, job=None, at=at, data=data)


def remind(job: Job, number: int, at: Moment, host: str) -> Notice:
    """Return a reminder, the `number`th, that a training still stands given up; of the type that reported it."""
    incident = job.incident if job.incident and job.incident.outcome == "gave_up" else None
    data = {
        "host": clean(host, NAME_LIMIT),
        **_describe_job(job),
        "reason": clean(job.reason or ""),
        **(_describe_incident(incident) if incident else {}),
        "given_up_at": rfc3339(job.since.unix_s),
        "reminder": number,
    }
    return Notice(
        type="job.gave_up",
        severity=Severity.CRITICAL,
        key=f"job {job.name} {job.number} {job.since.unix_s:.0f} reminder {number}",
        job=job.name,
        at=at,
        data=data,
        outcome=True,
    )


def _list_notices(
    before: Job | None, after: Job, decision: de.Decision | None, at: Moment, common: Mapping[str, object]
) -> Iterator[Notice]:
    earlier, incident = before.incident if before else None, after.incident
    if incident is not None and (earlier is None or earlier.id != incident.id):
        yield _of_incident("incident.opened", after, incident, at, common)
    if incident is not None and _has_finding(incident) and not (earlier is not None and _has_finding(earlier)):
        yield _of_incident("incident.triaged", after, incident, at, common)
    mended = not (isinstance(decision, de.Finish) and decision.unconfirmed)
    if incident is not None and mended and incident.resumed_at and earlier is not None and not earlier.resumed_at:
        yield _of_incident("incident.resumed", after, incident, at, common)
    match decision:
        case de.GiveUp():
            yield _report_give_up(after, decision, at, common)
        case de.Finish(by_user=False):
            yield _report_finish(after, decision, at, common)
        case de.LastResort():
            yield _report_last_resort(after, decision, at, common)
        case de.Warn() | de.Continue():
            yield _report_warning(after, decision, at, common)
        case _:
            pass


def _has_finding(incident: Incident) -> bool:
    """Whether a triage came to a verdict; an inconclusive one is no news of its own."""
    return incident.finding is not None and incident.finding.verdict != "unknown"


def _of_incident(kind: str, job: Job, incident: Incident, at: Moment, common: Mapping[str, object]) -> Notice:
    return Notice(
        type=kind,
        severity=incident.flag.severity,
        key=f"incident {incident.id}",
        job=job.name,
        at=at,
        data={**common, **_describe_incident(incident)},
        outcome=kind == "incident.resumed",
    )


def _report_give_up(job: Job, decision: de.GiveUp, at: Moment, common: Mapping[str, object]) -> Notice:
    incident = job.incident if job.incident and job.incident.attempt == decision.attempt else None
    key = f"incident {incident.id}" if incident else f"job {job.name} {decision.attempt} {decision.at.unix_s}"
    reason = {"reason": clean(decision.reason), **(_describe_incident(incident) if incident else {})}
    return Notice(
        type="job.gave_up",
        severity=Severity.CRITICAL,
        key=key,
        job=job.name,
        at=at,
        data={**common, **reason, "attempt": decision.attempt},
        outcome=True,
    )


def _report_last_resort(job: Job, decision: de.LastResort, at: Moment, common: Mapping[str, object]) -> Notice:
    return Notice(
        type="job.last_resort",
        severity=Severity.CRITICAL,
        key=f"job {job.name} {decision.attempt} {decision.kind} {decision.at.unix_s}",
        job=job.name,
        at=at,
        data={**common, "reason": clean(decision.reason), "kind": decision.kind},
    )


def _report_finish(job: Job, decision: de.Finish, at: Moment, common: Mapping[str, object]) -> Notice:
    facts = {"reason": clean(decision.reason), "restarts": job.ledger.total}
    return Notice(
        type="job.finished",
        severity=Severity.WARNING if decision.unconfirmed else Severity.INFO,
        key=f"job {job.name} {decision.attempt} {decision.at.unix_s}",
        job=job.name,
        at=at,
        data={**common, **facts, **({"unconfirmed": True} if decision.unconfirmed else {})},
        outcome=True,
    )


def _report_warning(job: Job, decision: de.Warn | de.Continue, at: Moment, common: Mapping[str, object]) -> Notice:
    flag = decision.flag
    return Notice(
        type=f"flag.{flag.severity.label}",
        severity=flag.severity,
        key=f"flag {job.name} {decision.attempt} {flag.rule} {flag.subject}",
        job=job.name,
        at=at,
        data={**common, **_describe_flag(flag)},
    )


def _describe_job(job: Job) -> dict[str, object]:
    """Return where the job stands, what of it is known."""
    attempt = job.attempt
    facts: dict[str, object | None] = {
        "job": clean(job.name, NAME_LIMIT),
        "attempt": job.number,
        "phase": job.phase.value,
        "last_step": attempt.training_step(attempt.last_step) if attempt else None,
        "epoch": attempt.epoch if attempt else None,
        "loss": attempt.loss if attempt else None,
    }
    return _drop_unknown(facts)


def _describe_incident(incident: Incident) -> dict[str, object]:
    resumed = incident.resumed_from
    facts: dict[str, object | None] = {
        "incident": clean(incident.id, NAME_LIMIT),
        "attempt": incident.attempt,
        "decision": incident.decision,
        "outcome": incident.outcome,
        "step_before": incident.last_training_step,
        "resumed_from": clean(resumed.path) if resumed else None,
        "resumed_step": resumed.step if resumed else None,
        "resumed_epoch": resumed.epoch if resumed else None,
        "loads_itself": incident.loads_itself or None,
        "went_on_step": incident.went_on_step,
        "own_file": clean(incident.own_file) if incident.own_file else None,
        "set_aside": [clean(path) for path in incident.set_aside[:PATHS_LIMIT]] or None,
        "lost_steps": incident.lost_steps,
        "downtime_s": incident.downtime_s,
        "evidence": clean(incident.evidence) if incident.evidence else None,
        "reason": clean(incident.reason) if incident.reason else None,
        "cause": incident.cause,
        "remedy": incident.remedy,
        "remedy_why": clean(incident.remedy_why) if incident.remedy_why else None,
        "triage": _describe_finding(incident.finding) if incident.finding else None,
    }
    # What replays have shown takes the place of what the rule could only guess.
    flag = replace(incident.flag, diagnosis=None) if _has_finding(incident) else incident.flag
    return {**_describe_flag(flag), **_drop_unknown(facts)}


def _describe_flag(flag: RedFlag) -> dict[str, object]:
    facts: dict[str, object | None] = {
        "rule": clean(flag.rule, NAME_LIMIT),
        "message": clean(flag.message),
        "subject": clean(flag.subject, NAME_LIMIT) or None,
        "fault": clean(flag.fault, NAME_LIMIT) if flag.fault else None,
        "since": rfc3339(flag.since.unix_s) if flag.since else None,
        "since_step": flag.since_step,
    }
    return {**_drop_unknown(facts), **(_describe_diagnosis(flag.diagnosis) if flag.diagnosis else {})}


def _describe_finding(finding: Finding) -> dict[str, object]:
    """Return what a triage found with the first files: `supervisorctl show` has the rest."""
    files = [clean(file, DIAGNOSIS_LIMIT) for file in finding.files[:FILES_LISTED]]
    words = clean(finding.words, DIAGNOSIS_LIMIT)
    return {"verdict": finding.verdict, "words": words, **({"files": files} if files else {})}


def _describe_diagnosis(diagnosis: Diagnosis) -> dict[str, object]:
    """Return the likeliest causes and the first advice: a phone shows a few lines, `supervisorctl show` the rest."""
    lists = {"causes": diagnosis.causes, "advice": diagnosis.advice}
    return {name: [clean(text, DIAGNOSIS_LIMIT) for text in texts[:2]] for name, texts in lists.items() if texts}


def _drop_unknown(facts: Mapping[str, object | None]) -> dict[str, object]:
    return {name: value for name, value in facts.items() if value is not None}
