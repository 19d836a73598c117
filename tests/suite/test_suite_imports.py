"""No two files import each other, not even in a round of several, inside a function or for types only."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AGENT = ROOT / "supervisor/agent/path"
"""Directories below this one are imported by the training under their own names."""


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name under which a file is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_of(package: Path, root: Path, *, without: Path | None = None) -> dict[str, Path]:
    """Return the files below a package by the names that they are imported under."""
    paths = (path for path in package.rglob("*.py") if without is None or not path.is_relative_to(without))
    return {module_name(path, root): path for path in paths}


def imported(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules of `modules` that a file imports, at whatever place in it."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {name if (name := f"{base}.{alias.name}") in modules else base for alias in node.names}
    return (found & modules.keys()) - {module}


def circle_in(modules: dict[str, Path]) -> list[str]:
    """Return the modules of one circle of imports in its order; empty where there is none."""
    try:
        TopologicalSorter({name: imported(name, path, modules) for name, path in modules.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_circle_of_imports_within_the_product() -> None:
    modules = modules_of(ROOT / "supervisor", ROOT, without=AGENT) | modules_of(AGENT, AGENT)
    assert len(modules) > 300
    assert circle_in(modules) == []


def test_a_circle_through_a_function_and_a_type_is_found(tmp_path: Path) -> None:
    package = tmp_path / "toy"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "reader.py").write_text("from toy import clock\n")
    (package / "clock.py").write_text("def now():\n    from . import loop\n")
    (package / "loop.py").write_text("if TYPE_CHECKING:\n    from .reader import Reader\n")
    assert set(circle_in(modules_of(package, tmp_path))) == {"toy.reader", "toy.clock", "toy.loop"}
    (package / "loop.py").write_text("")
    assert circle_in(modules_of(package, tmp_path)) == []
