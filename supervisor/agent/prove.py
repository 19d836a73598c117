"""Proves that a checkpoint is whole and its numbers finite, and never runs anything that it contains.

    python -I prove.py CHECKPOINT [MEMORY_LIMIT_BYTES [CPU_LIMIT_S]]

One JSON line comes out: verdict ("proven", "rejected"), reason, epoch, step, tensors, non_finite, kind, fitness, and
its profile: name, shape and a few figures of each tensor, by which it can be held against another. It reads
torch's zip and legacy formats and safetensors with the standard library alone, so it answers the same for every
torch, needs none, and takes a fraction of the time of importing one. A torch checkpoint is a pickle, that is, a
program. Here every class and function that it names is an inert stand-in: the program runs to its end and nothing is
called. Should the reading itself have a hole, the process has given everything away before the first byte is read: it
can open no file and no socket, start no program and write nothing but its answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import re
import resource
import stat
import struct
import sys
import zipfile
from operator import mul
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Tuple

MAGIC_LEGACY = 0x1950A86A20F9469CFC6C
"""First pickle of torch's format before 1.6 (torch/serialization.py)."""
CHUNK_BYTES = 1 << 22
HEADER_LIMIT_BYTES = 100000000
"""Of a safetensors file, as in its own library."""
ZERO_SHARE = 0.75
"""A model of which more matrices than this are all zero is none: so ultralytics saves weights that had become NaN."""

FLOATS = {
    "Double": ("d", 8),
    "Float": ("f", 4),
    "Half": ("e", 2),
    "BFloat16": ("bf16", 2),
    "ComplexDouble": ("d", 8),
    "ComplexFloat": ("f", 4),
    "Float8_e4m3fn": ("e4m3", 1),
    "Float8_e5m2": ("e5m2", 1),
}
"""By torch's name: how its numbers are unpacked, and bytes in each."""
SIZES = {
    "Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "ComplexDouble": 16, "ComplexFloat": 8, "Long": 8, "Int": 4,
    "Short": 2, "Char": 1, "Byte": 1, "Bool": 1, "QInt8": 1, "QUInt8": 1, "QInt32": 4, "Untyped": 1,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "UInt16": 2, "UInt32": 4, "UInt64": 8,
}  # fmt: skip
"""Bytes in each element, by torch's name of the storage."""
DTYPES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "complex128": "ComplexDouble",
    "complex64": "ComplexFloat", "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
    "bool": "Bool", "float8_e4m3fn": "Float8_e4m3fn", "float8_e5m2": "Float8_e5m2", "uint16": "UInt16",
    "uint32": "UInt32", "uint64": "UInt64",
}  # fmt: skip
SAFETENSORS = {
    "F64": "Double", "F32": "Float", "F16": "Half", "BF16": "BFloat16", "C64": "ComplexFloat", "I64": "Long",
    "I32": "Int", "I16": "Short", "I8": "Char", "U8": "Byte", "BOOL": "Bool", "U16": "UInt16", "U32": "UInt32",
    "U64": "UInt64", "F8_E4M3": "Float8_e4m3fn", "F8_E5M2": "Float8_e5m2",
}  # fmt: skip

HOSTILE_MODULES = frozenset(
    [
        "_pickle", "_posixsubprocess", "_thread", "bdb", "cProfile", "code", "codeop", "commands",
        "imp", "marshal", "nt", "pdb", "pickle", "pkgutil", "posix", "profile", "pty", "runpy", "shutil", "signal",
        "site", "socket", "tempfile", "timeit", "trace", "webbrowser", "zipimport",
    ]
)  # fmt: skip
HOSTILE_PACKAGES = frozenset(
    [
        "asyncio", "cloudpickle", "ctypes", "dill", "distutils", "ftplib", "http", "importlib", "joblib",
        "multiprocessing", "os", "pip", "requests", "setuptools", "smtplib", "subprocess", "sys", "urllib",
    ]
)  # fmt: skip
"""No checkpoint needs them, and loading one that names them would run what it says. The first are hostile by their
full name alone, for a user's own package may well be called `code`."""
HOSTILE_NAMES = {
    "builtins": "eval exec compile open getattr setattr delattr __import__ input globals locals vars breakpoint exit "
    "quit help memoryview",
    "operator": "attrgetter itemgetter methodcaller",
    "types": "CodeType FunctionType",
    "torch": "load",
    "torch.hub": "load",
    "torch.serialization": "load",
    "torch.storage": "_load_from_bytes",
    "numpy.testing._private.utils": "runstring",
}
HOSTILE_NAMES["__builtin__"] = HOSTILE_NAMES["builtins"]
HOSTILE_NAMES["_operator"] = HOSTILE_NAMES["operator"]
REBUILDS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
"""Functions of torch._utils whose first arguments are storage, offset, size and stride."""


