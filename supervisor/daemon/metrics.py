"""What the daemon knows now, for `GET /metrics` and for the text file that node_exporter reads."""

from __future__ import annotations

import logging
import platform
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from supervisor import __version__
from supervisor.children.files_apart import apart
from supervisor.children.shared_files import replace_configured_file
from supervisor.core.history import History
from supervisor.core.job import ALIVE, Phase
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading, HostReading
from supervisor.core.reports.progress import progress_of
from supervisor.core.stats.histogram import HistogramKnown
from supervisor.daemon.clock import Clock
from supervisor.daemon.inbox import Inbox
from supervisor.daemon.job_state import JobState
from supervisor.daemon.status import PACE_OVER_S, samples_per_s, steps_per_s, tokens_per_s
from supervisor.daemon.training_counts import Counts, TrainingCounts
from supervisor.metrics.exposition import text_of
from supervisor.metrics.known import Known, ReceiverKnown, SourceKnown, TrainingKnown
from supervisor.sources.gpu.gpus import SourceStatus
from supervisor.store.archive import Archive
from supervisor.store.errors import ArchiveError
from supervisor.store.outbox import DELIVERED, FAILED, WAITING
from supervisor.store.records import AlertCount

log = logging.getLogger(__name__)

STALE_INTERVALS = 3
SHORTEST_INTERVAL_S = 1.0
"""Readings are taken up at the next tick, however short the interval between them is."""
TEXTFILE_MODE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsDeps:
    """Where the facts come from."""

    clock: Clock
    inbox: Inbox
    states: Mapping[str, JobState]
    counts: Counts
    readings: Callable[[], tuple[tuple[GpuReading, ...], HostReading | None]]
    sources: Callable[[], tuple[SourceStatus, ...]]
    archive: Archive
    store_problem: Callable[[], str | None]
    database_writes: Callable[[], HistogramKnown]
    unit: Callable[[str, int], str | None]
    """The systemd unit of a training's attempt, by its name and number; None where it has none."""
    receivers: Callable[[], tuple[str, ...]]
    interval_s: Callable[[], float]


class MetricsCollector:
    """Collects the facts: those in memory in the deciding thread, those of the record in the thread that asks."""

    def __init__(self, deps: MetricsDeps) -> None:
        self._deps = deps
        self._started_unix_s = deps.clock.now().unix_s

    def known(self) -> Known:
        """Return what is known now; raise TimeoutError where the deciding thread does not answer."""
        deps, asked_at = self._deps, self._deps.clock.now()
        lag_s, trainings, receivers = deps.inbox.ask(lambda: self._collect_live(asked_at))
        proven, counts = self._read_record()
        gpus, host = deps.readings()
        return Known(
            now=deps.clock.now(),
            stale_after_s=STALE_INTERVALS * max(SHORTEST_INTERVAL_S, deps.interval_s()),
            version=__version__,
            python=platform.python_version(),
            sqlite=sqlite3.sqlite_version,
            started_unix_s=self._started_unix_s,
            loop_lag_s=lag_s,
            database_bytes=_file_bytes(deps.archive.path),
            database_problem=deps.store_problem() is not None,
            database_writes=deps.database_writes(),
            trainings=tuple(
                replace(training, proven_unix_s=proven.get(training.name), unit=self._find_unit(training))
                for training in trainings
            ),
            gpus=gpus,
            host=host,
            sources=_list_sources(deps.sources(), gpus),
            receivers=() if counts is None else tuple(_count_alerts(name, counts) for name in receivers),
        )

    def _collect_live(self, asked_at: Moment) -> tuple[float, tuple[TrainingKnown, ...], tuple[str, ...]]:
        """Return the delay of the answer, the trainings, and the names of the receivers of alerts."""
        deps, now = self._deps, self._deps.clock.now()
        stale_s = STALE_INTERVALS * max(SHORTEST_INTERVAL_S, deps.interval_s())
        trainings = (_know_training(state, deps.counts.of(name), now, stale_s) for name, state in deps.states.items())
        return now.seconds_since(asked_at), tuple(trainings), deps.receivers()

    def _find_unit(self, training: TrainingKnown) -> str | None:
        """Return the unit of an attempt that runs."""
        return None if training.hooked_conv2d is None else self._deps.unit(training.name, training.attempt)

    def _read_record(self) -> tuple[Mapping[str, float], tuple[AlertCount, ...] | None]:
        """Return when each training's newest proven checkpoint was saved, and the alerts; nothing while unreadable."""
        try:
            return self._deps.archive.proven_saves(), self._deps.archive.alert_counts()
        except ArchiveError:
            return {}, None


