"""What is recorded can be read when no daemon runs; what needs one says so."""

from __future__ import annotations

import json
import os
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.app import App
from supervisor.cli.evidence.command import FILE_LIMIT_BYTES
from supervisor.cli.main import cli
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.decisions import Stop
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.moments import Moment
from supervisor.store.archive import Archive
from supervisor.store.store import Store

T0 = Moment(100.0, 1_763_164_800.0)
STALL = RedFlag(rule="stall", severity=Severity.CRITICAL, at=T0, message="no step for 61 s")
POINT = Checkpoint(
    path="/d/weights/last.pt",
    fingerprint=Fingerprint(size_bytes=6_000_000, modified_ns=1_763_160_000_000_000_000, inode=7),
    epoch=0,
    step=78_000,
    verdict=Verdict.PROVEN,
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose daemon is away, having left one incident, one checkpoint and some output."""
    state = tmp_path / "state"
    attempt = state / "jobs/yolo/2"
    attempt.mkdir(parents=True)
    (attempt / "output.txt").write_text("epoch 1\nepoch 2\n")
    (state / "jobs/yolo/current").symlink_to("2")
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    incident = Incident(id="yolo-1", job="yolo", attempt=1, flag=STALL, decision="stop", last_step=80_321)
    with store.turn(T0):
        store.record_flag("yolo", 1, STALL)
        store.record_decision(Stop(at=T0, job="yolo", attempt=1, reason="no step for 61 s", save=False, flag=STALL))
        store.save_incident(incident.relaunched(POINT).stepping_again(T0.plus(105), went_on=True))
        store.save_checkpoint("yolo", 1, POINT, T0)
    store.close(T0)
    path = tmp_path / "config.toml"
    path.write_text(f"[supervisor]\nstate_dir = '{state}'\n[jobs.yolo]\ncommand = ['true']\n")
    return path


def call(config: Path, *words: str) -> Result:
    app = App(now=lambda: T0.unix_s + 720)
    return CliRunner().invoke(cli, ["--config", str(config), *words], obj=app)


def test_history_is_read_from_the_database(config: Path) -> None:
    result = call(config, "history")
    assert result.exit_code == 0
    assert "12 min ago" in result.stdout
    assert "resumed from epoch 1, step 78000 (weights/last.pt)" in result.stdout
    assert "2321 steps to redo" in result.stdout
    assert "reading its record instead" in result.stderr
    unknown = call(config, "history", "yolo2")
    assert unknown.exit_code == 1
    assert "no job 'yolo2' is configured or recorded" in unknown.stderr


def test_an_incident_is_shown_with_its_story(config: Path) -> None:
    answer = json.loads(call(config, "--json", "show", "yolo-1").stdout)
    assert [item["what"] for item in answer["story"]] == ["critical flag stall", "decision stop"]
    assert call(config, "show", "yolo-9").exit_code == 1


def test_checkpoints_are_read_with_their_verdict(config: Path) -> None:
    (checkpoint,) = json.loads(call(config, "checkpoints", "yolo", "--json").stdout)["checkpoints"]
    assert (checkpoint["verdict"], checkpoint["step"]) == ("proven", 78_000)


@pytest.mark.slow
def test_snapshots_that_are_no_longer_kept_are_listed_no_more_than_by_the_daemon(config: Path) -> None:
    kept, gone = config.parent / "1.pt", config.parent / "2.pt"
    kept.touch()
    store = Store.open(f"sqlite:///{config.parent}/state/supervisor.db", T0, "boot")
    with store.turn(T0):
        for inode, path in enumerate((kept, gone)):
            print_of = Fingerprint(size_bytes=1, modified_ns=inode, inode=inode)
            store.save_checkpoint("yolo", 1, Checkpoint(path=str(path), fingerprint=print_of, kind="snapshot"), T0)
    store.close(T0)
    found = json.loads(call(config, "checkpoints", "yolo", "--json").stdout)["checkpoints"]
    assert {match["path"] for match in found} == {str(kept), POINT.path}


def test_output_is_read_from_the_newest_attempts_folder(config: Path) -> None:
    assert call(config, "logs", "-n", "1", "yolo").stdout == "epoch 2\n"
    for name in ("other", "../yolo", "..", ""):
        assert call(config, "logs", name).exit_code == 1


def test_a_database_that_is_not_there_exits_with_4(config: Path) -> None:
    (config.parent / "state/supervisor.db").unlink()
    for words in (("history",), ("show", "yolo-1"), ("checkpoints", "yolo")):
        result = call(config, *words)
        assert (result.exit_code, result.stdout) == (4, "")
        assert "does not exist" in result.stderr


def test_a_database_that_is_garbage_exits_with_4(config: Path) -> None:
    (config.parent / "state/supervisor.db").write_bytes(b"\x00garbage" * 1000)
    result = call(config, "history")
    assert (result.exit_code, result.stdout) == (4, "")


@pytest.mark.parametrize(
    ("revision", "remedy"),
    [("0009_later", "Install the version that wrote it"), ("0003_samples", "start the daemon to upgrade it")],
)
def test_a_database_of_another_version_is_named_and_not_changed(config: Path, revision: str, remedy: str) -> None:
    record = config.parent / "state/supervisor.db"
    with closing(sqlite3.connect(record)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    before = record.read_bytes()
    for words in (("history",), ("show", "yolo-1"), ("checkpoints", "yolo"), ("account", "yolo")):
        result = call(config, *words)
        assert (result.exit_code, result.stdout) == (4, "")
        assert revision in result.stderr
        assert remedy in " ".join(result.stderr.split())
    assert record.read_bytes() == before


def test_a_broken_configuration_leads_to_its_check(config: Path) -> None:
    config.write_text("[supervisor]\nstate_dir = 'relative'\n")
    result = call(config, "history")
    assert result.exit_code == 1
    assert "supervisorctl config check" in result.stderr


@pytest.fixture
def evidence(config: Path) -> Path:
    """The folder of evidence that the incident names, with a file that leads out of it."""
    state = config.parent / "state"
    folder = state / "jobs/yolo/1/evidence/yolo-1"
    folder.mkdir(parents=True)
    (folder / "stacks-7.txt").write_text("File train.py, line 3\n")
    (folder / "output.txt").write_bytes(b"x" * (FILE_LIMIT_BYTES + 1) + b"the end")
    (folder / "elsewhere").symlink_to("/etc/passwd")
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    known = Archive(state / "supervisor.db").incident("yolo-1")
    assert known is not None
    with store.turn(T0):
        store.save_incident(replace(known.incident, evidence=str(folder)))
    store.close(T0)
    return folder


def test_evidence_is_listed_and_bundled_into_one_file(config: Path, evidence: Path, tmp_path: Path) -> None:
    listed = call(config, "evidence", "yolo-1").stdout
    assert "stacks-7.txt" in listed
    assert "elsewhere" not in listed
    target = tmp_path / "bundle.tar.gz"
    assert call(config, "evidence", "yolo-1", "--tar", str(target)).exit_code == 0
    with tarfile.open(target) as bundle:
        assert bundle.getnames() == ["yolo-1/incident.json", "yolo-1/output.txt", "yolo-1/stacks-7.txt"]
        tail = bundle.extractfile("yolo-1/output.txt")
        assert tail is not None
        content = tail.read()
    assert (len(content), content[-7:]) == (FILE_LIMIT_BYTES, b"the end")


def test_a_bundle_overwrites_nothing_and_leaves_no_half(config: Path, evidence: Path, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("precious")
    result = call(config, "evidence", "yolo-1", "--tar", str(target))
    assert (result.exit_code, target.read_text()) == (1, "precious")
    nowhere = call(config, "evidence", "yolo-1", "--tar", str(tmp_path / "none/x.tar.gz"))
    assert "No such file" in nowhere.stderr
    assert not list(tmp_path.glob(".*.part"))


def test_an_incident_without_evidence_says_so(config: Path) -> None:
    result = call(config, "evidence", "yolo-1")
    assert (result.exit_code, "no evidence of yolo-1" in result.stderr) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="it is root that is refused")
@pytest.mark.parametrize("words", [("evidence", "yolo-1"), ("export", "yolo", "/nowhere/x")])
def test_root_is_refused_where_another_user_s_daemon_recorded(config: Path, words: tuple[str, ...]) -> None:
    """Root ran the command in a launch.json that a member of the group had put there."""
    os.chown(config.parent / "state", 65534, -1)
    result = call(config, *words)
    assert (result.exit_code, result.stdout) == (5, "")
    assert "does not need root" in result.stderr
    assert f"sudo -u nobody supervisorctl {' '.join(words)}" in result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="it is root that is refused")
def test_root_replays_no_training_of_another_user(config: Path, evidence: Path) -> None:
    """shim.json a link to a file of root's, launch.json replaced: root ran the command that stood there."""
    state = config.parent / "state"
    os.chown(state, 65534, -1)
    attempt = evidence.parent.parent
    (attempt / "run").mkdir()
    (attempt / "run" / "shim.json").symlink_to("/etc/passwd")
    command = ["touch", str(config.parent / "ran")]
    (attempt / "launch.json").write_text(json.dumps({"argv": command, "cwd": "/", "env": {}}))
    result = call(config, "triage", "yolo-1", "--step", "3")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "sudo -u USER supervisorctl triage yolo-1 --folder DIR" in result.stderr
    os.chown(state, 0, -1)
    result = call(config, "triage", "yolo-1", "--step", "3")
    assert result.exit_code != 0
    assert "symbolic link" in result.stderr
    assert not (config.parent / "ran").exists()
