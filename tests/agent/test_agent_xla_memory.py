"""JAX's share of a GPU is named as a setting that can be raised, raised where that is wanted, and the owner's stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agent_by_hand import Attempt
from test_agent_remedies import applied, write

JAX = """
def jit(function): return function
pmap = jit
def default_backend(): return {backend!r}
"""
OPTAX = "class GradientTransformation: pass\n"
TRAINS = """
import os, jax, optax
from rocm_agent import optax_hook
for _ in range(2):
    optax_hook._count_step(jax)
print(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION"), os.environ.get("XLA_CLIENT_MEM_FRACTION"))
"""


def run(attempt: Attempt, folder: Path, backend: str = "gpu", **environment: str) -> str:
    """Run a training that imports a JAX which only says what it computes on."""
    (folder / "jax.py").write_text(JAX.format(backend=backend))
    (folder / "optax.py").write_text(OPTAX)
    attempt.make_recorder()
    finished = attempt.run([sys.executable, "-c", TRAINS], PYTHONPATH=str(folder), **environment)
    assert finished.code == 0, finished.output
    assert attempt.failures() == []
    return finished.output.strip()


def settings_named(attempt: Attempt) -> list[str]:
    return [report["setting"] for report in attempt.list_reports("setting_asked")]


def test_on_a_gpu_the_share_is_named_once_and_nothing_is_changed(attempt: Attempt, tmp_path: Path) -> None:
    assert run(attempt, tmp_path) == "None None"
    assert settings_named(attempt) == ["xla_memory"]


@pytest.mark.parametrize(
    ("backend", "environment"),
    [
        ("cpu", {}),
        ("gpu", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
        ("rocm", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".97"}),
    ],
)
def test_it_is_not_named_where_it_changes_nothing(
    attempt: Attempt, tmp_path: Path, backend: str, environment: dict[str, str]
) -> None:
    run(attempt, tmp_path, backend, **environment)
    assert settings_named(attempt) == []


@pytest.mark.parametrize(
    ("environment", "variables", "report"),
    [
        ({}, "0.95 None", "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95 (0.75 before)"),
        ({"XLA_CLIENT_MEM_FRACTION": "0.5"}, "None 0.95", "XLA_CLIENT_MEM_FRACTION=0.95 (0.5 before)"),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".98"}, ".98 None", None),
    ],
)
def test_it_is_raised_where_that_is_wanted_and_never_lowered(
    attempt: Attempt, tmp_path: Path, environment: dict[str, str], variables: str, report: str | None
) -> None:
    write(attempt, xla_memory=(0.95, "xla_memory"))
    assert run(attempt, tmp_path, **environment) == variables
    assert applied(attempt).get("xla_memory") == report
