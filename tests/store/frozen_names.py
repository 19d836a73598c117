"""Collects every name that is stored or sent between programs; run as a program it writes `frozen_names.txt` again.

    make frozen-names

Nothing is stated twice here: the names come from the types, tables and modules that use them.
"""

from __future__ import annotations

import ast
import re
import struct
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from inspect import isclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

import supervisor
from supervisor.alerts.channels import CHANNELS
from supervisor.cli import exit_codes
from supervisor.cli.replay.series import COLUMNS
from supervisor.cli.replay.tensorboard import TAGS
from supervisor.config.schema import is_table, keys_of
from supervisor.config.settings import Settings
from supervisor.control import origin, record_types, record_view, refusals, routes, types
from supervisor.core import attempt_files, decisions, events
from supervisor.core.incident import Incident
from supervisor.core.job import Job
from supervisor.core.rules import RULES
from supervisor.metrics.declared import METRICS
from supervisor.runner import shim
from supervisor.store import schema, tables
from supervisor.store.encode import kind_of

LIST = Path(__file__).with_name("frozen_names.txt")
CODE = Path(supervisor.__file__).parent
LONG = 8
"""Values of a literal from which on they are listed for the first field of that type alone."""
HEAD = """\
# Every name that is stored or sent between programs. Written by `make frozen-names`, compared by test_frozen_names.py.
# A change here is a change of a format: see the message of that test.
"""


@cache
def collect() -> dict[str, list[str]]:
    """Return the names by group, sorted."""
    groups: dict[str, Callable[[], Iterator[str]]] = {
        "schema revisions": lambda: iter(schema.REVISIONS),
        "tables and columns": _columns,
        "notes": _notes,
        "jobs, incidents, decisions and events as JSON": _states,
        "settings": _settings,
        "control socket: routes": _routes,
        "control socket: fields": _api_fields,
        "control socket: error codes": _error_codes,
        "metrics": lambda: (",".join((metric.name, metric.kind, *metric.labels)) for metric in METRICS),
        "exports: columns and tags": lambda: iter((*COLUMNS, *TAGS)),
        "exit codes": _exit_codes,
        "alerts: types": _alert_types,
        "alerts: fields": _alert_fields,
        "attempt folder": _attempt_files,
        "attempt folder: keys of JSON files": _file_keys,
        "attempt folder: events of the agent": _agent_events,
        "command lines of the shim": lambda: iter((shim.AS_MODULE, shim.AS_STANDBY)),
        "recordings": lambda: _dictionary_keys(CODE / "replay" / "folder.py"),
    }
    return {group: sorted(set(names())) for group, names in groups.items()}


def as_text(groups: dict[str, list[str]]) -> str:
    """Return the groups as the committed list: a heading for each, a name a line."""
    return HEAD + "".join(f"\n[{group}]\n" + "".join(f"{name}\n" for name in names) for group, names in groups.items())


# --- names that types have ----------------------------------------------------------------------------------------


def _columns() -> Iterator[str]:
    for table in tables.metadata.sorted_tables:
        yield table.name
        yield from (f"{table.name}.{column.name}" for column in table.columns)


def _states() -> Iterator[str]:
    """Yield keys and values of all that is stored as JSON; a type that is met again is not repeated."""
    met: set[object] = set()
    yield from _keys(Job, "job", met)
    yield from _keys(Incident, "incident", met)
    for group, union in (("decision", decisions.Decision), ("event", events.Event)):
        for member in get_args(union):
            yield f"{group} {kind_of_class(member)}"
            yield from _keys(member, f"{group} {kind_of_class(member)}", met)


def kind_of_class(member: type) -> str:
    """Return the kind under which a decision or an event of a class is stored."""
    return kind_of(object.__new__(member))


def _settings() -> Iterator[str]:
    yield from _keys(Settings, "config", set())
    for kind, channel in CHANNELS.items():
        yield f"config.alerts.kind={kind}"
        yield from _keys(channel.settings_type, "config.alerts", set())
    for rule in RULES:
        yield from _keys(rule, f"rules.{rule.name}", set())


def _api_fields() -> Iterator[str]:
    bodies = {**vars(types), **vars(record_types), **vars(record_view)}
    for name, kind in bodies.items():
        if name.startswith("_"):
            continue  # a base of a body; its fields are that body's
        if isclass(kind) and issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct:
            # The others have entries of their own.
            others: set[object] = {other for other in bodies.values() if isclass(other) and other is not kind}
            yield from _keys(kind, name, others)


def _keys(kind: Any, path: str, met: set[object]) -> Iterator[str]:
    """Yield the path of every key below a type, and the values of its enums and literals."""
    if get_origin(kind) is Literal:
        values = get_args(kind)
        if values not in met:
            yield from (f"{path}={value}" for value in values)
        if len(values) >= LONG:
            met.add(values)
    elif get_origin(kind) is Annotated:
        yield from _keys(get_args(kind)[0], path, met)
    elif isclass(kind):
        if kind not in met and (is_table(kind) or issubclass(kind, Enum)):
            met.add(kind)
            yield from _keys_of_class(kind, path, met)
    else:
        for inner in get_args(kind):
            yield from _keys(inner, path, met)


