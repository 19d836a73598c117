"""Builds the recording of an attempt from the daemon's database and the attempt's folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path

import msgspec

from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, GpuReading, HostReading, ProcessReading, StepRecord
from supervisor.replay.folder import RecordingError, event_types
from supervisor.replay.recording import Recording, when
from supervisor.sources.attempt.recorder import RecorderReader
from supervisor.store.archive import Archive
from supervisor.store.records import AttemptRecord, EventRecord, GpuRecord, GpuSample, HostSample, ProcessSample

ALL = 10_000_000
SLACK_S = 60.0
"""Readings this long after the end still belong to the story."""


def of_attempt(  # noqa: PLR0913 - what of an attempt the record does not hold
    archive: Archive,
    job: str,
    number: int | None = None,
    rules: Mapping[str, Mapping[str, object]] | None = None,
    *,
    gpus_used: tuple[str, ...] = (),
    disks: frozenset[str] | None = None,
    now_unix_s: float,
) -> Recording:
    """Return an attempt, the newest where no number is given; raise RecordingError where none is kept, ArchiveError.

    `disks`: the paths by which those are read that the job writes to, None for all. `now_unix_s`: the time; no step of
    an attempt that still runs is later.
    """
    attempt = _find_attempt(archive, job, number)
    launched = _launched_at(archive, attempt)
    empty = Recording(job=job, attempt=attempt.number, launched_at=launched)
    facts = sorted(_read_events(archive, attempt, empty, disks), key=when)
    return Recording(
        job=job,
        attempt=attempt.number,
        launched_at=launched,
        gpus_used=gpus_used,
        rules=rules or {},
        made_of=f"{archive.path}: {job}, attempt {attempt.number}",
        facts=facts,
        buckets=archive.step_metrics(job, attempt.number),
        steps=_recorded_steps(attempt, empty, now_unix_s),
    )


def _find_attempt(archive: Archive, job: str, number: int | None) -> AttemptRecord:
    """Return an attempt, the newest where no number is given. Raises RecordingError where none is kept."""
    attempts = [item for item in archive.attempts(job, ALL) if number in (None, item.number)]
    if not attempts or attempts[0].launched_unix_s is None:
        which = f"attempt {number}" if number is not None else "an attempt"
        raise RecordingError(f"{archive.path}: {which} of job {job!r} is not recorded; see supervisorctl status")
    return attempts[0]


def _launched_at(archive: Archive, attempt: AttemptRecord) -> Moment:
    """Return the launch on the monotonic clock of its boot, where an event tells that clock."""
    assert attempt.launched_unix_s is not None
    for row in archive.events(attempt.job, kind="launched", limit=ALL):
        if row.attempt == attempt.number and (event := _decode_event(row)) is not None:
            return event.at.at_monotonic(event.at.monotonic_s - (event.at.unix_s - attempt.launched_unix_s))
    return Moment(0.0, attempt.launched_unix_s)


def _read_events(
    archive: Archive, attempt: AttemptRecord, clock: Recording, disks: frozenset[str] | None
) -> Iterator[ev.Event]:
    began = attempt.launched_unix_s or 0.0
    until = None if attempt.ended_unix_s is None else attempt.ended_unix_s + SLACK_S
    for row in archive.events(attempt.job, after_id=0, limit=ALL):
        concerns = row.attempt == attempt.number if row.job is not None else _is_within(row.at_unix_s, began, until)
        if concerns and (event := _decode_event(row)) is not None:
            yield event
    cards = {gpu_record.gpu: gpu_record for gpu_record in archive.gpus()}
    for reading in archive.gpu_samples(None, began, until, ALL):
        seen = _build_gpu_reading(reading, cards.get(reading.gpu), clock)
        yield ev.GpusRead(at=seen.at, readings=(seen,))
    for sample in archive.host_samples(began, until, ALL):
        yield ev.HostRead(at=clock.moment(sample.at_unix_s), reading=_build_host_reading(sample, clock).of_disks(disks))
    for tree in archive.process_samples(attempt.job, began, until, ALL):
        if tree.attempt == attempt.number:
            reading_of = _build_process_reading(tree, clock)
            yield ev.ProcessesRead(at=reading_of.at, job=attempt.job, attempt=attempt.number, reading=reading_of)


def _is_within(unix_s: float, began: float, until: float | None) -> bool:
    return began <= unix_s and (until is None or unix_s <= until)


def _decode_event(row: EventRecord) -> ev.Event | None:
    """Return a recorded event; None for one of a kind, or of a form, that this version does not know."""
    kind = event_types().get(row.kind)
    if kind is None:
        return None
    try:
        return msgspec.json.decode(row.body, type=kind, strict=False)
    except msgspec.MsgspecError:
        return None


def _build_gpu_reading(sample: GpuSample, card: GpuRecord | None, clock: Recording) -> GpuReading:
    known = {field.name for field in fields(GpuReading)}
    fixed = {} if card is None else {name: value for name, value in asdict(card).items() if name in known}
    values = {**fixed, "gpu": sample.gpu, "source": sample.source, **sample.values}
    return GpuReading(at=clock.moment(sample.at_unix_s), **values)


def _build_host_reading(sample: HostSample, clock: Recording) -> HostReading:
    disks = tuple(msgspec.convert(entry, type=DiskReading) for entry in sample.disks or ())
    return HostReading(at=clock.moment(sample.at_unix_s), disks=disks, **sample.values)


def _build_process_reading(sample: ProcessSample, clock: Recording) -> ProcessReading:
    return ProcessReading(
        at=clock.moment(sample.at_unix_s),
        processes=sample.processes,
        rss_bytes=sample.rss_bytes,
        cpu_percent=sample.cpu_percent,
    )


def _recorded_steps(attempt: AttemptRecord, clock: Recording, now_unix_s: float) -> tuple[StepRecord, ...]:
    """Return the newest steps as the flight recorder still holds them; none where its folder is gone."""
    if attempt.folder is None:
        return ()
    reader = RecorderReader(Path(attempt.folder))
    found: list[StepRecord] = []
    latest = clock.moment(now_unix_s if attempt.ended_unix_s is None else attempt.ended_unix_s)
    page = reader.read(0, clock.launched_at, latest=latest)
    while page.records or page.behind:
        found.extend(page.records)
        page = reader.read(page.cursor, clock.launched_at, latest=latest)
    reader.close()
    return tuple(found)
