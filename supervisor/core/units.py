"""Units of texts for people, in the units that values are kept in."""

from __future__ import annotations

GB = 1e9
MB = 1e6
MHZ = 1e6
HOUR_S = 3600
MINUTE_S = 60
