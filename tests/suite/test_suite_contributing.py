"""CONTRIBUTING.md is held against the code: its files exist, its table of moves is the code's, its words are kept.

    python -m tests.suite.test_suite_contributing

writes the table of moves into CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from supervisor.core.job import MOVES, Move, Phase

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- moves -->\n", "<!-- /moves -->"
RETIRED = re.compile(
    r"\b(anew|lets? go of|the dead|nobody tells|without a word|made again|it went on by itself|by-hand|by-itself)\b"
)
"""Words that plain technical English has a standard term for; see the glossary."""


def table_of_moves() -> str:
    """Return the moves as a table: a row a phase, a column a move, in each cell the phase that it leads to."""
    moves = [move for move in Move if any(kind is move for _, kind in MOVES)]
    rows = [["from \\ move", *(move.value for move in moves)], ["---"] * (len(moves) + 1)]
    for phase in Phase:
        if any(start is phase for start, _ in MOVES):
            ends = [MOVES.get((phase, move)) for move in moves]
            rows.append([f"**{phase.value}**", *("" if end is None else end.value for end in ends)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_table_of_moves_is_the_one_in_the_code() -> None:
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert shown == table_of_moves(), "run `python -m tests.suite.test_suite_contributing`"


def test_every_file_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:supervisor|tests|migrations|systemd)/[\w./]*)`", PAGE.read_text())
    assert len(named) > 30
    missing = [name for name in named if not (ROOT / name).exists() and "my_" not in name]
    assert missing == []


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Yield each file of the product with its syntax tree."""
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def is_plain_string(node: ast.AST, documented: set[int]) -> bool:
    """Return whether a node is a string that can reach a user, and no docstring."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented


def test_no_variable_is_called_one() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, tree in sources()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == "one") or (isinstance(node, ast.arg) and node.arg == "one")
    ]
    assert found == []


def test_retired_words_reach_no_user() -> None:
    found = []
    for name, tree in sources():
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if is_plain_string(node, documented) and isinstance(node, ast.Constant):
                found += [f"{name}:{node.lineno}: {match[0]}" for match in RETIRED.finditer(str(node.value))]
    assert found == []


if __name__ == "__main__":
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table_of_moves() + END + rest.partition(END)[2])