class Textfile:
    """The exposition as a file, replaced as one; what goes wrong is logged once, until it changes."""

    def __init__(self, path: Callable[[], str | None], known: Callable[[], Known]) -> None:
        self._path = path
        self._known = known
        self._problem: str | None = None

    def write(self) -> None:
        """Write it, where the configuration names a file."""
        path = self._path()
        if path is None:
            return
        text, problem = text_of(self._known()), None
        try:
            apart(replace_configured_file, Path(path), text.encode(), TEXTFILE_MODE)
        except OSError as error:
            problem = f"{path}: {error.strerror}"
        if problem != self._problem:
            self._problem = problem
            if problem is not None:
                remedy = "the daemon's user must be able to write its folder; under systemd see ReadWritePaths="
                log.warning("metrics.textfile_failed", extra={"fields": {"error": problem, "remedy": remedy}})


def _know_training(job_state: JobState, counts: TrainingCounts, now: Moment, stale_s: float) -> TrainingKnown:
    """Return what is known of a training; of one that does not run, of its last attempt only when its steps ended."""
    job, attempt = job_state.job, job_state.job.attempt
    running = job_state.history if job.phase in ALIVE else None
    alive = attempt if job.phase in ALIVE else None
    process = running.processes[-1] if running is not None and running.processes else None
    if process is not None and now.seconds_since(process.at) > stale_s:
        process = None
    left_s = progress_of(running).left_s if running is not None and job.phase is Phase.RUNNING else None
    pace, waiting = _measure_pace(running, now)
    return TrainingKnown(
        name=job.name,
        phase=job.phase.value,
        attempt=job.number,
        hooked_conv2d=None if alive is None else alive.patched,
        device=None if running is None else running.device,
        epoch=None if alive is None else alive.epoch,
        epochs=None if running is None else running.plan.epochs,
        loss=None if alive is None else alive.loss,
        lr=running.steps[-1].lr if running is not None and running.steps else None,
        steps_per_s=pace,
        samples_per_s=None if pace is None else samples_per_s(running),
        tokens_per_s=None if pace is None else tokens_per_s(running),
        data_wait_ratio=waiting,
        last_step_unix_s=attempt.last_step_at.unix_s if attempt is not None and attempt.last_step_at else None,
        end_unix_s=None if left_s is None else now.unix_s + left_s,
        rss_bytes=None if process is None else process.rss_bytes,
        cpu_ratio=None if process is None or process.cpu_percent is None else process.cpu_percent / 100,
        incident_open=job.incident is not None and job.incident.outcome == "open",
        steps=counts.steps,
        steps_redone=counts.steps_redone,
        non_finite_steps=counts.non_finite_steps,
        seconds=dict(counts.seconds),
        restarts=dict(counts.restarts),
        flags=dict(counts.flags),
        snapshots=counts.snapshots.known(),
    )


def _measure_pace(history: History | None, now: Moment) -> tuple[float | None, float | None]:
    """Return steps a second and the share of waiting for data, over the minute before the last step, if that is new."""
    if history is None or len(history.steps) < 2 or now.seconds_since(history.steps[-1].at) > PACE_OVER_S:
        return None, None
    last = history.steps[-1].at
    recent = [record for record in history.steps if last.seconds_since(record.at) <= PACE_OVER_S]
    waits = [record.data_wait_s for record in recent[1:] if record.data_wait_s is not None]
    took_s = last.seconds_since(recent[0].at)
    share = min(1.0, sum(waits) / took_s) if waits and took_s > 0 else None
    return steps_per_s(history), share


def _list_sources(found: Iterable[SourceStatus], gpus: Iterable[GpuReading]) -> tuple[SourceKnown, ...]:
    """Return the sources that were queried: a source is not, while an earlier one answers for every GPU."""
    newest: dict[str, float] = {}
    for reading in gpus:
        newest[reading.source] = max(reading.at.unix_s, newest.get(reading.source, 0.0))
    return tuple(
        SourceKnown(name=source.name, answering=source.answering, last_success_unix_s=newest.get(source.name))
        for source in found
        if source.cost_s is not None
    )


def _count_alerts(receiver: str, counts: Iterable[AlertCount]) -> ReceiverKnown:
    own = [count for count in counts if count.sink == receiver]
    by_state = {count.state: count.count for count in own}
    return ReceiverKnown(
        name=receiver,
        waiting=by_state.get(WAITING, 0),
        retrying=sum(count.tried for count in own if count.state == WAITING),
        sent=by_state.get(DELIVERED, 0),
        failed=by_state.get(FAILED, 0),
    )


def _file_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
