"""Reads a table of fault patterns.

A table is TOML: `kind`, then in any order
- `[remedies]`: name = text; a row's `remedy = "@name"` refers to that text,
- `[speakers]`: name = regular expression of the prefix of one driver's messages; a row's pattern follows it,
- `[classes.NAME]`: into which `event` findings of the class are grouped, with which `rank`, `within_s` of each other,
  and whether `by_process`,
- `[codes.NAME]`: the meaning of numbers in a message, for patterns with a group `code`,
- `[[row]]`: the messages; the first row that matches a line is used, so specific rows precede general ones,
- `[words]`: lists of words of trouble, `[phrases]`: lists of regular expressions in any case, for the shapes,
- `[[shape]]`: what no row matches, by speaker, `about`, `trouble` and `unless` (see `shapes.py`), after all rows.

A pattern's named groups: `pci` (a PCI address), `device` (any other device), `pid`, `process`, `code`.
Every row has `examples`, which its test matches.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from supervisor.core.findings import About, FaultClass, FaultSeverity
from supervisor.sources.faults.phrases import Phrases
from supervisor.sources.faults.prefilter import EDGE, needle_of, word_of
from supervisor.sources.faults.rows import LINE_LIMIT, WITHIN_S, Code, Grammar, Grouping, Match, Row, address
from supervisor.sources.faults.shapes import needles_of, pattern_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "LINE_LIMIT",
    "Code",
    "Grammar",
    "GrammarError",
    "Grouping",
    "Match",
    "Row",
    "address",
    "load",
    "parse",
]

_Choice = TypeVar("_Choice", bound=str)
_GROUP = re.compile(r"\(\?P<\w+>")
NEEDLE_LEAST = 4
"""A shorter literal would pass too many lines on to the patterns."""
DEVICES: tuple[About, ...] = ("gpu", "pci", "disk", "host", "none")
"""The subject of a row: a GPU by its driver (`card`), any PCI device, a disk, the machine, or nothing with a name."""
_ROW_KEYS = frozenset(
    {"class", "severity", "speaker", "pattern", "needles", "device", "remedy", "source", "examples"}
    | {"codes", "rank", "detail", "aftermath", "event", "of_process", "user", "what", "recovers"}
    | {"until_rank", "named", "asked"}
)
_SHAPE_KEYS = (
    _ROW_KEYS - {"pattern", "needles", "codes", "detail", "of_process", "recovers", "aftermath", "until_rank", "asked"}
) | {
    "about",
    "trouble",
    "unless",
}
_REQUIRED = ("class", "severity", "pattern", "device", "remedy", "source", "examples")


class GrammarError(ValueError):
    """A table is invalid; the message names the row and the error."""


RowsByWord: TypeAlias = dict[bytes, dict[str, dict[int, Row]]]
"""By a word of a needle, the needle and the number of the row."""


def load(path: Path) -> Grammar:
    """Return the grammar in a table file. Raises GrammarError with row and error, or OSError."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (GrammarError, tomllib.TOMLDecodeError) as error:
        raise GrammarError(f"{path.name}: {error}") from None


def parse(text: str) -> Grammar:
    """Return the grammar in a table's text. Raises GrammarError, or TOMLDecodeError if it is not TOML."""
    table = tomllib.loads(text)
    kind = table.get("kind")
    if not isinstance(kind, str):
        raise GrammarError('the table must begin with its kind, for example kind = "kernel"')
    reader = _Reader(table)
    rows = tuple(reader.row(number, item) for number, item in enumerate(table.get("row", ()), start=1))
    if not rows:
        raise GrammarError("the table has no [[row]]")
    shapes = enumerate(table.get("shape", ()), start=len(rows) + 1)
    rows = (*rows, *(reader.shape(number, item) for number, item in shapes))
    words, troubles, pieces = _index_needles(rows)
    vocabulary = frozenset((*words, *troubles))
    return Grammar(
        kind=kind,
        rows=rows,
        words=words,
        pieces=pieces,
        troubles=troubles,
        needles={word: tuple({**words.get(word, {}), **troubles.get(word, {})}) for word in vocabulary},
        vocabulary=vocabulary,
        speakers="|".join(sorted({f"(?:{_GROUP.sub('(?:', row.speaker)})" for row in rows if row.tentative})),
    )


