"""Reads a pickle with inert stand-ins for whatever it names, so that nothing in it is called."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any, BinaryIO, Dict, List, Set, Tuple

from .attribute_names import only_names_attributes
from .kinds import Rejected
from .opcodes import LONG_TEXT, shorten

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
DILL = ("dill._dill", "dill.dill")
DILL_NAMES_A_TYPE = "_load_type"
"""By a call of which dill writes a type of Python's own; ultralytics 8.0 to 8.3 saves by dill where it is installed."""
DILL_MAKES_A_PARTIAL = "_create_ftype"
"""By a call of which dill up to 0.3.4 writes a function with some of its arguments."""
PARTIAL = ("functools", "partial")
PLAIN_TYPES = {
    **dict.fromkeys(
        [
            "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range",
            "set", "slice", "str", "tuple",
        ]
    ),
    "PartialType": PARTIAL,
}  # fmt: skip
"""Those that a checkpoint may name so, with their own name where it is another: of others, as CodeType, programs could
be made."""
KEPT_METHODS = {
    ("torch.optim.lr_scheduler", "OneCycleLR"): "_annealing_cos _annealing_linear",
    ("torch.optim.lr_scheduler", "CyclicLR"): "_triangular_scale_fn _triangular2_scale_fn _exp_range_scale_fn",
}
"""Methods that objects of older releases of torch, 1.13 among them, have in their state: those calculate and no more. A
method of another object is no name: what its class does when it is asked for an attribute is not known."""

NAME_CHARACTERS = 1000
"""Of a class with its module; each is kept and reported."""


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
        layout = [offset, *size, *stride]
        if len(size) != len(stride) or not all(isinstance(item, int) and item >= 0 for item in layout):
            raise Rejected("tensor %s has no valid shape" % name)
        self.name, self.kind, self.storage, self.size = name, kind, storage, tuple(size)
        empty = 0 in self.size
        self.first = offset
        self.end = offset if empty else offset + 1 + sum((n - 1) * step for n, step in zip(size, stride))


