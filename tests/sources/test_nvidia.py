"""NVIDIA's cards: NVML in its child, the tool behind it, drivers that are absent and cards that sleep."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.sources.gpu.gpus import GpuWatch
from supervisor.sources.gpu.nvidia_smi import NvidiaSmi, limits
from supervisor.sources.gpu.nvml import CHILD, Nvml, parse
from supervisor.sources.gpu.source import SourceSilentError

NOW = Moment(100.0, 1_700_000_000.0)
LIBRARY = """
from types import SimpleNamespace as Made
class NVMLError(Exception): pass
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
NVML_TEMPERATURE_GPU, NVML_FI_DEV_MEMORY_TEMP, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 82, 1, 2
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetIndex(card): return card
def nvmlDeviceGetPciInfo(card): return Made(busId=b"00000000:83:00.0")
def nvmlDeviceGetName(card): return "NVIDIA H200"
def nvmlDeviceGetUUID(card): return "GPU-1b2c"
def nvmlDeviceGetUtilizationRates(card): return Made(gpu=100, memory=8)
def nvmlDeviceGetMemoryInfo(card): return Made(used=33934016512, total=150754820096)
def nvmlDeviceGetTemperature(card, kind): return 52
def nvmlDeviceGetFieldValues(card, fields): return [Made(nvmlReturn=0, value=Made(uiVal=42))]
def nvmlDeviceGetPowerUsage(card): return 628123
def nvmlDeviceGetEnforcedPowerLimit(card): return 700000
def nvmlDeviceGetClockInfo(card, kind): return {1: 1980, 2: 3201}[kind]
def nvmlDeviceGetPerformanceState(card): return 0
def nvmlDeviceGetCurrentClocksThrottleReasons(card): return 4
def nvmlDeviceGetCurrPcieLinkWidth(card): return 16
def nvmlDeviceGetCurrPcieLinkGeneration(card): return 5
def nvmlDeviceGetPcieReplayCounter(card): return 0
def nvmlDeviceGetTotalEccErrors(card, kind, where): raise NVMLError("Not Supported")
def nvmlDeviceGetComputeRunningProcesses(card): return [Made(pid=1, usedGpuMemory=None)]
"""


def nvml_with(folder: Path, library: str, deadline_s: float = 5.0) -> Nvml:
    """The real child, with a library of the test's own in the place of the package."""
    (folder / "pynvml.py").write_text(library)
    child, future = folder / "child.py", "from __future__ import annotations\n"
    child.write_text(CHILD.read_text().replace(future, f"{future}import sys\nsys.path.insert(0, {str(folder)!r})\n"))
    control = folder / "nvidiactl"
    control.touch()
    return Nvml(sys.executable, child, deadline_s, sys_root=folder, control=control)


@pytest.mark.slow
def test_nvml_s_units_become_ours(tmp_path: Path) -> None:
    source = nvml_with(tmp_path, LIBRARY)
    (card,) = source.read(NOW)
    source.close()
    assert (card.gpu, card.index, card.name, card.unique_id) == ("0000:83:00.0", 0, "NVIDIA H200", "GPU-1b2c")
    assert (card.gpu_busy_percent, card.memory_busy_percent, card.edge_c, card.memory_c) == (100, 8, 52, 42)
    assert (card.vram_used_bytes, card.power_w, card.power_cap_w) == (33934016512, 628.123, 700)
    assert (card.sclk_hz, card.mclk_hz, card.pcie_gts) == (1_980_000_000, 3_201_000_000, 32.0)
    assert (card.throttled_by, card.performance_level, card.ecc_uncorrectable) == (("power",), "P0", None)
    assert card.processes is not None
    assert (card.processes[0].pid, card.processes[0].vram_bytes) == (1, None)


@pytest.mark.slow
def test_a_library_that_hangs_or_dies_costs_its_child_only(tmp_path: Path) -> None:
    hanging = nvml_with(tmp_path, LIBRARY.replace("return 1\n", "import time; time.sleep(60)\n", 1), deadline_s=1.0)
    with pytest.raises(SourceSilentError, match="no answer within 1 s"):
        hanging.read(NOW)
    dying = nvml_with(tmp_path, LIBRARY.replace("return 1\n", "import os; os._exit(139)\n", 1))
    with pytest.raises(SourceSilentError, match="the child ended"):
        dying.read(NOW)


