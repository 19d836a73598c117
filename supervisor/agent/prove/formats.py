"""Finds a checkpoint's numbers in its file, format by format, and passes them on to be checked."""

from __future__ import annotations

import io
import json
import math
import os
import re
import struct
import zipfile
import zlib
from typing import Any, BinaryIO, Dict, List, Optional

from .contents import tensors_in
from .kinds import FLOATS, SAFETENSORS, SIZES, Place, PlaceOf, Read, Rejected
from .opcodes import NOT_TORCH
from .stand_ins import Storage, Tensor, Unpickler
from .tally import Numbers
from .window import Window

MAGIC_LEGACY = 0x1950A86A20F9469CFC6C
"""First pickle of torch's format before 1.6 (torch/serialization.py)."""
DEFINES = re.compile(rb"^[ \t]*def ", re.M)
HEADER_LIMIT_BYTES = 100000000
"""Of a safetensors file, as in its own library."""


def prove_pickled(root: Any, storages: List[Storage], numbers: Numbers, place_of: PlaceOf, name: str) -> None:
    """Count every tensor of an unpickled checkpoint; `place_of(key)` returns (read, first byte, bytes)."""
    covered = set()
    for tensor in tensors_in(root, numbers.optimizers, name):
        covered.add(tensor.storage.key)
        check_span(tensor, numbers, place_of)
    for storage in storages:  # whatever a stand-in hides, its numbers are looked at
        if storage.key not in covered and storage.kind in FLOATS:
            covered.add(storage.key)
            flat = Tensor("storage %s" % storage.key, storage.kind, storage, (0, (storage.count,), (1,)))
            check_span(flat, numbers, place_of)


def check_span(tensor: Tensor, numbers: Numbers, place_of: PlaceOf) -> None:
    """Count one tensor; raise Rejected where its numbers are not all there or not of a known kind."""
    unit = SIZES.get(tensor.kind)
    if unit is None:
        raise Rejected("tensor %s holds numbers of an unknown kind (%s)" % (tensor.name, tensor.kind))
    read, origin, length = place_of(tensor.storage.key)
    first, end = [(tensor.storage.base + item) * unit for item in (tensor.first, tensor.end)]
    if end > length:
        raise Rejected("tensor %s needs %d bytes and its storage has %d" % (tensor.name, end, length))
    numbers.add(tensor, read, origin + first, origin + end)


def prove_zip(file: BinaryIO, size: int, numbers: Numbers, name: str = "", base: int = 0) -> Any:
    """Prove torch's format since 1.6 and return what is at its top; `name` stands before the names of its tensors.

    An archive of such files is proven file by file, as stable-baselines3 saves; `base` is where one begins in it.
    """
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise Rejected("truncated: it begins as a torch archive and has no end") from None
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if re.match(r"[^/]+/data\.pkl\Z", name)]
    parts = [info for part, info in entries.items() if part.endswith(".pth")] if not pickles and not base else []
    if len(pickles) != 1 and not parts:
        raise Rejected("no checkpoint: a zip archive, but not one of torch")
    check_entries(archive, entries, size, "" if parts else pickles[0][: -len("data.pkl")])
    if parts:
        return {info.filename: prove_part(file, info, numbers) for info in parts}
    prefix = pickles[0][: -len("data.pkl")]
    unpickler = Unpickler(open_entry(file, entries[pickles[0]]))
    root = unpickler.load_safely()

    def place_of(key: str) -> Place:
        info = entries.get(prefix + "data/" + key)
        if info is None:
            raise Rejected("storage %s is missing from the archive" % key)
        return reader(file, base), base + data_offset(file, info), info.file_size

    prove_pickled(root, unpickler.storages, numbers, place_of, name)
    return root


def prove_part(file: BinaryIO, info: zipfile.ZipInfo, numbers: Numbers) -> Any:
    """Prove one of the archives in an archive and return what is at its top."""
    return prove_zip(open_entry(file, info), info.file_size, numbers, info.filename, data_offset(file, info))


def open_entry(file: BinaryIO, info: zipfile.ZipInfo) -> BinaryIO:
    """Return a stored entry as a file of its own."""
    return io.BufferedReader(Window(file, data_offset(file, info), info.file_size))


