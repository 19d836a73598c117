"""Finds the tensors in an unpickled object, with their names."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Tuple

from .kinds import DTYPES, Path, Rejected
from .stand_ins import NAME_CHARACTERS, StandIn, Storage, Tensor

REBUILDS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor")
"""Functions of torch._utils whose first arguments are storage, offset, size and stride."""
NOWHERE: Path = ()
PART = "rocm_supervisor_part"
"""In a shard of the agent's, marks what stands for a tensor that is spread over the ranks."""
DEPTH = 64
"""Parts of a name that are kept: no module lies so deep."""
KEY_BITS = 64
ADDRESS = re.compile(r"[0-9]{12,20}\Z")
"""Name of a parameter in the state of an optimizer that C++ has saved: its address, another one in each process."""
SAVED_BY_CPP = "__torch__"
"""Where the classes of a TorchScript archive are, and of what C++ saves."""


def walk(root: Any, name: str = "") -> Iterator[Tuple[str, Any]]:
    """Yield (name, object) for everything below `root`, each object once; `name` is that of the root."""
    seen = set()
    waiting: List[Tuple[Path, Any]] = [((name,) if name else (), root)]
    while waiting:
        path, found = waiting.pop()
        if id(found) in seen or isinstance(found, (str, bytes, int, float, type(None))):
            continue
        seen.add(id(found))
        yield ".".join(path), found
        deep = len(path) >= DEPTH  # or the names of objects within each other cost the square of their number
        waiting.extend((path if deep else path + part, value) for part, value in reversed(children(found)))


def children(found: Any) -> List[Tuple[Path, Any]]:
    """Return the parts of an object as (path, value); the plumbing of torch's modules leaves no trace in a path.

    What a module keeps besides its parameters and buffers is marked: its shape may change from one save to the next.
    """
    if isinstance(found, dict):
        if found.get(PART) == 1:  # a rank's part of a tensor, under the name of the tensor
            return [(NOWHERE, value) for value in found.values()]
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
    if isinstance(key, int) and key.bit_length() > KEY_BITS:
        return ()
    marked = "@" if isinstance(key, str) and ADDRESS.match(key) else ""
    return (marked + str(key)[:NAME_CHARACTERS],)


def tensors_in(root: Any, optimizers: Dict[str, int], top: str = "") -> List[Tensor]:
    """Return every tensor below `root`; raise Rejected for one whose numbers could not be found.

    `optimizers` gets, by the name of each state of an optimizer, how many parameters its groups count.
    """
    found = []
    for name, item in walk(root, top):
        if isinstance(item, dict) and "state" in item and isinstance(item.get("param_groups"), list):
            groups = [group.get("params") for group in item["param_groups"] if isinstance(group, dict)]
            optimizers[name[:NAME_CHARACTERS]] = sum(len(group) for group in groups if isinstance(group, list))
        if not isinstance(item, StandIn):
            continue
        (module, function), args = item.origin, item.__dict__["args"]
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
        state = root.__dict__["state"]
        if root.origin[0].partition(".")[0] == SAVED_BY_CPP and isinstance(state, dict):
            return state
        return {key: value for key, value in root.__dict__["items"] if isinstance(key, str)}
    return root if isinstance(root, dict) else {}
