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
    r"\b(anew|lets? go( of)?|the dead|nobody|somebody|without a word|made again|it went on by itself|by-hand|by-itself"
    r"|tells? of|stands? by for|looked after|condemned|from cold|beside|speaks)\b",
    re.IGNORECASE,
)
"""Words that plain technical English has a standard term for; see the glossary. Docstrings and comments included."""
RETIRED_IN_NAMES = frozenset({"anew", "condemned", "deeds", "ground", "heard", "said", "told", "wish"})
"""No part of a name, in the product or in a test."""


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


def names_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each name that a file gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def test_no_name_is_a_retired_word_and_none_is_called_one() -> None:
    files = [path for folder in ("supervisor", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files
        for line, name in names_of(ast.parse(path.read_text()))
        if name == "one" or RETIRED_IN_NAMES.intersection(name.lower().split("_"))
    ]
    assert found == []


def test_retired_words_are_in_no_text_of_the_product() -> None:
    files = [*sorted((ROOT / "supervisor").rglob("*.py")), ROOT / "config.toml", PAGE]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        for match in RETIRED.finditer(line)
    ]
    assert found == []


if __name__ == "__main__":
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table_of_moves() + END + rest.partition(END)[2])
