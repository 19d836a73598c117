"""A job's command as it runs in another of its environments: by another Python, or in a container."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from supervisor.config.settings import EnvironmentSettings

PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
LAUNCHERS: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("-m", "torch.distributed.run"),
    "accelerate": ("-m", "accelerate.commands.accelerate_cli"),
    "yolo": ("-c", "from ultralytics.cfg import entrypoint; entrypoint()"),
}
"""Programs that pip installs for one interpreter, and how Python itself runs each."""
GPU_DEVICES = ("/dev/kfd", "/dev/dri")
AS_USER = """\
test "$(id -u)" != 0 || exec "$@"
export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID="$(id -u)" _CONTAINERS_ROOTLESS_GID="$(id -g)"
exec unshare --user --map-root-user --mount "$@"
"""
"""Runs podman in a user namespace that maps the user alone to root.

By itself podman would map the further ids of /etc/subuid, by a program that gains rights, which no unit of a training
may, and would leave a process behind that holds the namespace.
"""
INIT = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
"""The first process of a container: the kernel drops the signals that podman passes on to it.

The shim has already sent them to the training, which is asked once to save and end, as it is without a container.
"""
PODMAN = ("/bin/sh", "-c", AS_USER, "sh", "podman", "--cgroup-manager=cgroupfs")
"""The engine whose containers are below the program that started them, so that what ends that tree ends them.

With systemd as the manager of its cgroups it would ask for a scope outside of its caller's.
"""


def container_name(job_folder: str, job: str, use: str) -> str:
    """Return the name of a job's container: the same for all its attempts, and other than any other daemon's."""
    return f"rocm-supervisor-{job}-{hashlib.sha256(job_folder.encode()).hexdigest()[:8]}-{use}"


def removal(name: str) -> list[str]:
    """Return the command that ends and removes a container, and succeeds once there is none of that name."""
    return [*PODMAN, "rm", "--force", "--ignore", "--time=0", name]


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
    return [*head, environment.python or "python3", *launcher, *rest]


def contained(  # noqa: PLR0913 - what a container is given
    environment: EnvironmentSettings,
    command: Sequence[str],
    *,
    name: str,
    cwd: str,
    env: Iterable[str],
    folders: Iterable[str],
    devices: Iterable[str] = (),
    limits: Mapping[str, int] | None = None,
    replaces: bool = False,
) -> list[str]:
    """Return the command that runs `command` in the environment's image, in the foreground; else `command` itself.

    The host's network, shared memory and the paths of folders are the container's. Its processes are descendants of
    the shim, which adopts orphans, and in the shim's cgroup: what ends that tree or cgroup ends them. Podman itself
    refuses a second container of the name.
    """
    if environment.image is None:
        return list(command)
    run = [*PODMAN, "run", "--rm", "--name", name, "--pull=never"]
    run += ["--replace"] if replaces else []
    run += ["--network=host", "--ipc=host", "--http-proxy=false", "--security-opt=label=disable"]
    run += ["--cgroups=disabled", "--log-driver=none"]
    run += [f"--ulimit={limit}={most}:{most}" for limit, most in (limits or {}).items()]
    for folder in dict.fromkeys((*folders, *environment.mounts)):
        run += ["--volume", f"{folder}:{folder}" if ":" not in folder else folder]
    for device in (*devices, *environment.devices):
        run += ["--device", device]
    run += [word for variable in env for word in ("--env", variable)]
    return [*run, "--workdir", cwd, "--entrypoint", "", environment.image, *INIT, *command]
