"""The gallery's rows are whole, and what it calls true of a night is counted, not believed."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from gallery_night import Truth, Wound
from gallery_rows import MissingSourceError, Row, Source, load_rows, obtain
from gallery_table import write_table
from run_gallery import run_row

pytestmark = pytest.mark.whole_torch(reason="other people's scripts as they are")

ROWS = load_rows()
PLACES = {"{python}", "{bin}", "{src}", "{checkpoint}", "{number}"}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_says_all_that_is_needed_to_run_it(row: Row) -> None:
    named = set(re.findall(r"\{\w+\}", " ".join(row.command + row.resume)))
    assert named <= PLACES, "a placeholder that nothing fills"
    assert row.source is not None or row.packages, "nobody knows where its script comes from"
    if row.resume:
        assert row.checkpoints, "a resume command resumes from checkpoints that are named"
        assert any(place in " ".join(row.resume) for place in ("{checkpoint}", "{number}")) or row.resume_to
    if row.source is not None:
        assert re.fullmatch(r"[0-9a-f]{40}", row.source.commit), "a branch is not pinned"
        assert row.source.licence


def test_a_source_of_the_callers_own_is_used_as_it_is(tmp_path: Path) -> None:
    source = Source("https://example.org/somebody/scripts", "0" * 40, "MIT", ("train.py",))
    (tmp_path / "somebody" / "scripts").mkdir(parents=True)
    (tmp_path / "somebody" / "scripts" / "train.py").write_text("print('mine')\n")
    folder = obtain(source, tmp_path)
    assert (folder / "train.py").read_text() == "print('mine')\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_a_source_that_cannot_be_cloned_is_named_with_the_reason(tmp_path: Path) -> None:
    source = Source(f"file://{tmp_path}/nobody/nothing", "0" * 40, "MIT", ("train.py",))
    with pytest.raises(MissingSourceError, match=r"nobody/nothing at 0000.*: git fetch"):
        obtain(source, tmp_path / "sources")


@pytest.mark.slow
def test_a_row_that_asks_for_more_gpus_than_there_are_is_not_run(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 1\n")
    python.chmod(0o755)
    night = run_row(ROWS["mingpt-ddp"], argparse.Namespace(python=python))
    assert night.problem == "not run: it asks for GPUs, 2; there are 1"


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    """Two attempts of two ranks: rank 0 made five steps a second apart, then three."""
    first = [f"1 {rank} {100.0 + step}" for step in range(5) for rank in (0, 1)]
    second = [f"2 0 {200.0 + step}" for step in range(3)]
    (tmp_path / "steps").write_text("\n".join(first + second) + "\n")
    return Truth(tmp_path)


def test_steps_are_counted_over_the_attempts_from_where_each_went_on(truth: Truth) -> None:
    assert truth.step(1) == 5
    assert truth.step(1, until=102.5) == 3
    truth.begin(2, 4)
    assert truth.step(2) == 7
    assert truth.step(2, until=200.5) == 5
    assert truth.step(3) is None


def test_a_step_after_an_unknown_beginning_is_unknown(truth: Truth) -> None:
    truth.begin(2, None)
    assert truth.step(2) is None


def test_a_save_belongs_to_the_attempt_that_ran_at_its_time(truth: Truth) -> None:
    launched = [90.0, 190.0]
    assert [truth.attempt_at(at, launched) for at in (80.0, 150.0, 195.0, 300.0)] == [1, 1, 2, 2]
    truth.begin(2, 5)
    assert truth.step(2, 195.0) == 5, "saved before the attempt's first step"


@pytest.mark.parametrize(
    ("reported", "true", "verdict"),
    [(7, 7, "right"), (7, 8, "right"), (7, 9, "wrong"), (None, 7, "unknown"), (7, None, "unchecked"), (0, 40, "wrong")],
)
def test_lost_steps_are_right_within_one_step_or_not_known(
    reported: int | None, true: int | None, verdict: str
) -> None:
    assert Wound("kill", lost_steps=reported, lost_truly=true).lost == verdict


def test_the_table_shows_what_was_not_reported() -> None:
    wound = {"kind": "kill", "reported": "", "found_s": None, "problem": "waited", "resumed_from": None}
    night = {"title": "a | b", "hooked": "output", "false_alarms": [], "problem": ""}
    assert "| a / b | output | 0 | **not told** |" in write_table([{**night, "wounds": [wound], "lost": ["unknown"]}])


LOOP = """
import pathlib, sys, torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    layer(torch.ones(1, 2)).sum().backward()
    if sys.argv[2] == "optimizer":
        optimizer.step()
    else:
        for parameter in layer.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
for kind in ("", "nan", "oom"):
    (pathlib.Path(sys.argv[1]) / kind).touch() if kind else None
    try:
        step()
    except torch.OutOfMemoryError as error:
        print("raised", error)
    print(kind, layer.weight.isnan().any().item())
"""


@pytest.mark.train
@pytest.mark.parametrize("steps", ["optimizer", "backward"])
def test_torch_is_hurt_from_outside_and_its_steps_are_counted(tmp_path: Path, current_python: Path, steps: str) -> None:
    """Both injections, in a script that knows nothing of them and runs under no daemon."""
    program, injections = tmp_path / "program.py", tmp_path / "injections"
    program.write_text(LOOP)
    injections.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent / "injections"),
        "GALLERY_INJECTIONS": str(injections),
        "GALLERY_STEPS": steps,
    }
    output = _output([str(current_python), str(program), str(injections), steps], env)
    assert [line.split()[-1] for line in output if not line.startswith("raised")] == ["False", "True", "True"]
    assert any(line.startswith("raised CUDA out of memory") for line in output)
    assert len((injections / "steps").read_text().splitlines()) == 2, "the step that ran out of memory was not made"


def _output(command: list[str], env: dict[str, str]) -> list[str]:
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=600).stdout.splitlines()
