"""The samples of each metric from the facts known now; an unknown value has no sample."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from supervisor.core.job import Phase
from supervisor.core.readings import GpuReading
from supervisor.core.remedies.causes import CAUSES
from supervisor.core.rules import RULES
from supervisor.core.stats.histogram import HistogramKnown
from supervisor.metrics.known import Known, TrainingKnown

Sample = tuple[str, Mapping[str, str], float]
"""The metric's name without the prefix, its labels, its value."""

SPENT = ("setup", "compile", "train", "again", "data_wait", "validate", "checkpoint", "down", "waiting", "unseen")
"""What `training_time_seconds_total` counts; `again`: steps that an earlier attempt had made before."""
UNKNOWN_CAUSE = "unknown"
_DEVICE = re.compile(r"(cpu|cuda|hip|xpu|mps|gpu)(:[0-9]{1,3})?")


def samples(known: Known) -> Iterator[Sample]:
    """Yield every sample; those of unknown and not finite values, and of stale readings, are left out."""
    for name, labels, value in _all_samples(known):
        if value is not None and math.isfinite(value):
            yield name, labels, value


def _all_samples(known: Known) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    yield from _of_daemon(known)
    for training in known.trainings:
        yield from _of_training(training)
    for reading in known.gpus:
        yield from _of_gpu(reading, known)
    if known.host is not None and known.now.seconds_since(known.host.at) <= known.stale_after_s:
        for disk in known.host.disks:
            yield "disk_free_bytes", {"mount": disk.path}, disk.free_bytes
    for receiver in known.receivers:
        sink = {"sink": receiver.name}
        yield "alerts_waiting", sink, receiver.waiting
        yield "alerts_retrying", sink, receiver.retrying
        yield "alerts_sent_total", sink, receiver.sent
        yield "alerts_failed_total", sink, receiver.failed


def _of_daemon(known: Known) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    yield "build_info", {"version": known.version, "python": known.python, "sqlite": known.sqlite}, 1
    yield "start_time_seconds", {}, known.started_unix_s
    yield "loop_lag_seconds", {}, known.loop_lag_s
    yield "database_bytes", {}, known.database_bytes
    yield "database_problem", {}, int(known.database_problem)
    yield from _of_histogram("database_write_seconds", {}, known.database_writes)
    for source in known.sources:
        yield "source_up", {"source": source.name}, int(source.answering)
        yield "source_last_success_timestamp_seconds", {"source": source.name}, source.last_success_unix_s


def _of_training(training: TrainingKnown) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    of = {"training": training.name}
    if training.hooked_conv2d is not None:
        conv2d = "replaced" if training.hooked_conv2d else "original"
        # To Prometheus an empty label is one that is not there.
        named = {"unit": training.unit or "", "device": _name_device(training.device), "conv2d": conv2d}
        yield "training_info", {**of, **named}, 1
    for phase in Phase:
        yield "training_phase", {**of, "phase": phase.value}, int(phase.value == training.phase)
    yield "training_attempt", of, training.attempt
    yield "training_epoch", of, training.epoch
    yield "training_epochs_planned", of, training.epochs
    yield "training_loss", of, training.loss
    yield "training_learning_rate", of, training.lr
    yield "training_steps_per_second", of, training.steps_per_s
    yield "training_samples_per_second", of, training.samples_per_s
    yield "training_tokens_per_second", of, training.tokens_per_s
    yield "training_data_wait_ratio", of, training.data_wait_ratio
    yield "training_last_step_timestamp_seconds", of, training.last_step_unix_s
    yield "training_last_proven_checkpoint_timestamp_seconds", of, training.proven_unix_s
    yield "training_expected_end_timestamp_seconds", of, training.end_unix_s
    yield "training_resident_memory_bytes", of, training.rss_bytes
    yield "training_cpu_ratio", of, training.cpu_ratio
    yield "incidents_open", of, int(training.incident_open)
    yield from _counters_of(training, of)


def _counters_of(training: TrainingKnown, of: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the counters, each label from 0 on: a counter that appears with its first count has no rate."""
    yield "training_steps_total", of, training.steps
    yield "training_steps_redone_total", of, training.steps_redone
    yield "training_non_finite_steps_total", of, training.non_finite_steps
    yield from _of_histogram("snapshot_seconds", of, training.snapshots)
    for spent in SPENT:
        yield "training_time_seconds_total", {**of, "spent": spent}, training.seconds.get(spent, 0.0)
    for cause in (*CAUSES, UNKNOWN_CAUSE):
        yield "training_restarts_total", {**of, "cause": cause}, training.restarts.get(cause, 0)
    for rule in RULES:
        yield "flags_total", {**of, "rule": rule.name}, training.flags.get(rule.name, 0)


def _of_histogram(
    name: str, of: Mapping[str, str], histogram: HistogramKnown | None
) -> Iterator[tuple[str, Mapping[str, str], float]]:
    if histogram is None:
        return
    for limit_s, count in histogram.buckets:
        yield f"{name}_bucket", {**of, "le": "+Inf" if math.isinf(limit_s) else repr(limit_s)}, count
    yield f"{name}_sum", of, histogram.total_s
    yield f"{name}_count", of, histogram.buckets[-1][1]


def _name_device(device: str | None) -> str:
    """Return a device that a training reported: it may report any text, and labels have few values."""
    if device is None:
        return "unknown"
    return device if _DEVICE.fullmatch(device) else "other"


def _of_gpu(reading: GpuReading, known: Known) -> Iterator[tuple[str, Mapping[str, str], float | None]]:
    of, age_s = {"gpu": reading.gpu}, max(0.0, known.now.seconds_since(reading.at))
    yield "gpu_reading_age_seconds", of, age_s
    if age_s > known.stale_after_s:
        return
    identity = {"name": reading.name or "", "uuid": reading.unique_id or "", "gfx": reading.gfx_version or ""}
    yield "gpu_info", {**of, **identity}, 1
    yield "gpu_busy_ratio", of, _as_ratio(reading.gpu_busy_percent)
    yield "gpu_memory_busy_ratio", of, _as_ratio(reading.memory_busy_percent)
    yield "gpu_memory_used_bytes", of, reading.memory_used_bytes
    yield "gpu_memory_total_bytes", of, reading.memory_total_bytes
    for sensor, celsius in (("edge", reading.edge_c), ("junction", reading.junction_c), ("memory", reading.memory_c)):
        yield "gpu_temperature_celsius", {**of, "sensor": sensor}, celsius
    yield "gpu_power_watts", of, reading.power_w
    yield "gpu_power_limit_watts", of, reading.power_cap_w
    yield "gpu_clock_hertz", {**of, "domain": "shader"}, reading.sclk_hz
    yield "gpu_clock_hertz", {**of, "domain": "memory"}, reading.mclk_hz
    yield "gpu_fan_rpm", of, reading.fan_rpm
    if reading.runtime_status is not None:
        yield "gpu_asleep", of, int(reading.runtime_status == "suspended")
    for kind in ("ecc_correctable", "ecc_uncorrectable", "pcie_replays"):
        yield "gpu_errors_total", {**of, "kind": kind}, getattr(reading, kind)


def _as_ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
