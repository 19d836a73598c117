"""Which last resorts one job has on this machine, as exact commands; it runs none."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence

from supervisor.config.settings import LastResortSettings
from supervisor.core.readings import GpuReading
from supervisor.core.resorts import Resort

NVIDIA = ("nvml", "nvidia-smi")

Found = Callable[[str], str | None]
"""Where a program of that name is installed, None where it is not."""


def resorts_of(
    settings: LastResortSettings,
    card: str | None,
    readings: Sequence[GpuReading],
    others: Mapping[str, bool],
    found: Found = shutil.which,
) -> tuple[Resort, ...]:
    """Return what there is: a reset of the card where one is known, and a reboot.

    `others` are the other jobs that run, each with whether it may be on that card: a reboot would end all of them.
    """
    offered = []
    command = reset_command(settings, card, readings, found) if card is not None else ()
    if command:
        on_card = [name for name, shares in others.items() if shares]
        refused = f"refused while {', '.join(on_card)} may be on that card" if on_card else None
        offered.append(Resort(kind="reset_card", command=command, on=settings.reset_card, refused=refused))
    refused = f"refused while {', '.join(others)} runs" if others else None
    offered.append(Resort(kind="reboot", command=tuple(settings.reboot_command), on=settings.reboot, refused=refused))
    return tuple(offered)


def reset_command(
    settings: LastResortSettings, card: str, readings: Sequence[GpuReading], found: Found
) -> tuple[str, ...]:
    """Return the command that resets one card: the owner's, else that of its vendor's tool.

    amd-smi and nvidia-smi take the PCI address; rocm-smi counts AMD's cards, so that it is named only for a card that
    was read.
    """
    reading = next((one for one in readings if one.gpu == card), None)
    mine = sorted(one.gpu for one in readings if (one.source in NVIDIA) == (reading is not None and _nvidia(reading)))
    index = str(mine.index(card)) if card in mine else None
    if settings.reset_command:
        words = (one.replace("{card}", card).replace("{index}", index or "") for one in settings.reset_command)
        return tuple(words)
    if reading is not None and _nvidia(reading):
        return ("nvidia-smi", "--gpu-reset", "-i", card)
    if found("amd-smi") is not None or index is None:
        return ("amd-smi", "reset", "--gpureset", "--gpu", card)
    return ("rocm-smi", "--gpureset", "-d", index)


def _nvidia(reading: GpuReading) -> bool:
    return reading.source in NVIDIA
