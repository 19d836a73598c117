"""The benches of a machine and of a job say what they decide, from numbers that are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.bench.machine import BENCHES, as_json, report_lines
from supervisor.cli.bench.training import Rate, decide_batch, decide_loader, find_knee
from supervisor.cli.main import cli
from supervisor.cli.table import Pen

SMALL = ("--device", "cpu", "--size", "64", "--length", "32", "--batch", "1", "--heads", "2", "--mib", "1")
PATIENT = ("--limit-s", "900")
"""Beside other work a collective of two processes takes long; that it may not hang is not what is tested here."""
SLOW_LOADER = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(8)

network = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for rows in torch.utils.data.DataLoader(Slow(), batch_size=4):
    network(rows).sum().backward()
    optimizer.step()
"""


def bench(*words: str, config: Path = Path("/nonexistent/config.toml")) -> Result:
    return CliRunner().invoke(cli, ["--config", str(config), "bench", *words])


@pytest.mark.train
def test_every_bench_runs_is_right_and_its_report_names_no_path(current_python: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = bench("all", "--json", "--python", str(current_python), "--report", str(report), *SMALL, *PATIENT)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert json.loads(report.read_text()) == found
    assert set(found["benches"]) == set(found["decides"]) == {"gemm", "attention", "copy", "allreduce"}
    rows = {row["name"]: row for name in found["benches"] for row in found["benches"][name]}
    for name in ("float32", "bfloat16", "eager", "math", "host to host", "gloo"):
        assert rows[name].get("right") is True, rows[name]
    assert 0 < rows["float32"]["error"] < 1e-5
    assert rows["float32"]["error"] < rows["bfloat16"]["error"]
    assert "it takes two GPUs" in rows["nccl"]["problem"]
    assert str(current_python) not in report.read_text()
    assert "/root" not in report.read_text()
    assert "/home" not in report.read_text()


@pytest.mark.train
def test_a_loader_that_starves_its_training_is_named(current_python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    config = tmp_path / "config.toml"
    config.write_text(
        f"[supervisor]\nstate_dir = '{tmp_path / 'state'}'\n"
        f"[jobs.slow]\ncwd = '{tmp_path}'\ncommand = ['{current_python}', 'train.py']\n"
    )
    result = bench("loader", "slow", "--json", config=config)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["batch"] == 4
    assert found["draw_ms"] >= 40.0, "four samples of 10 ms each"
    assert found["wait_ms"] >= 40.0
    assert found["workers"] == 0
    assert "starves the training with 0 workers" in found["decides"]


def test_the_knee_is_the_smallest_micro_batch_that_is_as_fast_as_the_best() -> None:
    rates = [
        Rate(batch=batch, step_ms=ms, wait_ms=0.0, peak_bytes=None)
        for batch, ms in ((8, 10.0), (16, 12.0), (32, 20.0), (64, 39.5))
    ]
    assert find_knee(rates).batch == 32
    assert "32 would train 2.00x as many samples a second as 8" in decide_batch(rates, 8)
    assert "64 is as fast as any; 32 is the smallest" in decide_batch(rates, 64)
    assert "128 did not run" in decide_batch(rates, 128)


def test_waiting_decides_about_the_loader_and_not_its_time_alone() -> None:
    assert "starves" in decide_loader(draw_ms=50.0, step_ms=100.0, wait_ms=40.0, workers=2)
    assert "fast enough with 2 workers: 4% of a step" in decide_loader(50.0, 100.0, 4.0, 2)


def row(name: str, value: float, **facts: Any) -> dict[str, Any]:
    return {"kind": "row", "name": name, "value": value, "unit": "x", "ms": 1.0, "error": 1e-6, "right": True, **facts}


def test_what_is_wrong_decides_nothing() -> None:
    rows = [row("float32", 10.0), row("float16", 99.0, right=False), row("bfloat16", 30.0)]
    assert "bfloat16 multiplies 3.0x as fast" in BENCHES["gemm"].decides(rows)
    assert "stay with float32" in BENCHES["gemm"].decides(rows[:2])
    assert "no way is right" in BENCHES["attention"].decides([row("flash", 1.0, right=False)])
    assert "flash is 4.0x as fast as eager" in BENCHES["attention"].decides([row("eager", 8.0), row("flash", 2.0)])
    assert "pin_memory pays" in BENCHES["copy"].decides([row("host to GPU", 5.0), row("pinned host to GPU", 20.0)])
    assert "one GPU" in BENCHES["allreduce"].decides([{"kind": "row", "name": "gloo", "problem": "it hangs"}])


def test_a_report_has_no_paths_and_a_terminal_gets_bars() -> None:
    device = {"kind": "device", "device": "cpu", "name": "CPU", "torch": "2", "hip": None, "python": "/home/me/python"}
    failed = {"kind": "row", "name": "float16", "problem": "no kernel in /home/me/lib/x.so for it"}
    found = {"gemm": [device, row("float32", 10.0), row("bfloat16", 5.0, right=False), failed]}
    document = as_json(found, {"size": 64})
    assert "/home" not in json.dumps(document)
    assert document["benches"]["gemm"][2]["problem"] == "no kernel in (path) for it"
    text = "\n".join(report_lines(found, Pen()))
    assert "██████████" in text
    assert "WRONG" in text


def test_two_gpus_are_predicted_by_the_mean_of_gradients_that_the_backward_pass_does_not_hide() -> None:
    slow, fast = row("gloo", 1.0, speedup=1.04), row("host", 20.0, speedup=1.9)
    assert (
        BENCHES["allreduce"]
        .decides([slow, fast])
        .endswith('1.90x as fast as one by host: ranks_backend = "host" in the job')
    )
    assert BENCHES["allreduce"].decides([slow]).endswith("1.04x as fast at best (gloo): stay with one GPU")
