"""The two text formats of metrics, and which of them a reader prefers."""

from __future__ import annotations

CLASSIC = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


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
