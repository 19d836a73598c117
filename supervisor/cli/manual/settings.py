"""rocm-supervisor.toml(5) from the commented config.toml: each table, each setting with its default and its comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from supervisor.cli.manual import roff
from supervisor.cli.manual.commands import SOURCE

_TABLE = re.compile(r"#?\[([^\]]+)\]\s*(?:#\s*(.*))?")
_SETTING = re.compile(r"#?([a-z][a-z0-9_]*) = (.*)")
_MORE = re.compile(r"#\s+#\s*(.*)")
"""A comment that goes on in its column."""
_TEXT = re.compile(r"# ?(.*)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"' + "|'[^']*'")
_HEAD = """\
.SH NAME
rocm\\-supervisor.toml \\- configuration of rocm\\-supervisord
.SH SYNOPSIS
.I /etc/rocm\\-supervisor/config.toml
.br
.I /etc/rocm\\-supervisor/conf.d/*.toml
.SH DESCRIPTION
"""


@dataclass(frozen=True, slots=True)
class Table:
    """The head of a table, with its comment."""

    name: str
    comment: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it is written, and its comment."""

    name: str
    value: str
    comment: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A paragraph of comment that belongs to no single setting; an example keeps its lines."""

    lines: tuple[str, ...]


Entry = Table | Setting | Remark


def settings_page(example: str, at_unix_s: int) -> str:
    """Return the page for the text of config.toml; raise ValueError for a line that is none of its forms."""
    parsed = list(entries(example))
    start = next(number for number, entry in enumerate(parsed) if isinstance(entry, Table))
    lines = [roff.title("rocm-supervisor.toml", 5, at_unix_s, SOURCE), *_HEAD.splitlines()]
    for entry in parsed[:start]:
        lines += _write_entry(entry)
    lines.append(".SH SETTINGS")
    for entry in parsed[start:]:
        lines += _write_entry(entry)
    lines += [".SH SEE ALSO", ".BR supervisorctl (1),", ".BR rocm\\-supervisord (8)"]
    return roff.page(lines)


def entries(example: str) -> Iterator[Entry]:
    """Yield what config.toml holds, in its order; raise ValueError for a line that is none of its forms."""
    last: Entry | None = None
    lines = iter(example.splitlines())
    for line in lines:
        if (longer := _extend(last, line)) is not None:
            last = longer
            continue
        if last is not None:
            yield last
        last = _read_entry(line, lines)
    if last is not None:
        yield last


def _extend(entry: Entry | None, line: str) -> Entry | None:
    """Return `entry` with the line that goes on with it; None for a line that does not."""
    if isinstance(entry, Setting) and (found := _MORE.fullmatch(line)):
        return replace(entry, comment=f"{entry.comment} {found[1]}")
    if isinstance(entry, Remark) and (more := _read_remark(line)):
        return Remark((*entry.lines, *more))
    return None


def _read_entry(line: str, rest: Iterator[str]) -> Entry | None:
    if found := _TABLE.fullmatch(line):
        return Table(found[1], found[2] or "")
    if found := _SETTING.fullmatch(line):
        return _read_setting(found[1], found[2], rest)
    if (lines := _read_remark(line)) is not None:
        return Remark(lines) if lines else None
    if line.strip():
        raise ValueError(f"config.toml: {line!r} is not a setting, table or comment")
    return None


def _read_remark(line: str) -> tuple[str, ...] | None:
    """Return the text of a line that is only a comment, none for a rule of dashes; None for any other line."""
    if _TABLE.fullmatch(line) or _SETTING.fullmatch(line) or not (found := _TEXT.fullmatch(line)):
        return None
    text = re.sub(r"^-+ ?| ?-+$", "", found[1])
    return (text,) if text.strip() else ()


def _read_setting(name: str, text: str, rest: Iterator[str]) -> Setting:
    value, comment = _split_comment(text)
    while _open_brackets(value) > 0:
        more, comment = _split_comment(next(rest).removeprefix("#").strip())
        value = f"{value} {more}"
    return Setting(name, value.replace("[ ", "[").replace(", ]", "]"), comment)


def _split_comment(text: str) -> tuple[str, str]:
    """Return the value and the comment behind it; a # within quotes opens none."""
    masked = _STRING.sub(lambda found: "x" * len(found[0]), text)
    value, _, _ = masked.partition("#")
    return text[: len(value)].strip(), text[len(value) + 1 :].strip()


def _open_brackets(value: str) -> int:
    plain = _STRING.sub("", value)
    return sum(plain.count(mark) for mark in "[{") - sum(plain.count(mark) for mark in "]}")


def _write_entry(entry: Entry) -> Iterator[str]:
    if isinstance(entry, Table):
        yield f".SS [{roff.escape(entry.name)}]"
        yield from roff.flow(entry.comment)
    elif isinstance(entry, Setting):
        yield from roff.tagged(f"{roff.bold(entry.name)} = {roff.escape(entry.value)}", roff.flow(entry.comment))
    else:
        for indented, lines in groupby(entry.lines, key=lambda line: line.startswith("    ")):
            if indented:
                yield from roff.literal(line.strip() for line in lines)
            else:
                yield from (".PP", *roff.flow(" ".join(lines)))
