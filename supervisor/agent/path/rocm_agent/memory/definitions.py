"""Looks into the source of a module for its classes and functions, without running it."""

from __future__ import annotations

import ast
import importlib.util
import re
from typing import Dict, List, Optional, Tuple

COMPILED = {
    "scipy.optimize": ("linear_sum_assignment",),
    "torch.distributed.tensor": ("Placement",),
    "torch.distributed.tensor.placement_types": ("Placement",),
}
"""Functions and classes that have no line of Python by which they could be known."""
RAISED = ("Error", "Exception", "Warning")
"""Classes that have to be classes where they are caught."""

_known: Dict[str, Source] = {}


class Source:
    """The source of a module, looked into for what it defines."""

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path
        with open(path, encoding="utf-8", errors="replace") as file:
            self.text = file.read()
        self._taken: Optional[Dict[str, Tuple[str, str]]] = None
        self._stars: List[str] = []
        """Modules of which all is taken."""

    @classmethod
    def of(cls, name: str, path: str) -> Source:
        """Return that of a module."""
        if name not in _known:
            _known[name] = cls(name, path)
        return _known[name]

    def find_home(self, name: str, depth: int = 4) -> Optional[str]:
        """Return the module that defines a class or function, this one or one of the same package; None: neither does.

        It is empty where no line of Python does.
        """
        if name in COMPILED.get(self._name, ()):
            return ""
        if name.endswith(RAISED):
            return None
        if re.search(r"^(?:async def|def|class) %s\b" % re.escape(name), self.text, re.MULTILINE):
            is_set = re.search(r"^%s\s*(?::[^=\n]*)?=[^=]" % re.escape(name), self.text, re.MULTILINE)
            return None if is_set else self._name
        if not depth or (name not in self.text and "import *" not in self.text):
            return None
        taken = self._list_taken()
        origins = [taken[name]] if name in taken else [(home, name) for home in self._stars]
        sources = [(self._find(home), own) for home, own in origins]
        homes = [source.find_home(own, depth - 1) for source, own in sources if source is not None]
        return next((home for home in homes if home is not None), None)

    def _list_taken(self) -> Dict[str, Tuple[str, str]]:
        """Return what `from` takes by name at the top level: module and name there, by the name here."""
        if self._taken is None:
            self._taken, self._stars = {}, []
            package = self._name if self._path.endswith("__init__.py") else self._name.rpartition(".")[0]
            for node in ast.parse(self.text).body:
                if isinstance(node, ast.ImportFrom):
                    home = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                    if node.names[0].name == "*":
                        self._stars.append(home)
                    self._taken.update({found.asname or found.name: (home, found.name) for found in node.names})
        return self._taken

    def _find(self, name: str) -> Optional[Source]:
        """Return the source of a module by where this one lies, without an import."""
        own, other = self._name.split("."), name.split(".")
        if own[0] != other[0]:
            return None
        up = self._path.rpartition("/")[0]
        for _ in range(len(own) - (1 if not self._path.endswith("__init__.py") else 0)):
            up = up.rpartition("/")[0]
        base = "/".join([up, *other])
        for path in (base + ".py", base + "/__init__.py"):
            try:
                return Source.of(name, path)
            except OSError:
                continue
        return None