@pytest.mark.slow
def test_a_driver_that_does_not_answer_is_reported_in_its_own_words(tmp_path: Path) -> None:
    source = nvml_with(tmp_path, "def nvmlInit(): raise RuntimeError('Driver/library version mismatch')")
    with pytest.raises(SourceSilentError, match="NVML: Driver/library version mismatch"):
        source.read(NOW)


def test_without_a_driver_no_process_is_spent(tmp_path: Path) -> None:
    command = ("/bin/sh", "-c", f"touch {tmp_path}/ran")
    for source in (
        Nvml(child=tmp_path / "none", sys_root=tmp_path, control=tmp_path / "nvidiactl"),
        NvidiaSmi(command, sys_root=tmp_path, control=tmp_path / "nvidiactl"),
    ):
        with pytest.raises(SourceSilentError, match="no NVIDIA driver"):
            source.read(NOW)
    assert not (tmp_path / "ran").exists()


def test_a_sleeping_gpu_is_named_and_left_asleep(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices/0000:01:00.0"
    (device / "power").mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    (device / "power/runtime_status").write_text("suspended\n")
    control = tmp_path / "nvidiactl"
    control.touch()
    source = NvidiaSmi(("/bin/sh", "-c", f"touch {tmp_path}/ran"), sys_root=tmp_path, control=control)
    (card,) = source.read(NOW)
    assert (card.gpu, card.runtime_status, card.edge_c) == ("0000:01:00.0", "suspended", None)
    assert not (tmp_path / "ran").exists()


CARDS = """\
index, pci.bus_id, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, \
temperature.memory, power.draw [W], power.limit [W], pstate, clocks_throttle_reasons.active
0, 00000000:3B:00.0, A card of two dies, 98 %, 70144 MiB, 81559 MiB, 61, 72, 641.25 W, 700.00 W, P0, 0x0000000000000004
"""
APPS = """\
gpu_bus_id, pid, process_name, used_gpu_memory [MiB]
00000000:3B:00.0, 4711, python, 70100 MiB
"""
"""As `nvidia-smi --help-query-gpu` and `--help-query-compute-apps` name the columns."""


@pytest.mark.slow
def test_the_tool_stands_in_for_a_library_that_is_not_installed(tmp_path: Path) -> None:
    tool, cards, apps = (tmp_path / name for name in ("nvidia-smi", "cards.csv", "apps.csv"))
    cards.write_text(CARDS)
    apps.write_text(APPS)
    tool.write_text(f'#!/bin/sh\ncase "$1" in --query-gpu*) cat {cards};; *) cat {apps};; esac\n')
    tool.chmod(0o755)
    control = tmp_path / "nvidiactl"
    control.touch()
    library = nvml_with(tmp_path, "raise ImportError('absent')")
    watch = GpuWatch([library, NvidiaSmi((str(tool),), sys_root=tmp_path, control=control)])
    seen = watch.read(NOW)
    end = time.perf_counter() + 60
    while not seen and time.perf_counter() < end:
        time.sleep(0.02)
        seen = watch.read(NOW.plus(0.001))
    watch.close()
    (card,) = seen
    assert (card.source, card.gpu, card.power_w, card.edge_c, card.memory_c) == (
        "nvidia-smi",
        "0000:3b:00.0",
        641.25,
        61,
        72,
    )
    assert card.throttled_by == ("power",)
    assert card.processes is not None
    assert all(process.vram_bytes for process in card.processes)


def test_idle_is_no_limit() -> None:
    assert limits("0x0000000000000001") == ()
    assert limits("0x0000000000000060") == ("thermal", "thermal_hardware")
    assert limits("N/A") is None


VALUE = st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "index",
                "name",
                "uuid",
                "busy",
                "memory_used",
                "temperature",
                "power_mw",
                "sm_mhz",
                "level",
                "reasons",
                "lanes",
                "generation",
                "processes",
            ]
        ),
        VALUE,
    )
)
def test_no_answer_of_the_child_makes_it_raise_or_leave_its_range(card: dict[str, object]) -> None:
    (reading,) = parse({"cards": [{"bus_id": "00000000:01:00.0", **card}]}, NOW)
    assert reading.gpu_busy_percent is None or 0 <= reading.gpu_busy_percent <= 100
    assert reading.edge_c is None or -40 <= reading.edge_c <= 200
    assert reading.sclk_hz is None or 0 <= reading.sclk_hz < 2**63
