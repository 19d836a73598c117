"""A pasted log is explained: what happened, to which card, what cures it; and what is well is not called a fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.app import App
from supervisor.cli.explain.pasted_input import LONGEST_BYTES
from supervisor.cli.main import cli

HANG = """\
[ 8124.117220] usb 1-2: new high-speed USB device number 7
[ 8125.934501] amdgpu 0000:0a:00.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=4242, emitted seq=4244
[ 8125.934799] amdgpu 0000:0a:00.0: amdgpu: Process information: process python pid 5150 thread python pid 5150
[ 8125.935100] amdgpu 0000:0a:00.0: amdgpu: GPU reset begin!
"""
BAR = "        1/2         0G    {box}      0.345    0.04311         14         64: 17% ━━────────── 1/6 2.1it/s 0.1s"
TRAINING = (
    f"\r\x1b[K{BAR.format(box=0.066)}\r\x1b[K{BAR.format(box='nan')}\n"
    "Traceback (most recent call last):\n"
    "    raise RuntimeError('CUDA out of memory')\n"
    "torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB. GPU 0 has\n"
)
HEALTHY = ["", "all is well\n", "[    1.0] amdgpu 0000:0a:00.0: amdgpu: RAS: optional\n", "\x00\xff" * 99]


def explain(text: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *words], obj=App(), input=text)


def findings(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in explain(text, "--json").stdout.splitlines()]


def test_a_hang_is_one_finding_with_its_gpu_its_process_and_its_cure() -> None:
    (found,) = findings(HANG)
    assert {"line", "kind", "class", "severity", "device", "remedy", "source"} <= found.keys()
    assert (found["line"], found["kind"], found["severity"]) == (2, "kernel", "fatal")
    assert (found["device"], found["pid"], found["process"]) == ("0000:0a:00.0", 5150, "python")
    assert found["class"] in ("gpu_hang", "gpu_reset")
    assert found["remedy"]
    assert "amdgpu" in found["source"]


def test_a_training_s_output_is_explained_frame_by_frame() -> None:
    nan, memory = findings(TRAINING)
    assert (nan["line"], nan["class"], nan["kind"]) == (1, "nan", "training")
    assert (memory["line"], memory["class"], memory["lines"]) == (4, "oom_gpu", 1)


def test_people_read_what_it_says_and_what_cures_it(tmp_path: Path) -> None:
    saved = tmp_path / "train.log"
    saved.write_text(TRAINING)
    shown = explain("", str(saved)).stdout
    assert "line 4: oom_gpu (fatal)" in shown
    assert "hint  reduce the batch" in shown


@pytest.mark.parametrize("text", HEALTHY)
def test_what_is_well_is_no_finding(text: str) -> None:
    assert findings(text) == []
    assert explain(text).stdout == "no known fault found\n"


def test_a_hostile_log_cannot_speak_to_the_terminal() -> None:
    evil = "torch.cuda.OutOfMemoryError: HIP out of memory \x1b]0;evil\x07 \x9b31m\u202e\n"
    shown = explain(evil).stdout
    assert not set("\x1b\x07\x9b\u202e") & set(shown)


def test_a_file_that_is_not_there_or_endless_ends_with_what_to_do(tmp_path: Path) -> None:
    missing = explain("", str(tmp_path / "none.log"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (1, True)
    endless = explain("", "/dev/zero")
    assert (endless.exit_code, f"tail -c {LONGEST_BYTES}" in endless.stderr) == (1, True)


def test_every_labelled_training_excerpt_is_its_class_and_no_other(corpus: Path) -> None:
    ours = {"oom": {"oom_host", "oom_gpu"}, "dataloader": {"data_loader"}, "nan": {"nan"}}
    right, reported = 0, 0
    for line in (corpus / "training/excerpts.jsonl").read_text().splitlines():
        excerpt = json.loads(line)
        if excerpt["id"] in ("torchrun-failed", "pt-dl-kill"):
            continue  # statuses of ranks, and a reset connection: nothing in their words says why
        found = {finding["class"] for finding in findings(excerpt["text"] + "\n")}
        wanted = ours.get(excerpt["error_class"], set())
        right += bool(found & wanted) if wanted else not found
        reported += 1
    assert reported > 200
    assert right == reported
