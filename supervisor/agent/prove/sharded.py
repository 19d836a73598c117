"""Proves a checkpoint of torch.distributed.checkpoint: all that its metadata names is there, whole, and finite.

torch itself loads such a checkpoint with a flipped bit, for it does not look at the checksums of what it reads. What
is seen by its time alone is a shard of another step under the right name: a shard later than the metadata is refused.
"""

from __future__ import annotations

import math
import os
import re
import struct
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from .contents import tensors_in
from .kinds import SIZES, Rejected
from .stand_ins import StandIn, Unpickler
from .tally import Numbers
from .window import Window

METADATA = ".metadata"
SHARD = ".distcp"
SHARDS_MAX = 4000
CLOCKS_S = 2.0
"""How far the clocks of the machines that write into one folder may differ, and the steps of a file system's times."""
CHUNKS_COMPARED = 512
"""Chunks of one tensor that are held against each other; of more, only their volume is."""
METADATA_BYTES_MAX = 1 << 28
INTEGERS = {"Long": "<q", "Int": "<i", "Short": "<h"}
COUNTERS = re.compile(r"(?:(?!model|optim)[^.]+\.)?([^.]+)")
"""A name of at most two parts, the first of which is neither the model nor the optimizer."""

Prover = Callable[[BinaryIO, int, Numbers, str], Any]
"""Proves one item, as a file of its own; the last argument is its name."""
Item = Tuple[str, int, int]
"""Shard, first byte, length."""
Key = Tuple[str, Tuple[int, ...]]
"""Name, and offset in the whole tensor."""


def is_sharded(path: str) -> bool:
    """Whether a path is that of the metadata of such a checkpoint."""
    return os.path.basename(path) == METADATA


