"""From TOML's plain values to settings objects, noting everything that does not fit; it judges no value by another."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from supervisor.alerts.settings import AlertSettings
from supervisor.config import schema
from supervisor.config.problems import PROBLEMS_NOTED, Problem
from supervisor.config.settings import JobSettings
from supervisor.json_bytes import encode_json

if TYPE_CHECKING:
    from supervisor.core.rules import Rule

NAME = re.compile(r"(?!.*--)[a-z0-9][a-z0-9_-]{0,40}")
"""Names of jobs and alerts; a job's becomes the name of its unit and of its folder."""
VALUE_SHOWN = 80
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<place>.*)`)?$", re.DOTALL)
_SECRET_KEYS = frozenset({"url", "database"})


class Reader:
    """Reads one file's tables; `problems` is what it met."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def table(self, kind: type, values: object, path: str = "") -> Any | None:
        """Return the settings object of class `kind`, or None where `values` cannot make one.

        A value that does not fit is noted and its default taken, so that one reading finds everything.
        """
        if not isinstance(values, dict):
            self.note(path, "must be a table", f"write it as [{path}]", values)
            return None
        keys = schema.keys_of(kind)
        self._report_unknown(values, keys, path)
        read: dict[str, Any] = {}
        for name, key_kind in keys.items():
            if name in values:
                value = self._read_value(kind, name, key_kind, values[name], join(path, name))
                if value is not None:
                    read[name] = value
            elif name in schema.required(kind):
                self.note(join(path, name), "is missing", f"needed: {schema.allowed(key_kind)}")
        return kind(**read) if schema.required(kind) <= read.keys() else None

    def note(self, path: str, problem: str, allowed: str, value: object = None) -> None:
        """Record a problem, one of the first `PROBLEMS_NOTED`; the value is omitted if it may be a secret."""
        if len(self.problems) >= PROBLEMS_NOTED:
            return
        shown = None if value is None or _may_be_secret(path) else show(value)
        self.problems.append(Problem(file=self.file, key=path, problem=problem, allowed=allowed, value=shown))

    def _read_value(self, table: type, name: str, kind: Any, value: object, path: str) -> Any | None:
        if table is JobSettings and name == "rules":
            return self.rules(value, path)
        if schema.is_table(kind):
            return self.table(kind, value, path)
        inner = schema.table_within(kind)
        if inner is not None:
            return self._named_tables(inner, value, path)
        if kind == dict[str, str] and isinstance(value, dict):
            words = {key: self._read_leaf(str, key, word, join(path, key)) for key, word in value.items()}
            return {key: word for key, word in words.items() if word is not None}
        leaf = self._read_leaf(kind, name, value, path)
        outside = schema.range_problem(table, name, leaf)
        if outside is not None:
            self.note(path, "would never raise a flag", f"allowed: {outside}", value)
            return None
        return leaf

    def _named_tables(self, kind: type, value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.note(path, "must hold tables", f"write them as [{path}.NAME]", value)
            return {}
        read = {}
        for name, values in value.items():
            if NAME.fullmatch(name) is None:
                self.note(
                    join(path, name),
                    "is not a valid name",
                    "1 to 41 of a-z, 0-9, - and _, the first a letter or digit",
                )
            variant = self._find_channel(values, join(path, name)) if kind is AlertSettings else kind
            item = variant and self.table(variant, values, join(path, name))
            if item is not None:
                read[name] = item
        return read

    def _find_channel(self, values: object, path: str) -> type | None:
        """Return the settings class of a receiver's channel; an unknown channel is recorded as a problem."""
        from supervisor.alerts.channels import CHANNELS  # noqa: PLC0415  # a file without receivers needs no channels

        kind = values.get("kind", "webhook") if isinstance(values, dict) else "webhook"
        channel = CHANNELS.get(kind) if isinstance(kind, str) else None
        if channel is None:
            allowed = f"allowed: one of {', '.join(show(name) for name in CHANNELS)}"
            self.note(join(path, "kind"), "is not a known alert channel", allowed, kind)
            return None
        return channel.settings_type

    def rules(self, value: object, path: str = "") -> dict[str, dict[str, Any]]:
        """Return the settings of rules, one table per rule; invalid ones are recorded as problems and omitted."""
        from supervisor.core.rules import RULES  # noqa: PLC0415  # a file without jobs needs no rules

        known = {rule.name: rule for rule in RULES}
        if not isinstance(value, dict):
            self.note(path, "must hold tables", f"write them as [{path}.RULE]", value)
            return {}
        self._report_unknown(value, known, path, word="rule")
        read = {}
        for name in known.keys() & value.keys():
            settings = self._without_act(known[name], value[name], join(path, name))
            rule = self.table(known[name], settings, join(path, name))
            if rule is not None:
                read[name] = {key: getattr(rule, key) for key in schema.keys_of(known[name]) if key in settings}
        return read

    def _without_act(self, kind: type[Rule], values: Any, path: str) -> Any:
        """Return the settings of a rule; `act` is reported and omitted if the rule only warns."""
        if not isinstance(values, dict) or "act" not in values or "act" in schema.keys_of(kind):
            return values
        self.note(join(path, "act"), f"rule {kind.name} only warns; it has no setting act", "remove it", values["act"])
        return {key: value for key, value in values.items() if key != "act"}

    def _read_leaf(self, kind: Any, name: str, value: object, path: str) -> Any | None:
        try:
            read = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            what, place = _explain_error(error)
            self.note(path + place, what, f"allowed: {schema.allowed(kind)}", _value_at(value, place))
            return None
        broken = _why_unfit(read) or schema.number_problem(name, read)
        if broken is not None:
            self.note(path, "cannot be used", f"allowed: {broken}", value)
            return None
        return self._expand_path(read, path) if kind is not str and schema.is_path(kind) else read

    def _expand_path(self, value: str, path: str) -> str | None:
        try:
            absolute = Path(value).expanduser()
        except RuntimeError:
            self.note(path, "names a home directory that does not exist", "write an absolute path", value)
            return None
        if not absolute.is_absolute():
            self.note(path, "is a relative path", "allowed: an absolute path, or one that begins with ~", value)
            return None
        return str(absolute)

    def _report_unknown(self, values: Mapping[str, object], known: Iterable[str], path: str, word: str = "key") -> None:
        names = tuple(known)
        for name in values:
            if len(self.problems) >= PROBLEMS_NOTED:
                return
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                hint = f'did you mean "{near[0]}"? ' if near else ""
                self.note(join(path, name), f"is not a known {word}", f"{hint}known here: {', '.join(names)}")


def join(path: str, name: str) -> str:
    """Return the path of key `name` inside the table at `path`, quoted as TOML wants it."""
    bare = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else show(name)
    return f"{path}.{bare}" if path else bare


def show(value: object) -> str:
    """Return a value in TOML syntax, truncated to one line."""
    match value:
        case bool():
            text = str(value).lower()
        case str():
            text = encode_json(value).decode()
        case list():
            text = f"[{', '.join(map(show, value))}]"
        case dict():
            text = "{" + ", ".join(f"{key} = {show(item)}" for key, item in value.items()) + "}"
        case _:
            text = str(value)
    return text if len(text) <= VALUE_SHOWN else text[: VALUE_SHOWN - 3] + "..."


def _may_be_secret(path: str) -> bool:
    parts = path.split(".")
    return parts[-1] in _SECRET_KEYS or "env" in parts[2:]


def _explain_error(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return msgspec's message in terms of TOML, and the position inside the value (`[2]` or "")."""
    match = _PLACE.match(str(error))
    what, place = (match["what"], match["place"] or "") if match else (str(error), "")
    got = re.search(r"got `(\w+)`", what)
    return (f"is of the wrong type ({got[1]})" if got else "is not allowed"), place.replace("[...]", "")


def _value_at(value: object, place: str) -> object:
    for index in re.findall(r"\[(\d+)\]", place):
        value = value[int(index)] if isinstance(value, list) else value
    return value


def _why_unfit(value: object) -> str | None:
    """Return what is required if a value of the right type cannot be used; None if it can."""
    match value:
        case float() if not math.isfinite(value):
            return "a finite number"
        case str() if "\0" in value:
            return "text without a NUL character"
        case list() | tuple():
            return next(filter(None, map(_why_unfit, value)), None)
        case _:
            return None
