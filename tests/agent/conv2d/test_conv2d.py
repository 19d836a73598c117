"""Every check of checks_*.py, run by the interpreter of each training environment and reported one by one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENVIRONMENTS, interpreter

HERE = Path(__file__).resolve().parent
AGENT = HERE.parents[2] / "supervisor" / "agent" / "path"
FILES = sorted(HERE.glob("checks_*.py"))
LIMIT_S = 1200.0
"""For a process that hangs: beside other work on two cores the checks take several minutes."""

pytestmark = [
    pytest.mark.train,
    pytest.mark.fills,
    pytest.mark.whole_torch(reason="compiles, and convolves what has no data"),
]


@pytest.fixture(
    name="train_python",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"conv2d {name}")) for name in sorted(ENVIRONMENTS)],
)
def interpreter_of_a_group(request: pytest.FixtureRequest) -> Path:
    """The interpreter of each training environment; one process keeps the reports of all checks in it."""
    return interpreter(str(request.param))


def _checks() -> list[str]:
    return [
        node.name
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


_reports: dict[Path, dict[str, dict[str, Any]]] = {}


def _report(python: Path, scratch: Path) -> dict[str, dict[str, Any]]:
    """Run all checks in one process of `python`, once a session, and return their results by name."""
    if python not in _reports:
        inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(AGENT), *inherited]),
            "YOLO_CONFIG_DIR": str(scratch),
            "YOLO_OFFLINE": "true",
            "ROCM_SUPERVISOR_CONV2D_FOLDER": "off",
        }
        argv = [str(python), str(HERE / "checking.py"), *map(str, FILES)]
        out, errors = scratch / "checks.jsonl", scratch / "errors.txt"
        with out.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(argv, env=env, cwd=scratch, stdout=stdout, stderr=stderr)
            try:
                ended = f"status {process.wait(LIMIT_S)}"
            except subprocess.TimeoutExpired:
                process.kill()
                ended = f"status {process.wait()}, killed after {LIMIT_S:.0f} s"
        lines = [json.loads(line) for line in out.read_text().splitlines() if line.startswith('{"check"')]
        _reports[python] = {line["check"]: line for line in lines}
        _reports[python]["the process"] = {"outcome": ended, "detail": errors.read_text(errors="replace")[-4000:]}
    return _reports[python]


@pytest.mark.parametrize("check", _checks())
def test_conv2d(check: str, train_python: Path, tmp_path: Path) -> None:
    """The check holds in this environment; its own name says what it is about."""
    report = _report(train_python, tmp_path)
    result = report.get(check)
    if result is None:
        process = report["the process"]
        pytest.fail(f"no result; the process ended with {process['outcome']}\n{process['detail']}")
    if result["outcome"] == "skipped":
        pytest.skip(result["detail"])
    assert result["outcome"] == "passed", result["detail"]


def test_every_check_has_a_name_of_its_own() -> None:
    names = _checks()
    assert len(names) == len(set(names)) > 0
