"""`gpus` without a daemon, on simulated machines: once, live, for programs; and saved outputs of the tools."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs"))

from amdgpu_tree import AmdgpuTree, Card

from supervisor.cli.app import App
from supervisor.cli.errors import CliError
from supervisor.cli.explain.pasted_input import LONGEST_BYTES
from supervisor.cli.explain.smi import explain_smi, print_smi
from supervisor.cli.gpus.sparkline import sparkline
from supervisor.cli.main import cli
from supervisor.core.readings import GpuReading

NOW = 1_763_165_520.0


def call(sys_root: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, list(words), obj=App(sys_root=sys_root, now=lambda: NOW))


def test_a_saved_output_is_explained_on_the_command_line() -> None:
    saved = '{"card0": {"Temperature (Sensor edge) (C)": "61.0", "PCI Bus": "0000:0A:00.0"}}'
    result = CliRunner().invoke(cli, ["--json", "explain", "--smi", "-"], input=saved)
    (card,) = json.loads(result.stdout)["gpus"]
    assert (card["gpu"], card["edge_c"], card["junction_c"]) == ("0000:0a:00.0", 61.0, None)


def test_two_gpus_are_shown_with_what_nobody_may_overlook(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree", Card(), Card(address="0000:0b:00.0", index=1))
    tree.set("pcie_replay_count", 12, card=1)
    tree.set("hwmon/temp2_input", 104000, card=1)
    result = call(tree.sys_root, "gpus")
    assert result.exit_code == 0, result.output
    assert "0000:0a:00.0" in result.stdout
    assert "104 C" in result.stdout
    assert "0000:0b:00.0  12 PCIe replays" in result.stdout
    assert "sysfs" in result.stdout


def test_programs_get_every_field_of_the_reading(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree")
    for words in (("--json", "gpus"), ("gpus", "--json")):
        (card,) = json.loads(call(tree.sys_root, *words).stdout)["gpus"]
        assert set(card) == set(GpuReading.__dataclass_fields__)
        assert (card["gpu"], card["source"], card["at"]) == ("0000:0a:00.0", "sysfs", NOW)
        assert (card["vram_used_bytes"], card["junction_c"], card["ecc_correctable"]) == (4812345344, 79, None)


def test_live_every_reading_is_one_line_for_programs_and_a_row_of_blocks_for_people(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree")
    live = ("gpus", "--watch", "--count", "3", "--interval", "0.1")
    rounds = [json.loads(line) for line in call(tree.sys_root, "--json", *live).stdout.splitlines()]
    assert [round_["gpus"][0]["gpu_busy_percent"] for round_ in rounds] == [97, 97, 97]
    assert "███" in call(tree.sys_root, *live).stdout


@pytest.mark.slow
def test_a_machine_without_gpus_says_why_and_an_empty_list(tmp_path: Path) -> None:
    result = call(tmp_path, "gpus")
    assert result.exit_code == 0
    assert "sysfs: no GPU of the amdgpu driver" in result.stdout
    assert json.loads(call(tmp_path, "--json", "gpus").stdout)["gpus"] == []


def test_a_sleeping_gpu_is_shown_as_asleep(tmp_path: Path) -> None:
    tree = AmdgpuTree.build(tmp_path / "tree")
    tree.set("power/runtime_status", "suspended")
    assert "asleep" in call(tree.sys_root, "gpus").stdout


def test_what_is_unknown_is_a_gap_and_what_is_full_a_full_block() -> None:
    assert sparkline((0, None, 50, 100), 100) == "▁ ▅█"
    assert sparkline((), 100) == ""
    assert sparkline((0.0, 0.0)) == "▁▁"


MONITOR = """\
GPU  POWER  GPU_TEMP MEM_TEMP GFX_UTIL GFX_CLOCK MEM_UTIL MEM_CLOCK VRAM_USED VRAM_TOTAL
  0  199 W    103 \N{DEGREE SIGN}C    88 \N{DEGREE SIGN}C      97 %   1875 MHz      22 %    900 MHz  1235 MB  8176 MB
"""
"""The columns of `amd-smi monitor` of ROCm 6, as its own --help names them."""


def test_a_saved_output_is_explained_in_our_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "monitor.txt"
    path.write_text(MONITOR)
    (card,) = explain_smi(path)
    assert (card["junction_c"], card["vram_used_bytes"], card["edge_c"]) == (103, 1235 * 1024**2, None)
    print_smi(App(), path)
    shown = capsys.readouterr().out
    assert "junction_c" in shown
    assert re.search(r"^edge_c +null$", shown, re.MULTILINE)
    print_smi(App(json=True), path)
    assert json.loads(capsys.readouterr().out)["gpus"][0]["power_w"] == 199


def test_a_file_that_is_no_output_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(CliError, match="with a GPU in it"):
        print_smi(App(), tmp_path / "text")
    with pytest.raises(CliError, match="No such file"):
        print_smi(App(), tmp_path / "absent")


def test_an_output_that_cannot_be_one_is_not_read_in_part(tmp_path: Path) -> None:
    with (tmp_path / "endless").open("wb") as endless:
        endless.truncate(LONGEST_BYTES + 1)
    with pytest.raises(CliError, match="longer than 64 MiB") as refused:
        print_smi(App(), tmp_path / "endless")
    assert refused.value.remedy == "save a single output of the tool"
