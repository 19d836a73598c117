"""What an attempt is launched with: the job's settings as the remedies in force change them, and its launch record."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from supervisor.config.derive import (
    agent_environment,
    commands_of,
    snapshot_every,
    snapshot_replicas,
    takes_file,
    takes_number,
)
from supervisor.config.environments import GPU_DEVICES, command_in, contained, container_name
from supervisor.config.settings import NUMBER, PLACEHOLDER, EnvironmentSettings, JobSettings, ProfileSettings
from supervisor.core import attempt_files as names
from supervisor.core.checkpoints.checkpoint import Checkpoint, newest_first
from supervisor.core.checkpoints.damaged import is_damaged
from supervisor.core.job import Attempt, Job
from supervisor.core.remedies.effects import Changes, changes_of
from supervisor.core.remedies.miopen import conv2d_algorithm
from supervisor.core.tuning.start_order import FACTORS_OUTRANKED_BY, TunedStart
from supervisor.daemon.clock import Clock
from supervisor.daemon.launch.checkpoint_placing import prepend_clearing, prepend_placement, prepend_set_aside
from supervisor.daemon.launch.container_limits import list_limits
from supervisor.runner.attempt_folder import Save, compose_env, resume_steps
from supervisor.runner.code_copy import Code

CPU_PROFILE = ("cpu_profile",)
DAMAGED_KNOWN = 20
"""Contents of one place that its launch is informed of: what lies there is one of the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One launch, remedies included."""

    argv: list[str]
    env: Mapping[str, str]
    conv2d: str
    remedies: Mapping[str, object]
    """For remedies.json: what the agent sets, by its name."""
    command: Sequence[str]
    """What starts it from the beginning, with its environment's interpreter or image: whatever it goes on from."""
    environment: EnvironmentSettings | None = None
    """The other environment that it runs in; None: the job's own."""
    place: str | None = None
    """Where the checkpoint is put first, because the training looks for it there by itself; None: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleGpu:
    """How a training is shown one GPU alone."""

    env: Mapping[str, str]
    device: str
    """What the training then calls the GPU."""


def build_launch(  # noqa: PLR0913, PLR0917 - what a launch is made of
    settings: JobSettings,
    job: Job,
    checkpoint: Checkpoint | None,
    gfx_versions: tuple[str, ...],
    visible: VisibleGpu | None,
    start: TunedStart | None = None,
    *,
    loads_itself: bool = False,
) -> LaunchSpec:
    """Return what to launch; `visible` shows the GPU that the job was moved to, where it was and that is known.

    `start` is what a tune adds; what a remedy changes outranks it, and it was not measured with another command, or on
    the CPU in place of a GPU.
    """
    changes = changes_of(job.course.in_force, settings.remedies)
    profile = settings.profiles.cpu if changes.cpu else None
    if start is not None and (profile is not None or start.command != tuple(settings.command)):
        start = None
    tuned_environment = start.environment if start is not None else None
    environment = settings.environments.get(changes.environment or tuned_environment or "")
    place = _place_of(settings, profile, checkpoint, in_place=job.resumes_in_place)
    is_own = job.resumes_in_place and place is not None and settings.resume.to is None
    given = _own_file(checkpoint) if is_own else checkpoint
    argv = command_of(settings, given, profile, loads_itself=loads_itself)
    failed = job.miopen_failed or changes.conv2d
    conv2d = "off" if profile else conv2d_algorithm(settings.conv2d, gfx_versions, miopen_failed=failed)
    layers = (
        settings.env,
        environment.env if environment is not None else {},
        start.variables if start is not None else {},
        profile.env if profile is not None else {},
        dict(changes.env),
        visible.env if visible is not None else {},
    )
    return LaunchSpec(
        argv=argv if environment is None else command_in(environment, argv),
        command=_describe_command(command_of(settings, None, profile), environment),
        env={name: value for layer in layers for name, value in layer.items()},
        conv2d=conv2d,
        remedies={**_list_tuned_settings(changes, start), **_list_agent_settings(changes, profile, visible)},
        environment=environment,
        place=place,
    )


def _describe_command(command: list[str], environment: EnvironmentSettings | None) -> list[str]:
    if environment is None:
        return command
    return [*([environment.image] if environment.image is not None else []), *command_in(environment, command)]


def _list_tuned_settings(changes: Changes, start: TunedStart | None) -> dict[str, object]:
    """Return what a tune sets, of no remedy; none where a remedy changes one: rate and batch belong together."""
    taken = {name for name, _setting in changes.settings}
    if start is None or taken.intersection(FACTORS_OUTRANKED_BY):
        return {}
    return {name: {"value": factor, "remedies": []} for name, factor in start.factors}


def _list_agent_settings(
    changes: Changes, profile: ProfileSettings | None, visible: VisibleGpu | None
) -> dict[str, object]:
    found: dict[str, object] = {
        name: {"value": setting.value, "remedies": list(setting.remedies)} for name, setting in changes.settings
    }
    if visible is not None:
        found["device"] = {"value": visible.device, "remedies": ["other_gpu"]}
    if profile is not None:
        asked = {"imgsz": profile.image_size, "batch": profile.batch, "epochs": profile.epochs}
        asked["workers"] = profile.workers
        for name, value in asked.items():
            if value is not None and name not in found:
                found[name] = {"value": value, "remedies": list(CPU_PROFILE)}
    return found


def command_of(
    settings: JobSettings,
    checkpoint: Checkpoint | None,
    profile: ProfileSettings | None = None,
    *,
    loads_itself: bool = False,
) -> list[str]:
    """Return the command of an attempt; in the resume command `{checkpoint}` stands for the file, `{number}` for its.

    Raises ValueError for a file without a number in its name where the command takes that.

    With `loads_itself` the program goes on from what it finds: by its resume command, where that takes no file.
    """
    command, resume = commands_of(settings, profile)
    if resume is not None and checkpoint is not None:
        return [_fill(word, checkpoint) for word in resume]
    if resume is not None and loads_itself and not takes_file(resume):
        return list(resume)
    return list(command)


def _fill(word: str, checkpoint: Checkpoint) -> str:
    """Return a word of the resume command with what stands for a checkpoint replaced."""
    if NUMBER in word and checkpoint.path != PLACEHOLDER:  # that of a standby, whose checkpoint is not known yet
        if checkpoint.number is None:
            raise ValueError(f"resume.command has {NUMBER}, and there is no number in the name {checkpoint.title}")
        word = word.replace(NUMBER, checkpoint.number)
    return word.replace(PLACEHOLDER, checkpoint.path)


def _own_file(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return the training's own file of a generation, as it is once the generation was put there."""
    if checkpoint is None or checkpoint.source is None:
        return checkpoint
    return replace(checkpoint, path=checkpoint.source, source=None)


