"""What a training on several nodes is begun in and cannot work with: an error that names the node."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_by_hand import until
from leader_by_hand import begin_leader
from test_cluster_leave import ByHand
from test_cluster_node import CLOCK

from supervisor.cluster.leader import CLOCK_WARN_S, Leader
from supervisor.cluster.secret import make_secret


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[tuple[Leader, tuple[str, int]]]:
    listening = socket.create_server(("127.0.0.1", 0))
    leader = begin_leader(tmp_path, listening, CLOCK)
    thread = threading.Thread(target=leader.run, daemon=True)
    thread.start()
    yield leader, listening.getsockname()
    leader.ask_to_stop("the story is over")
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(("ahead_s", "is_named"), [(3600.0, True), (-3600.0, True), (CLOCK_WARN_S / 2, False)])
def test_a_node_whose_clock_is_an_hour_from_the_leaders_is_named_and_trains_all_the_same(
    begun: tuple[Leader, tuple[str, int]], caplog: pytest.LogCaptureFixture, ahead_s: float, is_named: bool
) -> None:
    caplog.set_level(logging.WARNING)
    leader, address = begun
    node = ByHand(address, "n7", unix_s=CLOCK.now().unix_s + ahead_s)
    until(lambda: "n7" in leader._nodes, "the node to join")
    named = [vars(record)["fields"] for record in caplog.records if record.message == "leader.clock_differs"]
    assert [facts["node"] for facts in named] == (["n7"] if is_named else [])
    assert all(abs(facts["ahead_s"] - ahead_s) < 30.0 for facts in named)
    node.link.close()


def refusal_of_leader(tmp_path: Path, *options: str, **environment: str) -> str:
    """Start a leader that cannot begin; return what it says."""
    secret = tmp_path / "secret"
    make_secret(secret)
    command = [sys.executable, "-m", "supervisor.daemon.main", "--role=leader", "--training=run", "--node=n7"]
    command += ["--secret-file", str(secret), "--state-dir", str(tmp_path / "state"), *options]
    ran = subprocess.run(
        command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=120, check=False
    )
    assert ran.returncode in (69, 78)
    return ran.stderr


@pytest.mark.slow
def test_an_allocation_that_is_smaller_than_asked_is_named_with_its_nodes(tmp_path: Path) -> None:
    given = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[7-8]"}
    printed = refusal_of_leader(tmp_path, "--engine=slurm", "--nodes=4", **given)
    text = "(leader n7): the allocation 4711 has 2 nodes (n[7-8]), 4 are needed: submit it with --nodes=4 or more"
    assert text in printed


@pytest.mark.slow
def test_a_foreign_program_on_the_leaders_port_is_named_with_the_node(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        address = f"127.0.0.1:{foreign.getsockname()[1]}"
        printed = refusal_of_leader(tmp_path, "--nodes=2", "--listen", address)
    text = f"(leader n7): --listen {address}: Address already in use; another program has it: give another port"
    assert text in printed


@pytest.mark.slow
@pytest.mark.parametrize(("limit_s", "why"), [(0.0, "none came"), (1.0, "leader {}: Connection refused")])
def test_a_daemon_to_which_no_leader_comes_ends_with_a_status_and_a_reason(
    tmp_path: Path, limit_s: float, why: str
) -> None:
    """Also before it takes signals: one ended it without status and reason."""
    make_secret(tmp_path / "secret")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    options = ["--role=node", "--training=run", "--node=n7", "--secret-file", str(tmp_path / "secret")]
    options += ["--state-dir", str(tmp_path / "state"), "--leader", address, "--host=127.0.0.1", "--", "true"]
    code = f"import sys; from supervisor.cluster import node; node.ALONE_LIMIT_S = {limit_s}\n"
    code += "from supervisor.daemon.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *options]
    ran = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert ran.returncode == 69
    printed = ran.stderr.splitlines()[-1]
    text = rf"\(node n7\): no leader for \d s, and no rank runs here: {why.format(address)}"
    assert re.fullmatch(f"rocm-supervisord {text}", printed)