Path = Tuple[str, ...]
NOWHERE: Path = ()
Read = Callable[[int, int], bytes]
"""(start, length) -> bytes"""
Place = Tuple[Read, int, int]
"""How to read the data of a storage, where it begins, and its length in bytes."""
PlaceOf = Callable[[str], Place]


class Rejected(Exception):  # noqa: N818 - a verdict, no error
    """Why the file is no proven checkpoint, for a person."""


# --- the pickle, with nothing in it that acts ---------------------------------------------------------------------


class StandIn:
    """In place of every class and function that a pickle names: keeps what it is given and does nothing."""

    origin = ("", "")

    def __new__(cls, *args: Any, **kwargs: Any) -> StandIn:
        """Keep the arguments."""
        made = object.__new__(cls)
        made.__dict__.update(args=args, kwargs=kwargs, state=None, items=[], parts=[])
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        """Answer as a function that was made by another."""
        return StandIn(self, *args, **kwargs)

    def __setstate__(self, state: Any) -> None:
        """Keep what the object would have become."""
        self.__dict__["state"] = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep an entry of what is a mapping."""
        self.__dict__["items"].append((key, value))

    def append(self, value: Any) -> None:
        """Keep an entry of what is a list."""
        self.__dict__["parts"].append(value)

    def extend(self, values: Any) -> None:
        """Keep entries of what is a list."""
        self.__dict__["parts"].extend(values)

    add = append


class Storage:
    """A run of numbers of one kind that the pickle refers to."""

    def __init__(self, kind: str, key: str, count: int, base: int = 0) -> None:
        """`count` elements from element `base` of the data called `key`."""
        self.kind, self.key, self.count, self.base = kind, key, count, base


class Tensor:
    """Which elements of a storage a tensor looks at."""

    def __init__(self, name: str, kind: str, storage: Storage, view: Any) -> None:
        """`view` is (offset, size, stride); raise Rejected where that is no shape."""
        offset, size, stride = view
        whole = [offset, *size, *stride]
        if len(size) != len(stride) or not all(isinstance(one, int) and one >= 0 for one in whole):
            raise Rejected("tensor %s has no sound shape" % name)
        self.name, self.kind, self.storage, self.size = name, kind, storage, tuple(size)
        empty = 0 in self.size
        self.first = offset
        self.end = offset if empty else offset + 1 + sum((n - 1) * step for n, step in zip(size, stride))


class Unpickler(pickle.Unpickler):
    """Unpickles into stand-ins; names that could do harm are remembered, and as inert as the rest."""

    def __init__(self, file: BinaryIO) -> None:
        """Read one pickle from `file`, which stands behind it afterwards."""
        super().__init__(file, encoding="utf-8", errors="replace")
        self.hostile: List[str] = []
        self.storages: List[Storage] = []

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, whatever is named."""
        if is_hostile(module, name):
            self.hostile.append("%s.%s" % (module, name))
        return type("StandIn", (StandIn,), {"origin": (module, name)})

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage that `pid` names: ("storage", type, key, device, count[, view])."""
        if not (isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage"):
            raise Rejected("refers to something that is no storage")
        _, made_by, key, _, count = pid[:5]
        sound = isinstance(made_by, type) and issubclass(made_by, StandIn) and isinstance(key, str)
        if not sound or not isinstance(count, int) or count < 0:
            raise Rejected("refers to a storage without kind or size")
        kind = made_by.origin[1].replace("Storage", "")
        base = 0
        if len(pid) == 6 and pid[5] is not None:
            _, base, count = pid[5]
        storage = Storage(kind, key, count, base)
        self.storages.append(storage)
        return storage

    def load_safely(self) -> Any:
        """Return the object; raise Rejected where a name is hostile or the pickle is no whole one."""
        try:
            found = self.load()
        except Exception as error:
            self.reject_hostile()
            if isinstance(error, Rejected):
                raise
            raise Rejected("its pickle is damaged or cut short (%s: %s)" % (type(error).__name__, error)) from None
        self.reject_hostile()
        return found

    def reject_hostile(self) -> None:
        """Raise Rejected with every hostile name."""
        if self.hostile:
            raise Rejected("hostile: loading it would call %s" % ", ".join(sorted(set(self.hostile))[:10]))


def is_hostile(module: str, name: str) -> bool:
    """Whether a checkpoint that names this was made to do harm."""
    parts = name.split(".")
    return (
        module in HOSTILE_MODULES
        or module.split(".", 1)[0] in HOSTILE_PACKAGES
        or parts[0] in HOSTILE_NAMES.get(module, "").split()
        or not (HOSTILE_MODULES | HOSTILE_PACKAGES).isdisjoint(parts[:-1])
        or any(one.startswith("__") and one != "__new__" for one in parts[1:])
    )


# --- what is in it ------------------------------------------------------------------------------------------------


def walk(root: Any) -> Iterator[Tuple[str, Any]]:
    """Yield (name, object) for everything below `root`, each object once."""
    seen = set()
    waiting: List[Tuple[Path, Any]] = [((), root)]
    while waiting:
        path, found = waiting.pop()
        if id(found) in seen or isinstance(found, (str, bytes, int, float, type(None))):
            continue
        seen.add(id(found))
        yield ".".join(path), found
        waiting.extend((path + part, value) for part, value in reversed(children(found)))


def children(found: Any) -> List[Tuple[Path, Any]]:
    """Return the parts of an object as (path, value); the plumbing of torch's modules leaves no trace in a path.

    What a module keeps beside its parameters and buffers is marked: its shape may change from one save to the next.
    """
    if isinstance(found, dict):
        module = "_parameters" in found and "_modules" in found
        parts = [(name_part(key), value) for key, value in found.items()]
        return [(("@" + path[0],) if module and path else path, value) for path, value in parts]
    if isinstance(found, (list, tuple, set, frozenset)):
        return [((str(index),), value) for index, value in enumerate(found)]
    if isinstance(found, StandIn):
        kept = found.__dict__
        values = [*kept["args"], *kept["kwargs"].values(), kept["state"], *kept["parts"]]
        return [(NOWHERE, value) for value in values] + [(name_part(key), value) for key, value in kept["items"]]
    return []


def name_part(key: Any) -> Path:
    """Return a key as a part of a path."""
    if not isinstance(key, (str, int)) or key in ("_modules", "_parameters", "_buffers"):
        return ()
    return (str(key),)


def tensors_in(root: Any, optimizers: Dict[str, int]) -> List[Tensor]:
    """Return every tensor below `root`; raise Rejected for one whose numbers could not be found.

    `optimizers` gets, by the name of each state of an optimizer, how many parameters its groups count.
    """
    found = []
    for name, one in walk(root):
        if isinstance(one, dict) and "state" in one and isinstance(one.get("param_groups"), list):
            groups = [group.get("params") for group in one["param_groups"] if isinstance(group, dict)]
            optimizers[name] = sum(len(group) for group in groups if isinstance(group, list))
        if not isinstance(one, StandIn):
            continue
        (module, function), args = one.origin, one.__dict__["args"]
        if function == "_rebuild_from_type_v2" and len(args) > 2 and isinstance(args[0], type):
            (module, function), args = getattr(args[0], "origin", ("", "")), args[2]
        if module == "torch._utils" and function in REBUILDS:
            found.append(tensor_of(name or "tensor", args))
    return found


def tensor_of(name: str, args: Any) -> Tensor:
    """Return the tensor that a rebuild function of torch would have made of its arguments."""
    if len(args) < 4 or not isinstance(args[0], Storage) or not isinstance(args[2], tuple):
        raise Rejected("tensor %s has no storage" % name)
    storage, kind = args[0], args[0].kind
    if kind in ("Untyped", "Typed") or (len(args) > 6 and getattr(args[6], "origin", ("",))[0] == "torch"):
        dtype = getattr(args[6], "origin", ("", ""))[1] if len(args) > 6 else ""
        kind = DTYPES.get(dtype, dtype or kind)
    return Tensor(name, kind, storage, args[1:4])


def entries_of(root: Any) -> Dict[Any, Any]:
    """Return the named entries at the top of a checkpoint."""
    if isinstance(root, StandIn):
        return {key: value for key, value in root.__dict__["items"] if isinstance(key, str)}
    return root if isinstance(root, dict) else {}


# --- numbers ------------------------------------------------------------------------------------------------------

SUSPECT = {
    "e": bytes(b for b in range(256) if b & 0x7C == 0x7C or b & 0x7F == 0x7B),
    "f": b"\x7f\xff",
    "d": b"\x7f\xff",
    "bf16": b"\x7f\xff",
    "e4m3": b"\x7f\xff",
    "e5m2": bytes(b for b in range(256) if b & 0x7C == 0x7C),
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
"""Numbers of a matrix whose signs are told, so that its continuation can be told from other numbers of that size."""
SIGNS_LEAST = 64
PROFILE_ROWS = 20000
NAME_CHARACTERS, DIMENSIONS = 200, 16
"""What is told of each at most: a file decides its names and shapes by itself."""


def unpacked(data: bytes, code: str, unit: int) -> Tuple[float, ...]:
    """Return the numbers of raw bytes; () for a kind that Python cannot unpack."""
    if unit == 1:
        return ()
    if code == "bf16":  # the upper half of a float32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data, code, unit = bytes(wide), "f", 4
    return struct.unpack("<%d%s" % (len(data) // unit, code), data)


def count_bad(data: bytes, code: str, unit: int) -> Tuple[int, int, int]:
    """Return how many numbers are not finite, how many of those minus infinity, and how many the largest there is."""
    high = data[unit - 1 :: unit]
    suspects = len(high) - len(high.translate(None, SUSPECT[code]))
    if not suspects or unit == 1:
        return suspects, 0, 0
    values = unpacked(data, code, unit)
    bad = [value for value in values if not math.isfinite(value)]
    return len(bad), bad.count(-math.inf), values.count(LARGEST[code]) + values.count(-LARGEST[code])


class Numbers:
    """The tally over all tensors of a checkpoint, and its profile."""

    def __init__(self) -> None:
        """Begin with none."""
        self.tensors = self.non_finite = self.matrices = self.zero_matrices = 0
        self.first_bad = ""
        self.done: Dict[Tuple[str, int, int], Tuple[int, int, bool, int]] = {}
        self.rows: List[List[Any]] = []
        self.optimizers: Dict[str, int] = {}

    def add(self, tensor: Tensor, read: Read, start: int, end: int) -> None:
        """Count a tensor whose numbers are bytes `start` to `end` of what `read(start, length)` returns."""
        self.tensors += 1
        if tensor.kind not in FLOATS:
            self._tell(tensor, None, None, 0, None)
            return
        span = (tensor.kind, start, end)
        if span not in self.done:
            self.done[span] = self._look(tensor.kind, read, start, end)
        bad, minus_infinite, zero, largest = self.done[span]
        if not bad:
            self._measure(tensor, sample(read, start, end, tensor.kind), largest)
        # A mask of attention is minus infinity by design; it is no weight, and no loss makes one.
        if bad and not (bad == minus_infinite and "mask" in tensor.name.lower()):
            self.non_finite += bad
            self.first_bad = self.first_bad or "%d of %d numbers in %s" % (bad, math.prod(tensor.size), tensor.name)
        if len(tensor.size) > 1 and 0 not in tensor.size and "optimizer" not in tensor.name.split("."):
            self.matrices += 1
            self.zero_matrices += zero

    def _measure(self, tensor: Tensor, values: Tuple[float, ...], largest: int) -> None:
        if not values:
            self._tell(tensor, None, None, largest, None)
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
        self._tell(tensor, float("%.6g" % rms), float("%.4g" % zeros), largest, signs)

    def _tell(
        self, tensor: Tensor, rms: Optional[float], zeros: Optional[float], largest: int, signs: Optional[str]
    ) -> None:
        if len(self.rows) < PROFILE_ROWS:
            name = tensor.name[:NAME_CHARACTERS]
            self.rows.append([name, tensor.kind, list(tensor.size[:DIMENSIONS]), rms, zeros, largest, signs])

    @staticmethod
    def _look(kind: str, read: Read, start: int, end: int) -> Tuple[int, int, bool, int]:
        code, unit = FLOATS[kind]
        bad = minus_infinite = largest = 0
        zero = True
        for at in range(start, end, CHUNK_BYTES):
            data = read(at, min(CHUNK_BYTES, end - at))
            if len(data) != min(CHUNK_BYTES, end - at):
                raise Rejected("truncated: it ends before its numbers do")
            zero = zero and data.count(0) == len(data)
            found = count_bad(data, code, unit)
            bad, minus_infinite, largest = bad + found[0], minus_infinite + found[1], largest + found[2]
        return bad, minus_infinite, zero, largest

    def judge(self) -> None:
        """Raise Rejected unless the numbers can be those of a sound training."""
        if not self.tensors:
            raise Rejected("holds no tensor")
        if self.non_finite:
            raise Rejected("not finite: %s (%d in all)" % (self.first_bad, self.non_finite))
        if self.zero_matrices > ZERO_SHARE * self.matrices:
            raise Rejected("all zero: %d of %d weight matrices" % (self.zero_matrices, self.matrices))


def sample(read: Read, start: int, end: int, kind: str) -> Tuple[float, ...]:
    """Return numbers from a span of bytes: all of a small one, evenly spread runs of a larger one."""
    code, unit = FLOATS[kind]
    if end - start <= SAMPLE_RUNS * SAMPLE_RUN * unit:
        return unpacked(read(start, end - start), code, unit)
    count = (end - start) // unit
    runs = [start + (count - SAMPLE_RUN) * number // (SAMPLE_RUNS - 1) * unit for number in range(SAMPLE_RUNS)]
    return unpacked(b"".join(read(at, SAMPLE_RUN * unit) for at in runs), code, unit)


# --- formats ------------------------------------------------------------------------------------------------------


def prove_pickled(root: Any, storages: List[Storage], numbers: Numbers, place_of: PlaceOf) -> None:
    """Count every tensor of an unpickled checkpoint; `place_of(key)` returns (read, first byte, bytes)."""
    covered = set()
    for tensor in tensors_in(root, numbers.optimizers):
        covered.add(tensor.storage.key)
        check_span(tensor, numbers, place_of)
    for storage in storages:  # whatever a stand-in hides, its numbers are looked at
        if storage.key not in covered and storage.kind in FLOATS:
            covered.add(storage.key)
            whole = Tensor("storage %s" % storage.key, storage.kind, storage, (0, (storage.count,), (1,)))
            check_span(whole, numbers, place_of)


def check_span(tensor: Tensor, numbers: Numbers, place_of: PlaceOf) -> None:
    """Count one tensor; raise Rejected where its numbers are not all there or not of a known kind."""
    unit = SIZES.get(tensor.kind)
    if unit is None:
        raise Rejected("tensor %s holds numbers of an unknown kind (%s)" % (tensor.name, tensor.kind))
    read, origin, length = place_of(tensor.storage.key)
    first, end = [(tensor.storage.base + one) * unit for one in (tensor.first, tensor.end)]
    if end > length:
        raise Rejected("tensor %s needs %d bytes and its storage has %d" % (tensor.name, end, length))
    numbers.add(tensor, read, origin + first, origin + end)


def prove_zip(file: BinaryIO, size: int, numbers: Numbers) -> Any:
    """Prove torch's format since 1.6 and return what is at its top."""
    try:
        archive = zipfile.ZipFile(file)
    except zipfile.BadZipFile:
        raise Rejected("truncated: it begins as a torch archive and has no end") from None
    entries = {info.filename: info for info in archive.infolist()}
    pickles = [name for name in entries if re.match(r"[^/]+/data\.pkl\Z", name)]
    if len(pickles) != 1:
        raise Rejected("no checkpoint: a zip archive, but not one of torch")
    prefix = pickles[0][: -len("data.pkl")]
    if prefix + "constants.pkl" in entries:
        raise Rejected("no checkpoint: a TorchScript program")
    if any(info.compress_type != zipfile.ZIP_STORED or info.file_size > size for info in entries.values()):
        raise Rejected("no checkpoint: torch does not compress its archives")
    damaged = archive.testzip()
    if damaged is not None:
        raise Rejected("damaged: %s does not match its checksum" % damaged)
    if prefix + "byteorder" in entries and archive.read(prefix + "byteorder").strip() != b"little":
        raise Rejected("written on a big-endian machine")
    unpickler = Unpickler(io.BytesIO(archive.read(pickles[0])))
    root = unpickler.load_safely()

    def place_of(key: str) -> Place:
        info = entries.get(prefix + "data/" + key)
        if info is None:
            raise Rejected("storage %s is missing from the archive" % key)
        return reader(file), data_offset(file, info), info.file_size

    prove_pickled(root, unpickler.storages, numbers, place_of)
    return root


