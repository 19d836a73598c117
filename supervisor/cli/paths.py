"""Finds the configuration file and the daemon's socket, without validating either.

This runs on every call, so it imports neither the validation of the configuration nor its types.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SYSTEM_CONFIG = Path("/etc/rocm-supervisor/config.toml")
SYSTEM_RUNTIME = Path("/run/rocm-supervisor")
STATE = "/var/lib/rocm-supervisor"
SOCKET = "control.sock"
CONF_D = "conf.d"


def user_config(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's own configuration."""
    return Path(environment.get("HOME", "/nonexistent")) / ".config/rocm-supervisor/config.toml"


def find_config(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the configuration file in use; it may not exist."""
    if given is not None:
        return given
    named = environment.get("ROCM_SUPERVISOR_CONFIG")
    if named:
        return Path(named)
    of_user = user_config(environment)
    return of_user if of_user.is_file() else SYSTEM_CONFIG


def find_socket(given: Path | None, config: Path, environment: Mapping[str, str]) -> Path:
    """Return the socket of the daemon that `config` belongs to: the first candidate that exists.

    The runtime directories are searched only for the system's and the user's own configuration: with any other file
    the socket there may be another daemon's, whose jobs must not be stopped by mistake.
    """
    if given is not None:
        return given
    named = environment.get("ROCM_SUPERVISOR_SOCKET")
    if named:
        return Path(named)
    settings = _supervisor_table(config)
    socket = settings.get("socket")
    if isinstance(socket, str) and socket:
        return _expand_home(socket)
    state = settings.get("state_dir")
    candidates = [_expand_home(state if isinstance(state, str) and state else STATE) / SOCKET]
    if config == SYSTEM_CONFIG:
        candidates.insert(0, SYSTEM_RUNTIME / SOCKET)
    elif config == user_config(environment) and environment.get("XDG_RUNTIME_DIR"):
        candidates.insert(0, Path(environment["XDG_RUNTIME_DIR"]) / "rocm-supervisor" / SOCKET)
    return next((path for path in candidates if _may_exist(path)), candidates[0])


def state_directory(config: Path) -> Path:
    """Return the state directory that a configuration names, or the default."""
    named = read_table(config, "supervisor").get("state_dir")
    return _expand_home(named if isinstance(named, str) and named else STATE)


def other_supervisor(path: Iterable[str] = sys.path) -> Path | None:
    """Return where the distribution `supervisor` (supervisord.org) is installed in this environment, or None.

    Its package and command have the same names as ours. importlib.metadata takes longer than the rest of a call.
    """
    for folder in path:
        if folder.endswith("-packages"):
            found = next(Path(folder).glob("supervisor-*.dist-info"), None)
            if found is not None:
                return found
    return None


def _supervisor_table(config: Path) -> dict[str, Any]:
    return read_table(config, "supervisor")


def read_table(config: Path, name: str) -> dict[str, Any]:
    """Return a table of the file, and of those in `conf.d` next to it, without validation; empty if there is none."""
    merged = _read_table(config, name)
    for path in sorted((config.parent / CONF_D).glob("[!.]*.toml")):  # empty too where it may not be read
        merged = {**_read_table(path, name), **merged}
    return merged


def _read_table(config: Path, name: str) -> dict[str, Any]:
    try:
        if not config.is_file():  # a pipe would block
            return {}
        text = config.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return {}
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415  # needed only if there is a file
    else:
        import tomli as tomllib  # noqa: PLC0415  # the same
    try:
        table = tomllib.loads(text).get(name, {})
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _expand_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _may_exist(path: Path) -> bool:
    """Whether the path exists; True too in a directory that may not be entered: connecting then reports why not."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True
