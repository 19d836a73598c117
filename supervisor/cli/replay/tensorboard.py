"""Writes scalars as TensorBoard reads them: TFRecord frames with a masked CRC-32C around protocol buffers of an Event.

Formats: tensorflow/core/lib/io/record_writer.h (frames, mask) and tensorflow/core/util/event.proto and summary.proto
(field numbers) of TensorFlow; CRC-32C of RFC 3720, appendix B.4.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping

from supervisor.store.records import StepBucket

VERSION = b"brain.Event:2"
TAGS = {
    "loss/mean": "loss_mean",
    "loss/min": "loss_min",
    "loss/max": "loss_max",
    "learning_rate": "lr_last",
    "gradient_norm/max": "grad_norm_max",
    "steps_per_s": "steps_per_s",
    "samples_per_s": "samples_per_s",
    "tokens_per_s": "tokens_per_s",
    "data_wait_s/mean": "data_wait_mean_s",
    "gpu_memory_bytes/max": "gpu_memory_max_bytes",
    "epoch": "epoch",
}
"""Tags of the scalars, and what of a bucket each shows."""


def events_file(buckets: Iterable[StepBucket]) -> Iterator[bytes]:
    """Yield the records of one run's file: its version, then the scalars of each bucket at its last step."""
    version: bytes | None = None
    for bucket in buckets:
        if version is None:
            version = _encode_double(1, bucket.first_unix_s) + _bytes(3, VERSION)
            yield frame(version)
        if known := scalars_of(bucket):
            yield frame(_encode_event(bucket.last_unix_s, bucket.step_last, known))


def scalars_of(bucket: StepBucket) -> dict[str, float]:
    """Return the known values of a bucket by tag; those of `mlflow` and `wandb` too."""
    return {tag: value for tag, name in TAGS.items() if (value := getattr(bucket, name)) is not None}


def frame(data: bytes) -> bytes:
    """Return a record: its length, the length's checksum, the data, the data's checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def masked(crc: int) -> int:
    """Return a checksum turned and moved on: a checksum of data that holds checksums would say little."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _fill_table() -> tuple[int, ...]:
    table = []
    for index in range(256):
        crc = index
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _fill_table()


def _encode_event(unix_s: float, step: int, scalars: Mapping[str, float]) -> bytes:
    values = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in scalars.items())
    return _encode_double(1, unix_s) + _encode_varint(2 << 3) + _encode_varint(step) + _bytes(5, values)


def _bytes(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_double(number: int, value: float) -> bytes:
    return _encode_varint(number << 3 | 1) + struct.pack("<d", value)


def _float(number: int, value: float) -> bytes:
    """Return a field of single precision; a value beyond it is infinite there."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _encode_varint(number << 3 | 5) + packed


def _encode_varint(value: int) -> bytes:
    """Return an integer from 0 to 2^64 - 1, seven bits a byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