def data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Return where the bytes of a stored entry begin: its local header has lengths of its own."""
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return int(info.header_offset + 30 + name + extra)


def reader(file: BinaryIO) -> Read:
    """Return a function that reads `length` bytes at `start`."""

    def read(start: int, length: int) -> bytes:
        file.seek(start)
        return file.read(length)

    return read


def prove_legacy(file: BinaryIO, size: int, numbers: Numbers) -> Any:
    """Prove torch's format before 1.6: pickles, then the storages one after the other."""
    if Unpickler(file).load_safely() != MAGIC_LEGACY:
        raise Rejected("no checkpoint: a pickle that torch did not write")
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

    prove_pickled(root, unpickler.storages, numbers, place_of)
    return root


def prove_safetensors(file: BinaryIO, size: int, numbers: Numbers) -> Any:
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
        raise Rejected("has more bytes than its header tells of")
    return {}


# --- the program --------------------------------------------------------------------------------------------------


def kind_of(head: bytes, size: int) -> Tuple[str, Callable[[BinaryIO, int, Numbers], Any]]:
    """Return the format and its prover by the first bytes; raise Rejected where they are of none."""
    if not size:
        raise Rejected("empty")
    if head[:4] == b"PK\x03\x04":
        return "torch", prove_zip
    if head[:1] == b"\x80":
        return "torch-legacy", prove_legacy
    if len(head) > 8 and head[8:9] == b"{":
        return "safetensors", prove_safetensors
    raise Rejected("no checkpoint: neither a torch file nor safetensors")


