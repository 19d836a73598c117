"""What doctor says of ROCm, overrides, known troubles and permissions, on folders made by hand."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs"))

from amdgpu_tree import AmdgpuTree, Card

from supervisor.cli.app import App
from supervisor.cli.doctor import rocm
from supervisor.cli.main import cli
from supervisor.config.settings import JobSettings, Settings
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from supervisor.core.remedies.gpu_issues import issues_of
from supervisor.core.remedies.presets import PRESETS, find_harms, presets_of


def test_every_rocm_is_named_once_with_the_kernel_driver(tmp_path: Path) -> None:
    (tmp_path / "opt/rocm-5.2.0/.info").mkdir(parents=True)
    (tmp_path / "opt/rocm-5.2.0/.info/version").write_text("5.2.0-65\n")
    (tmp_path / "opt/rocm").symlink_to("rocm-5.2.0")
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    (tmp_path / "sys/module/amdgpu/version").write_text("5.18.13\n")
    version, driver = rocm.rocm(tmp_path)
    assert version.found == f"5.2.0-65 in {tmp_path}/opt/rocm"
    assert (driver.name, driver.found) == ("driver amdgpu", "5.18.13")


def test_an_override_is_reported_with_the_target_that_it_names() -> None:
    settings = Settings(jobs={"yolo": JobSettings(command=["true"], env={rocm.OVERRIDE: "10.3.0"})})
    job, shell = rocm.overrides(settings, {rocm.OVERRIDE: "gfx1030"})
    assert (job.level, job.found) == ("ok", "job yolo: HSA_OVERRIDE_GFX_VERSION=10.3.0, kernels of gfx1030")
    assert (shell.level, shell.remedy) == ("warn", 'write three numbers, such as "10.3.0" for gfx1030')
    assert rocm.gfx_of("9.0.10") == "gfx90a"


def test_the_rx_5600_xt_s_troubles_have_a_source_and_a_remedy_each() -> None:
    found = issues_of("gfx1010:xnack-")
    assert [match.what.split()[0] for match in found] == ["MIOpen", "before"]
    assert all(match.source and match.remedy for match in found)
    assert issues_of("gfx1030") == issues_of(None) == ()
    assert "cool GPU" in issues_of("gfx1100")[0].what


def test_a_card_s_presets_are_named_with_their_source_and_what_to_write() -> None:
    gpu = GpuReading(at=Moment(0.0, 0.0), gpu="0000:03:00.0", source="sysfs", gfx_version="gfx906:sramecc+")
    (line,) = rocm.presets((gpu,))
    assert (line.level, line.name) == ("ok", "preset 0000:03:00.0")
    assert 'preset = "gfx906" in a job sets TORCH_BLAS_PREFER_HIPBLASLT=0' in line.found
    assert "pytorch/pytorch#138067" in line.found
    assert [preset.name for preset in presets_of("gfx1101")] == ["gfx1100", "gfx1100-nhwc-off"]
    assert presets_of(None) == presets_of("gfx942") == ()
    assert len({preset.name for preset in PRESETS}) == len(PRESETS)


def test_variables_that_do_harm_are_named_where_they_are_set() -> None:
    none = {"AMD_SERIALIZE_KERNEL": "0", "MIOPEN_FIND_ENFORCE": "3", "PYTORCH_HIP_ALLOC_CONF": "a:1"}
    job = {"MIOPEN_FIND_ENFORCE": "1", "PYTORCH_NO_HIP_MEMORY_CACHING": "1", "PYTORCH_HIP_ALLOC_CONF": "a:1"}
    settings = Settings(
        jobs={"bad": JobSettings(command=["true"], env=job), "good": JobSettings(command=["true"], env=none)}
    )
    found = [line.found for line in rocm.variables(settings, {"CUDA_LAUNCH_BLOCKING": "1"})]
    assert [text.split("=")[0] for text in found] == [
        "job bad: PYTORCH_NO_HIP_MEMORY_CACHING",
        "job bad: MIOPEN_FIND_ENFORCE",
        "this shell: CUDA_LAUNCH_BLOCKING",
    ]
    assert "PYTORCH_HIP_ALLOC_CONF is void" in found[0]
    alone = dict(find_harms({"PYTORCH_NO_HIP_MEMORY_CACHING": "1"}))
    assert ["several times slower" in what for what in alone.values()] == [True]


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """A folder for everybody, and a test that is not root: root may read every file."""
    codecs.lookup("ascii")  # read while Python's own files may be: they are closed to others where they lie in a home
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        root = os.geteuid() == 0
        if root:
            os.setresuid(65534, 65534, 0)
        try:
            yield Path(folder)
        finally:
            if root:
                os.setresuid(0, 0, 0)


def test_sensors_that_are_closed_come_with_the_command_that_opens_them(as_nobody: Path) -> None:
    tree = AmdgpuTree.build(as_nobody / "tree")
    (tree.device() / "gpu_busy_percent").chmod(0)
    (line,) = rocm.sensor_files(tree.sys_root)
    assert line.remedy is not None
    assert line.remedy.startswith("sudo chmod a+r")


@pytest.mark.slow
def test_doctor_reports_gpus_costs_and_troubles_without_a_daemon(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree", Card(), Card(address="0000:0b:00.0", index=1, gfx_target_version=110000))
    words = ["--config", str(tmp_path / "none.toml"), "--socket", str(tmp_path / "none.sock"), "doctor", "--json"]
    result = CliRunner().invoke(cli, words, obj=App(sys_root=tree.sys_root))
    lines = json.loads(result.stdout)["lines"]
    found = {line["name"]: line for line in lines}
    assert "ms per reading" in found["source sysfs"]["found"]
    assert found["source rocm-smi"]["level"] == "ok", "one that nobody needs is not ill"
    assert "gfx1100" in found["known 0000:0b:00.0"]["found"]
    assert found["known 0000:0a:00.0"]["remedy"]
    assert "rocm" in found