def _keys_of_class(kind: type, path: str, met: set[object]) -> Iterator[str]:
    if issubclass(kind, Enum):
        yield from (f"{path}={member.value}" for member in kind)
        return
    table: Any = kind
    for name, inner in keys_of(table).items():
        yield f"{path}.{name}"
        yield from _keys(inner, f"{path}.{name}", met)


# --- the control socket, exit codes, alerts ------------------------------------------------------------------------


def _routes() -> Iterator[str]:
    guard = routes.application(cast("Any", None), 0, cast("Any", object()))
    for route in cast("Any", guard)._served.routes:
        for method in sorted(route.methods - {"HEAD"}):
            yield f"{method} {route.path}"


def _error_codes() -> Iterator[str]:
    for module in (refusals, origin):
        for kind in vars(module).values():
            if isclass(kind) and issubclass(kind, refusals.Refusal):
                yield f"{kind.code} {kind.status}"
    for path in sorted((CODE / "control").glob("*.py")):
        for call in _calls(path):
            yield from (text for keyword in call.keywords if keyword.arg == "code" for text in _text(keyword.value))
            if _name(call.func) in {"_answer_failure", "UnreachableError", "ForbiddenError", "ControlError"}:
                yield from (text for argument in call.args[:2] for text in _text(argument) if text.isidentifier())
        yield from re.findall(r'"code": "(\w+)"', path.read_text(encoding="utf-8"))


def _exit_codes() -> Iterator[str]:
    for name, value in vars(exit_codes).items():
        if isinstance(value, int):
            yield f"supervisorctl {name}={value}"
    for name, value in _constants(CODE / "daemon" / "main.py", int):
        if name.startswith("EX_"):
            yield f"rocm-supervisord {name}={value}"
    yield f"shim CLAIMED_BY_ANOTHER={shim.CLAIMED_BY_ANOTHER}"
    yield f"shim START_FAILED={shim.START_FAILED}"


def _alert_types() -> Iterator[str]:
    path = CODE / "alerts" / "payload.py"
    for call in _calls(path):
        if call.args and _name(call.func) == "_of_incident":
            yield from _text(call.args[0])
        yield from (text for keyword in call.keywords if keyword.arg == "type" for text in _text(keyword.value))
    yield from (value for name, value in _constants(path, str) if name == "TEST")
    yield from (value for name, value in _constants(CODE / "alerts" / "report.py", str) if name == "REPORT")


def _alert_fields() -> Iterator[str]:
    for name in ("payload.py", "report.py"):
        yield from _dictionary_keys(CODE / "alerts" / name)


# --- the attempt's folder -----------------------------------------------------------------------------------------


def _attempt_files() -> Iterator[str]:
    """Yield names, numbers and layouts on which daemon, shim and agent agree."""
    for name, value in vars(attempt_files).items():
        if name.isupper() and isinstance(value, str):
            yield value
        elif name.isupper():
            yield f"{name}={value.format if isinstance(value, struct.Struct) else value}"


def _file_keys() -> Iterator[str]:
    for name in ("attempt_folder", "shim", "standby", "standby_shim", "triage"):
        yield from _dictionary_keys(CODE / "runner" / f"{name}.py")


def _agent_events() -> Iterator[str]:
    for path in sorted((CODE / "agent" / "path" / "rocm_agent").rglob("*.py")):
        for call in _calls(path):
            if ast.unparse(call.func) != "events.write" or not call.args:
                continue
            for event in _text(call.args[0]):
                yield event
                yield from (f"{event}.{keyword.arg}" for keyword in call.keywords if keyword.arg is not None)
                if any(keyword.arg is None for keyword in call.keywords):
                    # Fields that are put together before: no event is named where that is done.
                    yield from (f"*.{key}" for key in _dictionary_keys(path))
    yield from (f"common.{key}" for key in _dictionary_keys(CODE / "agent" / "path" / "rocm_agent" / "events.py"))


# --- names in source text -----------------------------------------------------------------------------------------


def _notes() -> Iterator[str]:
    """Yield the keys of the table of notes, which all are constants of the module that sets them."""
    for path in sorted((CODE / "daemon").rglob("*.py")):
        known = dict(_constants(path, str))
        for call in _calls(path):
            if _name(call.func) == "set_note":
                names = (node.id for node in ast.walk(call.args[0]) if isinstance(node, ast.Name))
                yield from (known[name] for name in names if name in known)


def _dictionary_keys(path: Path) -> Iterator[str]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Dict):
            yield from (text for key in node.keys if key is not None for text in _text(key))
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from _text(node.slice)


def _constants(path: Path, kind: type) -> Iterator[tuple[str, Any]]:
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, kind):
            for target in node.targets:
                yield ast.unparse(target), node.value.value


def _calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(_tree(path)) if isinstance(node, ast.Call))


def _name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _text(node: ast.expr) -> Iterator[str]:
    """Yield the text of a string; {} stands for an expression in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    LIST.write_text(as_text(collect()), encoding="utf-8")
    schema.TABLES.write_text(tables.as_sql(), encoding="utf-8")
    sys.stdout.write(f"{LIST}: {sum(map(len, collect().values()))} names\n")