def position(entries: Dict[Any, Any], beside: Optional[bytes]) -> Tuple[Optional[int], Optional[int]]:
    """Return (epoch, step) that a checkpoint says it contains; None for what it does not say."""

    def whole(*names: str) -> Optional[int]:
        found = [entries[name] for name in names if type(entries.get(name)) is int]
        return found[0] if found else None

    own = entries_of(entries.get("rocm_supervisor"))  # what our agent adds to a checkpoint of ultralytics
    epoch, step = whole("epoch"), own.get("step", whole("step", "global_step"))
    if step is None and epoch is None and beside is not None:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):
            step = json.loads(beside).get("global_step")
    return epoch, step if type(step) is int else None


def fitness_of(entries: Dict[Any, Any]) -> Optional[float]:
    """Return how well the saved model did at its validation, more being better; None where it does not say."""
    found = entries_of(entries.get("train_metrics")).get("fitness")
    return float(found) if isinstance(found, (int, float)) and math.isfinite(found) else None


def examine(file: BinaryIO, size: int, beside: Optional[bytes], numbers: Numbers, answer: Dict[str, Any]) -> None:
    """Fill in what a file says of itself; raise Rejected unless its numbers are all there and sound."""
    head = file.read(16)
    file.seek(0)
    answer["kind"], prover = kind_of(head, size)
    entries = entries_of(prover(file, size, numbers))
    answer["epoch"], answer["step"] = position(entries, beside)
    numbers.judge()
    if answer["epoch"] == -1 and "train_args" in entries and entries.get("optimizer") is None:
        raise Rejected("stripped at the end of a training: it holds no optimizer state to resume from")
    answer["fitness"] = fitness_of(entries)
    updates = entries.get("updates")
    answer["profile"] = {
        "tensors": numbers.rows,
        "optimizers": numbers.optimizers,
        "updates": updates if type(updates) is int else None,
    }


