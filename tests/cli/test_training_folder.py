"""`supervisorctl training` about a folder that is not there, hangs, or was left by a leader that is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.hanging_fs import hanging

pytestmark = pytest.mark.slow


def training(*words: str) -> tuple[int, str]:
    """Run a command; return its status and all that it prints."""
    command = [sys.executable, "-m", "supervisor.cli", "training", *words]
    ran = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def leave_state(folder: Path, at_unix_s: float) -> None:
    """Write what a leader that is gone has left."""
    (folder / "leader").mkdir()
    state = {"epoch": "run.0.3", "stage": "running", "steps": 40, "incidents": 2, "host": "n7", "at_unix_s": at_unix_s}
    (folder / "leader" / "state.json").write_text(json.dumps(state))


def test_a_state_that_is_not_written_any_more_is_no_state_of_the_training(tmp_path: Path) -> None:
    leave_state(tmp_path, 1_700_000_000.0)
    status, text = training("status", str(tmp_path))
    assert status == 0
    assert "by the leader on n7: it has ended, or this folder hangs there" in text
    status, text = training("status", str(tmp_path), "--json")
    assert json.loads(text)["training"]["written_s_ago"] > 0


def test_a_folder_of_another_machine_is_none_here(tmp_path: Path) -> None:
    status, text = training("status", str(tmp_path / "elsewhere"))
    assert status != 0
    assert "is not a folder on this machine" in text
    assert "on a machine that shares it with the leader" in text


def test_a_node_that_is_proven_to_be_at_fault_is_shown_as_one_to_be_drained(tmp_path: Path) -> None:
    leave_state(tmp_path, 1_700_000_000.0)
    path = tmp_path / "leader" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "excluded": ["n1", "n2"]}))
    proven = {"proof": "physical", "reason": "n1 reported gpu_lost", "ranks": [3], "nodes": ["n1"]}
    doubted = {**proven, "proof": "stack_minority", "nodes": ["n2"]}
    incidents = [
        {"id": "run.0.2", "excluded": ["n1"], "culprit": proven},
        {"id": "run.0.3", "excluded": ["n2"], "culprit": doubted},
    ]
    lines = [json.dumps(incident) for incident in incidents]
    (tmp_path / "leader" / "incidents.jsonl").write_text("\n".join(lines))
    order = "scontrol update NodeName=n1 State=DRAIN 'Reason=rocm-supervisor run.0.2: n1 reported gpu_lost'"
    for words in (["status"], ["show", "run.0.2"]):
        _, text = training(*words, str(tmp_path))
        assert f"ask the administrator to drain: {order}\n" in text
        assert "NodeName=n2" not in text, "statistics alone are no reason to take a node from others"


def test_what_rules_have_warned_of_on_a_node_stands_once_among_the_incidents_with_its_name(tmp_path: Path) -> None:
    leave_state(tmp_path, 1_700_000_000.0)
    incident = {"id": "run.0.1", "kind": "stall", "reason": "no step", "at_unix_s": 1_700_000_500.0}
    (tmp_path / "leader" / "incidents.jsonl").write_text(json.dumps(incident))
    warning = {"id": "n1 daemon 1", "node": "n1", "epoch": "run.0.1", "rule": "storage_wait", "text": "process 7 waits"}
    lines = [{**warning, "at_unix_s": 1_700_000_100.0}, {**warning, "at_unix_s": 1_700_000_101.0}]
    (tmp_path / "leader" / "warnings.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"torn')
    status, text = training("history", str(tmp_path))
    assert status == 0
    first, second = text.splitlines()[1:]
    assert "2023-11-14 22:15:00" in first
    assert "n1: process 7 waits" in first
    assert "no step" in second
    _, text = training("history", str(tmp_path), "--json")
    assert json.loads(text)["warnings"] == lines[:1], "an id is one warning, however often it was written"


@pytest.mark.mounts
def test_a_folder_that_hangs_holds_no_command(tmp_path: Path) -> None:
    with hanging(tmp_path / "far", tmp_path / "behind") as far:
        leave_state(tmp_path / "behind", 1_700_000_000.0)
        far.hang(beyond_sigkill=True)
        for words in (["status"], ["stop"]):
            status, text = training(*words, str(far.at))
            assert status != 0
            assert f"{far.at}: does not answer within" in text
