"""Finds the configuration file and the daemon's socket, without validating either.

This runs on every call, so it imports neither the validation of the configuration nor its types. Files are looked at in
a fork of this process, which takes a millisecond: where their file system does not answer, the fork is left behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from supervisor.cli.errors import CliError

SYSTEM_CONFIG = Path("/etc/rocm-supervisor/config.toml")
SYSTEM_RUNTIME = Path("/run/rocm-supervisor")
STATE = "/var/lib/rocm-supervisor"
SOCKET = "control.sock"
CONF_D = "conf.d"
ANSWER_LIMIT_S = 2.0
"""How long a file system may take for all of a configuration."""
PIECE_BYTES = 1 << 16
FILES_AT_MOST = 1024


class SilentError(CliError):
    """The file system of a configuration does not answer."""

    def __init__(self, config: Path) -> None:
        super().__init__(
            f"{config}, or {CONF_D} next to it, does not answer within {ANSWER_LIMIT_S:.0f} s",
            "see to its file system, or name the daemon's socket: --socket or ROCM_SUPERVISOR_SOCKET",
            "silent_config",
        )


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
    try:
        return of_user if look_apart(of_user.is_file) else SYSTEM_CONFIG
    except TimeoutError:
        return of_user


def find_socket(config: Path, environment: Mapping[str, str]) -> Path:
    """Return the socket of the daemon that `config` belongs to: the first candidate that exists.

    The runtime directories are searched only for the system's and the user's own configuration: with any other file
    the socket there may be another daemon's, whose jobs must not be stopped by mistake. Where the configuration does
    not answer, a socket that exists there is taken; raises SilentError where none does.
    """
    named = environment.get("ROCM_SUPERVISOR_SOCKET")
    if named:
        return Path(named)
    runtime = _runtime_socket(config, environment)
    try:
        settings = read_table(config, "supervisor")
    except SilentError:
        if runtime is not None and _may_exist(runtime):
            return runtime
        raise
    socket = settings.get("socket")
    if isinstance(socket, str) and socket:
        return _expand_home(socket)
    in_state = _state_of(settings) / SOCKET
    if runtime is None or (not _may_exist(runtime) and _is_there(in_state)):
        return in_state
    return runtime


def _runtime_socket(config: Path, environment: Mapping[str, str]) -> Path | None:
    if config == SYSTEM_CONFIG:
        return SYSTEM_RUNTIME / SOCKET
    if config == user_config(environment) and environment.get("XDG_RUNTIME_DIR"):
        return Path(environment["XDG_RUNTIME_DIR"]) / "rocm-supervisor" / SOCKET
    return None


def _is_there(path: Path) -> bool:
    try:
        return bool(look_apart(lambda: _may_exist(path)))
    except TimeoutError:
        return False


def state_directory(config: Path) -> Path:
    """Return the state directory that a configuration names, or the default."""
    return _state_of(read_table(config, "supervisor"))


def _state_of(settings: Mapping[str, Any]) -> Path:
    named = settings.get("state_dir")
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


def read_table(config: Path, name: str) -> dict[str, Any]:
    """Return a table of the file, and of those in `conf.d` next to it, without validation; empty if there is none.

    Raises SilentError.
    """
    try:
        found: dict[str, Any] = look_apart(lambda: _read_tables(config, name))
    except TimeoutError:
        raise SilentError(config) from None
    return found


def refuse_silent(config: Path) -> None:
    """Raise SilentError where a configuration does not answer, so that it must not be touched."""
    read_table(config, "supervisor")


def look_apart(work: Callable[[], Any]) -> Any:
    """Return what `work` returns, which looks at files; raise TimeoutError where it has not within ANSWER_LIMIT_S."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError:  # no process is left: they are looked at here
        os.close(reading)
        os.close(writing)
        return work()
    if child == 0:
        _answer_and_end(work, writing)
    os.close(writing)
    try:
        answer = _read_answer(reading)
    finally:
        os.close(reading)
    if answer is None:
        os.kill(child, signal.SIGKILL)  # and not waited for: it may be beyond that
        raise TimeoutError
    os.waitpid(child, 0)
    return json.loads(answer)


def _answer_and_end(work: Callable[[], Any], writing: int) -> NoReturn:
    """In the fork: hold no file of the parent's, whose readers would wait for this process too."""
    try:
        os.closerange(0, writing)
        os.closerange(writing + 1, writing + FILES_AT_MOST)
        left = json.dumps(work(), default=str).encode()
        while left:
            left = left[os.write(writing, left) :]
    finally:
        os._exit(0)


def _read_answer(reading: int) -> bytes | None:
    """Return all that is written to a pipe until it is closed; None where it is silent for ANSWER_LIMIT_S."""
    answer = b""
    while select.select([reading], [], [], ANSWER_LIMIT_S)[0]:
        piece = os.read(reading, PIECE_BYTES)
        if not piece:
            return answer or b"null"
        answer += piece
    return None


def _read_tables(config: Path, name: str) -> dict[str, Any]:
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
