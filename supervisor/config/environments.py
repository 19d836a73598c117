"""A job's command as it runs in another of its environments: by another Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from supervisor.config.settings import EnvironmentSettings

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("-m", "torch.distributed.run"),
    "accelerate": ("-m", "accelerate.commands.accelerate_cli"),
    "yolo": ("-c", "from ultralytics.cfg import entrypoint; entrypoint()"),
}
"""Programs that pip installs for one interpreter, and how Python itself runs each."""


def split_command(command: Sequence[str]) -> tuple[list[str], list[str], list[str]] | None:
    """Return what precedes a command's interpreter (`env` and its words), its launcher's words, and the rest.

    None where the interpreter cannot be exchanged: the command is no Python and none of `LAUNCHERS`.
    """
    words = list(command)
    head: list[str] = []
    if words and Path(words[0]).name == "env":
        head.append(words.pop(0))
        while words and "=" in words[0] and not words[0].startswith("-"):
            head.append(words.pop(0))
    if not words:
        return None
    name = Path(words[0]).name
    if PYTHON.fullmatch(name):
        return head, [], words[1:]
    return (head, list(LAUNCHERS[name]), words[1:]) if name in LAUNCHERS else None


def command_in(environment: EnvironmentSettings, command: Sequence[str]) -> list[str]:
    """Return a command with its interpreter exchanged; unchanged where it cannot be."""
    split = split_command(command)
    if split is None:
        return list(command)
    head, launcher, rest = split
    return [*head, environment.python, *launcher, *rest]
