"""Facts of one GPU since the launch that the window of its readings no longer contains."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.stats.trend import Trend

IMPLAUSIBLE_C = 150.0
"""A chip this hot would no longer answer: the reading is invalid."""


@dataclass(slots=True)
class GpuFacts:
    """First, last and extreme values of one GPU in one attempt."""

    last_at: Moment
    readings: int = 0
    fan_turned: bool = False
    highest_cap_w: float | None = None
    ecc_correctable: int | None = None
    """At the first reading that contained it."""
    ecc_uncorrectable: int | None = None
    ecc_grew_at: Moment | None = None
    """When uncorrectable errors were first more than at the beginning."""
    ecc_unchanged_at: Moment | None = None
    """The last reading before that."""
    memory: Trend = field(default_factory=Trend)

    def add(self, reading: GpuReading) -> None:
        """Take in a reading."""
        self.readings += 1
        self.last_at = reading.at
        self.fan_turned = self.fan_turned or (reading.fan_rpm or 0) > 0
        if reading.power_cap_w is not None:
            self.highest_cap_w = max(self.highest_cap_w or 0.0, reading.power_cap_w)
        if reading.memory_used_bytes is not None:
            self.memory.add(reading.at, float(reading.memory_used_bytes))
        self._add_ecc(reading)

    def _add_ecc(self, reading: GpuReading) -> None:
        if reading.ecc_correctable is not None and self.ecc_correctable is None:
            self.ecc_correctable = reading.ecc_correctable
        count = reading.ecc_uncorrectable
        if count is None:
            return
        if self.ecc_uncorrectable is None or count < self.ecc_uncorrectable:  # a GPU reset clears its counters
            self.ecc_uncorrectable = count
        if count > self.ecc_uncorrectable:
            self.ecc_grew_at = self.ecc_grew_at or reading.at
        elif self.ecc_grew_at is None:
            self.ecc_unchanged_at = reading.at


def hottest(reading: GpuReading) -> tuple[str, float] | None:
    """Return the name and value (C) of a GPU's hottest sensor with a plausible reading."""
    name, highest = "", 0.0
    for text, celsius in (("junction", reading.junction_c), ("edge", reading.edge_c), ("memory", reading.memory_c)):
        if celsius is not None and highest < celsius < IMPLAUSIBLE_C:
            name, highest = text, celsius
    return (name, highest) if name else None
