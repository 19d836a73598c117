"""A figure beside its limit and its peers, as a line of a table and as JSON; it measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any

HEAD = ("figure", "measured: median (min-max, n)", "must be", "", "peer, in the same run", "measured", "ours/peer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What somebody else's program took for the same; without values, `why` says why not."""

    name: str
    values: Sequence[float] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published figure; smaller is better. Without values, `why` says why not."""

    name: str
    unit: str
    values: Sequence[float] = ()
    why: str = ""
    limit: float | None = None
    """The median must be at most this, in `unit`."""
    limit_ratio: float | None = None
    """The median must be at most so many times the first peer's."""
    peers: Sequence[Peer] = ()

    @property
    def verdict(self) -> str:
        """`met` or `MISSED`; empty where there is no limit or nothing to hold against it."""
        if not self.values:
            return ""
        if self.limit is not None:
            return "met" if median(self.values) <= self.limit else "MISSED"
        ratio = self.ratio(self.peers[0]) if self.peers else None
        if self.limit_ratio is None or ratio is None:
            return ""
        return "met" if ratio <= self.limit_ratio else "MISSED"

    def ratio(self, peer: Peer) -> float | None:
        """Return how many times the peer's median ours is."""
        if not self.values or not peer.values or median(peer.values) == 0:
            return None
        return median(self.values) / median(peer.values)

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return the lines of the table: the figure with its first peer, then the other peers."""
        must = "-" if self.limit is None else f"<= {self.limit:g} {self.unit}" if self.limit else f"0 {self.unit}"
        if self.limit_ratio is not None:
            must = f"<= {self.limit_ratio:g} x the peer"
        own = (self.name, format_values(self.values, self.unit, self.why), must, self.verdict)
        for mine, peer in zip_longest((own,), self.peers or (Peer(name=""),), fillvalue=("", "", "", "")):
            assert isinstance(peer, Peer)
            ratio = self.ratio(peer)
            output = format_values(peer.values, self.unit, peer.why)
            yield (*mine, peer.name, output, "" if ratio is None else f"{ratio:.2g}")

    def json(self) -> dict[str, Any]:
        """Return all of it, with every single value."""
        return {
            "figure": self.name,
            "unit": self.unit,
            "values": list(self.values),
            "median": median(self.values) if self.values else None,
            "limit": self.limit,
            "limit_ratio": self.limit_ratio,
            "verdict": self.verdict or None,
            "why": self.why or None,
            "peers": [
                {"peer": peer.name, "values": list(peer.values), "ratio": self.ratio(peer), "why": peer.why or None}
                for peer in self.peers
            ],
        }


def format_values(values: Sequence[float], unit: str, why: str) -> str:
    """Return values as text: `0.65 us (0.64-0.70, n=3)`."""
    if not values:
        return why
    middle, least, most = (_short(item) for item in (median(values), min(values), max(values)))
    return f"{middle} {unit}" if len(values) == 1 else f"{middle} {unit} ({least}-{most}, n={len(values)})"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def table(figures: Iterable[Figure]) -> str:
    """Return the table as plain text."""
    rows = [HEAD, *(row for figure in figures for row in figure.rows())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join((lines[0], "-+-".join("-" * width for width in widths), *lines[1:]))
