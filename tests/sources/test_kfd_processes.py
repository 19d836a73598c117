"""Who holds a card's memory: the compute driver's list, fdinfo of every kernel, and text that is none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import GpuProcess
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs
from supervisor.sources.gpu.kfd_processes import merged, parse_fdinfo, read_fdinfo

if TYPE_CHECKING:
    from amdgpu_tree import AmdgpuTree

NOW = Moment(100.0, 1_700_000_000.0)
NEW = """pos:\t0
flags:\t02400002
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:0a:00.0
pasid:\t32770
drm-memory-vram:\t{vram} KiB
drm-memory-gtt: \t2048 KiB
drm-memory-cpu: \t0 KiB
drm-engine-gfx:\t1500000000 ns
drm-engine-compute:\t500000000 ns
drm-engine-capacity-compute:\t4
"""
OLD = "pdev:\t0000:0a:00.0\npasid:\t32770\nvram mem:\t1024 kB\ngtt mem:\t0 kB\ngfx0:\t1.5%\n"


def test_the_compute_driver_names_the_processes_of_each_gpu(tree: AmdgpuTree) -> None:
    folder = tree.sys_root / f"class/kfd/kfd/proc/{os.getpid()}"
    folder.mkdir()
    (folder / "vram_41001").write_text("4096000\n")
    (folder / "vram_7").write_text("1\n")
    (reading,) = AmdgpuSysfs(tree.sys_root).read(NOW)
    assert reading.processes is not None
    ((pid, vram),) = [(process.pid, process.vram_bytes) for process in reading.processes]
    assert (pid, vram) == (os.getpid(), 4096000)


def test_new_and_old_kernels_say_the_same_in_other_words() -> None:
    new = parse_fdinfo(NEW.format(client=7, vram=1024))
    assert new is not None
    assert new[0] == "0000:0a:00.0"
    assert (new[2].vram_bytes, new[2].gtt_bytes, new[2].engine_s) == (1 << 20, 2 << 20, 2.0)
    old = parse_fdinfo(OLD)
    assert old is not None
    assert (old[2].vram_bytes, old[2].engine_s) == (1 << 20, None)


def test_a_client_behind_two_descriptors_counts_once(tmp_path: Path) -> None:
    for fd, client, vram in ((3, 7, 1024), (4, 7, 1024), (5, 8, 512)):
        (tmp_path / "42/fd").mkdir(parents=True, exist_ok=True)
        (tmp_path / "42/fdinfo").mkdir(exist_ok=True)
        (tmp_path / f"42/fd/{fd}").symlink_to("/dev/dri/renderD128")
        (tmp_path / f"42/fdinfo/{fd}").write_text(NEW.format(client=client, vram=vram))
    (tmp_path / "42/comm").write_text("python3\n")
    (process,) = read_fdinfo([42, 43], tmp_path)["0000:0a:00.0"]
    assert process == GpuProcess(pid=42, name="python3", vram_bytes=1536 << 10, gtt_bytes=4 << 20, engine_s=4.0)


def test_two_accounts_of_one_process_become_one() -> None:
    kfd = (GpuProcess(pid=42, name="python3", vram_bytes=900), GpuProcess(pid=50, vram_bytes=5))
    fdinfo = (GpuProcess(pid=42, vram_bytes=100, gtt_bytes=7, engine_s=1.0),)
    assert merged(kfd, fdinfo) == (
        GpuProcess(pid=42, name="python3", vram_bytes=900, gtt_bytes=7, engine_s=1.0),
        GpuProcess(pid=50, vram_bytes=5),
    )
    assert merged(None, ()) is None


def test_another_driver_s_client_is_none_of_ours() -> None:
    assert parse_fdinfo(NEW.format(client=1, vram=1).replace("amdgpu", "i915")) is None


@given(st.text(max_size=200) | st.builds(lambda a, b: NEW.format(client=a, vram=b), st.text(), st.text()))
def test_no_text_makes_it_raise_or_go_below_zero(text: str) -> None:
    reported = parse_fdinfo(text)
    if reported is not None:
        assert reported[2].vram_bytes is None or 0 <= reported[2].vram_bytes < 2**63
        assert reported[2].engine_s is None or reported[2].engine_s >= 0
