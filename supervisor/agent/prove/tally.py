"""Counts and measures numbers: non-finite values, zeros, and a few figures of each tensor."""

from __future__ import annotations

import math
import struct
import sys
from operator import add, mul
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .kinds import FLOATS, Read, Rejected
from .stand_ins import Tensor

CHUNK_BYTES = 1 << 22
ZERO_SHARE = 0.75
"""A model of which more matrices than this are all zero is none: so ultralytics saves weights that had become NaN."""

SUSPECT = {
    "e": bytes(b for b in range(256) if b & 0x7C == 0x7C or b & 0x7F == 0x7B),
    "f": b"\x7f\xff",
    "d": b"\x7f\xff",
    "bf16": b"\x7f\xff",
    "e4m3": b"\x7f\xff",
    "e5m2": bytes(b for b in range(256) if b & 0x7C == 0x7C),
    "fnuz": b"\x80",  # of GPUs of AMD: neither minus zero nor infinity, one NaN
    "e8m0": b"\xff",
}
"""The bytes with which a number that is not finite, or the largest of its kind, can begin (at its high end): in
their absence there is none."""
LARGEST = {
    "e": 65504.0,
    "f": 3.4028234663852886e38,
    "d": sys.float_info.max,
    "bf16": 3.3895313892515355e38,
}
SAMPLE_RUNS, SAMPLE_RUN = 16, 256
"""A larger tensor is measured in so many runs of so many numbers, spread evenly: the same places in every save."""
SIGNS = 256
"""Numbers of a matrix whose signs are reported, to distinguish its continuation from other numbers of that size."""
SIGNS_LEAST = 64
BOUNDS = ("threshold", "_min", "_max", "min_val", "max_val")
"""How the names of bounds end that are taken from what was measured."""
PROFILE_ROWS = 20000
NAME_CHARACTERS, DIMENSIONS = 200, 16
"""Limits of what is reported of each: a file may contain any names and shapes."""


