"""The memory of a training is known before it is started, from its own command, of which nothing stays."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs"))

from amdgpu_tree import AmdgpuTree, Card

from supervisor.cli.estimate import Asked, _list_doubts, as_json, find_conv2d, parse_bytes, report_lines
from supervisor.cli.main import cli
from supervisor.cli.table import Pen
from supervisor.core.memory.estimate import estimate as estimate_memory
from supervisor.core.memory.points import Point

pytestmark = pytest.mark.whole_torch(reason="memory")

LINEAR = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

kept = open("log.txt", "w")
network = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024))
optimizer = torch.optim.AdamW(network.parameters())
rows = TensorDataset(torch.randn(4096, 1024))
for epoch in range(2):
    for (batch,) in DataLoader(rows, batch_size=512):
        loss = network(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.save(network.state_dict(), "last.pt")
"""
WEIGHTS = (1024 * 4096 + 4096 + 4096 * 1024 + 1024) * 4
EACH = (1024 + 4096 + 4096 + 1024) * 4
"""What autograd keeps of a sample, at least: the input, both inner results, and the output."""
NO_LOADER = """
import torch
weight = torch.nn.Parameter(torch.zeros(1024, 256))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(9):
    weight.square().sum().backward()
    optimizer.step()
"""


BY_VALUES = """
import torch
from torch.utils.data import DataLoader, TensorDataset

network = torch.nn.Linear(32768, 8)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for (batch,) in DataLoader(TensorDataset(torch.randn(64, 32768)), batch_size=8):
    chosen = batch[network(batch).sum(1) > -1e9]
    assert len(chosen) == len(batch), "values were not computed"
    network(chosen).square().mean().backward()
    optimizer.step()
"""
TINY = LINEAR.replace("randn(4096", "randn(60").replace("1024", "4").replace("4096", "8").replace("=512", "=5")
"""Its tensors at 2 and at 4 samples fill no more than the smallest blocks."""
LENGTHS = """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Lines(IterableDataset):
    def __iter__(self):
        for number in range(1, 10_000):
            yield torch.randn(1 if number % 8 else 512, 64)

def pad(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)

network = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
for batch in DataLoader(Lines(), batch_size=7, collate_fn=pad):
    network(batch).square().mean().backward()
    optimizer.step()
"""
"""One line in eight is long: of the first two batches of 2 none has one, of those of 4 and of 7 the second has."""
GOOD = Card(gfx_target_version=90006)


def configure(folder: Path, python: Path | str, script: str) -> Path:
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text(script)
    config = folder / "config.toml"
    config.write_text(
        f"[supervisor]\nstate_dir = '{folder / 'state'}'\n"
        f"[jobs.net]\ncwd = '{work}'\ncommand = ['{python}', 'train.py']\n"
    )
    return config


