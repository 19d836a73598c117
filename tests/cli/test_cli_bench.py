"""The benchmark runs in the interpreter it is told, and says of each Conv2d whether it is right and how fast it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.main import cli

SMALL = ("--batch", "1", "--size", "32", "--runs", "1", "--device", "cpu", "--threads", "1")


def bench(*words: str, config: Path = Path("/nonexistent/config.toml")) -> Result:
    return CliRunner().invoke(cli, ["--config", str(config), "bench", "conv2d", *words])


def measured(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.train
def test_each_algorithm_is_timed_and_found_right_on_the_published_layers(train_python: Path, tmp_path: Path) -> None:
    log = tmp_path / "bench.jsonl"
    document = measured(bench("--json", "--python", str(train_python), "--log", str(log), *SMALL))
    lines = document["measurements"]
    assert [json.loads(line) for line in log.read_text().splitlines()] == lines
    assert lines[0]["python"] == str(train_python)
    layers = [line for line in lines if line["kind"] == "layer"]
    assert {line["algorithm"] for line in layers} == {"planned", "unfold", "unfold_reference", "native"}
    assert [line["layer"] for line in layers if line["algorithm"] == "planned"] == [1, 2, 3, 4, 5, 6]
    assert all(line["right"] and len(line["errors"]) == 3 for line in layers)
    assert all(0 < line["forward_ms"] <= line["total_ms"] for line in layers)
    assert all(line["held_bytes"] is None for line in layers), "torch does not count a CPU's memory"


@pytest.mark.train
def test_a_models_own_layers_and_its_step_are_measured_and_hours_estimated(current_python: Path) -> None:
    words = ("--model", "resnet18", "--only", "planned", "--only", "native", "--images", "1000", "--epochs", "2")
    document = measured(bench("--json", "--python", str(current_python), *words, *SMALL, "--size", "64"))
    layers = [line for line in document["measurements"] if line["kind"] == "layer" and line["algorithm"] == "planned"]
    assert sum(line["count"] for line in layers) == 20, "ResNet-18 calls twenty convolutions"
    steps = {line["algorithm"]: line for line in document["measurements"] if line["kind"] == "step"}
    assert steps["planned"]["losses"] == pytest.approx(steps["native"]["losses"], rel=1e-3)
    hours = document["hours"]["planned"]
    assert hours == pytest.approx(steps["planned"]["step_ms"] * 2000 / 3.6e6)


@pytest.mark.train
def test_people_get_a_table_and_a_job_its_own_interpreter(current_python: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f"[supervisor]\nstate_dir = '{tmp_path}'\n[jobs.yolo]\ncommand = ['{current_python}', 'train.py']\n"
    )
    result = bench("--job", "yolo", "--only", "planned", *SMALL, config=config)
    assert result.exit_code == 0, result.output
    assert str(current_python) in result.stdout
    assert "1x3x32x32 by 16x3x3x3 s2" in result.stdout
    assert "right" in result.stdout
    refused = bench("--job", "other", *SMALL, config=config)
    assert refused.exit_code == 1
    assert "no job 'other'" in refused.stderr


def test_an_interpreter_that_is_none_or_has_no_torch_is_told(tmp_path: Path) -> None:
    missing = bench("--python", str(tmp_path / "python"), *SMALL)
    assert missing.exit_code == 1
    assert "No such file" in missing.stderr
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    failed = bench("--python", str(broken), *SMALL)
    assert failed.exit_code == 1
    assert "status 3" in failed.stderr


def test_an_algorithm_that_does_not_exist_is_refused_with_those_that_do() -> None:
    result = bench("--only", "magic", *SMALL)
    assert result.exit_code == 2
    assert "planned" in result.stderr