def check_entries(archive: zipfile.ZipFile, entries: Dict[str, zipfile.ZipInfo], size: int, prefix: str) -> None:
    """Raise Rejected unless an archive is whole, of this machine's byte order, and none that torch would run.

    C++ saves all states in the format of TorchScript: classes that name their attributes, and no function to be run.
    """
    code = prefix + "code/"
    if any(info.file_size > size or not is_stored(info, code) for info in entries.values()):
        raise Rejected("no checkpoint: torch does not compress its archives")
    if sum(info.file_size for info in entries.values()) > size:
        raise Rejected("damaged: its entries lie over each other")
    if min(info.header_offset for info in entries.values()) > 0:  # the end that was found is that of an archive in it
        raise Rejected("truncated: it begins as an archive and ends within one of its files")
    damaged = find_damaged(archive)
    if damaged is not None:
        raise Rejected("damaged: %s does not match its checksum" % damaged)
    source = [name for name in entries if name.startswith(code) and name.endswith(".py")]
    if prefix + "constants.pkl" in entries and any(DEFINES.search(archive.read(name)) for name in source):
        raise Rejected("no checkpoint: a TorchScript program")
    if prefix + "byteorder" in entries and archive.read(prefix + "byteorder").strip() != b"little":
        raise Rejected("written on a big-endian machine")


def is_stored(info: zipfile.ZipInfo, code: str) -> bool:
    """Whether an entry lies in the archive as it is; those below `code`, of TorchScript, may be compressed."""
    is_code = info.filename.startswith(code)
    return info.compress_type == zipfile.ZIP_STORED or (is_code and info.compress_type == zipfile.ZIP_DEFLATED)


def find_damaged(archive: zipfile.ZipFile) -> Optional[str]:
    """Return the first entry whose bytes are not those that were written; None where all are."""
    try:
        return archive.testzip()
    except zlib.error:
        return "what is compressed in it"


def data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Return where the bytes of a stored entry begin: its local header has lengths of its own."""
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return int(info.header_offset + 30 + name + extra)


def reader(file: BinaryIO, base: int = 0) -> Read:
    """Return a function that reads `length` bytes at `start`, which counts from `base` before the file."""

    def read(start: int, length: int) -> bytes:
        file.seek(start - base)
        return file.read(length)

    return read


def prove_legacy(file: BinaryIO, size: int, numbers: Numbers, name: str = "") -> Any:
    """Prove torch's format before 1.6: pickles, then the storages one after the other."""
    if Unpickler(file).load_safely() != MAGIC_LEGACY:
        raise Rejected(NOT_TORCH)
    Unpickler(file).load_safely()
    system = Unpickler(file).load_safely()
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise Rejected("not written on a little-endian machine")
    unpickler = Unpickler(file)
    root = unpickler.load_safely()
    keys = Unpickler(file).load_safely()
    units = {storage.key: SIZES.get(storage.kind, 0) for storage in unpickler.storages}
    places = {}
    for key in keys if isinstance(keys, list) else []:
        head = file.read(8)
        if len(head) != 8 or not units.get(key):
            raise Rejected("truncated: storage %s is missing" % key)
        length = struct.unpack("<q", head)[0] * units[key]
        places[key] = (reader(file), file.tell(), length)
        if not 0 <= length <= size - file.tell():
            raise Rejected("truncated: it ends before its numbers do")
        file.seek(length, os.SEEK_CUR)

    def place_of(key: str) -> Place:
        if key not in places:
            raise Rejected("storage %s is missing" % key)
        return places[key]

    prove_pickled(root, unpickler.storages, numbers, place_of, name)
    return root


def prove_safetensors(file: BinaryIO, size: int, numbers: Numbers, _name: str = "") -> Any:
    """Prove a safetensors file: a JSON header, then the numbers without a gap (its own library's rules)."""
    length = struct.unpack("<Q", file.read(8))[0]
    if length > min(HEADER_LIMIT_BYTES, size - 8):
        raise Rejected("truncated: it ends before its header does")
    try:
        header = json.loads(file.read(length).decode("utf-8"))
        header.pop("__metadata__", None)
        rows = sorted((*row["data_offsets"], row["dtype"], tuple(row["shape"]), name) for name, row in header.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Rejected("no checkpoint: its header is not that of safetensors") from None
    at = 0
    for start, end, dtype, shape, name in rows:
        kind = SAFETENSORS.get(dtype)
        if kind is None:
            raise Rejected("tensor %s holds numbers of an unknown kind (%s)" % (name, dtype))
        if start != at or end - start != math.prod(shape) * SIZES[kind]:
            raise Rejected("tensor %s does not lie where it should" % name)
        at = end
        if 8 + length + end > size:
            raise Rejected("truncated: it ends before its numbers do")
        tensor = Tensor(name, kind, Storage(kind, name, math.prod(shape)), (0, shape, (0,) * len(shape)))
        numbers.add(tensor, reader(file), 8 + length + start, 8 + length + end)
    if 8 + length + at != size:
        raise Rejected("has more bytes than its header declares")
    return {}
