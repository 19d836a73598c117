"""The sum of what the remedies in force change at one launch: variables, settings for the agent, device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from typing_extensions import assert_never

from supervisor.core.remedies.settings import Remedies
from supervisor.core.remedies.spec import (
    Assign,
    Change,
    Env,
    InForce,
    Multiply,
    ReplaceConv2d,
    UseCpu,
    UseEnvironment,
    UseGpu,
)
from supervisor.core.remedies.table import BY_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting for the agent, and the remedies that require it."""

    value: object
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that differs from a launch without remedies."""

    env: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()
    conv2d: bool = False
    """Whether Conv2d is computed without MIOpen."""
    cpu: bool = False
    gpu: str | None = None
    """PCI address to run on."""
    environment: str | None = None
    """Name of the environment to run in; None: the job's own."""


def changes_of(in_force: Iterable[InForce], remedies: Remedies) -> Changes:
    """Return what remedies in force change; those that are forbidden by now, or not known, change nothing."""
    env: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    conv2d, cpu, gpu = False, False, None
    environment: str | None = None
    for remedy, change in _list_changes(in_force, remedies):
        match change:
            case Multiply(name, by):
                settings[name] = _multiply_setting(settings.get(name), by, remedy)
            case Assign(name, value):
                settings[name] = Setting(value=value, remedies=(remedy,))
            case Env(name, text):
                env[name] = text
            case ReplaceConv2d():
                conv2d = True
            case UseCpu():
                cpu = True
            case UseGpu(address):
                gpu = address
            case UseEnvironment(name):
                environment = name
            case _:
                assert_never(change)
    kept, gpu = tuple(settings.items()), None if cpu else gpu
    return Changes(env=tuple(env.items()), settings=kept, conv2d=conv2d, cpu=cpu, gpu=gpu, environment=environment)


def _list_changes(in_force: Iterable[InForce], remedies: Remedies) -> Iterator[tuple[str, Change]]:
    for held in in_force:
        if remedies.allows(held.remedy) and held.remedy in BY_NAME:
            for change in BY_NAME[held.remedy].changes(held, remedies):
                yield held.remedy, change


def _multiply_setting(before: Setting | None, by: float, remedy: str) -> Setting:
    if before is None:
        return Setting(value=by, remedies=(remedy,))
    value = before.value * by if isinstance(before.value, float) else by
    return Setting(value=value, remedies=tuple(dict.fromkeys((*before.remedies, remedy))))
