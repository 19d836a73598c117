"""The child that asks pyamdgpuinfo: real processes, with libraries that answer, hang, die and are absent."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.sources.gpu.pyamdgpuinfo import CHILD, Pyamdgpuinfo, parse
from supervisor.sources.gpu.source import SourceSilentError

NOW = Moment(100.0, 1_700_000_000.0)
LIBRARY = """
import os, time
class Card:
    pci_slot, name = "0000:0A:00.0", "RX 5600 XT"
    memory_info = {"vram_size": 6425673728, "gtt_size": 16777216000, "cpu_accessible_vram": 268435456}
    def query_load(self): return 0.97
    def query_vram_usage(self): return 4812345344
    def query_gtt_usage(self): return 52428800
    def query_temperature(self): return 63.0
    def query_power(self): return 131
    def query_sclk(self): return 1750000000
    def query_mclk(self): raise RuntimeError("Unknown query failure (an amdgpu call failed).")
def detect_gpus(): return 1
def get_gpu(index): return Card()
"""


def source_with(folder: Path, library: str, **options: float) -> Pyamdgpuinfo:
    """The real child, with a library of the test's own in the place of the package."""
    (folder / "pyamdgpuinfo.py").write_text(library)
    child = folder / "child.py"
    future = "from __future__ import annotations\n"
    child.write_text(CHILD.read_text().replace(future, f"{future}import sys\nsys.path.insert(0, {str(folder)!r})\n"))
    return Pyamdgpuinfo(sys.executable, child, **options)


OTHERS: set[int] = set()
"""Children of this process that a test of another file left, such as a resource tracker."""


@pytest.fixture(autouse=True)
def count_only_own_children() -> None:
    OTHERS.update(children())


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children()} - OTHERS


@pytest.mark.slow
def test_its_units_become_ours(tmp_path: Path) -> None:
    source = source_with(tmp_path, LIBRARY)
    expected = GpuReading(
        at=NOW, gpu="0000:0a:00.0", source="pyamdgpuinfo", name="RX 5600 XT", gpu_busy_percent=97.0,
        vram_used_bytes=4812345344, vram_total_bytes=6425673728, gtt_used_bytes=52428800, gtt_total_bytes=16777216000,
        edge_c=63.0, power_w=131.0, sclk_hz=1750000000, mclk_hz=None,
    )  # fmt: skip
    assert source.read(NOW) == (expected,)
    before = children()
    assert source.read(NOW.plus(1))[0].at == NOW.plus(1)
    assert children() == before, "a second reading needs no second child"
    source.close()
    assert not children() & before


@pytest.mark.slow
def test_an_absent_package_is_reported_to_be_not_installed(tmp_path: Path) -> None:
    source = source_with(tmp_path, "raise ImportError('No module named pyamdgpuinfo')")
    with pytest.raises(SourceSilentError, match="not installed"):
        source.read(NOW)
    assert not children()


@pytest.mark.slow
def test_the_library_s_own_error_is_handed_on(tmp_path: Path) -> None:
    source = source_with(tmp_path, "def detect_gpus(): raise FileNotFoundError(2, 'No such file', '/dev/dri')")
    with pytest.raises(SourceSilentError, match="FileNotFoundError"):
        source.read(NOW)


@pytest.mark.slow
def test_a_library_that_hangs_is_killed_at_the_deadline(tmp_path: Path) -> None:
    source = source_with(tmp_path, "import time\ndef detect_gpus(): time.sleep(600)", deadline_s=1.0)
    with pytest.raises(SourceSilentError, match="no answer within 1 s"):
        source.read(NOW)
    assert not children()


@pytest.mark.slow
def test_a_library_that_crashes_the_process_is_reported_and_tried_again(tmp_path: Path) -> None:
    source = source_with(tmp_path, "import os\ndef detect_gpus(): os.kill(os.getpid(), 11)")
    for _ in range(2):
        with pytest.raises(SourceSilentError, match="the child ended"):
            source.read(NOW)
    assert not children()


@pytest.mark.slow
def test_the_real_child_without_a_gpu_gives_a_reason() -> None:
    if Path("/dev/dri").exists():
        pytest.skip("this machine has cards")
    source = Pyamdgpuinfo()
    with pytest.raises(SourceSilentError, match=r"not installed|FileNotFoundError"):
        source.read(NOW)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
                    lambda inner: st.lists(inner, max_size=2), max_leaves=4)  # fmt: skip


@given(st.fixed_dictionaries({"cards": JSON | st.lists(st.dictionaries(
    st.sampled_from(["pci_slot", "load", "vram_used", "temperature", "power", "name"]),
    JSON | st.just("0000:0a:00.0")), max_size=3)}))  # fmt: skip
def test_no_answer_makes_it_raise_or_leave_its_range(answer: dict[str, object]) -> None:
    for reading in parse(answer, NOW):
        assert reading.gpu == "0000:0a:00.0"
        assert reading.gpu_busy_percent is None or 0 <= reading.gpu_busy_percent <= 100
        assert reading.vram_used_bytes is None or 0 <= reading.vram_used_bytes < 2**63
