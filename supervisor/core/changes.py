"""What the remedies in force mean for one launch: variables, and settings that the agent makes; it applies none.

The agent gets factors, not results: only inside the training is it known what they are applied to, after the
checkpoint has had its say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from supervisor.core.course import InForce
from supervisor.core.remedies import Remedies

NO_CARD = (("HIP_VISIBLE_DEVICES", "-1"), ("CUDA_VISIBLE_DEVICES", "-1"), ("ROCR_VISIBLE_DEVICES", ""))
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
    card: str | None = None
    """PCI address to run on."""


def changes_of(in_force: Iterable[InForce], remedies: Remedies, workspace_variable: str) -> Changes:
    """Return what remedies in force change; those that their owner forbids by now change nothing."""
    mine = [one for one in in_force if remedies.allows(one.remedy)]
    names = [one.remedy for one in mine]
    env: list[tuple[str, str]] = []
    if "compile_off" in names:
        env.append(("TORCHDYNAMO_DISABLE", "1"))
    if "conv2d_workspace" in names:
        env.append((workspace_variable, str(remedies.conv2d_workspace_mb)))
    cpu = "cpu_profile" in names
    if cpu:
        env += NO_CARD
    return Changes(
        env=tuple(env),
        settings=tuple((name, one) for name, one in _settings(mine, remedies).items()),
        conv2d="conv2d" in names,
        cpu=cpu,
        card=None if cpu else next((one.card for one in reversed(mine) if one.remedy == "other_card"), None),
    )


def _settings(mine: list[InForce], remedies: Remedies) -> Mapping[str, Setting]:
    found: dict[str, Setting] = {}

    def add(name: str, value: object, remedy: str) -> None:
        found[name] = Setting(value=value, remedies=(remedy,))

    def factor(name: str, by: float, remedy: str) -> None:
        before = found.get(name)
        value = before.value if before is not None and isinstance(before.value, float) else 1.0
        asked = before.remedies if before is not None else ()
        found[name] = Setting(value=value * by, remedies=tuple(dict.fromkeys((*asked, remedy))))

    for one in mine:
        match one.remedy:
            case "lower_lr":
                factor("lr_factor", remedies.lr_factor, one.remedy)
            case "half_batch":
                factor("batch_factor", remedies.batch_factor, one.remedy)
                if remedies.scale_lr:
                    factor("lr_factor", remedies.batch_factor, one.remedy)
            case "smaller_images":
                factor("image_factor", remedies.image_factor, one.remedy)
            case "fewer_workers":
                factor("workers_factor", WORKERS_FACTOR, one.remedy)
            case "no_workers":
                add("workers", 0, one.remedy)
            case "clip_gradients":
                add("clip_norm", remedies.clip_norm, one.remedy)
            case "skip_step":
                add("skip_non_finite", True, one.remedy)
            case "skip_data" if one.step is not None:
                first, last = max(1, one.step - remedies.skip_steps), one.step + remedies.skip_steps
                add("skip_batches", [first, last], one.remedy)
            case "amp_off" | "cudnn_off" | "compile_off":
                add(one.remedy.removesuffix("_off"), False, one.remedy)
            case "allocator":
                add("allocator", True, one.remedy)
            case "cpu_profile":
                add("device", "cpu", one.remedy)
            case _:
                pass
    return found
