"""Metrics as text, in Prometheus' classic format (version 0.0.4) or in OpenMetrics 1.0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from supervisor.core.sanitize import one_line
from supervisor.metrics.compose import samples
from supervisor.metrics.declared import METRICS, SAMPLES, Metric
from supervisor.metrics.known import Known

LABEL_LIMIT = 200
"""Characters of a label's value."""


def text_of(known: Known, *, openmetrics: bool = False) -> str:
    """Return the exposition of what is known; it ends with a newline."""
    lines: dict[str, list[str]] = defaultdict(list)
    for name, labels, value in samples(known):
        metric, full_name, declared = SAMPLES[name]
        assert tuple(labels) == declared, name
        lines[metric.name].append(f"{full_name}{_write_labels(labels)} {_write_value(value)}\n")
    parts = [
        "".join((*_write_head(metric, openmetrics=openmetrics), *lines[metric.name]))
        for metric in METRICS
        if metric.name in lines
    ]
    return "".join((*parts, "# EOF\n" if openmetrics else ""))


def _write_head(metric: Metric, *, openmetrics: bool) -> tuple[str, str]:
    """Return the lines of help and type; OpenMetrics names a counter's family without `_total`."""
    family = metric.name.removesuffix("_total") if openmetrics and metric.kind == "counter" else metric.name
    return f"# HELP {family} {metric.help}\n", f"# TYPE {family} {metric.kind}\n"


def _write_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


@lru_cache(maxsize=1024)  # one of few values, for each of a training's samples
def _escape(value: str) -> str:
    return one_line(value, LABEL_LIMIT).replace("\\", "\\\\").replace('"', '\\"')


def _write_value(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(float(value))