class Unpickler(pickle.Unpickler):
    """Unpickles into stand-ins; names that could do harm are remembered, and as inert as the rest."""

    def __init__(self, file: BinaryIO) -> None:
        """Read one pickle from `file`, which stands behind it afterwards; raise Rejected where it claims too much."""
        begin = file.tell()
        size = file.seek(0, os.SEEK_END)
        file.seek(begin)
        self._pickle = shorten(file, size)
        buffered = io.BufferedReader(self._pickle)  # type: ignore[arg-type, unused-ignore] # it has all that is called
        super().__init__(buffered, encoding="utf-8", errors="replace")
        self._named: Dict[Tuple[str, str], type] = {}
        self.hostile: List[str] = []
        self._naming: Set[str] = set()
        self.storages: List[Storage] = []

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in, whatever is named; raise Rejected for a name that no class has."""
        if LONG_TEXT.decode() in module + name:
            raise Rejected("names a class of more than %d characters" % NAME_CHARACTERS)
        if len(module) + len(name) > NAME_CHARACTERS:
            raise Rejected("names a class of %d characters" % (len(module) + len(name)))
        if name == "getattr" and module in ("builtins", "__builtin__"):
            self._naming.add("%s.%s" % (module, name))
            return self._name_attribute
        if name == DILL_NAMES_A_TYPE and module in DILL:
            self._naming.add("%s.%s" % (module, name))
            return self._name_type
        if name == DILL_MAKES_A_PARTIAL and module in DILL:
            return self._make_partial
        if is_hostile(module, name):
            self.hostile.append("%s.%s" % (module, name))
        made = self._named.get((module, name))
        if made is None:
            made = self._named[(module, name)] = type("StandIn", (StandIn,), {"origin": (module, name)})
        return made

    def _name_attribute(self, owner: Any, name: Any) -> Any:
        """Return the stand-in of a class' attribute, in place of getattr; that of another thing could do harm."""
        is_class = isinstance(owner, type) and issubclass(owner, StandIn)
        origin = owner.origin if is_class or isinstance(owner, StandIn) else ("", "")
        if not isinstance(name, str) or not (is_class or name in KEPT_METHODS.get(origin, "").split()):
            self.hostile.extend(self._naming)
            return StandIn
        module, outer = origin
        return self.find_class(module, "%s.%s" % (outer, name))

    def _name_type(self, name: Any) -> Any:
        """Return the stand-in of a plain type, in place of dill's function; another type could do harm."""
        if not (isinstance(name, str) and name in PLAIN_TYPES):
            self.hostile.extend(self._naming)
            return StandIn
        return self.find_class(*(PLAIN_TYPES[name] or ("builtins", name)))

    def _make_partial(self, kind: Any, *parts: Any) -> Any:
        """Return the stand-in of a function with some of its arguments, in place of dill's function.

        That calls what it is given, as a pickle can without it; all of that is named in the pickle and judged by name.
        """
        if getattr(kind, "origin", None) != PARTIAL:
            self.hostile.append("dill.%s" % DILL_MAKES_A_PARTIAL)
        return StandIn(kind, *parts)

    def persistent_load(self, pid: Any) -> Storage:
        """Return the storage that `pid` names: ("storage", type, key, device, count[, view])."""
        if not (isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage"):
            raise Rejected("refers to something that is no storage")
        _, made_by, key, _, count = pid[:5]
        valid = isinstance(made_by, type) and issubclass(made_by, StandIn) and isinstance(key, str)
        if not valid or not isinstance(count, int) or count < 0:
            raise Rejected("refers to a storage without kind or size")
        kind = made_by.origin[1].replace("Storage", "")
        base = 0
        if len(pid) == 6 and pid[5] is not None:
            _, base, count = pid[5]
        storage = Storage(kind, key, count, base)
        self.storages.append(storage)
        return storage

    def load_safely(self) -> Any:
        """Return the object; raise Rejected where a name is hostile or the pickle is incomplete."""
        try:
            found = self.load()
        except Exception as error:
            self._check_naming()
            self.reject_hostile()
            if isinstance(error, Rejected):
                raise
            if self._pickle.why_short is not None:
                raise Rejected(self._pickle.why_short) from None
            raise Rejected("its pickle is damaged or cut short (%s: %s)" % (type(error).__name__, error)) from None
        self._check_naming()
        self.reject_hostile()
        return found

    def _check_naming(self) -> None:
        """Count getattr and dill's function among the hostile names where the pickle does more than name by them."""
        if self._naming and not only_names_attributes(io.BytesIO(self._pickle.getvalue())):
            self.hostile.extend(self._naming)

    def reject_hostile(self) -> None:
        """Raise Rejected with every hostile name."""
        if self.hostile:
            raise Rejected("hostile: loading it would call %s" % ", ".join(sorted(set(self.hostile))[:10]))


def is_hostile(module: str, name: str) -> bool:
    """Whether a checkpoint that names this was made to do harm; `outer.inner` may be a module and what is in it."""
    parts = name.split(".")
    return _is_hostile_in(module, parts) or any(
        _is_hostile_in(".".join([module, *parts[:count]]), parts[count:]) for count in range(1, min(len(parts), 10))
    )


def _is_hostile_in(module: str, parts: List[str]) -> bool:
    return (
        module in HOSTILE_MODULES
        or module.split(".", 1)[0] in HOSTILE_PACKAGES
        or parts[0] in HOSTILE_NAMES.get(module, "").split()
        or not (HOSTILE_MODULES | HOSTILE_PACKAGES).isdisjoint(parts[:-1])
        or any(part.startswith("__") and part != "__new__" for part in parts[1:])
        or any(inner in HOSTILE_NAMES.get(outer, "").split() for outer, inner in zip(parts, parts[1:]))
    )
