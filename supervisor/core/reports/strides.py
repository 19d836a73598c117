"""The steps of an attempt as strides, kept as columns of numbers: a month of training is 260,000 of them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride:
    """Consecutive steps."""

    first_unix_s: float
    last_unix_s: float
    step_first: int
    step_last: int
    data_wait_s: float = 0.0
    """Sum over its steps."""

    def made_at(self, step: int) -> float:
        """Return when `step` was made, assuming that all steps took equally long."""
        share = (step - self.step_first) / max(1, self.step_last - self.step_first)
        return self.first_unix_s + min(1.0, max(0.0, share)) * (self.last_unix_s - self.first_unix_s)


class Strides(Sequence[Stride]):
    """Strides in the order in which they were made: 40 bytes each, which as objects would take 250."""

    def __init__(self, strides: Iterable[Stride] = ()) -> None:
        self._first_s, self._last_s, self._waited_s = array("d"), array("d"), array("d")
        self._step_first, self._step_last = array("q"), array("q")
        self._step_highest: int | None = None
        self._in_order = True
        """Whether neither beginnings nor ends go back in time, as they do where the clock was set back."""
        for stride in strides:
            self.append(stride)

    def append(self, stride: Stride) -> None:
        """Add a stride after the others."""
        if self._first_s:
            after = stride.first_unix_s >= self._first_s[-1] and stride.last_unix_s >= self._last_s[-1]
            self._in_order = self._in_order and after
        self._first_s.append(stride.first_unix_s)
        self._last_s.append(stride.last_unix_s)
        self._waited_s.append(stride.data_wait_s)
        self._step_first.append(stride.step_first)
        self._step_last.append(stride.step_last)
        highest = self._step_highest
        self._step_highest = stride.step_last if highest is None else max(highest, stride.step_last)

    def find_beyond(self, step: int) -> Stride | None:
        """Return the first stride that ends beyond a step, None where none does."""
        if self._step_highest is None or self._step_highest <= step:
            return None
        return self[next(index for index, last in enumerate(self._step_last) if last > step)]

    def list_overlapping(self, began_unix_s: float, ended_unix_s: float) -> Iterator[Stride]:
        """Yield the strides that share time with a period; others too, where the clock was set back."""
        begin, end = 0, len(self)
        if self._in_order:
            begin, end = bisect_right(self._last_s, began_unix_s), bisect_left(self._first_s, ended_unix_s)
        return (self[index] for index in range(begin, end))

    def __len__(self) -> int:
        return len(self._first_s)

    @overload
    def __getitem__(self, index: int) -> Stride: ...

    @overload
    def __getitem__(self, index: slice) -> Strides: ...

    def __getitem__(self, index: int | slice) -> Stride | Strides:
        if isinstance(index, slice):
            return Strides(self[position] for position in range(*index.indices(len(self))))
        return Stride(
            first_unix_s=self._first_s[index],
            last_unix_s=self._last_s[index],
            step_first=self._step_first[index],
            step_last=self._step_last[index],
            data_wait_s=self._waited_s[index],
        )
