"""A module of this installation runs as a program, in an environment and from a directory that Python does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.shipped import module_command

ROOT = Path(__file__).parents[2]
ISOLATED = f"""
import subprocess, sys

sys.path.insert(0, {str(ROOT)!r})
from supervisor.shipped import module_command
sys.exit(subprocess.run([*module_command(sys.argv[1]), *sys.argv[2:]]).returncode)
"""


def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, input=text, capture_output=True, text=True, check=False, cwd="/")


def test_in_an_environment_it_is_python_m() -> None:
    assert module_command("supervisor.cli") == (sys.executable, "-m", "supervisor.cli")


@pytest.mark.slow
def test_the_children_of_a_program_without_an_environment_find_the_code_and_their_arguments() -> None:
    isolated = (sys.executable, "-I", "-S", "-c", ISOLATED)
    assert run(sys.executable, "-I", "-S", "-m", "supervisor.shipped").returncode == 1, "python -m does not find it"
    assert run(*isolated, "supervisor.shipped").returncode == 0
    assert run(*isolated, "json.tool", "--compact", text="[1, 2]").stdout == "[1,2]\n"
