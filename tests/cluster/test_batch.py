"""The batch script: whatever stands in paths and commands comes to the programs as it was typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cluster.batch import Submission, write_body, write_script

ODD = 'it\'s a $HOME `id` "x" \\ %j;&|*'
COMMAND = ("torchrun", "train.py", "", "--name", ODD, "two\nlines", "$(touch run)", "--lr=1e-3")
PRINT_ARGUMENTS = """#!{python} -S
import json, os, sys
with open(os.environ["WRITTEN_TO"] + ("-node" if "node" in sys.argv else "-leader"), "w") as file:
    json.dump(sys.argv[1:], file)
"""


@pytest.fixture
def asked(tmp_path: Path) -> Submission:
    """A training in a folder with an odd name, and a program that writes down what it is given."""
    folder = tmp_path / ODD
    folder.mkdir()
    program = tmp_path / "a python"
    program.write_text(PRINT_ARGUMENTS.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "srun").write_text('#!/bin/bash\nshift 4\nexec "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    return Submission(
        training="run", nodes=2, spares=0, command=COMMAND, folder=folder, cwd=folder, python=str(program)
    )


def test_commands_and_paths_are_what_was_typed(asked: Submission, tmp_path: Path) -> None:
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "WRITTEN_TO": str(tmp_path / "written")}
    body = write_body(asked).replace("exec ", "wait; exec ")  # the leader of this story ends at once
    done = subprocess.run(["bash", "-c", body], env={**env, "SLURMD_NODENAME": "n 1"}, cwd=tmp_path, check=False)
    assert done.returncode == 0
    node = json.loads((tmp_path / "written-node").read_text())
    assert tuple(node[node.index("--") + 1 :]) == COMMAND
    assert node[node.index("--state-dir") + 1] == f"{asked.folder}/nodes/n 1"
    assert node[node.index("--secret-file") + 1] == f"{asked.folder}/secret"
    assert node[node.index("--leader") + 1] == "n 1:29300"
    leader = json.loads((tmp_path / "written-leader").read_text())
    assert leader[leader.index("--state-dir") + 1] == f"{asked.folder}/leader"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("without", ["no interpreter", "no package"])
def test_a_node_without_the_software_is_named_and_does_not_try_for_ever(
    asked: Submission, tmp_path: Path, without: str
) -> None:
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURMD_NODENAME": "n1"}
    if without == "no interpreter":
        Path(asked.python).unlink()
    else:
        Path(asked.python).write_text(f'#!/bin/bash\nexec {sys.executable} -S -I "$@"\n')
    body = write_body(asked).partition("# The leader")[0] + 'wait "$ROCM_SUPERVISOR_SRUN"'
    done = subprocess.run(
        ["bash", "-c", body], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 78
    assert (
        f"node n1: rocm-supervisor cannot be started there, install it or exclude the node: {asked.python}\n"
        in done.stderr
    )


def test_the_lines_of_sbatch_hold_a_path_with_blanks_and_no_pattern(asked: Submission) -> None:
    lines = write_script(replace(asked, folder=Path('/a b/50%/"c"'), cwd=Path("/plain"))).split("\n")
    assert '#SBATCH --output="/a b/50%%/\\"c\\"/slurm.log"' in lines
    assert "#SBATCH --chdir=/plain" in lines


@pytest.mark.parametrize("wrong", [{"cwd": Path("/a\nb")}, {"options": ("--mem=1G\nrm -rf x",)}])
def test_what_would_be_two_lines_is_refused(asked: Submission, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is one line"):
        write_script(replace(asked, **wrong))  # type: ignore[arg-type]  # a story's changes
