"""A machine is taken in only where it computes, remembers and sums rightly, and says so within the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.fleet.check import list_slow
from supervisor.cli.main import cli

pytestmark = pytest.mark.train

SMALL = ("--device", "cpu", "--mib", "1", "--size", "32")
WOUNDED = """#!{python}
import json, runpy, sys, time
import torch
{wound}
sys.argv = [sys.argv[1], json.dumps({{**json.loads(sys.argv[2]), "seconds": 1}})]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""An interpreter whose torch computes as a faulty device does.

It multiplies for a second: of a limit that a busy machine needs for its imports, nearly a third would be for that.
"""
HEALTHY = ""
WRONG_ONCE = """
made, times = torch.Tensor.__matmul__, 0
def wounded(self, other):
    global times
    times += 1
    result = made(self, other)
    if times == 6:
        result.view(torch.int32)[3, 4] ^= 1
    return result
torch.Tensor.__matmul__ = wounded
"""
WRONG_ALWAYS = """
made = torch.Tensor.__matmul__
torch.Tensor.__matmul__ = lambda self, other: made(self, other) * (1.01 if self.dtype == torch.float32 else 1)
"""
FORGETS = """
made = torch.Tensor.copy_
def wounded(self, other):
    made(self, other)
    if self.numel() > 1000:
        self[777] ^= 4
torch.Tensor.copy_ = wounded
"""
HANGS = """
torch.Tensor.copy_ = lambda self, other: time.sleep(1000)
"""


def check(*words: str) -> Result:
    return CliRunner().invoke(cli, ["--config", "/nonexistent/config.toml", "fleet", "check", *words])


def wounded(python: Path, folder: Path, wound: str) -> str:
    path = folder / "python"
    path.write_text(WOUNDED.format(python=python, wound=wound))
    path.chmod(0o755)
    return str(path)


def test_a_machine_that_computes_rightly_is_fit_and_an_old_reason_goes(quickest_python: Path, tmp_path: Path) -> None:
    reason = tmp_path / "reason"
    reason.write_text("unfit\n")
    python = wounded(quickest_python, tmp_path, HEALTHY)
    words = ("--limit-s", "120", "--python", python, "--reason-file", str(reason), "--json")
    result = check(*SMALL, *words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["fit"], found["why"], found["unknown"]) == (True, [], None)
    done = [(row["device"], row["check"]) for row in found["checks"]]
    assert done == [
        ("cpu", "gemm float32"),
        ("cpu", "gemm bfloat16"),
        ("cpu", "memory"),
        ("two processes", "start"),
        ("cpu+cpu", "all-reduce"),
    ]
    assert not reason.exists()


@pytest.mark.parametrize(
    ("wound", "why", "limit_s"),
    [
        (WRONG_ONCE, "of the same matrices differs in 1 numbers", 120),
        (WRONG_ALWAYS, "cpu gemm float32: its products are 1.0e-02 from those in float64, limit 2e-05", 120),
        (FORGETS, "cpu memory: pattern 1: 1 of 1048576 bytes changed, first at 777", 120),
        (HANGS, "cpu memory: no answer within the limit of 60 s", 60),
    ],
)
def test_a_machine_that_does_not_is_unfit_with_the_reason_in_a_file(
    quickest_python: Path, tmp_path: Path, wound: str, why: str, limit_s: int
) -> None:
    reason = tmp_path / "reason"
    python = wounded(quickest_python, tmp_path, wound)
    result = check(*SMALL, "--limit-s", str(limit_s), "--python", python, "--reason-file", str(reason), "--prolog")
    assert result.exit_code == 1, result.output
    assert why in reason.read_text()
    assert why in result.output.replace("\n", " ")


def test_what_cannot_be_checked_is_no_reason_to_drain(tmp_path: Path) -> None:
    for python, why in (("/nonexistent/python", "No such file"), (wounded(Path("/bin/sh"), tmp_path, ""), "")):
        words = (*SMALL, "--python", python)
        assert check(*words).exit_code == 4
        in_prolog = check(*words, "--prolog")
        assert in_prolog.exit_code == 0
        assert "not checked: " in in_prolog.output
        assert why in in_prolog.output


def test_a_device_far_below_its_neighbours_is_named_with_three_of_them_and_not_with_two() -> None:
    rows = [{"device": f"cuda:{index}", "check": "memory", "value": rate} for index, rate in enumerate((900, 410, 890))]
    assert list_slow(rows, 0.5) == ["cuda:1 memory: 410.0, and 890.0 is the median of 3 devices"]
    assert list_slow(rows[:2], 0.5) == []
