"""A training on several nodes, with real daemons and processes on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_by_hand import Cluster, gone, until
from generations_by_hand import damage, write_generation, write_shard

from supervisor import __version__
from supervisor.cluster.connection import Connection
from supervisor.cluster.leader import UNPROVEN_MAX
from supervisor.cluster.secret import read_secret
from supervisor.cluster.slurm import read_allocation
from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.link import NONCE_BYTES, PROTOCOL, SECRET_BYTES_LEAST, Greeting, Role, encode_greeting
from supervisor.daemon.roles.program import read_address, settings_of_node
from tests.alerts.receiver_by_hand import receiver, status


@pytest.fixture
def cluster(tmp_path: Path, code_copies: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, 2, code_copies=code_copies) as made:
        yield made


def test_a_rank_that_is_killed_ends_all_ranks_with_one_incident_and_all_begin_again(cluster: Cluster) -> None:
    cluster.start()
    before = cluster.await_epoch(1)
    assert cluster.resumed_from() == {""}, "nothing was saved"
    saved = [write_generation(cluster.folder / "all" / "run", step, "0.1", 4) for step in (10, 20, 30)]
    damage(saved[2], 3)
    os.kill(before[3], signal.SIGKILL)
    after = cluster.await_epoch(2)
    assert cluster.resumed_from() == {str(saved[1])}, "the newest of which every rank's shard is proven"
    assert all(gone(pid) for pid in before.values())
    assert not any(gone(pid) for pid in after.values())
    until(lambda: len(cluster.incidents()) == 2, "the incident is closed")
    opened, closed = cluster.incidents()
    assert (opened["closed"], closed["closed"], opened["id"]) == (False, True, closed["id"])
    assert closed["culprit"] == {
        "proof": "physical",
        "reason": "rank 3 (n1) ended first: killed by SIGKILL",
        "ranks": [3],
        "nodes": ["n1"],
    }
    evidence = cluster.folder / "n0" / "jobs" / "run" / "1" / "evidence" / str(closed["id"])
    processes = (evidence / "processes.txt").read_text()
    # Nothing is asked of its launcher: a process to which SIGSTOP was sent is listed as R until it is scheduled.
    shown_pids = {int(line.split()[0]) for line in processes.splitlines() if " child of " in line}
    assert shown_pids >= {before[0], before[1]}, "the surviving node's evidence was taken while its ranks were alive"
    folder = str(cluster.folder)
    shown = supervisorctl("training", "status", folder)
    assert "running, launch run.0.2, 1 incidents" in shown
    assert "resumed from: step-000000000020" in shown
    assert "killed by SIGKILL" in supervisorctl("training", "history", folder)
    assert "same_nodes" in supervisorctl("training", "show", "run.0.1", folder)
    (cluster.folder / "finish").touch()
    assert cluster.leader is not None
    assert cluster.leader.wait(120) == 0
    for daemon in cluster.daemons.values():
        assert daemon.wait(120) == 0
    copied = sqlite3.connect(cluster.folder / "n0" / "supervisor.db")
    assert copied.execute("SELECT count(*) FROM attempts").fetchone() == (2,), "from the node's own disk"
    assert not saved[1].exists(), "another training of this name must not go on from one that has finished"


def test_all_ranks_resume_from_what_the_program_saved_since_the_training_began(cluster: Cluster) -> None:
    cluster.settings = cluster.folder / "settings.toml"
    own = cluster.folder / "own-checkpoints"
    cluster.settings.write_text(f'[jobs.run]\ncommand = ["true"]\n[jobs.run.checkpoints]\npaths = ["{own}/at-*/"]\n')
    for name in ("at-10", "at-20", "at-30"):
        (own / name).mkdir(parents=True)
        write_shard(own / name / "model.pt", {"step": 10})
    os.utime(own / "at-10" / "model.pt", (1e9, 1e9))
    cluster.start()
    before = cluster.await_epoch(1)
    assert cluster.resumed_from() == {""}, "another training's"
    for name in ("at-20", "at-30"):
        write_shard(own / name / "model.pt", {"step": 20})
    (own / "at-30" / "model.pt").write_bytes((own / "at-30" / "model.pt").read_bytes()[:-30])
    os.kill(before[1], signal.SIGKILL)
    cluster.await_epoch(2)
    assert cluster.resumed_from() == {str(own / "at-20")}, "the newest that is whole"


def test_a_program_that_finds_its_own_file_goes_on_by_its_resume_command(cluster: Cluster) -> None:
    """As on a single machine: its format cannot be verified, and the command takes no file."""
    cluster.settings, own = cluster.folder / "settings.toml", cluster.folder / "model.own"
    cluster.settings.write_text(
        f'[jobs.run]\ncommand = ["true"]\n[jobs.run.checkpoints]\npaths = ["{cluster.folder}/*.own"]\n'
        f"[jobs.run.resume]\ncommand = {json.dumps([*cluster.command, '--resume'])}\n"
    )
    cluster.start()
    before = cluster.await_epoch(1)
    own.write_text("a format that only this program reads")
    os.kill(before[1], signal.SIGKILL)
    after = cluster.await_epoch(2)
    words = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        for pid in (*before.values(), *after.values())
        if not gone(pid)
    }
    assert len(words) == 4
    assert all(b"--resume" in found for found in words.values()), words
    assert cluster.resumed_from() == {""}


def test_a_node_daemon_that_is_killed_takes_its_ranks_along_and_is_one_incident(cluster: Cluster) -> None:
    cluster.start()
    before = cluster.await_epoch(1)
    cluster.kill_daemon("n1")
    until(lambda: gone(before[2]) and gone(before[3]), "the end of the ranks of the killed daemon")
    cluster.start_node("n1")
    cluster.await_epoch(2)
    assert all(gone(pid) for pid in before.values())
    assert {incident["id"] for incident in cluster.incidents()} == {"run.0.1"}


def test_a_leader_that_is_killed_and_started_again_finds_the_training_running(cluster: Cluster) -> None:
    """Its ranks report no steps, so that the lease must outlast the leader's start."""
    cluster.start("--lease-s", "60")
    before = cluster.await_epoch(1)
    assert cluster.leader is not None
    cluster.leader.kill()
    cluster.leader.wait(60)
    cluster.start_leader("--lease-s", "60")
    until(lambda: cluster.state()["stage"] == "running" and not cluster.state()["missing"], "the leader is back")
    assert not any(gone(pid) for pid in before.values())
    os.kill(before[0], signal.SIGKILL)
    cluster.await_epoch(2)
    until(lambda: [incident["closed"] for incident in cluster.incidents()] == [False, True], "the incident's record")


