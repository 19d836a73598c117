"""Prepares the next attempt's interpreter: imports what takes long, then waits until the attempt is launched.

It runs inside our sitecustomize, so that Python has not come to the program yet: its script, `-m` or `-c`,
`sys.path[0]`, `__main__` and the way it ends are Python's own afterwards. Without a launch the process ends here.

Over two pipes, whose numbers it is given, it receives and sends one JSON object per line:
    shim      {"modules": [[name, file or null]], "folder" (of remedies.json)}
    standby   {"ready": [the program's arguments]} | {"refused": why}
    shim      {"arguments": [...]}        is all as it was, and may these be the program's arguments?
    standby   {"fits": true} | {"refused": why}
    shim      {"env": {...}, "folder" (the attempt's)}        the launch
"""

# ruff: noqa: PLC0415 - only a standby interpreter needs these imports

from __future__ import annotations

import os
import sys

from .layout import ENV_FOLDER, ENV_STANDBY

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, FrozenSet, List, Optional, Tuple

PROBE = "probe "
"""Before the number of the descriptor: only say that this code is reached."""
DEVICES = ("/dev/kfd", "/dev/dri/", "/dev/nvidia", "/dev/accel")


class Refused(Exception):  # noqa: N818 - named for what it tells the shim
    """The process cannot become the attempt; the text says why, for a person."""


def wait(import_the_users: Callable[[], None]) -> None:
    """Return in the process that is the attempt from now on; end every other. May raise only before the launch."""
    # No child of what is imported may take itself for a standby, or for a part of the attempt.
    given = os.environ.pop(ENV_STANDBY)
    os.environ.pop(ENV_FOLDER, None)
    if given.startswith(PROBE):
        os.write(int(given[len(PROBE) :]), b"here")
        os._exit(0)
    line = Line(*map(int, given.split()))
    try:
        imported = _prepare_imports(line.read_message(), import_the_users)
        line.say({"ready": sys.argv[1:]})
        arguments = line.read_message()["arguments"]
        imported.check()
        line.say({"fits": True})
    except Refused as error:
        line.say({"refused": str(error)})
        os._exit(0)
    launch = line.read_message()
    line.close()
    _become_attempt(launch, arguments)


class Line:
    """The pipes to the shim. Their end of file ends this process: a standby does not outlive its shim."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._rest = b""
        for number in (reading, writing):
            os.set_inheritable(number, False)  # noqa: FBT003 - its signature

    def read_message(self) -> Dict[str, Any]:
        """Wait for the next message and return it."""
        import json

        while b"\n" not in self._rest:
            more = os.read(self._reading, 65536)
            if not more:
                os._exit(0)
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\n")
        return json.loads(text)

    def say(self, message: Dict[str, Any]) -> None:
        """Send a message."""
        import json

        os.write(self._writing, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Close both pipes: from here on this process depends on nothing."""
        os.close(self._reading)
        os.close(self._writing)


def _prepare_imports(task: Dict[str, Any], import_the_users: Callable[[], None]) -> Imported:
    """Do what the attempt's interpreter would do first, in the same order."""
    from . import events, process

    try:
        import_the_users()
    except Exception as error:
        raise Refused("the sitecustomize of this environment raises %s" % type(error).__name__) from None
    _no_usercustomize()
    early = frozenset(sys.modules)
    events.hold()
    process.prepare(task["folder"])
    _import_modules(task["modules"])
    _no_device()
    imported = Imported(early)
    imported.check()
    return imported


def _import_modules(modules: List[Tuple[str, Optional[str]]]) -> None:
    import random
    from importlib import import_module

    state = random.getstate()
    for name, file in modules:
        try:
            found = import_module(name)
        except Exception as error:
            raise Refused("%s cannot be imported: %s: %s" % (name, type(error).__name__, error)) from None
        if file is not None and getattr(found, "__file__", None) != file:
            raise Refused("%s is found in %s, and by the training in %s" % (name, found.__file__, file))
    if random.getstate() != state:
        raise Refused("what is imported draws random numbers")


def _no_usercustomize() -> None:
    """Python would import it between sitecustomize and the program: before what is imported here."""
    import site
    from importlib.util import find_spec

    if site.ENABLE_USER_SITE and find_spec("usercustomize") is not None:
        raise Refused("this environment has a usercustomize, which must come before all else")


def _no_device() -> None:
    """An open GPU takes memory on it, and its state is that before the fault."""
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + number)
        except OSError:
            continue  # the handle that the list was read with
        if path.startswith(DEVICES):
            raise Refused("what is imported opens %s" % path)


class Imported:
    """What lies behind the modules that are here by now; a Python that starts later may find something else."""

    def __init__(self, early: FrozenSet[str]) -> None:
        """`early`: what every Python of this environment has imported before it comes to its program."""
        paths = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        settings = getattr(sys.modules.get("ultralytics.utils"), "SETTINGS_FILE", None)  # it is read on import
        paths.add(None if settings is None else str(settings))
        self._files = {path: _file_signature(path) for path in paths if isinstance(path, str)}
        self._names = {name.partition(".")[0] for name in sys.modules if name not in early}

    def check(self) -> None:
        """Raise Refused where Python, started now, would import something else."""
        for path, mark in self._files.items():
            if _file_signature(path) != mark:
                raise Refused("%s has changed since it was imported" % path)
        folder = _program_folder()
        if folder is not None:
            self._check_shadows(folder)

    def _check_shadows(self, folder: str) -> None:
        from importlib.machinery import PathFinder

        try:
            there = {entry.partition(".")[0] for entry in os.listdir(folder)}
        except OSError:
            return
        for name in there.intersection(self._names):
            spec = PathFinder.find_spec(name, [folder])
            found = getattr(sys.modules.get(name), "__file__", None)
            if spec is not None and spec.has_location and spec.origin != found:
                raise Refused("the program would import %s from %s" % (name, spec.origin))


def _file_signature(path: str) -> Tuple[int, ...]:
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def _program_folder() -> Optional[str]:
    """Return what Python will put before everything else in `sys.path`; None for nothing."""
    if getattr(sys.flags, "safe_path", False):
        return None
    if sys.argv[0] in ("-c", "-m"):
        return os.getcwd()
    program = os.path.realpath(sys.argv[0])
    return program if os.path.isdir(program) else os.path.dirname(program)


def _become_attempt(launch: Dict[str, Any], arguments: List[str]) -> None:
    """Apply what is known only at the launch: from here on this is the attempt."""
    from . import process

    own = len(sys.argv) - 1
    sys.argv[1:] = arguments
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[len(sys.orig_argv) - own :] = arguments
    os.environ.update(launch["env"])
    process.begin(launch["folder"])