def estimate(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--config", str(config), "estimate", *words])


@pytest.mark.train
def test_a_net_whose_small_micro_batches_take_the_same_is_probed_at_the_one_in_question(
    current_python: Path, tmp_path: Path
) -> None:
    config = configure(tmp_path, current_python, TINY)
    result = estimate(config, "net", "--json", "--without-gpu", "--batch", "6")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [probed["micro_batch"] for probed in found["points"]] == [2, 4, 6]
    assert found["micro_batch"] == 6
    refused = estimate(config, "net", "--without-gpu", "--batch", "99")
    assert "99 samples could not be probed" in refused.output, "there are 60 rows"


@pytest.mark.train
def test_batches_that_differ_in_shape_and_have_no_length_are_probed_at_the_micro_batch_in_question(
    current_python: Path, tmp_path: Path
) -> None:
    result = estimate(configure(tmp_path, current_python, LENGTHS), "net", "--json", "--without-gpu")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    peaks = {probed["micro_batch"]: probed["bytes"] for probed in found["points"]}
    assert list(peaks) == [2, 4, 7]
    assert 1.5 < peaks[7] / peaks[4] < 2, "seven lines as long as the longest"
    assert any("the batches differ in shape" in note for note in found["notes"])


@pytest.mark.train
def test_a_job_is_estimated_from_two_micro_batches_and_none_of_its_files_is_touched(
    current_python: Path, tmp_path: Path
) -> None:
    config = configure(tmp_path, current_python, LINEAR)
    log = tmp_path / "work" / "log.txt"
    log.write_text("of the last night")
    result = estimate(config, "net", "--json", "--without-gpu", "--card", "2GiB")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert log.read_text() == "of the last night"
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["log.txt", "train.py"]
    assert found["micro_batch"] == 512, "as the script has it"
    assert [probed["micro_batch"] for probed in found["points"]] == [2, 4]
    parts = found["parts"]
    assert (parts["weights"], parts["gradients"]) == (WEIGHTS, WEIGHTS)
    assert parts["optimizer"] == 2 * WEIGHTS
    assert found["limited_by"] == "the optimizer's update", "its temporary tensors outweigh 512 rows"
    assert 5 * WEIGHTS <= found["bytes"] - parts["other"] - parts["slack"] < 5.2 * WEIGHTS
    assert found["low"] < found["bytes"] < found["high"]
    assert found["fits"] is True
    room = 2 * (1 << 30) - parts["other"] - 4 * WEIGHTS
    assert 0.6 * room / EACH < found["largest_micro_batch"] < room / EACH
    assert found["largest_micro_batch_ran"] is False


@pytest.mark.train
def test_a_script_without_a_loader_is_measured_as_it_is_and_says_what_is_not_known(
    current_python: Path, tmp_path: Path
) -> None:
    config = configure(tmp_path, current_python, NO_LOADER)
    result = estimate(config, "net", "--without-gpu", "--card", "1GiB")
    assert result.exit_code == 0, result.output
    assert "the script draws from no DataLoader" in result.stdout
    assert "net: fits" in result.stdout
    assert "at most micro-batch" not in result.stdout


@pytest.mark.train
def test_a_script_that_chooses_by_values_is_computed_and_its_estimate_says_so(
    current_python: Path, tmp_path: Path
) -> None:
    result = estimate(configure(tmp_path, current_python, BY_VALUES), "net", "--json", "--without-gpu")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [probed["micro_batch"] for probed in found["points"]] == [2, 4]
    assert [note for note in found["notes"] if "the steps were computed" in note] == found["notes"]


@pytest.mark.slow
def test_a_command_that_trains_nothing_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    config = configure(tmp_path, "/bin/sh", "echo no such data set; exit 3")
    result = estimate(config, "net")
    assert result.exit_code == 1
    assert "ended before its second step (status 3)" in result.stderr
    assert "| no such data set" in result.stderr


@pytest.mark.slow
def test_wrong_words_are_refused_before_anything_runs(tmp_path: Path) -> None:
    config = configure(tmp_path, "/bin/sh", "touch ran")
    for words, message in (
        (("other",), "no job 'other'"),
        (("net", "--card", "much"), "--card 'much' is not a size"),
        (("net", "--batch", "0"), "--batch"),
    ):
        result = estimate(config, *words)
        assert result.exit_code in {1, 2}, result.output
        assert message in result.stderr
    assert not (tmp_path / "work" / "ran").exists()


def test_a_largest_micro_batch_that_was_not_run_is_named_as_reckoned() -> None:
    """Reckoned from three probes it ran out of memory in 3 of 12 networks; run by itself in 0 of 36 choices."""
    points = [
        Point(
            device="cuda",
            batch=batch,
            configured=4,
            weights_bytes=10_000_000,
            gradient_bytes=10_000_000,
            optimizer_bytes=20_000_000,
            graph_bytes=40_000_000 + batch * 10_000_000,
            update_bytes=60_000_000,
            reserved_bytes=None,
            other_bytes=0,
            card_bytes=None,
        )
        for batch in (4, 32)
    ]
    found = estimate_memory(points, 4, 1 << 30)
    heads = [report_lines("net", found, points, [], Pen(), ran=ran)[0] for ran in (True, False)]
    most = f"at most micro-batch {found.largest_micro_batch}"
    assert f"{most};" in heads[0]
    assert f"{most}, reckoned and not run;" in heads[1]
    unknown = replace(found, largest_micro_batch=None)
    assert as_json("net", unknown, points, [], ran=False)["largest_micro_batch_ran"] is None
    assert as_json("net", found, points, [], ran=True)["largest_micro_batch_ran"] is True


def test_what_a_count_without_a_gpu_does_not_show_is_noted() -> None:
    point = Point(
        device="cpu", batch=4, configured=4, weights_bytes=1, gradient_bytes=1, optimizer_bytes=2, graph_bytes=5,
        update_bytes=6, reserved_bytes=None, other_bytes=None, card_bytes=None, ranks=2, compiled=True,
    )  # fmt: skip
    asked = Asked(batch=None, precision=None, checkpointing=None, without_gpu=True, card_bytes=None, quick=False)
    assert _list_doubts([point], asked, follows=True) == [
        "of 2 ranks this is what the first takes: each takes about as much of its own GPU",
        "torch.compile: without a GPU tensors were counted as if nothing were compiled",
    ]


def test_sizes_are_read_with_their_units() -> None:
    assert parse_bytes("16GiB") == parse_bytes("16") == 16 << 30
    assert parse_bytes("24 GB") == 24 * 10**9
    assert parse_bytes("1.5GiB") == 3 << 29


def test_what_is_probed_of_conv2d_is_what_runs(tmp_path: Path) -> None:
    """MIOpen fails on gfx1010, so a job is patched there from the first attempt on, elsewhere once it failed."""
    poor, good = (AmdgpuTree.build(tmp_path / name, card).sys_root for name, card in (("poor", Card()), ("good", GOOD)))
    job = tmp_path / "job"
    assert (find_conv2d(job, poor), find_conv2d(job, good), find_conv2d(job, tmp_path)) == ("planned", "off", "off")
    for attempt, ran in (("9", "off"), ("10", "planned")):
        (job / attempt).mkdir(parents=True)
        (job / attempt / "launch.json").write_text(json.dumps({"env": {"ROCM_SUPERVISOR_CONV2D": ran}}))
    assert find_conv2d(job, good) == "planned"
    (job / "10" / "launch.json").write_text("no JSON")
    assert find_conv2d(job, good) == "off"