def _place_of(
    settings: JobSettings, profile: ProfileSettings | None, checkpoint: Checkpoint | None, *, in_place: bool
) -> str | None:
    """Return where a checkpoint is put before the launch: where a training finds it that is given its number alone.

    With `in_place` it did not start from a copy that lay elsewhere.
    """
    _command, resume = commands_of(settings, profile)
    if settings.resume.to is None and _sets_aside(settings, checkpoint):
        return None if checkpoint is None else checkpoint.source
    if settings.resume.to is not None or checkpoint is None or resume is None:
        return settings.resume.to
    is_put = takes_number(resume) or (in_place and checkpoint.kind == "checkpoint")
    return checkpoint.source if is_put else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """What the leader of a training on several nodes decides of a launch."""

    env: Mapping[str, str]
    resume_from: Checkpoint | None
    """What all ranks resume from; None: from the beginning, or what the program itself finds."""
    loads_itself: bool = False
    """Whether the program has to find and load by itself what it goes on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """One launch."""

    argv: list[str]
    cwd: str
    env: Mapping[str, str]
    remedies: Mapping[str, object]
    """For remedies.json; empty without the agent."""
    code: Code
    """What its shim runs, and its agent."""
    command: Sequence[str]
    """See `LaunchSpec.command`."""
    container: str | None
    """The name of the container that it runs in, if any."""


def _has_resume_setting(settings: JobSettings) -> bool:
    """Whether the configuration says how the job goes on from a checkpoint."""
    resume = settings.resume
    return resume.command is not None or resume.to is not None or resume.set_newer_aside


def _sets_aside(settings: JobSettings, checkpoint: Checkpoint | None) -> bool:
    """Whether the program is to find this checkpoint as its newest; a snapshot is loaded by the agent."""
    return settings.resume.set_newer_aside and checkpoint is not None and checkpoint.kind == "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The attempt that is to be launched, and what it goes on from."""

    job: Job
    number: int
    settings: JobSettings
    folder: Path
    code: Code
    ordered: LaunchOrder | None
    checkpoint: Checkpoint | None
    loads_itself: bool

    @property
    def attempt(self) -> Attempt | None:
        """What the job knows of the attempt; None for one that it has not begun."""
        return self.job.attempt if self.job.number == self.number else None

    @property
    def cwd(self) -> str:
        return self.settings.cwd or str(self.folder / names.RUN)

    def in_container(
        self, environment: EnvironmentSettings, container: str, argv: list[str], env: Mapping[str, str]
    ) -> list[str]:
        return in_container(
            environment,
            container,
            argv,
            cwd=self.cwd,
            env=env,
            folder=self.folder,
            checkpoint=self.checkpoint,
            code=self.code,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchBuilder:
    """May be asked in any thread."""

    clock: Clock
    state: Path
    settings: Callable[[str], JobSettings]
    gfx_versions: Callable[[JobSettings], tuple[str, ...]]
    visible: Callable[[str | None], VisibleGpu | None]
    """How a training is shown the GPU of that address alone."""
    with_agent: Callable[[], bool]
    code: Callable[[], Code]
    """Returns what an attempt that is launched now runs; raises OSError or ValueError where that cannot be had."""
    kept: Callable[[str], Iterable[Checkpoint]] = lambda _: ()
    """Returns the kept generations of a job."""
    known: Callable[[str, Collection[str]], Iterable[Checkpoint] | None] = lambda _job, _files: ()
    """Returns what the record knows of files of a job and their generations; None where it cannot be read."""
    saves: Callable[[str], Iterable[Save]] = lambda _: ()
    """Returns the newest saves of a job whose step is known."""
    order: Callable[[int], LaunchOrder | None] = lambda _: None
    """Returns what the leader of a training on several nodes wants of an attempt; None without a leader.

    Raises ValueError where it does not want the attempt any more."""

    def __call__(self, job: Job, number: int, checkpoint: Checkpoint | None) -> LaunchPlan:
        """Return how attempt `number` of a job is launched, from a checkpoint or from the beginning.

        Raises OSError where the code for it cannot be copied, ValueError where it could be anybody's.
        """
        asked = self._ask(job, number, checkpoint)
        launch = build_launch(
            asked.settings,
            job,
            asked.checkpoint,
            self.gfx_versions(asked.settings),
            self.visible(job.gpu),
            job.next_start if asked.attempt is None else asked.attempt.start,
            loads_itself=asked.loads_itself,
        )
        env = self._compose_env(asked, launch)
        container = container_of(launch.environment, asked.folder.parent, "training")
        argv = launch.argv
        if launch.environment is not None and container is not None:
            argv = asked.in_container(launch.environment, container, argv, env)
        return LaunchPlan(
            argv=self._prepend_placing(argv, asked, launch.place),
            cwd=asked.cwd,
            env=env,
            remedies=launch.remedies if self.with_agent() else {},
            code=asked.code,
            command=launch.command,
            container=container,
        )

    def _ask(self, job: Job, number: int, checkpoint: Checkpoint | None) -> _Asked:
        ordered = self.order(number)
        return _Asked(
            job=job,
            number=number,
            settings=self.settings(job.name),
            folder=self.state / "jobs" / job.name / str(number),
            code=self.code(),
            ordered=ordered,
            # One state for all ranks, and not what this node has by itself.
            checkpoint=checkpoint if ordered is None else ordered.resume_from,
            loads_itself=job.loads_itself(number) if ordered is None else ordered.loads_itself,
        )

    def _compose_env(self, asked: _Asked, launch: LaunchSpec) -> dict[str, str]:
        job, settings, checkpoint = asked.job, asked.settings, asked.checkpoint
        return compose_env(
            job=job.name,
            number=asked.number,
            folder=asked.folder,
            env={**launch.env, **(asked.ordered.env if asked.ordered is not None else {})},
            inherited=os.environ,
            agent=asked.code.agent if self.with_agent() else None,
            conv2d=launch.conv2d,
            # What a remedy set of them for this attempt counts.
            agent_settings={name: launch.env.get(name, value) for name, value in agent_environment(settings).items()},
            resume_from=checkpoint.path if checkpoint else None,
            resume_steps=resume_steps(
                checkpoint,
                self.kept(job.name),
                self.saves(job.name),
                asked=_has_resume_setting(settings),
                loads_itself=asked.loads_itself,
            ),
            snapshot_every=snapshot_every(settings),
            snapshot_replicas=snapshot_replicas(settings, job.name),
            mean_fault_s=job.ledger.mean_fault_s(self.clock.now(), job.began_unix_s, settings.budget),
        )

    def _prepend_placing(self, argv: list[str], asked: _Asked, place: str | None) -> list[str]:
        """Return the command with, before it, what puts and moves checkpoints, last that which runs first."""
        code, attempt, checkpoint, ordered = asked.code, asked.attempt, asked.checkpoint, asked.ordered
        damaged = partial(self._find_damaged, asked.job.name, asked.cwd)
        if attempt is not None and attempt.stand_in is not None and ordered is None:
            argv = prepend_clearing(code, argv, attempt, attempt.stand_in, damaged)
        argv = prepend_placement(code, argv, checkpoint, place, damaged)
        if checkpoint is not None and ordered is None and _sets_aside(asked.settings, checkpoint):
            newer = attempt.set_aside if attempt is not None else ()
            argv = prepend_set_aside(code, argv, checkpoint, asked.number, newer)
        return argv

    def _find_damaged(self, job: str, cwd: str, place: str) -> tuple[Checkpoint, ...]:
        """Return what was proven damaged of a place in the training's own folders, the last saved first."""
        path = str(Path(cwd, place))
        found = self.known(job, (path,)) or ()
        return newest_first(item for item in found if path in (item.path, item.source) and is_damaged(item))[
            :DAMAGED_KNOWN
        ]


def container_of(environment: EnvironmentSettings | None, job_folder: Path, use: str) -> str | None:
    """Return the name of the container that an environment is; None for an interpreter of this machine."""
    if environment is None or environment.image is None:
        return None
    return container_name(str(job_folder), job_folder.name, use)


def in_container(  # noqa: PLR0913 - what a container is given
    environment: EnvironmentSettings,
    container: str,
    argv: list[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    folder: Path,
    checkpoint: Checkpoint | None,
    code: Code | None = None,
) -> list[str]:
    """Return the command that runs `argv` in a container, with the GPUs that this machine has.

    It is shown the job's folder, its working directory, the checkpoint's folder and, not to be written, the agent.
    Without an agent's `code` it is a proof, which takes the place of one that was killed.
    """
    folders = [str(folder.parent), cwd]
    if checkpoint is not None:
        folders.append(str(Path(checkpoint.path).parent))
    if code is not None:
        folders.append(f"{code.root}:{code.root}:ro")
    return contained(
        environment,
        argv,
        name=container,
        cwd=cwd,
        env=env,
        folders=folders,
        replaces=code is None,
        devices=[device for device in GPU_DEVICES if os.path.exists(device)],  # noqa: PTH110 - of the kernel
        limits=list_limits(),
    )
