"""Compares two configurations: which changes a running daemon applies immediately, and which need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from supervisor.config.read import show
from supervisor.config.redact import redacted
from supervisor.config.settings import Settings

ABSENT = object()
CHANGES_NAMED = 1000
"""More of them are no answer that a person reads, and each takes time to log and to send."""
DAEMON = "with the daemon's next start"
PAGE = "with the next start of rocm-supervisor-web"
SHIPPER = "with the next start of rocm-supervisor-fleet"
ATTEMPT = "with the job's next attempt"

LATER: tuple[tuple[str, str], ...] = (
    ("supervisor.log_level", ""),
    ("supervisor.agent", ATTEMPT),
    ("supervisor.*", DAEMON),
    ("telemetry.interval_s", ""),
    ("telemetry.*", DAEMON),
    ("kernel_log.*", DAEMON),
    ("web.*", PAGE),
    ("fleet.*", SHIPPER),
    ("metrics.listen", DAEMON),
    ("metrics.hosts", DAEMON),
    ("jobs.*.command", ATTEMPT),
    ("jobs.*.cwd", ATTEMPT),
    ("jobs.*.env*", ATTEMPT),
    ("jobs.*.conv2d*", ATTEMPT),
    ("jobs.*.snapshot_every_s", ATTEMPT),
    ("jobs.*.snapshot_replicas", ATTEMPT),
    ("jobs.*.gpus", ATTEMPT),
    ("jobs.*.resume.command", ATTEMPT),
    ("jobs.*.profiles.*", ATTEMPT),
)
"""When a key takes effect, by the first matching pattern; an empty text or no match means immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Keys that changed, each as `KEY: OLD -> NEW`, what waits with what it waits for."""

    applied: tuple[str, ...]
    needs_restart: tuple[str, ...]


def difference(old: Settings, new: Settings) -> Difference:
    """Compare two configurations key by key; secrets show that they changed, not what they are."""
    applied, waiting = list(_comings_and_goings(old, new)), []
    for key, text in _list_changes(old, new):
        waits_for = next((word for pattern, word in LATER if fnmatchcase(key, pattern)), "")
        if waits_for:
            waiting.append(f"{text} ({waits_for})")
        else:
            applied.append(text)
    return Difference(applied=_shorten(applied), needs_restart=_shorten(waiting))


def _shorten(changes: list[str]) -> tuple[str, ...]:
    more = len(changes) - CHANGES_NAMED
    return (*changes[:CHANGES_NAMED], *([f"and {more} more"] if more > 0 else []))


def _comings_and_goings(old: Settings, new: Settings) -> Iterator[str]:
    for name, before, after in (("jobs", old.jobs, new.jobs), ("alerts", old.alerts, new.alerts)):
        yield from (f"{name}.{key}: added" for key in sorted(after.keys() - before.keys()))
        yield from (f"{name}.{key}: removed" for key in sorted(before.keys() - after.keys()))


def _list_changes(old: Settings, new: Settings) -> Iterator[tuple[str, str]]:
    before, after = _list_leaves(old), _list_leaves(new)
    shown_before, shown_after = dict(_flatten(redacted(old))), dict(_flatten(redacted(new)))
    gone = {f"{room}.{text}." for room in ("jobs", "alerts") for text in _one_sided(old, new, room)}
    for key in dict.fromkeys((*before, *after)):
        if before.get(key, ABSENT) == after.get(key, ABSENT) or key.startswith(tuple(gone)):
            continue
        was, is_now = shown_before.get(key, ABSENT), shown_after.get(key, ABSENT)
        yield key, f"{key}: {_describe_change(was, is_now)}"


def _describe_change(was: object, is_now: object) -> str:
    """Return both values; of two lists the words that differ: two long commands are cut off before they do."""
    if was == is_now:
        return "changed (not shown)"
    old, new = _format_value(was), _format_value(is_now)
    if isinstance(was, list) and isinstance(is_now, list) and (old.endswith("...") or new.endswith("...")):
        return _describe_words([str(word) for word in was], [str(word) for word in is_now])
    return f"{old} -> {new}"


def _describe_words(old: list[str], new: list[str]) -> str:
    from difflib import SequenceMatcher  # noqa: PLC0415  # only a reload needs it

    parts = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [(old[a:b], new[c:d]) for kind, a, b, c, d in parts if kind != "equal"]
    return "; ".join(f"{_format_words(before)} -> {_format_words(after)}" for before, after in changes)


def _format_words(words: list[str]) -> str:
    return " ".join(map(show, words)) or "nothing"


def _one_sided(old: Settings, new: Settings, room: str) -> set[str]:
    before, after = getattr(old, room), getattr(new, room)
    return set(before) ^ set(after)


def _format_value(value: object) -> str:
    return "unset" if value is ABSENT or value is None else show(value)


def _list_leaves(settings: Settings) -> dict[str, Any]:
    return dict(_flatten(settings))


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if not isinstance(value, dict):
        yield path, list(value) if isinstance(value, tuple) else value
        return
    for name, inner in value.items():
        yield from _flatten(inner, f"{path}.{name}" if path else name)
