"""Metrics as text: Prometheus' classic format (version 0.0.4), or OpenMetrics 1.0 where the reader prefers it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from supervisor.core.sanitize import one_line
from supervisor.metrics.compose import samples
from supervisor.metrics.declared import BY_NAME, Metric
from supervisor.metrics.known import Known

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LABEL_LIMIT = 200
"""Characters of a label's value."""


def text_of(known: Known, *, openmetrics: bool = False) -> str:
    """Return the exposition of what is known; it ends with a newline."""
    lines: dict[str, list[str]] = defaultdict(list)
    for name, labels, value in samples(known):
        metric = BY_NAME[name]
        assert tuple(labels) == metric.labels, name
        lines[name].append(f"{metric.name}{_write_labels(labels)} {_write_value(value)}\n")
    parts = [
        "".join((*_write_head(metric, openmetrics=openmetrics), *lines[name]))
        for name, metric in BY_NAME.items()
        if name in lines
    ]
    return "".join((*parts, "# EOF\n" if openmetrics else ""))


def prefers_openmetrics(accept: str) -> bool:
    """Whether a reader with this `Accept` header takes OpenMetrics, and no less gladly than plain text."""
    wanted = dict(_read_preference(part) for part in accept.split(","))
    openmetrics = wanted.get("application/openmetrics-text", 0.0)
    return openmetrics > 0 and openmetrics >= wanted.get("text/plain", 0.0)


def _read_preference(part: str) -> tuple[str, float]:
    kind, *parameters = (item.strip() for item in part.lower().split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return kind, float(value)
            except ValueError:
                return kind, 0.0
    return kind, 1.0


def _write_head(metric: Metric, *, openmetrics: bool) -> tuple[str, str]:
    """Return the lines of help and type; OpenMetrics names a counter's family without `_total`."""
    family = metric.name.removesuffix("_total") if openmetrics and metric.kind == "counter" else metric.name
    return f"# HELP {family} {metric.help}\n", f"# TYPE {family} {metric.kind}\n"


def _write_labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return one_line(value, LABEL_LIMIT).replace("\\", "\\\\").replace('"', '\\"')


def _write_value(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else repr(float(value))
