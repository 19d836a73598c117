"""What the remedies in force mean for one launch: variables, and settings that the agent makes; it applies none.

The agent gets factors, not results: only inside the training is it known what they are applied to, after the
checkpoint has had its say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from supervisor.core.attempt_files import ENV_CONV2D_WORKSPACE
from supervisor.core.remedies.remedy import Remedies
from supervisor.core.remedies.trials import InForce

HIDE_ALL_GPUS = (("HIP_VISIBLE_DEVICES", "-1"), ("CUDA_VISIBLE_DEVICES", "-1"), ("ROCR_VISIBLE_DEVICES", ""))
"""Hides every card. ROCr takes the empty list for what it is; it is the layer that would open a card that is lost."""
WORKERS_FACTOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting for the agent, and the remedies that ask for it."""

    value: object
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """All that differs from a launch without remedies."""

    env: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, Setting], ...] = ()
    conv2d: bool = False
    """Whether Conv2d is to be computed without MIOpen."""
    cpu: bool = False
    gpu: str | None = None
    """PCI address to run on."""


def changes_of(in_force: Iterable[InForce], remedies: Remedies) -> Changes:
    """Return what remedies in force change; those that their owner forbids by now change nothing."""
    mine = [remedy for remedy in in_force if remedies.allows(remedy.remedy)]
    names = [remedy.remedy for remedy in mine]
    env: list[tuple[str, str]] = []
    if "compile_off" in names:
        env.append(("TORCHDYNAMO_DISABLE", "1"))
    if "conv2d_workspace" in names:
        env.append((ENV_CONV2D_WORKSPACE, str(remedies.conv2d_workspace_mb)))
    cpu = "cpu_profile" in names
    if cpu:
        env += HIDE_ALL_GPUS
    return Changes(
        env=tuple(env),
        settings=tuple((name, setting) for name, setting in _settings(mine, remedies).items()),
        conv2d="conv2d" in names,
        cpu=cpu,
        gpu=None if cpu else next((remedy.gpu for remedy in reversed(mine) if remedy.remedy == "other_gpu"), None),
    )


FACTORS: Mapping[str, tuple[str, Callable[[Remedies], float]]] = {
    "lower_lr": ("lr_factor", lambda table: table.lr_factor),
    "half_batch": ("batch_factor", lambda table: table.batch_factor),
    "smaller_images": ("image_factor", lambda table: table.image_factor),
    "fewer_workers": ("workers_factor", lambda _: WORKERS_FACTOR),
}
"""Remedies that can be taken twice: each time once more."""
VALUES: Mapping[str, tuple[str, Callable[[Remedies], object]]] = {
    "no_workers": ("workers", lambda _: 0),
    "clip_gradients": ("clip_norm", lambda table: table.clip_norm),
    "skip_step": ("skip_non_finite", lambda _: True),
    "amp_off": ("amp", lambda _: False),
    "cudnn_off": ("cudnn", lambda _: False),
    "compile_off": ("compile", lambda _: False),
    "allocator": ("allocator", lambda _: True),
    "cpu_profile": ("device", lambda _: "cpu"),
}


def _settings(mine: Iterable[InForce], table: Remedies) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for remedy in mine:
        if remedy.remedy in FACTORS:
            name, of = FACTORS[remedy.remedy]
            _multiply(found, name, of(table), remedy.remedy)
        if remedy.remedy == "half_batch" and table.scale_lr:
            _multiply(found, "lr_factor", table.batch_factor, remedy.remedy)
        if remedy.remedy in VALUES:
            name, value = VALUES[remedy.remedy]
            found[name] = Setting(value=value(table), remedies=(remedy.remedy,))
        if remedy.remedy == "skip_data" and remedy.step is not None:
            first, last = max(1, remedy.step - table.skip_steps), remedy.step + table.skip_steps
            found["skip_batches"] = Setting(value=(first, last), remedies=(remedy.remedy,))
    return found


def _multiply(found: dict[str, Setting], name: str, by: float, remedy: str) -> None:
    before = found.get(name, Setting(value=1.0, remedies=()))
    value = before.value * by if isinstance(before.value, float) else by
    found[name] = Setting(value=value, remedies=tuple(dict.fromkeys((*before.remedies, remedy))))
