"""The exact commands of the last resorts, by vendor and by what is installed."""

from __future__ import annotations

from collections.abc import Callable

from clocks_by_hand import START

from supervisor.config.settings import LastResortSettings
from supervisor.core.readings import GpuReading
from supervisor.daemon.launch.last_resorts import list_resorts

AMD = tuple(GpuReading(at=START, gpu=gpu, source="sysfs") for gpu in ("0000:03:00.0", "0000:0a:00.0"))
GEFORCE = GpuReading(at=START, gpu="0000:01:00.0", source="nvml")


def installed(*names: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in names else None


def commands(card: str | None, *tools: str, **settings: object) -> list[str]:
    chosen = LastResortSettings(**settings)  # type: ignore[arg-type]  # each test names one key of its own type
    return [" ".join(item.command) for item in list_resorts(chosen, card, (*AMD, GEFORCE), {}, installed(*tools))]


def test_the_vendors_tool_that_is_there_is_named_with_the_gpu_as_it_counts_it() -> None:
    assert commands("0000:0a:00.0", "amd-smi", "rocm-smi")[0] == "amd-smi reset --gpureset --gpu 0000:0a:00.0"
    assert commands("0000:0a:00.0", "rocm-smi")[0] == "rocm-smi --gpureset -d 1"
    assert commands("0000:01:00.0")[0] == "nvidia-smi --gpu-reset -i 0000:01:00.0"


def test_the_owners_command_counts_before_every_tool() -> None:
    mine = ["/usr/local/bin/reset", "{gpu}", "{index}"]
    assert commands("0000:0a:00.0", "amd-smi", reset_command=mine)[0] == "/usr/local/bin/reset 0000:0a:00.0 1"


def test_without_a_known_gpu_only_the_reboot_is_left() -> None:
    assert commands(None, "amd-smi") == ["systemctl reboot"]


def test_other_jobs_are_not_harmed() -> None:
    offered = list_resorts(LastResortSettings(), "0000:0a:00.0", AMD, {"day": False, "other": True}, installed())
    assert [item.refused for item in offered] == [
        "refused while other may be on that GPU",
        "refused while day, other runs",
    ]