def unpacked(data: bytes, code: str, unit: int) -> Tuple[float, ...]:
    """Return the numbers of raw bytes; () for a kind that Python cannot unpack."""
    if unit == 1:
        return ()
    if code == "bf16":  # the upper half of a float32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data, code, unit = bytes(wide), "f", 4
    return struct.unpack("<%d%s" % (len(data) // unit, code), data)


class Odd(NamedTuple):
    """How many numbers of a tensor, or of a piece of one, no weight should be."""

    bad: int
    """Those that are not finite."""
    infinite: int
    minus_infinite: int
    largest: int
    """The largest number that there is of their kind, or its negative."""


def count_odd(data: bytes, code: str, unit: int) -> Odd:
    """Return what is odd about raw numbers; of one byte only how many are not finite."""
    high = data[unit - 1 :: unit]
    suspects = len(high) - len(high.translate(None, SUSPECT[code]))
    if not suspects or unit == 1:
        return Odd(suspects, 0, 0, 0)
    values = unpacked(data, code, unit)
    bad = [value for value in values if not math.isfinite(value)]
    largest = values.count(LARGEST[code]) + values.count(-LARGEST[code])
    return Odd(len(bad), bad.count(math.inf), bad.count(-math.inf), largest)


class Numbers:
    """The tally over all tensors of a checkpoint, and its profile."""

    def __init__(self) -> None:
        """Begin with none."""
        self.tensors = self.non_finite = self.matrices = self.zero_matrices = 0
        self.first_bad = ""
        self.done: Dict[Tuple[str, int, int], Tuple[Odd, bool]] = {}
        self.rows: List[List[Any]] = []
        self.optimizers: Dict[str, int] = {}

    def add(self, tensor: Tensor, read: Read, start: int, end: int) -> None:
        """Count a tensor whose numbers are bytes `start` to `end` of what `read(start, length)` returns."""
        self.tensors += 1
        if tensor.kind not in FLOATS:
            self._append_row(tensor, None, None, 0, None)
            return
        span = (tensor.kind, start, end)
        if span not in self.done:
            self.done[span] = self._scan_floats(tensor.kind, read, start, end)
        odd, zero = self.done[span]
        if not odd.bad:
            self._measure_tensor(tensor, sample(read, start, end, tensor.kind), odd.largest)
        elif is_record(tensor):
            self._append_row(tensor, None, None, 0, None)  # the same tensor has a number later
        elif not is_by_design(tensor, odd):
            self.non_finite += odd.bad
            where = "%d of %d numbers in %s" % (odd.bad, math.prod(tensor.size), tensor.name)
            self.first_bad = self.first_bad or where
        if len(tensor.size) > 1 and 0 not in tensor.size and "optimizer" not in tensor.name.split("."):
            self.matrices += 1
            self.zero_matrices += zero

    def _measure_tensor(self, tensor: Tensor, values: Tuple[float, ...], largest: int) -> None:
        if not values:
            self._append_row(tensor, None, None, largest, None)
            return
        # Scaled first, as the square of a large number is none; a sum that is exact is the same in every Python.
        highest, lowest = max(values), min(values)
        power = math.frexp(max(highest, -lowest))[1]
        scaled = [math.ldexp(value, -power) for value in values] if abs(power) > 60 else values
        rms = math.sqrt(math.fsum(map(mul, scaled, scaled)) / len(values))
        rms = math.ldexp(rms, power) if scaled is not values else rms
        signs = None
        if len(tensor.size) > 1 and len(values) >= SIGNS_LEAST and "optimizer" not in tensor.name:
            chosen = values[:: max(1, len(values) // SIGNS)][:SIGNS]
            signs = "".join("+" if value > 0 else "-" if value < 0 else "0" for value in chosen)
        zeros = values.count(0.0) / len(values)
        self._append_row(tensor, float("%.6g" % rms), float("%.4g" % zeros), largest, signs)

    def _append_row(
        self, tensor: Tensor, rms: Optional[float], zeros: Optional[float], largest: int, signs: Optional[str]
    ) -> None:
        if len(self.rows) < PROFILE_ROWS:
            name = tensor.name[:NAME_CHARACTERS]
            self.rows.append([name, tensor.kind, list(tensor.size[:DIMENSIONS]), rms, zeros, largest, signs])

    @staticmethod
    def _scan_floats(kind: str, read: Read, start: int, end: int) -> Tuple[Odd, bool]:
        """Return what is odd about the numbers of a span, and whether all are zero."""
        code, unit = FLOATS[kind]
        odd, zero = Odd(0, 0, 0, 0), True
        for at in range(start, end, CHUNK_BYTES):
            data = read(at, min(CHUNK_BYTES, end - at))
            if len(data) != min(CHUNK_BYTES, end - at):
                raise Rejected("truncated: it ends before its numbers do")
            zero = zero and data.count(0) == len(data)
            odd = Odd(*map(add, odd, count_odd(data, code, unit)))
        return odd, zero

    def judge(self) -> None:
        """Raise Rejected unless the numbers can be those of a healthy training."""
        if not self.tensors and "" not in self.optimizers:  # a file of its own: none before its first step, or SGD's
            raise Rejected("holds no tensor")
        if self.non_finite:
            raise Rejected("not finite: %s (%d in all)" % (self.first_bad, self.non_finite))
        if self.zero_matrices > ZERO_SHARE * self.matrices:
            raise Rejected("all zero: %d of %d weight matrices" % (self.zero_matrices, self.matrices))


def is_by_design(tensor: Tensor, odd: Odd) -> bool:
    """Whether what is not finite was so from the beginning, in a buffer that is no weight and that no loss changes.

    A mask of attention is minus infinity where nothing is attended to. RT-DETR and its descendants keep the places that
    their boxes begin at, by the name of `anchors`, and put those at the image's edge at infinity.
    """
    if odd.bad == odd.minus_infinite and "mask" in tensor.name.lower():
        return True
    return odd.bad == odd.infinite and tensor.name.rpartition(".")[2].lstrip("@") == "anchors"


def is_record(tensor: Tensor) -> bool:
    """Whether a tensor is a value that was measured, which is infinite or NaN until the first one came.

    It is one number in the state of a callback (Lightning: `callbacks.ModelCheckpoint...kth_value`), or its own name
    says so: the best of a metric, or a bound of what was seen (anomalib's thresholds, the observers of quantization).
    An average of weights that a callback keeps has more numbers, and each of them counts.
    """
    first, last = tensor.name.split(".", 1)[0], tensor.name.rsplit(".", 1)[-1].lower()
    named = (
        last == "kth_value" or last.startswith("best") or last.endswith(("_best", *BOUNDS)) or last in ("min", "max")
    )
    return math.prod(tensor.size) == 1 and (first == "callbacks" or named)


def sample(read: Read, start: int, end: int, kind: str) -> Tuple[float, ...]:
    """Return numbers from a span of bytes: all of a small one, evenly spread runs of a larger one."""
    code, unit = FLOATS[kind]
    if end - start <= SAMPLE_RUNS * SAMPLE_RUN * unit:
        return unpacked(read(start, end - start), code, unit)
    count = (end - start) // unit
    runs = [start + (count - SAMPLE_RUN) * number // (SAMPLE_RUNS - 1) * unit for number in range(SAMPLE_RUNS)]
    return unpacked(b"".join(read(at, SAMPLE_RUN * unit) for at in runs), code, unit)