def _index_needles(rows: Iterable[Row]) -> tuple[RowsByWord, RowsByWord, tuple[tuple[str, Row], ...]]:
    """Return rows by the words of their needles, the tentative ones likewise, and the needles that hold none."""
    words: RowsByWord = {}
    troubles: RowsByWord = {}
    pieces: list[tuple[str, Row]] = []
    for row in rows:
        for literal in row.needles:
            word, needle = word_of(literal), literal.strip(EDGE)
            if word is None:
                pieces.append((needle, row))
                continue
            of_kind = troubles if row.tentative else words
            of_kind.setdefault(word.encode(), {}).setdefault(needle, {})[row.number] = row
    return words, troubles, tuple(pieces)


class _Reader:
    """Converts the parts of one table into rows; every error names the row."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._remedies = _read_texts(table, "remedies")
        self._speakers = _read_texts(table, "speakers")
        self._words = {name: tuple(str(word) for word in words) for name, words in table.get("words", {}).items()}
        self._phrases = {name: tuple(map(str, items)) for name, items in table.get("phrases", {}).items()}
        self._unless: dict[tuple[str, ...], Phrases] = {}
        self._classes = {name: _parse_grouping(name, item) for name, item in table.get("classes", {}).items()}
        self._codes = {
            name: {str(code): self._parse_code(name, str(code), item) for code, item in codes.items()}
            for name, codes in table.get("codes", {}).items()
        }

    def row(self, number: int, raw: Mapping[str, Any]) -> Row:
        place = _describe_row(number, str(raw.get("pattern")))
        _check_known(place, raw, _ROW_KEYS)
        for key in _REQUIRED:
            if not raw.get(key):
                raise GrammarError(f"{place}: {key} is missing")
        fault = _parse_fault(place, raw["class"])
        grouping = self._classes.get(fault.value, Grouping(event=fault.value))
        speaker = self._look_up(place, "speaker", self._speakers, raw["speaker"]) if "speaker" in raw else ""
        return Row(
            number=number,
            fault=fault,
            severity=_parse_severity(place, raw["severity"]),
            pattern=raw["pattern"],
            expression=speaker + raw["pattern"],
            speaker=speaker,
            needles=_choose_needles(place, raw),
            device=_parse_choice(place, "device", raw["device"], DEVICES),
            remedy=self._expand_remedy(place, raw["remedy"]),
            source=str(raw["source"]),
            examples=tuple(raw["examples"]),
            grouping=grouping,
            event=str(raw.get("event", grouping.event)),
            rank=int(raw.get("rank", grouping.rank)),
            what=raw.get("what"),
            codes=self._look_up(place, "codes", self._codes, raw["codes"]) if "codes" in raw else {},
            detail=bool(raw.get("detail", False)),
            aftermath=_parse_groups(raw.get("aftermath", ())),
            until_rank=int(raw.get("until_rank", 0)),
            of_process=bool(raw.get("of_process", False)),
            user=bool(raw.get("user", False)),
            named=raw.get("named"),
            recovers=bool(raw.get("recovers", False)),
            asked=raw.get("asked"),
        )

    def shape(self, number: int, raw: Mapping[str, Any]) -> Row:
        """Return the row of a shape: its line belongs to the open event of its GPU, where there is one."""
        about = raw["about"] if isinstance(raw.get("about"), str) else "|".join(raw.get("about", ()))
        place = f"shape {number} ({about[:60]})"
        _check_known(place, raw, _SHAPE_KEYS)
        for key in ("speaker", "about", "trouble", "unless"):
            if key not in raw:
                raise GrammarError(f"{place}: {key} is missing")
        trouble = self._look_up(place, "trouble", self._words, raw["trouble"])
        unless = self._join_phrases(place, tuple(raw["unless"]))
        pattern = pattern_of(about, trouble)
        plain = {key: value for key, value in raw.items() if key not in ("about", "trouble", "unless")}
        of_gpu = {"aftermath": "gpu"} if raw.get("device") == "gpu" else {}
        row = self.row(number, {**plain, **of_gpu, "pattern": pattern, "needles": ["|placeholder|"]})
        return replace(
            row,
            pattern=f"shape: {about}",
            needles=needles_of(trouble),
            unless=unless,
            tentative=True,
        )

    def _join_phrases(self, place: str, names: tuple[str, ...]) -> Phrases:
        if names not in self._unless:
            lists = (self._look_up(place, "unless", self._phrases, name) for name in names)
            self._unless[names] = phrases = Phrases(expression for each in lists for expression in each)
            for expression in phrases.unfindable:
                raise GrammarError(f"{place}: unless: no literal is in every text with the phrase {expression!r}")
        return self._unless[names]

    def _parse_code(self, table: str, code: str, raw: Mapping[str, Any]) -> Code:
        place = f"codes.{table}.{code}"
        if not raw.get("what") or not raw.get("remedy"):
            raise GrammarError(f"{place}: what and remedy are required")
        severity = _parse_severity(place, raw["severity"]) if "severity" in raw else None
        return Code(
            what=str(raw["what"]),
            remedy=self._expand_remedy(place, raw["remedy"]),
            severity=severity,
            of_process=bool(raw.get("of_process", False)),
        )

    def _expand_remedy(self, place: str, text: str) -> str:
        return self._look_up(place, "remedy", self._remedies, text[1:]) if text.startswith("@") else text

    @staticmethod
    def _look_up(place: str, key: str, known: Mapping[str, Any], name: str) -> Any:
        if name not in known:
            raise GrammarError(f"{place}: {key} {name!r} is not defined; defined: {', '.join(sorted(known))}")
        return known[name]


def _choose_needles(place: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row's needles: its own, in which `|` marks an edge, or the literal of its pattern.

    A pattern that follows a speaker begins at a word.
    """
    if "needles" in raw:
        return tuple(str(item).replace("|", EDGE) for item in raw["needles"])
    needle = needle_of(("^" if "speaker" in raw else "") + raw["pattern"])
    if needle is None or len(needle.strip(EDGE)) < NEEDLE_LEAST:
        raise GrammarError(f"{place}: no literal of {NEEDLE_LEAST} characters is in every matching line; add needles")
    return (needle,)


