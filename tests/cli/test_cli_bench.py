"""The benchmark runs in the interpreter it is told, and says of each Conv2d whether it is right and how fast it is."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.bench.picture import picture
from supervisor.cli.bench.report import BAR_CELLS, bar, report
from supervisor.cli.main import cli
from supervisor.cli.table import Pen

SMALL = ("--batch", "1", "--size", "32", "--runs", "1", "--device", "cpu", "--threads", "1")


def bench(*words: str, config: Path = Path("/nonexistent/config.toml")) -> Result:
    return CliRunner().invoke(cli, ["--config", str(config), "bench", "conv2d", *words])


def measured(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


@pytest.mark.train
def test_each_algorithm_is_timed_found_right_and_repeated_on_the_published_layers(
    train_python: Path, tmp_path: Path
) -> None:
    log, drawing = tmp_path / "bench.jsonl", tmp_path / "bench.svg"
    words = ("--log", str(log), "--picture", str(drawing), "--stability", "8")
    document = measured(bench("--json", "--python", str(train_python), *words, *SMALL))
    lines = document["measurements"]
    assert [json.loads(line) for line in log.read_text().splitlines()] == lines
    assert lines[0]["python"] == str(train_python)
    layers = [line for line in lines if line["kind"] == "layer"]
    assert {line["algorithm"] for line in layers} == {"planned", "unfold", "unfold_reference", "native"}
    assert [line["layer"] for line in layers if line["algorithm"] == "planned"] == [1, 2, 3, 4, 5, 6]
    assert all(line["right"] and len(line["errors"]) == 3 for line in layers)
    assert all(0 < line["forward_ms"] <= line["total_ms"] for line in layers)
    assert all(line["held_bytes"] is None for line in layers), "torch does not count a CPU's memory"
    repeated = [line for line in lines if line["kind"] == "stability"]
    assert [line["algorithm"] for line in repeated] == ["planned", "unfold", "unfold_reference", "native"]
    for line in repeated:
        assert 0 < line["min_ms"] <= line["median_ms"] <= line["max_ms"]
        assert line["iterations"] == 8
        assert line["finite"]
        assert line["difference"] == 0.0, "one thread, the same numbers: the same result to the last bit"
    assert sum(line["kind"] == "progress" for line in lines) == 32
    assert "unfold_reference" in drawing.read_text()


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
def test_people_get_a_table_and_a_job_its_own_interpreter(quickest_python: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        f"[supervisor]\nstate_dir = '{tmp_path}'\n[jobs.yolo]\ncommand = ['{quickest_python}', 'train.py']\n"
    )
    result = bench("--job", "yolo", "--only", "planned", *SMALL, config=config)
    assert result.exit_code == 0, result.output
    assert str(quickest_python) in result.stdout
    assert "1x3x32x32 by 16x3x3x3 s2" in result.stdout
    assert "right" in result.stdout
    refused = bench("--job", "other", *SMALL, config=config)
    assert refused.exit_code == 1
    assert "no job 'other'" in refused.stderr


@pytest.mark.train
def test_a_yolos_own_layers_are_found_and_its_whole_step_repeats_itself(train_python: Path) -> None:
    words = ("--model", "yolov8n.yaml", "--only", "planned", "--scope", "all", "--stability", "8")
    document = measured(bench("--json", "--python", str(train_python), *words, *SMALL, "--batch", "2", "--size", "64"))
    layers = [line for line in document["measurements"] if line["kind"] == "layer"]
    assert sum(line["count"] for line in layers) == 64, "YOLOv8n calls sixty-four convolutions, that of DFL included"
    assert [1, 16, 1, 1] in [line["weight"] for line in layers]
    (repeated,) = (line for line in document["measurements"] if line["kind"] == "stability")
    assert repeated["difference"] == 0.0


@pytest.mark.train
def test_what_cannot_be_measured_is_refused_with_what_to_do(owner_python: Path, tmp_path: Path) -> None:
    for words, message in (
        (("--model", "nosuch"), "no model 'nosuch'"),
        (("--model", str(tmp_path / "none.pt")), "nothing is downloaded"),
        (("--model", "yolov8n.yaml", "--size", "100"), "does not take images of 100 pixels"),
    ):
        refused = bench("--python", str(owner_python), *SMALL, *words)
        assert refused.exit_code == 1, refused.output
        assert message in refused.stderr
        assert "try:" in refused.stderr


def test_wrong_words_are_refused_before_anything_runs(tmp_path: Path) -> None:
    for words, status, message in (
        (("--images", "5"), 2, "--images needs a model"),
        (("--job", "yolo", "--python", "python3"), 2, "--job and --python"),
        (("--stability", "3"), 2, "--stability"),
        (("--picture", str(tmp_path / "none" / "x.svg")), 1, "No such file"),
        (("--log", str(tmp_path)), 2, "is a directory"),
    ):
        refused = bench(*words, *SMALL)
        assert refused.exit_code == status, refused.output
        assert message in refused.stderr


DEVICE = {"kind": "device", "name": "A & B <card>\x1b[31m", "torch": "2.0", "python": "/p"}


def layer(name: str, number: int = 1, **facts: Any) -> dict[str, Any]:
    """Return a measured layer as the script writes it."""
    sizes = {"input": [1, 3, 8, 8], "weight": [4, 3, 3, 3], "stride": [1, 2], "count": 2, "of": 2}
    times = {"forward_ms": 1.0, "backward_ms": 2.0, "total_ms": 3.0, "held_bytes": None, "peak_bytes": None}
    checked = {"errors": [1e-7], "right": True}
    return {"kind": "layer", "layer": number, "algorithm": name, **sizes, **(times | checked), **facts}


def test_a_bar_is_as_long_as_its_share_and_unknown_has_none() -> None:
    assert bar(8.0, 8.0) == "█" * BAR_CELLS
    assert bar(4.0, 8.0) == "█" * (BAR_CELLS // 2)
    assert bar(0.001, 8.0) == "▏", "what took time is never invisible"
    assert [bar(value, 8.0) for value in (None, 0.0, float("nan"))] == ["", "", ""]
    assert bar(1.0, 0.0) == ""


def test_the_picture_draws_every_layer_and_names_what_failed() -> None:
    failed = {"kind": "layer", "layer": 1, "algorithm": "native", "problem": "it hangs"}
    lines = [
        DEVICE,
        layer("planned"),
        {**layer("native"), **failed, "total_ms": None},
        layer("planned", 2, forward_ms=2.0, total_ms=6.0),
        {"kind": "step", "algorithm": "planned", "step_ms": 9.0, "peak_bytes": None},
    ]
    root = ET.fromstring(picture(lines))
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("A & B <card>" in text and "\x1b" not in text for text in texts)
    assert "1x3x8x8 by 4x3x3x3 s1x2, 2 times" in texts
    assert "native: failed" in texts
    assert {"3.00", "6.00", "9.00"} <= set(texts)
    widths = [float(rect.get("width", "0")) for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert pytest.approx(min(width for width in widths if width > 10), abs=0.1) == 520.0 / 3, "a third is forward"


def test_a_terminal_gets_bars_and_a_verdict_in_words() -> None:
    unsteady = {"kind": "stability", "algorithm": "planned", "iterations": 8, "min_ms": 1.0, "median_ms": 2.0}
    unsteady |= {"max_ms": 3.0, "drift": 0.5, "memory_grown_bytes": 1 << 20, "finite": True, "difference": 0.1}
    lines = [DEVICE, layer("planned"), layer("native", problem="out of memory", total_ms=None, right=None)]
    text = report(Pen(), [*lines, {**unsteady, "steady": False}], {}, bars=True)
    assert "█" * BAR_CELLS in text
    assert "1.00 + 2.00 = 3.00" in text
    assert "out of memory" in text
    assert "+50.0%" in text
    assert "UNSTABLE: differ by 1.0e-01" in text
    assert "█" not in report(Pen(), lines, {}, bars=False)


@pytest.mark.slow
def test_an_interpreter_that_is_none_or_has_no_torch_is_reported(tmp_path: Path) -> None:
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
