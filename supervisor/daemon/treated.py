"""What an attempt is launched with: the job's settings as the remedies in force change them; it launches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.config.settings import JobSettings, ProfileSettings
from supervisor.core.changes import Changes, changes_of
from supervisor.core.checkpoints import Checkpoint
from supervisor.core.job import Job
from supervisor.core.miopen import conv2d_algorithm

CPU_PROFILE = ("cpu_profile",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Treated:
    """One launch, remedies included."""

    argv: list[str]
    env: Mapping[str, str]
    conv2d: str
    remedies: Mapping[str, object]
    """For remedies.json: what the agent sets, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """How a training is shown one card alone."""

    env: Mapping[str, str]
    device: str
    """What the training then calls the card."""


def treated(
    settings: JobSettings,
    job: Job,
    checkpoint: Checkpoint | None,
    gfx_versions: tuple[str, ...],
    visible: Visible | None,
) -> Treated:
    """Return what to launch; `visible` shows the card that the job was moved to, where it was and that is known."""
    changes = changes_of(job.course.in_force, settings.remedies)
    profile = settings.profiles.cpu if changes.cpu else None
    conv2d = "off"
    if profile is None:
        failed = job.miopen_failed or changes.conv2d
        conv2d = conv2d_algorithm(settings.conv2d, gfx_versions, miopen_failed=failed)
    return Treated(
        argv=command_of(settings, checkpoint, profile),
        env={
            **settings.env,
            **(profile.env if profile is not None else {}),
            **dict(changes.env),
            **(visible.env if visible is not None else {}),
        },
        conv2d=conv2d,
        remedies=_for_the_agent(changes, profile, visible),
    )


def _for_the_agent(changes: Changes, profile: ProfileSettings | None, visible: Visible | None) -> dict[str, object]:
    found: dict[str, object] = {
        name: {"value": one.value, "remedies": list(one.remedies)} for name, one in changes.settings
    }
    if visible is not None:
        found["device"] = {"value": visible.device, "remedies": ["other_card"]}
    if profile is not None:
        asked = {"imgsz": profile.image_size, "batch": profile.batch, "epochs": profile.epochs}
        asked["workers"] = profile.workers
        for name, value in asked.items():
            if value is not None and name not in found:
                found[name] = {"value": value, "remedies": list(CPU_PROFILE)}
    return found


def command_of(
    settings: JobSettings, checkpoint: Checkpoint | None, profile: ProfileSettings | None = None
) -> list[str]:
    """Return the command of an attempt; `{checkpoint}` in the resume command stands for the file.

    A profile with a command of its own has its own resume command too, or none: the job's would lead back to a card.
    """
    command, resume = settings.command, settings.resume.command
    if profile is not None and (profile.command is not None or profile.resume_command is not None):
        command, resume = profile.command or command, profile.resume_command
    if checkpoint is None or resume is None:
        return list(command)
    return [word.replace("{checkpoint}", checkpoint.path) for word in resume]
