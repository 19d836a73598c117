"""Where configuration and socket lie, found without reading more than must be; whether they are any good is for others.

This runs on every call, so it takes neither the checker of the configuration nor its types.
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


def user_config(environment: Mapping[str, str]) -> Path:
    """Return the path of the user's own configuration."""
    return Path(environment.get("HOME", "/nonexistent")) / ".config/rocm-supervisor/config.toml"


def find_config(given: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the configuration that counts; it need not be there."""
    if given is not None:
        return given
    named = environment.get("ROCM_SUPERVISOR_CONFIG")
    if named:
        return Path(named)
    own = user_config(environment)
    return own if own.is_file() else SYSTEM_CONFIG


def find_socket(given: Path | None, config: Path, environment: Mapping[str, str]) -> Path:
    """Return the socket of the daemon that `config` belongs to, the first that is there.

    Only the system's and the user's own configuration are looked for in their runtime directories too: with any other
    one these may be the sockets of another daemon, and its jobs must not be stopped by mistake.
    """
    if given is not None:
        return given
    named = environment.get("ROCM_SUPERVISOR_SOCKET")
    if named:
        return Path(named)
    settings = _supervisor_table(config)
    socket = settings.get("socket")
    if isinstance(socket, str) and socket:
        return _home(socket)
    state = settings.get("state_dir")
    candidates = [_home(state if isinstance(state, str) and state else STATE) / SOCKET]
    if config == SYSTEM_CONFIG:
        candidates.insert(0, SYSTEM_RUNTIME / SOCKET)
    elif config == user_config(environment) and environment.get("XDG_RUNTIME_DIR"):
        candidates.insert(0, Path(environment["XDG_RUNTIME_DIR"]) / "rocm-supervisor" / SOCKET)
    return next((one for one in candidates if _may_be_there(one)), candidates[0])


def other_supervisor(path: Iterable[str] = sys.path) -> Path | None:
    """Return where the distribution `supervisor` (supervisord.org) is installed in this environment, or None.

    Its package and command have the names of ours. importlib.metadata would cost more than all the rest of a call.
    """
    for folder in path:
        if folder.endswith("-packages"):
            found = next(Path(folder).glob("supervisor-*.dist-info"), None)
            if found is not None:
                return found
    return None


def _supervisor_table(config: Path) -> dict[str, Any]:
    try:
        text = config.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return {}
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415  # only where there is a file
    else:
        import tomli as tomllib  # noqa: PLC0415  # the same
    try:
        table = tomllib.loads(text).get("supervisor", {})
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _may_be_there(path: Path) -> bool:
    """A directory that may not be entered is no proof of absence: connecting says why not."""
    try:
        path.lstat()
    except PermissionError:
        return True
    except OSError:
        return False
    return True