def _check_known(place: str, raw: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in raw.keys() - known:
        raise GrammarError(f"{place}: unknown key {key!r}; known keys: {', '.join(sorted(known))}")


def _describe_row(number: int, pattern: str) -> str:
    return f"row {number} ({pattern[:60]})"


def _read_texts(table: Mapping[str, Any], key: str) -> dict[str, str]:
    return {name: str(text) for name, text in table.get(key, {}).items()}


def _parse_grouping(name: str, raw: Mapping[str, Any]) -> Grouping:
    _parse_fault(f"classes.{name}", name)
    return Grouping(
        event=str(raw.get("event", name)),
        rank=int(raw.get("rank", 0)),
        within_s=float(raw.get("within_s", WITHIN_S)),
        by_process=bool(raw.get("by_process", False)),
    )


def _parse_groups(raw: str | Sequence[str]) -> frozenset[str]:
    return frozenset((raw,) if isinstance(raw, str) else raw)


def _parse_fault(place: str, name: str) -> FaultClass:
    try:
        return FaultClass(name)
    except ValueError:
        raise GrammarError(f"{place}: {name!r} is not a fault class") from None


def _parse_severity(place: str, name: str) -> FaultSeverity:
    return FaultSeverity[
        _parse_choice(place, "severity", name, tuple(fault_severity.label for fault_severity in FaultSeverity)).upper()
    ]


def _parse_choice(place: str, key: str, name: str, choices: tuple[_Choice, ...]) -> _Choice:
    for choice in choices:
        if choice == name:
            return choice
    raise GrammarError(f"{place}: {key} {name!r} must be one of {', '.join(choices)}")
