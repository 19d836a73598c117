"""The changes to this training that the daemon asks for, read from the attempt's folder, and reports of those made."""

# ruff: noqa: PLC0415 - most attempts have no remedies, and no interpreter of theirs shall pay for reading them

from __future__ import annotations

import os

from . import events
from .layout import REMEDIES

TYPE_CHECKING = False  # typing costs milliseconds at every interpreter's start
if TYPE_CHECKING:
    from typing import Any

LARGEST_BYTES = 65536

lr_factor = 1.0
"""What the learning rate of each step is multiplied by, once it is."""
_settings = {}  # type: Dict[str, Tuple[Any, List[str]]]
_reported = set()
_asked = set()


def begin(folder: str) -> None:
    """Read the settings; without the file there are none. Raises ValueError for a file that is not the daemon's."""
    try:
        # Next to our folder, where the daemon writes.
        file = os.open(os.path.join(os.path.dirname(folder), REMEDIES), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        raw = os.read(file, LARGEST_BYTES)
    finally:
        os.close(file)
    import json

    for name, item in json.loads(raw)["settings"].items():
        _settings[name] = (item["value"], [str(remedy) for remedy in item["remedies"]])


def any_wanted() -> bool:
    """Whether anything is to be changed."""
    return bool(_settings)


def wanted(name: str) -> Any:
    """Return the value of a setting, None where it is to stay as it is."""
    return _settings.get(name, (None, []))[0]


def asked(name: str) -> None:
    """Report once that the script applies this setting on request, so that the daemon may request it."""
    if name not in _asked:
        _asked.add(name)
        events.write("setting_asked", setting=name)


def report_applied(name: str, what: str) -> None:
    """Report once the effect of a setting."""
    if name in _settings and (name, what) not in _reported:
        _reported.add((name, what))
        events.write("remedy_applied", setting=name, remedies=_settings[name][1], set=what)
