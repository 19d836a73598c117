"""Every error in a configuration names the line of its key, however the file is written."""

from __future__ import annotations

import json
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from supervisor.config import check_text
from supervisor.config.positions import dot_paths, find_lines, find_longest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LETTERS = st.characters(exclude_categories=("Cs", "Cc"))


def json_string(text: str) -> str:
    """A basic string: TOML and JSON write these letters alike."""
    return json.dumps(text, ensure_ascii=False)


NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(LETTERS, max_size=4),
)
SCALARS = st.one_of(
    st.sampled_from([
        "1", "-2.5e3", "true", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00", '"a # b = [c"', "'[x]'", '"\\"]}"',
        '"""\n[not.a.table]\nkey = 1\n"""', "'''\n[[no]]\n'x' = ']'\n'''", '""""two quotes"" inside"""', '"""end""""',
        "'''it''''", '"""a \\""" b"""', "inf", "0xf",
    ]),
    st.text(LETTERS, max_size=12).map(json_string),
)  # fmt: skip


@st.composite
def values(draw: st.DrawFn, depth: int = 0) -> str:
    """The text of a value: a scalar, an array over several lines, or an inline table."""
    kind = draw(st.integers(0, 3 if depth < 2 else 0))
    if kind <= 1:
        return draw(SCALARS)
    if kind == 2:
        items = draw(st.lists(values(depth + 1), max_size=3))
        comma = draw(st.sampled_from([", ", ",\n  # ] comment\n  "]))
        return (
            "["
            + draw(st.sampled_from(["", "\n", "# [\n"]))
            + comma.join(items)
            + draw(st.sampled_from(["", "\n"]))
            + "]"
        )
    pairs = draw(st.dictionaries(NAMES, values(depth + 1), max_size=3))
    return "{ " + ", ".join(f"{quoted(name)} = {value}" for name, value in pairs.items()) + " }"


def quoted(name: str) -> str:
    bare = name and all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in name)
    return name if bare else json_string(name)


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[tuple[str, ...], int]]:
    """A text with the line of each key that is written at the beginning of a line."""
    text, lines = "", dict[tuple[str, ...], int]()
    for table, pairs in draw(st.dictionaries(NAMES, st.dictionaries(NAMES, values(), max_size=3), max_size=4)).items():
        text += draw(st.sampled_from(["", "\n", "# a = 1\n", "  \t\n"]))
        lines[(table,)] = text.count("\n") + 1
        text += f"[ {quoted(table)}\t] # [comment]\n"
        for name, value in pairs.items():
            text += draw(st.sampled_from(["", "\n", "# [x]\n"]))
            lines[(table, name)] = text.count("\n") + 1
            text += f"  {quoted(name)} = {value} # end\n"
    return text, lines


def paths_in(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Every path of a parsed document, those within arrays without the index."""
    if isinstance(value, list):
        return {found for item in value for found in paths_in(item, path)}
    if not isinstance(value, dict):
        return set()
    found = {(*path, name) for name in value}
    return found.union(*(paths_in(inner, (*path, name)) for name, inner in value.items()))


@given(documents())
def test_every_key_that_the_parser_reads_has_a_line(document: tuple[str, dict[tuple[str, ...], int]]) -> None:
    text, lines = document
    parsed = tomllib.loads(text)
    found = find_lines(text)
    assert set(found) == paths_in(parsed)
    assert {path: found[path] for path in lines} == lines


def test_dotted_keys_and_arrays_of_tables_are_found() -> None:
    found = find_lines("a.b = 1\n[[c]]\nd = 1\n[[c]]\nd.'x.y' = 2\r\n\r\n[e . f]\ng = { h = 1, i.j = [ { k = 1 } ] }\n")
    assert found == {
        ("a",): 1, ("a", "b"): 1, ("c",): 2, ("c", "d"): 3, ("c", "d", "x.y"): 5, ("e",): 7, ("e", "f"): 7,
        ("e", "f", "g"): 8, ("e", "f", "g", "h"): 8, ("e", "f", "g", "i"): 8, ("e", "f", "g", "i", "j"): 8,
        ("e", "f", "g", "i", "j", "k"): 8,
    }  # fmt: skip


def test_a_missing_key_is_looked_for_in_its_table() -> None:
    lines = dot_paths(find_lines("[a]\n\n[a.b]\nc = [1,\n2]\n"))
    found = [find_longest(lines, key) for key in ("a.b.c[1]", "a.b.d", "a.x", "y")]
    assert found == [("a.b.c", 4), ("a.b", 3), ("a", 1), None]


def test_a_mistake_is_shown_with_its_line() -> None:
    text = (
        '[supervisor]\nstate_dir = "/s"\n\n[jobs.night]\ncommand = ["true"]\n'
        'grace_s = "long"\nnonsense = 1\n[jobs.day]\n'
    )
    problems = check_text(text, "/etc/x.toml").problems
    assert {(problem.key, problem.line) for problem in problems} >= {
        ("jobs.night.grace_s", 6), ("jobs.night.nonsense", 7), ("jobs.day.command", 8),
    }  # fmt: skip
    assert any(str(problem).startswith("/etc/x.toml:6: jobs.night.grace_s: ") for problem in problems)


def test_what_is_nested_too_deeply_is_an_error_without_a_line() -> None:
    deep = "a = " + "[" * 300 + "]" * 300 + "\n"
    checked = check_text(deep, "x.toml")
    assert (checked.settings, len(checked.problems)) == (None, 1)