def test_without_a_leader_the_ranks_end_by_the_lease(cluster: Cluster) -> None:
    """They make no steps that this daemon can see, so that the lease alone decides."""
    cluster.start("--lease-s", "2")
    before = cluster.await_epoch(1)
    assert cluster.leader is not None
    cluster.leader.kill()
    cluster.leader.wait(60)
    until(lambda: all(gone(pid) for pid in before.values()), "the end of all ranks")
    until(lambda: "no leader for" in (cluster.folder / "n0.log").read_text(), "the line of the log")


def test_the_user_stops_the_training_from_elsewhere(cluster: Cluster) -> None:
    cluster.start()
    before = cluster.await_epoch(1)
    (cluster.folder / "leader" / "stop").touch()
    assert cluster.leader is not None
    assert cluster.leader.wait(120) == 0
    until(lambda: all(gone(pid) for pid in before.values()), "the end of all ranks")
    assert cluster.incidents() == []


def test_strangers_at_the_port_neither_join_nor_disturb(cluster: Cluster) -> None:
    cluster.start_leader()
    until(lambda: _answers(cluster.port), "the leader listens")
    log = cluster.folder / "boss.log"
    held = []
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"\x00\x00\x00\x10half"):
        held.append(socket.create_connection(("127.0.0.1", cluster.port)))
        held[-1].sendall(text)
    until(lambda: "another program has the port" in log.read_text(), "the strangers' refusal")
    held += [socket.create_connection(("127.0.0.1", cluster.port)) for _ in range(UNPROVEN_MAX)]
    until(lambda: "closing the oldest" in log.read_text(), "the flood's refusal")
    impostor = cluster.folder / "other-secret"
    impostor.write_text("x" * SECRET_BYTES_LEAST)
    impostor.chmod(0o600)
    own, cluster.secret = cluster.secret, impostor
    cluster.start_node("n9")
    cluster.secret = own
    for number in range(2):
        cluster.start_node(f"n{number}")
    cluster.await_epoch(1)
    for stranger in held:
        stranger.close()
    assert cluster.state()["nodes"] == ["n0", "n1"]
    until(lambda: "does not have the secret of training run" in (cluster.folder / "n9.log").read_text(), "n9 is told")
    refused = (
        r"127\.0\.0\.1:\d+, which calls itself n9: did not accept .* secret of training run; give .* --secret-file"
    )
    assert len(re.findall(refused, log.read_text())) == 1, "once, however often it tries"


