"""What a stranger finds: rooms that fit on a page, recipes of few files, functions whose names say what they do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES_IN_ROOM = {"core": 26, "sources": 12, "daemon": 28, "cli": 40}
ONE_WORD_SHARE = 0.15
FILES_OF_RECIPE = {
    "A rule": 3,
    "A source of GPU readings": 4,
    "A measured field": 3,
    "A command of `supervisorctl`": 3,
    "An alert channel": 2,
    "A framework": 2,
}
NAMED = re.compile(r"`((?:supervisor|migrations|systemd)/[\w./]+|config\.toml)`")
DOCUMENTS = ("config.toml",)
"""Its settings are all commented: it documents what can be set, and sets nothing."""


@pytest.mark.parametrize(("room", "limit"), FILES_IN_ROOM.items())
def test_a_room_holds_few_files_directly(room: str, limit: int) -> None:
    """Related files share a folder of their own."""
    files = sorted(path.name for path in (ROOT / "supervisor" / room).glob("*.py"))
    assert files, "the room has moved"
    assert len(files) <= limit, files


def test_few_private_functions_are_named_by_one_word() -> None:
    """A function is verb + noun."""
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in sorted((ROOT / "supervisor").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_(?!_)", node.name)
    ]
    of_one_word = [place for place in private if "_" not in place.rpartition(": _")[2]]
    assert len(private) > 1000
    assert len(of_one_word) <= ONE_WORD_SHARE * len(private), of_one_word


def recipe(title: str) -> list[str]:
    """Return the numbered steps of a recipe."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^### {re.escape(title)}\n(.*?)^##", page, re.MULTILINE | re.DOTALL)
    assert found, f"no recipe for: {title}"
    return re.findall(r"^\d\. (.*(?:\n   .*)*)", found[1], re.MULTILINE)


@pytest.mark.parametrize(("title", "limit"), FILES_OF_RECIPE.items())
def test_a_recipe_touches_few_files(title: str, limit: int) -> None:
    """Beside tests and documents, and what only some need; the first file of a step is written, others are models."""
    steps = [step for step in recipe(title) if not step.startswith(("Where", "If"))]
    touched = {name for step in steps for name in NAMED.findall(step)[:1] if name not in DOCUMENTS}
    assert 2 <= len(touched) <= limit, touched


def test_what_counts_as_a_document_sets_nothing() -> None:
    for name in DOCUMENTS:
        lines = (ROOT / name).read_text().splitlines()
        assert [line for line in lines if line.strip() and not line.startswith(("#", "["))] == []
