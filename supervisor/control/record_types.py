"""Entries and bodies on the control socket of what was recorded; times are Unix seconds, unknown is null."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, field

from supervisor.control.types import SCHEMA

# --- GET /v1/incidents, /v1/incidents/ID ----------------------------------------------------------------------------


class ResumedFrom(Struct, frozen=True, kw_only=True):
    """The checkpoint that the next attempt was started from."""

    path: str
    epoch: int | None = None
    step: int | None = None
    source: str | None = None
    """Of a generation: the file that it was captured from."""


class IncidentEntry(Struct, frozen=True, kw_only=True):
    """One incident, from the flag to the first new step."""

    id: str
    job: str
    attempt: int
    at: float
    rule: str
    severity: str
    fault: str | None = None
    message: str
    decision: str
    """stop, kill, retry, give_up"""
    outcome: str
    """open, resumed, restarted, checkpoint_ignored, resumed_later, gave_up, stopped, overtaken"""
    confirmed: bool | None = None
    """Of resumed: whether its steps or losses show that it did go on from there; null before its first step."""
    last_step: int | None = None
    """As the training counts it; null where only the attempt's own count is known."""
    resumed_from: ResumedFrom | None = None
    loads_itself: bool = False
    """Of restarted: whether no checkpoint was given to the training, and it has to load its own."""
    went_on_step: int | None = None
    """Of restarted, or with own_file: the step that it went on from, 0 for the beginning; null where its steps do not
    show it."""
    own_file: str | None = None
    """The file that the training went on from by its own choice, in place of resumed_from."""
    set_aside: list[str] = field(default_factory=list)
    """Checkpoints newer than resumed_from that were moved aside, by the paths that they had."""
    resumed_at: float | None = None
    lost_steps: int | None = None
    downtime_s: float | None = None
    evidence: str | None = None
    """Folder."""
    reason: str | None = None
    """Why it was given up."""
    diagnosis: Diagnosis | None = None
    cause: str | None = None
    """What the remedy was chosen by."""
    remedy: str | None = None
    """What the next attempt was given."""
    remedy_why: str | None = None
    finding: TriageFinding | None = None
    """What a triage before the retry said."""


class TriageFinding(Struct, frozen=True, kw_only=True):
    """The cause of non-finite numbers, as replays of the step show it."""

    verdict: str
    """data, numerics, hardware, data_or_numerics, unknown"""
    words: str
    files: list[str] = field(default_factory=list)
    """What to look at first."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What was ruled out, the likely causes and the advice for a flag."""

    ruled_out: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    """The likeliest first."""
    advice: list[str] = field(default_factory=list)


class ShadowEntry(Struct, frozen=True, kw_only=True):
    """A flag on which a rule in shadow would have acted."""

    job: str
    attempt: int
    at: float
    rule: str
    message: str
    fault: str | None = None
    diagnosis: Diagnosis | None = None


class OutageEntry(Struct, frozen=True, kw_only=True):
    """A time in which the daemon did not run while an attempt of a job lived."""

    job: str
    attempt: int
    at: float
    """When the daemon was last known to run."""
    until: float
    """When it ran again."""


class StoryLine(Struct, frozen=True, kw_only=True):
    """One thing that happened around an incident: a flag, a decision, an event."""

    at: float
    what: str
    detail: str = ""


class EvidenceFile(Struct, frozen=True, kw_only=True):
    """One file of an incident's evidence."""

    name: str
    """Below the evidence's folder."""
    size_bytes: int


class EvidenceFiles(Struct, frozen=True, kw_only=True):
    """The evidence that was collected for an incident."""

    schema: int = SCHEMA
    folder: str
    files: list[EvidenceFile] = field(default_factory=list)


class EvidencePart(Struct, frozen=True, kw_only=True):
    """The end of one file of the evidence."""

    schema: int = SCHEMA
    name: str
    size_bytes: int
    """Of the complete file."""
    content: bytes
    """In JSON as Base64."""


# --- checkpoints, time, disk, tunes, remedies -------------------------------------------------------------------------


class CheckpointEntry(Struct, frozen=True, kw_only=True):
    """One saved state."""

    path: str
    saved_at: float
    size_bytes: int
    epoch: int | None = None
    step: int | None = None
    verdict: str | None = None
    """proven, rejected, or null where it was not checked yet."""
    reason: str | None = None
    kind: str = "checkpoint"
    """checkpoint, or snapshot: saved by the agent in mid-epoch."""
    source: str | None = None
    """Of a generation: the file that it was captured from; null for the training's own file."""
    kept_by: str | None = None
    """Of a generation: the limits that keep it; empty once it was pruned."""
    fitness: float | None = None


class Spent(Struct, frozen=True, kw_only=True):
    """Where the time between two moments went."""

    began: float | None = None
    ended: float | None = None
    ettr: float | None = None
    """Effective training time ratio, 0 to 1; null where no step was recorded."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By class: setup, compile, train, data_wait, validate, checkpoint, lost, down, waiting, unseen."""
    cost_s: dict[str, float] = field(default_factory=dict)
    """By cause: work lost, time down and the set-up after it."""
    faults: dict[str, int] = field(default_factory=dict)
    """By cause, how often."""


