"""The parts of a node and of a leader that need no process: what is read of ranks, what is told to people."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from supervisor.cluster.rank_evidence import Taken, collect_ranks, read_launcher_report
from supervisor.cluster.ranks import RankProcess, forget_stops, note_report
from supervisor.config.settings import JobSettings, Settings
from supervisor.core import attempt_files as at
from supervisor.core.fleet.clock_offset import ClockOffset
from supervisor.core.fleet.culprit import Culprit, Proof
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.ladder import Rung
from supervisor.core.fleet.leading import Leading
from supervisor.core.fleet.training import Command, Incident, LeaderLimits, Over, Record
from supervisor.core.moments import Moment
from supervisor.daemon.roles.leader_alerts import make_notice, read_waiting
from supervisor.daemon.roles.program import DESCRIPTORS, move_database, raise_descriptors, settings_of_node
from supervisor.runner import process_table

TORCHRUN = """\
W1123 20:57:44.798131334 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3
W1123 21:00:01.553000 12230 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 12238 closing signal SIGTERM
E1123 21:00:01.721000 12230 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) local_rank: 0 (pid: {pid}) of binary: /venv/bin/python
"""  # noqa: E501 - as torch 2.12 prints it


def test_a_rank_that_torchrun_reaped_before_this_daemon_had_a_processor_is_named_by_torchrun(tmp_path: Path) -> None:
    own = process_table.read_process(os.getpid())
    assert own is not None
    (tmp_path / at.RUN).mkdir()
    (tmp_path / at.OUTPUT).write_text(TORCHRUN.format(pid=own.pid))
    rank = RankProcess(rank=2, process=own, launcher=None, local_rank=0, local_size=2, handle=-1, ended_s=5.0)
    assert not rank.failed
    note_report([rank], read_launcher_report(tmp_path))
    assert (rank.failed, rank.killed_by, rank.exit_code) == (True, "SIGKILL", None)
    rank.status = None
    note_report([rank], {own.pid: 3})
    assert (rank.failed, rank.killed_by, rank.exit_code) == (True, None, 3)
    assert read_launcher_report(tmp_path / "nothing") == {}
    (tmp_path / at.OUTPUT).write_text("it ends the other ranks, and prints how the first ended after that")
    damaged = '{"event": "reaped", "codes": {"x": 1, "99999999999": 1, "12": "1", "13": true, "14": 4096}}'
    (tmp_path / at.AGENT).write_text(f'{damaged}\n{{"event": "reaped", "codes": {{"{own.pid}": -9}}}}\n')
    assert read_launcher_report(tmp_path) == {own.pid: -9}


def test_a_rank_that_was_stopped_until_a_moment_ago_is_evidence_of_a_stopped_one(tmp_path: Path) -> None:
    own = process_table.read_process(os.getpid())
    assert own is not None
    rank = RankProcess(rank=2, process=own, launcher=None, local_rank=0, local_size=2, handle=-1)

    taken = Taken(folder=tmp_path, stacks=tmp_path, waited={})

    def state() -> str | None:
        (found,) = collect_ranks("n0", taken, [rank], ClockOffset(seconds=0.0, error_s=0.0))
        return found.process_state

    assert state() in {"R", "S"}
    rank.stopped_at_step = 40
    forget_stops([rank], 40)
    assert state() == "T"
    forget_stops([rank], 41)
    assert state() in {"R", "S"}, "the training has gone on: a later fault is not this rank's"


def test_a_leader_has_a_descriptor_for_each_of_a_thousand_nodes_where_the_hard_limit_allows_it() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = min(soft, 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        raise_descriptors()
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (max(low, most), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_database_of_a_node_lies_on_its_own_disk_and_in_no_folder_of_another(tmp_path: Path) -> None:
    settings = settings_of_node("run", tmp_path / "shared" / "n0", None, ["torchrun", "train.py"])
    moved = move_database(settings, tmp_path / "own").supervisor
    other = move_database(settings_of_node("run", tmp_path / "shared" / "n1", None, ["train.py"]), tmp_path / "own")
    assert moved.state_dir == str(tmp_path / "shared" / "n0")
    assert moved.database is not None
    assert moved.database.startswith(f"sqlite:///{tmp_path}/own/")
    assert other.supervisor.database != moved.database, "two nodes of this test share a disk"
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="is not a folder of this user alone"):
        move_database(settings, tmp_path / "open")


def test_snapshots_are_taken_only_where_all_nodes_share_a_folder_and_nodes_send_no_alerts(tmp_path: Path) -> None:
    def job(snapshots: Path | None) -> JobSettings:
        made: Settings = settings_of_node("run", tmp_path, None, ["train.py"], snapshots)
        assert made.alerts == {}
        return made.jobs["run"]

    assert job(None).snapshot_every_s == 0.0
    assert (job(tmp_path / "all").snapshot_every_s, job(tmp_path / "all").snapshot_replicas) == (
        JobSettings(command=["x"]).snapshot_every_s,
        str(tmp_path / "all"),
    )


def test_an_incident_is_one_alert_once_its_culprit_is_named() -> None:
    incident = Incident(
        id="run.0.1", epoch=Epoch("run", 0, 1), kind="rank_exit", reason="rank 3 killed", node="n1", rank=3, began_s=1.0
    )
    culprit = Culprit(proof=Proof.PHYSICAL, reason="rank 3 (n1) ended first: killed by SIGKILL", nodes=("n1",))
    ended = Incident(**{name: getattr(incident, name) for name in incident.__slots__} | {
        "culprit": culprit, "rung": Rung.SPARE, "excluded": ("n1",)
    })  # fmt: skip
    leading, at_ = Leading(Epoch("run", 0, 1), LeaderLimits(nodes=2), 0.0), Moment(1.0, 1.8e9)
    leading.progress.steps = 42

    def describe_notice(command: Command) -> tuple[str, dict[str, object]] | None:
        notice = make_notice(command, leading, "run", "boss", at_)
        return None if notice is None else (notice.type, json.loads(notice.body())["data"])

    assert describe_notice(Record(incident=incident, closed=False)) is None
    assert describe_notice(Record(incident=ended, closed=True)) == (
        "incident.opened",
        {
            "severity": "critical",
            "host": "boss",
            "job": "run",
            "incident": "run.0.1",
            "rule": "rank_exit",
            "message": "n1: rank 3 killed; at fault: rank 3 (n1) ended first: killed by SIGKILL; then: spare, "
            "without n1",
            "step_before": 42,
        },
    )
    assert describe_notice(Over(finished=False, reason="stopped")) is None, "its user knows"
    assert describe_notice(Over(finished=True, reason="the training finished on all nodes"))[0] == "job.finished"  # type: ignore[index]  # one comes
    assert describe_notice(Over(finished=False, reason="20 restarts without progress"))[0] == "job.gave_up"  # type: ignore[index]  # the same


def test_an_alert_that_was_kept_and_spoilt_is_left_out_and_keeps_no_leader_from_its_start() -> None:
    kept = {"id": "a", "sink": "chat", "body": "{}", "tries": 1}
    assert read_waiting(kept) is not None
    for spoilt in ({"body": 7}, {"body": ""}, {"id": ["a"]}, {"sink": None}):
        assert read_waiting({**kept, **spoilt}) is None
    half = read_waiting({**kept, "body": "half a pair: \ud800", "tries": 10**400})
    assert half is not None
    assert (half.body, half.tries) == (b"half a pair: ?", 0)
