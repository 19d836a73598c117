"""What a tune has proven for a job: kept in the job's folder, applied to its next attempts, given to the agent.

`tune.json` of an attempt is the order to its agent; `tuned.json` of a job is what was adopted, and for which command.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from supervisor import untrusted_files
from supervisor.core import attempt_files as names
from supervisor.core.foreign_values import as_bounded, as_dict, as_list, as_text, read_json_object
from supervisor.core.tuning.knob import KNOBS
from supervisor.runner.attempt_folder import write_atomically

TUNED = "tuned.json"
UNDONE = "tuned.undone"
"""What TUNED held when a tune was undone on a disk without room for another: a new name needs none."""
SIZE_LIMIT_BYTES = 1 << 20
PROVEN_ORDER = 1
"""The number of the order that a new attempt finds: what was adopted before."""
MODE = 0o640


def write_order(  # noqa: PLR0913 - the fields of an order
    folder: Path,
    number: int,
    settings: Mapping[str, object],
    *,
    until_s: float | None,
    facts: bool = False,
    traces: bool = False,
) -> None:
    """Order the agent of an attempt to hold `settings` until `until_s` of the monotonic clock; raise OSError.

    `traces`: it is to trace some steps before it answers.
    """
    until_ns = None if until_s is None else int(until_s * 1e9)
    _write(folder, id=number, settings=dict(settings), until_ns=until_ns, facts=facts, traces=traces)


def write_proven(folder: Path, settings: Mapping[str, object], proven_on: Mapping[str, object]) -> None:
    """Order them for good, except where the agent finds another torch or GPU than `proven_on`; raise OSError."""
    _write(folder, id=PROVEN_ORDER, settings=dict(settings), until_ns=None, facts=False, proven_on=dict(proven_on))


def _write(folder: Path, **order: object) -> None:
    write_atomically(folder / names.TUNE, json.dumps({"version": 1, **order}) + "\n", MODE)


def withdraw_order(folder: Path) -> None:
    """Let the owner's settings hold again; raise OSError where what was ordered holds until its time is over."""
    (folder / names.TUNE).unlink(missing_ok=True)


def keep(
    job_folder: Path,
    command: Sequence[str],
    report: Mapping[str, Any],
    proven_on: Mapping[str, object],
    *,
    tries: int = 0,
) -> None:
    """Keep what a tune has adopted, for the same command, torch and GPU on this machine; raise OSError.

    `tries`: how often a tune of this command has begun by itself.
    """
    kept = {
        "version": 1,
        "machine": platform.node(),
        "argv": list(command),
        "proven_on": dict(proven_on),
        "tries": tries,
        "report": dict(report),
    }
    write_atomically(job_folder / TUNED, json.dumps(kept) + "\n", MODE)
    (job_folder / UNDONE).unlink(missing_ok=True)


def read_kept(job_folder: Path) -> Mapping[str, Any] | None:
    """Return what was kept of the last tune, None without any."""
    return _read_kept(job_folder, TUNED)


def find_kept(job_folder: Path, command: Sequence[str]) -> Mapping[str, Any] | None:
    """Return what was kept of the last tune of this command on this machine, None without any."""
    kept = read_kept(job_folder)
    return kept if kept is not None and _is_of(kept, command) else None


def _read_kept(job_folder: Path, name: str) -> Mapping[str, Any] | None:
    try:
        return read_json_object(untrusted_files.read_bytes(job_folder, name, SIZE_LIMIT_BYTES))
    except (OSError, ValueError):
        return None


def _is_of(kept: Mapping[str, Any], command: Sequence[str]) -> bool:
    return kept.get("argv") == list(command) and kept.get("machine") == platform.node()


def forget(job_folder: Path) -> bool:
    """Forget what was adopted; return whether there was anything; raise OSError."""
    there = (job_folder / TUNED).exists()
    for name in (TUNED, UNDONE):
        (job_folder / name).unlink(missing_ok=True)
    return there


def undo(job_folder: Path, command: Sequence[str], report: Mapping[str, Any]) -> bool:
    """Keep `report` in place of what was adopted; return whether there was anything; raise OSError.

    On a full disk what there was gets another name, under which it is applied to no attempt.
    """
    there = (job_folder / TUNED).exists()
    try:
        keep(job_folder, command, report, {})
    except OSError:
        if there:
            (job_folder / TUNED).replace(job_folder / UNDONE)
        else:
            (job_folder / UNDONE).touch(MODE)
    return there


def was_undone(job_folder: Path, command: Sequence[str]) -> bool:
    """Whether a tune of this command, or one of which nothing is known, was undone on a full disk."""
    if not untrusted_files.exists(job_folder, UNDONE):
        return False
    kept = _read_kept(job_folder, UNDONE)
    return kept is None or _is_of(kept, command)


def apply_kept(folder: Path, command: Sequence[str], remedied: Sequence[str]) -> Mapping[str, object]:
    """Give a new attempt what was adopted for its command; return it. What remedies have changed is left out."""
    kept = find_kept(folder.parent, command)
    if kept is None:
        return {}
    settings = _settings_of(kept, set(remedied))
    if settings:
        proven_on = kept.get("proven_on")
        write_proven(folder, settings, proven_on if isinstance(proven_on, dict) else {})
    return settings


def _settings_of(kept: Mapping[str, Any], remedied: set[str]) -> dict[str, object]:
    outranked = {knob.name for knob in KNOBS if remedied.intersection(knob.outranked_by)}
    known = {knob.name for knob in KNOBS}
    report = kept.get("report")
    rows = as_list(report.get("adopted")) if isinstance(report, dict) else []
    found = ((as_text(row.get("knob")), as_bounded(row.get("value"), 0)) for row in map(as_dict, rows))
    return {name: value for name, value in found if name in known and name not in outranked and value is not None}


def remedied_settings(folder: Path) -> tuple[str, ...]:
    """Return the settings that remedies have changed for an attempt, Conv2d's among them."""
    settings = _read_object(folder, names.REMEDIES).get("settings")
    found = [str(name) for name, row in settings.items() if _is_remedied(row)] if isinstance(settings, dict) else []
    conv2d = launched_env(folder).get(names.ENV_CONV2D, "off")
    return (*found, *(("conv2d",) if conv2d not in ("", "off") else ()))


def _is_remedied(row: object) -> bool:
    """Whether a setting is of a remedy; what a tune has set is of none."""
    return as_dict(row).get("remedies") != []


def launched_command(folder: Path) -> Sequence[str]:
    """Return the command of an attempt, whatever it goes on from; empty where it cannot be read.

    One that an earlier version launched is known by what was run alone.
    """
    launch = _read_object(folder, names.LAUNCH)
    command = launch.get("command", launch.get("argv"))
    return [str(item) for item in command] if isinstance(command, list) else ()


def launched_env(folder: Path) -> Mapping[str, str]:
    """Return the variables that an attempt was given besides the shim's own, none where they cannot be read."""
    env = _read_object(folder, names.LAUNCH).get("env")
    return {str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {}


def _read_object(folder: Path, name: str) -> Mapping[str, object]:
    try:
        return read_json_object(untrusted_files.read_bytes(folder, name, SIZE_LIMIT_BYTES)) or {}
    except (OSError, ValueError):
        return {}
