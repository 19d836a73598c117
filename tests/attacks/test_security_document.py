"""Every line of the threat table in SECURITY.md names tests, and they exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()
TABLE = TEXT.partition("## Threats")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]
NAMED = re.compile(r"`(tests/[\w/.]+\.py)((?:::\w+)+)`")


def defined(path: Path) -> set[str]:
    """Return the tests of a file, those of a class with its name before them."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"::{node.name}")
        if isinstance(node, ast.ClassDef):
            found |= {f"::{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_the_table_is_found() -> None:
    assert len(ROWS) >= 20


@pytest.mark.parametrize("row", ROWS, ids=[row.split("|")[1].strip()[:60] for row in ROWS])
def test_each_threat_has_tests_that_exist(row: str) -> None:
    threat, defence, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert threat
    assert defence
    named = NAMED.findall(tests)
    assert named, f"no test is named: {row}"
    assert NAMED.sub("", tests).strip(", ") == "", f"something that is no test's name: {tests}"
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name in defined(ROOT / path), f"{path}{name}"
