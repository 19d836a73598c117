"""Every metric by its name: type, labels and help; the names are a public interface (see `make frozen-names`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "rocm_supervisor_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; a counter's name ends in `_total`."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def samples(self) -> dict[str, tuple[str, ...]]:
        """The labels of its samples by what their names have behind its own."""
        if self.kind != "histogram":
            return {"": self.labels}
        return {"_bucket": (*self.labels, "le"), "_sum": self.labels, "_count": self.labels}


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, "counter", text, labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(PREFIX + name, "histogram", text, labels)


_T, _G = "training", "gpu"

METRICS: tuple[Metric, ...] = (
    _gauge("build_info", "Versions of the daemon and what it runs on.", "version", "python", "sqlite"),
    _gauge("start_time_seconds", "When the daemon started, Unix seconds."),
    _gauge("loop_lag_seconds", "How long the deciding thread took to begin the answer to this query."),
    _gauge("database_bytes", "Size of the database file."),
    _gauge("database_problem", "1 while the database cannot be written."),
    _histogram("database_write_seconds", "How long commits to the database took."),
    _gauge("source_up", "1 while a source of GPU readings answers.", "source"),
    _gauge(
        "source_last_success_timestamp_seconds", "When a source gave the newest reading in use, Unix seconds.", "source"
    ),
    _gauge(
        "training_info",
        "Its systemd unit, the device in use, and whether Conv2d was replaced.",
        _T,
        "unit",
        "device",
        "conv2d",
    ),
    _gauge("training_phase", "1 for the phase that the training is in.", _T, "phase"),
    _gauge("training_attempt", "Number of the present or last attempt.", _T),
    _gauge("training_epoch", "Epoch in progress, counted from 0.", _T),
    _gauge("training_epochs_planned", "Epochs that the training will have.", _T),
    _gauge("training_loss", "Loss of the newest step, where it is finite.", _T),
    _gauge("training_learning_rate", "Learning rate of the newest step.", _T),
    _gauge("training_steps_per_second", "Steps a second over the last minute.", _T),
    _gauge("training_samples_per_second", "Samples a second over the last minute, all ranks together.", _T),
    _gauge("training_tokens_per_second", "Tokens a second over the last minute, padding included.", _T),
    _gauge("training_data_wait_ratio", "Share of the last minute in which steps waited for data, 0 to 1.", _T),
    _gauge("training_last_step_timestamp_seconds", "When the newest step was made, Unix seconds.", _T),
    _gauge(
        "training_last_proven_checkpoint_timestamp_seconds",
        "When the newest proven checkpoint was saved, Unix time.",
        _T,
    ),
    _gauge("training_expected_end_timestamp_seconds", "When the training is expected to end, Unix seconds.", _T),
    _gauge("training_resident_memory_bytes", "Resident memory of the training's processes.", _T),
    _gauge("training_cpu_ratio", "Processors that the training's processes use; 1 is one of them.", _T),
    _gauge("incidents_open", "Incidents that the training has not come out of.", _T),
    _counter("training_steps_total", "Steps made since the daemon started.", _T),
    _counter("training_steps_redone_total", "Of these, steps that an earlier attempt had made before.", _T),
    _counter("training_non_finite_steps_total", "Of these, steps with a loss or gradient norm that is not finite.", _T),
    _histogram("snapshot_seconds", "From the step at which a snapshot began until it was on the disk.", _T),
    _counter("training_time_seconds_total", "Time since the daemon started, by what it was spent on.", _T, "spent"),
    _counter("training_restarts_total", "Restarts that counted against the budget, by cause.", _T, "cause"),
    _counter("flags_total", "Flags raised since the daemon started, by rule.", _T, "rule"),
    _gauge("gpu_info", "Name, unique id and architecture of a GPU.", _G, "name", "uuid", "gfx"),
    _gauge("gpu_busy_ratio", "GPU use, 0 to 1.", _G),
    _gauge("gpu_memory_busy_ratio", "Use of the memory controller, 0 to 1.", _G),
    _gauge("gpu_memory_used_bytes", "Memory in use; on an APU with GTT.", _G),
    _gauge("gpu_memory_total_bytes", "Memory that a training can have; on an APU with GTT.", _G),
    _gauge("gpu_temperature_celsius", "Temperature by sensor.", _G, "sensor"),
    _gauge("gpu_power_watts", "Power drawn.", _G),
    _gauge("gpu_power_limit_watts", "Power limit.", _G),
    _gauge("gpu_clock_hertz", "Clock by domain.", _G, "domain"),
    _gauge("gpu_fan_rpm", "Revolutions of the fan a minute.", _G),
    _gauge("gpu_reading_age_seconds", "Age of the newest reading; other metrics of the GPU end when it is stale.", _G),
    _gauge("gpu_asleep", "1 while runtime power management has suspended the GPU.", _G),
    _counter("gpu_errors_total", "Errors that the hardware has counted.", _G, "kind"),
    _gauge("alerts_waiting", "Alerts that wait to be delivered, held ones among them.", "sink"),
    _gauge("alerts_retrying", "Alerts that wait after a delivery that failed.", "sink"),
    _counter("alerts_sent_total", "Alerts delivered, as recorded.", "sink"),
    _counter("alerts_failed_total", "Alerts given up, as recorded.", "sink"),
    _gauge("disk_free_bytes", "Free space on the file system that holds a path.", "mount"),
)

SAMPLES = {
    metric.name.removeprefix(PREFIX) + suffix: (metric, metric.name + suffix, labels)
    for metric in METRICS
    for suffix, labels in metric.samples.items()
}
"""By the name of a sample without the prefix: its metric, its whole name and its labels."""