def identity(file: BinaryIO) -> Tuple[int, int, int]:
    """Return what changes when an open file is written; raise Rejected for what is no file."""
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode):
        raise Rejected("no file")
    return found.st_size, found.st_mtime_ns, found.st_ino


def opened(path: str) -> BinaryIO:
    """Open a file without waiting for anybody to write into it; raise Rejected for what is none."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Rejected("no file")
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def state_beside(path: str) -> Optional[bytes]:
    """Return the file in which the Trainer of Hugging Face keeps where it stands; None where there is none."""
    try:
        with opened(os.path.join(os.path.dirname(path), "trainer_state.json")) as file:
            return file.read(1 << 24)
    except (OSError, Rejected):
        return None


def prove(path: str, confined: Callable[[], None] = lambda: None) -> Dict[str, Any]:
    """Return the answer about one file as a dictionary; nothing in the file can make it raise.

    `confined` is called once everything is open and nothing of the checkpoint read.
    """
    names = ("verdict", "reason", "epoch", "step", "tensors", "non_finite", "kind", "fitness", "profile")
    answer: Dict[str, Any] = dict.fromkeys(names)
    numbers = Numbers()
    try:
        with opened(path) as file:
            before = identity(file)
            beside = state_beside(path)
            confined()
            judge_open(file, before, beside, numbers, answer)
    except Rejected as error:
        answer["reason"] = str(error)
    except OSError as error:
        answer["reason"] = "unreadable: %s" % (error.strerror or error)
    answer["verdict"] = "rejected" if answer["reason"] else "proven"
    answer["tensors"], answer["non_finite"] = numbers.tensors, numbers.non_finite
    return answer


def judge_open(
    file: BinaryIO, before: Tuple[int, int, int], beside: Optional[bytes], numbers: Numbers, answer: Dict[str, Any]
) -> None:
    """Examine an open file; raise Rejected with the reason for whatever is wrong with it."""
    try:
        examine(file, before[0], beside, numbers, answer)
    except (Rejected, OSError):
        if identity(file) != before:
            raise Rejected("changed while it was read") from None
        raise
    except MemoryError:
        raise Rejected("needs more memory than it may have while it is proved") from None
    except Exception as error:
        raise Rejected("damaged (%s: %s)" % (type(error).__name__, error)) from None
    if identity(file) != before:
        raise Rejected("changed while it was read")


# --- the fence around it ------------------------------------------------------------------------------------------

LANDLOCK_CREATE, LANDLOCK_RESTRICT = 444, 446
"""Numbers of the system calls, the same on every architecture (Linux 5.13)."""
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIGKILL = 9


def confine(memory_limit_bytes: int, cpu_limit_s: int) -> None:
    """Give away all that reading an open file does not need; each fence holds where the others cannot be had.

    No file and no socket can be opened (RLIMIT_NOFILE, Landlock), no process starts, memory and processor time end.
    Where the kernel allows it the process also leaves its user and its network behind.
    """
    "".encode("cp437")  # zipfile's, for names that are not ASCII; what is imported later could not be opened
    try:
        import ctypes  # noqa: PLC0415 - where memory may not be made executable, some builds cannot be imported

        leave(ctypes.CDLL(None, use_errno=True), ctypes.c_uint64)
    except (ImportError, MemoryError, OSError, AttributeError):
        pass  # the limits below hold everywhere
    for limit, value in (
        (resource.RLIMIT_AS, memory_limit_bytes),
        (resource.RLIMIT_CPU, cpu_limit_s),
    ):
        if value:
            resource.setrlimit(limit, (value, value))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))


def leave(libc: Any, word: Any) -> None:
    """Leave user, network and file system behind, as far as the kernel and a sandbox around us let us."""
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        libc.unshare(CLONE_NEWNET)
    handled = (word * 1)((1 << 13) - 1)  # every right to files that Landlock's first version knows, none given
    ruleset = libc.syscall(LANDLOCK_CREATE, handled, 8, 0)
    if ruleset >= 0:
        libc.syscall(LANDLOCK_RESTRICT, ruleset, 0)
        os.close(ruleset)


def main(path: str, memory_limit_bytes: int = 0, cpu_limit_s: int = 0) -> None:
    """Print the answer about one file; with limits, it takes no more memory and processor time than that."""
    print(json.dumps(prove(path, lambda: confine(memory_limit_bytes, cpu_limit_s))))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