class JobAccount(Struct, frozen=True, kw_only=True):
    """How the time of a job was spent."""

    schema: int = SCHEMA
    job: str
    lifetime: Spent
    last_hour: Spent
    outages: int = 0
    """How often the daemon did not run while an attempt lived; what the training did then is in the seconds above."""
    outages_s: float = 0.0


class JobDisk(Struct, frozen=True, kw_only=True):
    """What the folder of one job takes on the disk."""

    job: str
    configured: bool
    """False: no longer; `supervisorctl forget` removes what is left of it."""
    attempts: int
    """Folders of attempts."""
    attempts_bytes: int
    """Their output, flight recorders and logs; evidence not counted."""
    evidence_bytes: int
    snapshots_bytes: int
    generations_bytes: int


class DiskUse(Struct, frozen=True, kw_only=True):
    """What the state directory takes on the disk, the largest job first."""

    schema: int = SCHEMA
    state_dir: str
    jobs: list[JobDisk] = field(default_factory=list)
    code_bytes: int
    """Copies of the program that running trainings were started with."""
    database_bytes: int


class BeforeAfterRate(Struct, frozen=True, kw_only=True):
    """A rate with the owner's settings, and with what was adopted; null where nothing was confirmed."""

    before: float | None = None
    after: float | None = None


class BeforeAfterName(Struct, frozen=True, kw_only=True):
    """A bottleneck before and after: data-bound, host-bound, GPU-bound, ..., mixed; null: none that is measured."""

    before: str | None = None
    after: str | None = None


class KnobAdopted(Struct, frozen=True, kw_only=True):
    """A setting that was proven: by what factor, less one, it is faster, with bounds."""

    knob: str
    value: Any
    gain: float
    low: float
    high: float
    remark: str = ""
    """What could not be compared; empty: nothing."""


class KnobRefused(Struct, frozen=True, kw_only=True):
    """A setting that is not adopted, and why; `value` is null where it was not tried."""

    knob: str
    value: Any
    why: str


class TuneReport(Struct, frozen=True, kw_only=True):
    """Answer to GET and POST /v1/jobs/JOB/tune: the tune under way, or the last one."""

    schema: int = SCHEMA
    job: str
    state: str
    """diagnosing, trying, ended"""
    trying: str = ""
    pairs: int = 0
    """Of blocks, of what is being tried."""
    steps: int = 0
    """Counted so far."""
    made: int = 0
    """So far, with those that no block counts."""
    problem: str | None = None
    """Why it ended before its time."""
    unit: str = "samples"
    """What the rates count: samples, or steps where the samples are not known."""
    samples_per_s: BeforeAfterRate = BeforeAfterRate()
    adopted: list[KnobAdopted] = field(default_factory=list)
    refused: list[KnobRefused] = field(default_factory=list)
    left: list[KnobRefused] = field(default_factory=list)
    """Not tried."""
    bottleneck: BeforeAfterName = BeforeAfterName()
    why: str = ""
    """What the first bottleneck's verdict rests on."""


def encode(value: Struct) -> dict[str, Any]:
    """Return a body as plain values, as they are kept in a file."""
    found = msgspec.to_builtins(value)
    assert isinstance(found, dict)
    return found


def decode_tune_report(value: object) -> TuneReport | None:
    """Return a report that was kept, None for anything else."""
    try:
        return msgspec.convert(value, TuneReport)
    except msgspec.ValidationError:
        return None


class Forgotten(Struct, frozen=True, kw_only=True):
    """Answer to POST /v1/jobs/JOB/forget."""

    schema: int = SCHEMA
    job: str
    rows: int
    """Deleted from the record."""
    folder_removed: bool
    """False: a part of its folder could not be removed."""


class RemedyInForce(Struct, frozen=True, kw_only=True):
    """A remedy that every attempt of a job gets."""

    job: str
    remedy: str
    cause: str
    attempt: int
    """The first that had it."""
    what: str
    """What it does, in words."""
    applied: str | None = None
    """What the agent reported that it set; null where nothing was reported."""


class RemedyTried(Struct, frozen=True, kw_only=True):
    """A remedy that a job was given, from `attempt` on."""

    job: str
    attempt: int
    at: float
    cause: str
    remedy: str
    step: int | None = None
    """The step of the fault."""
    outcome: str
    """open, helped, failed, unclear, skipped"""
    settled_at: float | None = None
    reason: str | None = None


class RemedyLearned(Struct, frozen=True, kw_only=True):
    """How often a remedy helped and failed on this machine against one cause."""

    cause: str
    remedy: str
    helped: int
    failed: int


class RemedyReport(Struct, frozen=True, kw_only=True):
    """Remedies: in force, tried (newest first), and what this machine has learned of them."""

    schema: int = SCHEMA
    in_force: list[RemedyInForce] = field(default_factory=list)
    tried: list[RemedyTried] = field(default_factory=list)
    learned: list[RemedyLearned] = field(default_factory=list)
