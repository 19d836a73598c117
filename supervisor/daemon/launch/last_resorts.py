"""Which last resorts one job has on this machine, as exact commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

from supervisor.config.settings import LastResortSettings
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.remedies.last_resorts import Resort
from supervisor.daemon.clock import Clock
from supervisor.daemon.threads import Threads

NVIDIA = ("nvml", "nvidia-smi")

Found = Callable[[str], str | None]
"""Where a program of that name is installed, None where it is not."""


LOOK_AGAIN_S = 60.0


class Installed:
    """Where programs are, as last looked; PATH may lead over file systems that hang, and who asks must not wait."""

    def __init__(self, clock: Clock, threads: Threads) -> None:
        self._clock = clock
        self._threads = threads
        self._found: dict[str, tuple[str | None, Moment]] = {}

    def __call__(self, name: str) -> str | None:
        """Return where a program was found; None until it was looked for."""
        path, at = self._found.get(name, (None, None))
        now = self._clock.now()
        if at is None or now.seconds_since(at) >= LOOK_AGAIN_S:
            self._found[name] = (path, now)
            self._threads.lane("programs", "in PATH", of_job=False).do(
                f"which {name}", lambda: self._find_program(name), key=name
            )
        return path

    def _find_program(self, name: str) -> None:
        self._found[name] = (shutil.which(name), self._clock.now())


def list_resorts(
    settings: LastResortSettings,
    gpu: str | None,
    readings: Sequence[GpuReading],
    others: Mapping[str, bool],
    found: Found = shutil.which,
) -> tuple[Resort, ...]:
    """Return what there is: a reset of the GPU where one is known, and a reboot.

    `others` are the other jobs that run, each with whether it may be on that GPU: a reboot would end all of them.
    """
    offered = []
    command = reset_command(settings, gpu, readings, found) if gpu is not None else ()
    if command:
        on_gpu = [name for name, shares in others.items() if shares]
        refused = f"refused while {', '.join(on_gpu)} may be on that GPU" if on_gpu else None
        offered.append(Resort(kind="reset_gpu", command=command, on=settings.reset_gpu, refused=refused))
    refused = f"refused while {', '.join(others)} runs" if others else None
    offered.append(Resort(kind="reboot", command=tuple(settings.reboot_command), on=settings.reboot, refused=refused))
    return tuple(offered)


def reset_command(
    settings: LastResortSettings, gpu: str, readings: Sequence[GpuReading], found: Found
) -> tuple[str, ...]:
    """Return the command that resets one GPU: the owner's, else that of its vendor's tool.

    amd-smi and nvidia-smi take the PCI address; rocm-smi counts AMD's GPUs, so that it is named only for a GPU that
    was read.
    """
    reading = next((item for item in readings if item.gpu == gpu), None)
    mine = sorted(
        item.gpu for item in readings if (item.source in NVIDIA) == (reading is not None and _is_nvidia(reading))
    )
    index = str(mine.index(gpu)) if gpu in mine else None
    if settings.reset_command:
        words = (text.replace("{gpu}", gpu).replace("{index}", index or "") for text in settings.reset_command)
        return tuple(words)
    if reading is not None and _is_nvidia(reading):
        return ("nvidia-smi", "--gpu-reset", "-i", gpu)
    if found("amd-smi") is not None or index is None:
        return ("amd-smi", "reset", "--gpureset", "--gpu", gpu)
    return ("rocm-smi", "--gpureset", "-d", index)


def _is_nvidia(reading: GpuReading) -> bool:
    return reading.source in NVIDIA