def _greet(port: int, **change: object) -> bytes:
    """Greet a leader as a node; return what it answers until it closes the connection."""
    facts = json.loads(encode_greeting(Role.NODE, Greeting(name="n8", version="9.9", job="run"), b"n" * NONCE_BYTES))
    frame = json.dumps({**facts, **change}).encode()
    with socket.create_connection(("127.0.0.1", port)) as opened:
        opened.sendall(len(frame).to_bytes(4, "big") + frame)
        return b"".join(iter(lambda: opened.recv(1 << 16), b""))


def test_a_node_of_another_version_is_named_with_both_versions(cluster: Cluster) -> None:
    cluster.start_leader()
    until(lambda: _answers(cluster.port), "the leader listens")
    log = cluster.folder / "boss.log"
    answer = _greet(cluster.port, protocol=PROTOCOL + 1)
    text = (
        rf"127\.0\.0\.1:\d+ \(n8\): uses protocol {PROTOCOL + 1} \(rocm-supervisor 9\.9\), this is {PROTOCOL}: install"
    )
    until(lambda: re.search(text, log.read_text()), "the leader's log")
    assert json.loads(answer[4:])["version"] == __version__, "for the other's own log"
    greeting = Greeting(name="n8", version="9.9", job="run")
    opened = socket.create_connection(("127.0.0.1", cluster.port))
    link = Connection(opened, Role.NODE, greeting, read_secret(cluster.secret), "boss")
    link.flush()
    until(lambda: list(link.read()) == [] and link.link.peer is not None, "the leader's proof")
    link.send(ms.Joined(running=None, ordered=None, host="127.0.0.1", unix_s=0.0))
    text = f'leader.version_differs node="n8" version="9.9" own="{__version__}"'
    until(lambda: text in log.read_text(), "its protocol is the same: it may train, and is named")
    link.close()


def test_a_node_that_finds_a_leader_of_another_version_says_so(cluster: Cluster) -> None:
    theirs = json.loads(encode_greeting(Role.LEADER, Greeting(name="b", version="9.9", job="run"), b"l" * NONCE_BYTES))
    frame = json.dumps({**theirs, "protocol": PROTOCOL + 1}).encode()
    with socket.create_server(("127.0.0.1", 0)) as other:

        def greet() -> None:
            while True:
                try:
                    met, _ = other.accept()
                except OSError:
                    return
                met.sendall(len(frame).to_bytes(4, "big") + frame)

        threading.Thread(target=greet, daemon=True).start()
        cluster.start_node("n0", port=other.getsockname()[1])
        text = rf"\(b\): uses protocol {PROTOCOL + 1} \(rocm-supervisor 9\.9\), this is {PROTOCOL}: install one version"
        until(lambda: re.search(text, (cluster.folder / "n0.log").read_text()), "the node's complaint")


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_a_second_daemon_under_the_name_of_a_node_is_refused_and_the_first_trains_on(cluster: Cluster) -> None:
    cluster.start()
    before = cluster.await_epoch(1)
    first = cluster.daemons.pop("n1")
    try:
        cluster.start_node("n1", state="n1-again")
        text = r"node n1 at 127\.0\.0\.1: a daemon at 127\.0\.0\.1:\d+ has joined under this name; give each its own"
        until(lambda: re.search(text, (cluster.folder / "n1.log").read_text()), "the second is told")
        until(lambda: re.search(text, (cluster.folder / "boss.log").read_text()), "the leader's log")
        os.kill(before[3], signal.SIGKILL)
        cluster.await_epoch(2)
        assert [incident["id"] for incident in cluster.incidents()] == ["run.0.1", "run.0.1"]
        assert len(re.findall(text, (cluster.folder / "boss.log").read_text())) == 1, "once, however often it tries"
        first.send_signal(signal.SIGKILL)
        first.wait(60)
        cluster.await_epoch(3)
    finally:
        first.kill()
        first.wait(60)


