"""What other programs can tell is asked of them, and none of them is waited for beyond its time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attempts_by_hand import gone, until

from supervisor.runner import tools
from supervisor.runner.evidence_folder import EvidenceFolder

WAITS = "import time\ndef the_step_that_hangs():\n    time.sleep(60)\nprint('up', flush=True)\nthe_step_that_hangs()\n"


@pytest.fixture
def training() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def tool(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_native_stacks_name_the_python_function_and_the_process_goes_on(
    training: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert tools.native_stacks([training.pid], EvidenceFolder(tmp_path.parent, tmp_path.name)) == []
    assert "the_step_that_hangs" in (tmp_path / f"native-stacks-{training.pid}.txt").read_text()
    assert training.poll() is None


def test_a_process_that_is_gone_is_named_as_missing(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    (missing,) = tools.native_stacks([child.pid], EvidenceFolder(tmp_path.parent, tmp_path.name))
    assert missing.startswith(f"native stacks of {child.pid}: ")


def test_a_tool_that_hangs_is_killed_with_its_children_at_its_deadline(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = tool(tmp_path, "rocm-smi", f"echo first\nsleep 60 & echo $! > {pid_file}\nwait")
    began = time.perf_counter()
    text, problem = tools.run([command], limit_s=0.5)
    assert time.perf_counter() - began < 10
    assert (text, problem) == ("first\n", "not finished within 0 s")
    child = int(pid_file.read_text())
    until(lambda: gone(child), "the end of the tool's child")


def test_a_tool_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    command = tool(tmp_path, "amd-smi", "echo cannot open the driver; exit 3")
    assert tools.run([command]) == ("cannot open the driver\n", "status 3 cannot open the driver")


def test_every_installed_tool_speaks_and_the_others_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "rocm-smi", "echo GPU use 99")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    path = tmp_path / "gpus.txt"
    assert (
        tools.write_gpu_tools(
            EvidenceFolder(tmp_path.parent, tmp_path.name), ("rocm-smi -a", "a-tool-that-nobody-has --all"), tmp_path
        )
        == []
    )
    assert path.read_text() == "== rocm-smi -a\nGPU use 99\n\n"


def test_without_the_amdgpu_driver_no_tool_of_rocm_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rocm-smi", "amd-smi"):
        tool(tmp_path, name, f"touch {tmp_path}/started; exit 1")
    tool(tmp_path, "nvidia-smi", "echo 99 %")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    target = EvidenceFolder(tmp_path.parent, tmp_path.name)
    assert tools.write_gpu_tools(target, amdgpu=tmp_path / "module/amdgpu") == []
    assert (tmp_path / "gpus.txt").read_text() == "== nvidia-smi -q\n99 %\n\n"
    assert not (tmp_path / "started").exists()


def test_of_the_environment_only_what_concerns_the_hardware_is_kept() -> None:
    env = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0", "HOME": "/root", "MY_TOKEN": "x" * 20, "ROCM_TOKEN": "y" * 20}
    assert tools.environment(env) == "HSA_OVERRIDE_GFX_VERSION=10.3.0\nROCM_TOKEN=***\n"


@pytest.mark.parametrize(
    "name", ["ROCM_KEY", "HIP_PASSPHRASE", "GPU_PWD", "AMD_AUTH", "TORCH_CREDENTIALS", "YOLO_APIKEY"]
)
def test_a_variable_whose_name_speaks_of_a_secret_is_reported_without_its_value(name: str) -> None:
    assert tools.environment({name: "hunter2"}) == f"{name}=***\n"


def test_a_tool_that_never_ends_its_words_is_ended(tmp_path: Path) -> None:
    text, problem = tools.run([tool(tmp_path, "nvidia-smi", "exec tr '\\0' x < /dev/zero")], limit_s=20.0)
    assert (len(text), problem is not None) == (tools.OUTPUT_LIMIT_BYTES, True)


def test_a_flood_of_output_is_bounded(tmp_path: Path) -> None:
    text, problem = tools.run([tool(tmp_path, "nvidia-smi", "head -c 3000000 /dev/zero | tr '\\0' x")])
    assert (len(text), problem) == (tools.OUTPUT_LIMIT_BYTES, None)