def open_shard(path: str) -> BinaryIO:
    """Open a shard, which is never a link."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW), "rb")


def shards_beside(path: str, end: str = SHARD) -> List[str]:
    """Return the names of the shards in the folder of the metadata, by their `end`; raise Rejected for too many."""
    names = sorted(name for name in os.listdir(os.path.dirname(path) or ".") if name.endswith(end))
    if len(names) > SHARDS_MAX:
        raise Rejected("%d shards: at most %d are read" % (len(names), SHARDS_MAX))
    return names


def prove_sharded(
    metadata: BinaryIO, shards: Dict[str, BinaryIO], numbers: Numbers, prover_of: Callable[[bytes, int], Prover]
) -> Dict[str, Any]:
    """Count the numbers of every item; return the counters that were saved with them (`step`, `epoch`), by name."""
    size = os.fstat(metadata.fileno()).st_size
    if not 0 < size <= METADATA_BYTES_MAX:
        raise Rejected("its .metadata has %d bytes" % size)
    root = Unpickler(metadata).load_safely()
    tensors, items = described(root), stored(root)
    check_items(items, shards)
    for name, (shape, chunks) in tensors.items():
        check_chunks(name, shape, chunks, items)
    sizes = {(name, offset): extent for name, (_, chunks) in tensors.items() for offset, extent in chunks}
    entries: Dict[str, Any] = {}
    for key, (shard, start, length) in sorted(items.items()):
        window = Window(shards[shard], start, length)
        extent = sizes.get(key)
        label = key[0] if extent is None or extent == tensors[key[0]][0] else "%s%s" % (key[0], list(key[1]))
        try:
            found = prove_item(window, label, extent, numbers, prover_of)
        except Rejected as error:
            raise Rejected("%s in %s: %s" % (label, shard, error)) from None
        counter = COUNTERS.fullmatch(key[0])
        if counter and type(found) is int:
            entries.setdefault(counter.group(1), found)
    check_ages(metadata, shards)
    return entries


def check_ages(metadata: BinaryIO, shards: Dict[str, BinaryIO]) -> None:
    """Raise Rejected where a shard was written after the metadata, which a save writes last.

    A later save into the same folder that did not end leaves shards of two steps, of which torch loads a mixture.
    """
    written_s = os.fstat(metadata.fileno()).st_mtime
    for name, shard in sorted(shards.items()):
        later_s = os.fstat(shard.fileno()).st_mtime - written_s
        if not later_s <= CLOCKS_S:
            raise Rejected(
                "%s was written %.0f s after its .metadata: by a later save that did not end, or copied without times "
                "(`cp -a` keeps them)" % (name, later_s)
            )


def prove_item(
    window: Window,
    label: str,
    extent: Optional[Tuple[int, ...]],
    numbers: Numbers,
    prover_of: Callable[[bytes, int], Prover],
) -> Any:
    """Prove what lies in one part of a shard, a tensor where it has an extent; return an integer as what it is."""
    head = window.read(16)
    window.seek(0)
    numbers.done.clear()  # it knows spans of bytes, and these belong to another file
    rows = len(numbers.rows)
    root = prover_of(head, window.length)(window, window.length, numbers, label)  # type: ignore[arg-type]
    if extent is None:
        return root
    found = tensors_in(root, {})
    if not found or found[0].size != extent:
        shown = list(found[0].size) if found else "no tensor"
        raise Rejected("is %s where the metadata says %s" % (shown, list(extent)))
    if math.prod(extent) != 1 or found[0].kind not in INTEGERS:
        return None
    del numbers.rows[rows:]  # a counter is no weight: it differs from save to save
    return integer_in(window, found[0].kind)


def integer_in(window: Window, kind: str) -> Optional[int]:
    """Return the integer of an archive with one tensor of one number; None where it is not found."""
    import zipfile  # noqa: PLC0415 - loaded already: formats.py reads archives with it

    window.seek(0)
    with zipfile.ZipFile(window) as archive:
        data = [archive.read(name) for name in archive.namelist() if re.search(r"/data/0\Z", name)]
    if len(data) != 1 or len(data[0]) < SIZES[kind]:
        return None
    return int(struct.unpack(INTEGERS[kind], data[0][: SIZES[kind]])[0])


def described(root: Any) -> Dict[str, Tuple[Tuple[int, ...], List[Tuple[Tuple[int, ...], Tuple[int, ...]]]]]:
    """Return the shape of each tensor and its chunks, as (offset, extent)."""
    tensors = {}
    entries = attribute(root, "state_dict_metadata")
    if not isinstance(entries, dict):
        raise Rejected("its .metadata is not that of torch.distributed.checkpoint")
    for name, kept in entries.items():
        if not isinstance(name, str) or not isinstance(kept, StandIn):
            raise Rejected("its .metadata is not that of torch.distributed.checkpoint")
        if kept.origin[1] != "TensorStorageMetadata":
            continue
        chunks = attribute(kept, "chunks")
        if not isinstance(chunks, list):
            raise Rejected("its .metadata names no chunks of %s" % name)
        places = [(integers(attribute(chunk, "offsets")), integers(attribute(chunk, "sizes"))) for chunk in chunks]
        tensors[name] = (integers(attribute(kept, "size")), places)
    return tensors


def stored(root: Any) -> Dict[Key, Item]:
    """Return where each item lies: that of a tensor by its offset, any other by none."""
    entries = attribute(root, "storage_data")
    if not isinstance(entries, dict):
        raise Rejected("its .metadata does not say where anything lies")
    items = {}
    for index, info in entries.items():
        name, offset = attribute(index, "fqn"), attribute(index, "offset")
        shard, start, length = (attribute(info, part) for part in ("relative_path", "offset", "length"))
        if not isinstance(name, str) or not isinstance(shard, str):
            raise Rejected("its .metadata does not say where anything lies")
        if any(type(number) is not int or number < 0 for number in (start, length)):
            raise Rejected("its .metadata has no valid place of %s" % name)
        if attribute(info, "transform_descriptors"):
            raise Rejected("%s is compressed or encrypted: it cannot be read here" % name)
        items[(name, () if offset is None else integers(offset))] = (shard, start, length)
    return items


def check_items(items: Dict[Key, Item], shards: Dict[str, BinaryIO]) -> None:
    """Raise Rejected unless each item lies within a shard that is there, and none over another."""
    by_shard: Dict[str, List[Tuple[int, int, str]]] = {}
    for (name, _), (shard, start, length) in items.items():
        by_shard.setdefault(shard, []).append((start, start + length, name))
    for shard, spans in sorted(by_shard.items()):
        if shard not in shards:
            raise Rejected("shard %s is missing, with %s and %d others" % (shard, spans[0][2], len(spans) - 1))
        size = os.fstat(shards[shard].fileno()).st_size
        spans.sort()
        for (_, end, name), (start, _, other) in zip(spans, [*spans[1:], (size, size, "its end")]):
            if end > size:
                raise Rejected("truncated: %s ends before %s does" % (shard, name))
            if start < end:
                raise Rejected("%s lies over %s in %s" % (other, name, shard))


def check_chunks(
    name: str, shape: Tuple[int, ...], chunks: List[Tuple[Tuple[int, ...], Tuple[int, ...]]], items: Dict[Key, Item]
) -> None:
    """Raise Rejected unless the chunks are all of the tensor, none twice, and each is stored."""
    for offset, extent in chunks:
        if not len(offset) == len(extent) == len(shape) or any(
            start + length > whole for start, length, whole in zip(offset, extent, shape)
        ):
            raise Rejected("a chunk of %s lies outside of it" % name)
        if (name, offset) not in items:
            raise Rejected("the chunk of %s at %s is not stored" % (name, list(offset)))
    if sum(math.prod(extent) for _, extent in chunks) != math.prod(shape):
        raise Rejected("the chunks of %s are not all of it" % name)
    if len(chunks) <= CHUNKS_COMPARED:
        for number, chunk in enumerate(chunks):
            if any(overlap(chunk, other) for other in chunks[:number]):
                raise Rejected("two chunks of %s overlap" % name)


def overlap(chunk: Tuple[Tuple[int, ...], Tuple[int, ...]], other: Tuple[Tuple[int, ...], Tuple[int, ...]]) -> bool:
    """Whether two chunks have an element in common."""
    return all(
        max(start, begun) < min(start + length, begun + reach) for start, length, begun, reach in zip(*chunk, *other)
    )


def attribute(found: Any, name: str) -> Any:
    """Return what an object of the metadata keeps under a name; None where it keeps nothing."""
    state = found.__dict__["state"] if isinstance(found, StandIn) else None
    return state.get(name) if isinstance(state, dict) else None


def integers(size: Any) -> Tuple[int, ...]:
    """Return a torch.Size as a tuple; raise Rejected for what is none."""
    args: Tuple[Any, ...] = size.__dict__["args"] if isinstance(size, StandIn) else ()
    values = args[0] if len(args) == 1 else None
    if not isinstance(values, tuple) or any(type(value) is not int or value < 0 for value in values):
        raise Rejected("its .metadata has a shape that is none")
    return values