def test_a_name_whose_daemon_was_killed_is_free_at_once(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_epoch(1)
    cluster.kill_daemon("n1")
    cluster.start_node("n1", state="n1-again")
    cluster.await_epoch(2)
    assert "has joined under this name" not in (cluster.folder / "boss.log").read_text()


def test_an_incident_that_the_leader_did_not_live_to_close_is_closed_by_the_next_with_its_culprit(
    cluster: Cluster,
) -> None:
    """It dies while evidence is awaited that a stopped daemon does not send."""
    cluster.start()
    before = cluster.await_epoch(1)
    assert cluster.leader is not None
    cluster.daemons["n0"].send_signal(signal.SIGSTOP)
    os.kill(before[3], signal.SIGKILL)
    until(lambda: len(cluster.incidents()) == 1, "the incident is opened")
    cluster.leader.kill()
    cluster.leader.wait(60)
    cluster.daemons["n0"].send_signal(signal.SIGCONT)
    cluster.start_leader()
    cluster.await_epoch(2)
    until(lambda: cluster.incidents()[-1]["closed"], "the incident is closed")
    assert {incident["id"] for incident in cluster.incidents()} == {"run.0.1"}
    closed = cluster.incidents()[-1]
    assert (closed["kind"], closed["node"], closed["rank"]) == ("rank_exit", "n1", 3)
    culprit = closed["culprit"]
    assert isinstance(culprit, dict)
    assert culprit["ranks"] == [3]
    assert cluster.state()["incidents"] == 1


def test_alerts_that_no_receiver_took_are_sent_by_the_leader_that_comes_after(cluster: Cluster) -> None:
    with receiver() as service:
        service.answers = [status(503)]
        alerts = cluster.folder / "alerts.toml"
        alerts.write_text(f'[alerts.phone]\nurl = "http://127.0.0.1:{service.server_port}/"\nallow_private = true\n')
        cluster.start("--config", str(alerts))
        before = cluster.await_epoch(1)
        os.kill(before[0], signal.SIGKILL)
        cluster.await_epoch(2)
        until(lambda: len(service.received) == 1, "the alert, which is refused")
        until(lambda: '"tries": 1' in (cluster.folder / "leader" / "alerts.json").read_text(), "it is kept")
        assert cluster.leader is not None
        cluster.leader.kill()
        cluster.leader.wait(60)
        cluster.start_leader("--config", str(alerts))
        until(lambda: len(service.received) == 2, "the alert again")
        first, second = (item.headers["webhook-id"] for item in service.received)
        assert first == second
        until(lambda: '"alerts": []' in (cluster.folder / "leader" / "alerts.json").read_text(), "it was taken")


def test_a_network_that_repeats_what_a_node_sent_is_noticed_and_named(cluster: Cluster) -> None:
    """A program between n0 and the leader sends each message of the node twice, once both trust the link."""
    with socket.create_server(("127.0.0.1", 0)) as between:
        cluster.start_leader()
        until(lambda: _answers(cluster.port), "the leader listens")
        threading.Thread(target=_repeat, args=(between, cluster.port), daemon=True).start()
        cluster.start_node("n0", port=between.getsockname()[1])
        text = r"node n0 \(127\.0\.0\.1:\d+\): message \d+ is forged, repeated or out of order"
        until(lambda: re.search(text, (cluster.folder / "boss.log").read_text()), "the leader's log")


def _repeat(between: socket.socket, port: int) -> None:
    while True:
        try:
            near, _ = between.accept()
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", port))
        threading.Thread(target=_carry, args=(far, near, 10**6), daemon=True).start()
        threading.Thread(target=_carry, args=(near, far, 4), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket, faithful: int) -> None:
    """Carry what comes, and from the given piece on each piece twice."""
    pieces = 0
    try:
        while data := source.recv(1 << 16):
            pieces += 1
            target.sendall(data if pieces <= faithful else data + data)
    except OSError:
        pass
    for end in (source, target):
        end.close()


def test_a_node_that_finds_another_program_at_the_port_says_so(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:

        def greet() -> None:
            while True:
                try:
                    met, _ = foreign.accept()
                except OSError:
                    return
                met.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")

        threading.Thread(target=greet, daemon=True).start()
        cluster.start_node("n0", port=foreign.getsockname()[1])
        log = cluster.folder / "n0.log"
        until(lambda: "another program has the port" in log.read_text(), "the node's complaint")


def test_what_cannot_work_is_refused_with_its_reason_and_its_node(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "supervisor.daemon.main", "--training", "run", "--role=leader", "--node", "n7"]
    command += ["--secret-file", str(cluster.secret), "--state-dir", str(cluster.folder / "state")]
    ran = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert ran.returncode == 78
    assert "n7): --nodes: give the number of nodes that train" in ran.stderr


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (lambda _: read_allocation({}), "is no batch step of a Slurm job"),
        (lambda _: read_address("nowhere", "--leader"), "--leader 'nowhere': give HOST:PORT"),
        (lambda path: settings_of_node("run", path, None, []), "give the command after --"),
        (lambda path: settings_of_node("run", path, None, ["torchrun", "--nnodes=4", "t.py"]), "omit --nnodes"),
        (lambda path: read_secret(path / "open"), "other users may read it; `chmod 600"),
        (lambda path: read_secret(path / "short"), "5 bytes, a secret has at least 16"),
        (lambda path: read_secret(path / "none"), "No such file"),
    ],
)
def test_what_was_given_wrong_is_named(tmp_path: Path, refused: Callable[[Path], object], text: str) -> None:
    for name, content, mode in (("open", "x" * 40, 0o644), ("short", "short", 0o600)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    with pytest.raises(ValueError, match=re.escape(text)):
        refused(tmp_path)


SUBMIT = ("submit", "--nodes", "4", "--spares", "1", "--name", "gpt", "--folder", "/shared/gpt")


def test_the_batch_script_is_shown_before_anything_is_written() -> None:
    script = supervisorctl(*SUBMIT, "--sbatch=--gpus-per-node=8", "--dry-run", "--", "torchrun", "train.py", "it's")
    for line in ("--nodes=5", "--requeue", "--no-kill", "--open-mode=append", "--gpus-per-node=8"):
        assert f"#SBATCH {line}\n" in script
    assert "--role leader --engine slurm --nodes 4 --training gpt --secret-file /shared/gpt/secret" in script
    parsed = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=60, check=False)
    assert parsed.stderr == ""
    assert not Path("/shared").exists()


def test_options_of_torchrun_that_the_leader_decides_are_refused() -> None:
    command = [sys.executable, "-m", "supervisor.cli", *SUBMIT, "--dry-run", "--", "torchrun", "--nnodes=4", "train.py"]
    ran = subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "omit --nnodes" in ran.stderr


def supervisorctl(*words: str) -> str:
    """Return what a command prints."""
    command = [sys.executable, "-m", "supervisor.cli", *words]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=True).stdout
