"""What the daemon's database keeps of an attempt is enough to judge it again, here or elsewhere."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.app import App
from supervisor.cli.main import cli
from supervisor.config.derive import rules_with
from supervisor.core import decisions as de
from supervisor.core import events as ev
from supervisor.core.job import Attempt
from supervisor.core.moments import Moment
from supervisor.core.readings import DiskReading, ExitStatus, GpuReading, HostReading, Stage, StepRecord
from supervisor.replay.engine import replay
from supervisor.replay.folder import RecordingError
from supervisor.replay.from_record import of_attempt
from supervisor.store.archive import Archive
from supervisor.store.store import Store

T0 = Moment(1000.0, 1_763_600_000.0)
CARD = "0000:0a:00.0"
FULL = DiskReading(path="/data", free_bytes=2**20, total_bytes=2**40)


def at(seconds: float) -> Moment:
    return T0.plus(seconds)


def made(first: int, last: int) -> ev.StepsMade:
    """One step a second, the last of them NaN."""
    losses = {last: math.nan}
    records = tuple(StepRecord(at=at(step), step=step, loss=losses.get(step, 0.5)) for step in range(first, last + 1))
    return ev.StepsMade(at=records[-1].at, job="night", attempt=1, records=records, cursor=last)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A night of 95 steps that ended in NaN, then silence until it was killed at 400 s."""
    state = tmp_path / "state"
    state.mkdir()
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    status = ExitStatus(at=at(400), signal=9)
    with store.turn(at(1)):
        store.open_attempt(de.Launch(at=T0, job="night", attempt=1, resume_from=None, reason="start"), str(state / "1"))
        store.record_event(ev.Launched(at=at(0.1), job="night", attempt=1, shim_pid=10, training_pid=11))
        store.record_event(ev.StageEntered(at=at(0.5), job="night", attempt=1, stage=Stage.STEP))
    with store.turn(at(100)):
        store.add_steps(made(1, 95))
    for second in range(0, 400, 5):
        with store.turn(at(second)):
            reading = GpuReading(at=at(second), gpu=CARD, source="sysfs", vram_used_bytes=99, vram_total_bytes=100)
            store.add_gpu_samples([reading])
            store.add_host_sample(
                HostReading(at=at(second), memory_total_bytes=2**35, memory_available_bytes=2**34, disks=(FULL,))
            )
    with store.turn(at(430)):
        store.add_host_sample(HostReading(at=at(430), memory_total_bytes=2**35, memory_available_bytes=2**34))
    with store.turn(at(400)):
        store.record_event(ev.Exited(at=at(400), job="night", attempt=1, status=status))
        store.close_attempt("night", Attempt(number=1, launched_at=T0, exit=status), at(400))
    store.close(at(400))
    path = tmp_path / "config.toml"
    path.write_text(
        f"[supervisor]\nstate_dir = '{state}'\n[jobs.night]\ncommand = ['true']\n"
        "[jobs.night.rules.stall]\nlimit_s = 90.0\n"
    )
    return path


def call(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--config", str(config), *words], obj=App())


def flags(config: Path, *words: str) -> dict[str, float]:
    answer = json.loads(call(config, "--json", "replay", *words).stdout)
    return {flag["rule"]: flag["after_s"] for flag in answer["flags"]}  # a critical one after its warning


def test_the_record_of_an_attempt_is_judged_with_its_jobs_limits(config: Path) -> None:
    seen = flags(config, "night")
    assert 185 <= seen["stall"] <= 187
    assert 90 <= seen["non_finite_loss"] <= 96
    assert "vram_high" in seen
    assert 400 <= seen["crash"] <= 401


def test_a_full_disk_is_only_that_of_the_job_that_writes_to_it(config: Path) -> None:
    assert "disk_low" not in flags(config, "night")
    archive = Archive.at(f"sqlite:///{config.parent}/state/supervisor.db")
    recording = of_attempt(archive, "night", disks=frozenset({"/data"}), now_unix_s=at(500).unix_s)
    assert "disk_low" in {fired.flag.rule for fired in replay(recording, rules_with({}))}


@pytest.mark.parametrize(("gpus", "judged"), [('"0"', True), (f'"{CARD}"', True), ('"0000:0b:00.0"', False)])
def test_a_gpu_is_only_judged_where_the_job_uses_it(config: Path, gpus: str, judged: bool) -> None:
    config.write_text(config.read_text().replace("command =", f"gpus = [{gpus}]\ncommand ="))
    assert ("vram_high" in flags(config, "night")) is judged


def test_other_limits_are_tried_without_touching_the_configuration(config: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("[stall]\nlimit_s = 20.0\n[vram_high]\nenabled = false\n")
    seen = flags(config, "night", "--rules", str(other))
    assert 115 <= seen["stall"] <= 117
    assert "vram_high" not in seen


def test_an_exported_attempt_replays_elsewhere_as_it_does_here(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "carried"
    exported = call(config, "export", "night", str(folder))
    assert exported.exit_code == 0
    assert f"supervisorctl replay {folder}" in exported.stdout
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text("[jobs]\n")
    assert flags(elsewhere, str(folder)) == flags(config, "night")
    again = call(config, "export", "night", str(folder))
    assert (again.exit_code, "File exists" in again.stderr) == (1, True)


def test_readings_after_the_end_of_an_attempt_are_not_counted_as_its_time(config: Path) -> None:
    assert json.loads(call(config, "--json", "replay", "night").stdout)["length_s"] == pytest.approx(400.0)


def test_people_read_a_table(config: Path) -> None:
    shown = call(config, "replay", "night").stdout
    assert re.search(r"attempt 1: 6 min 40 s, [0-9]+ flags\n", shown)
    assert "3 min 6 s" in shown or "3 min 5 s" in shown
    assert "stall" in shown


@pytest.mark.parametrize(
    ("rules", "reported"),
    [
        ("[no_such_rule]\n", "other.toml: no_such_rule: is not a known rule"),
        ("[rules.stall]\nlimit = 3\n", 'rules.stall.limit: is not a known key; did you mean "limit_s"?'),
        ("[stall]\nlimit_s = 'soon'\n", 'stall.limit_s: is of the wrong type (str) (it is "soon")'),
        ("[vram_leak]\nwindow_s = 60\n", "allowed: a number from 600 to 43200"),
        ("limit_s = 3\n", "limit_s: is not a known rule"),
        ("rules = 3\n", "rules: must hold tables"),
        ("[stall\n", "other.toml: "),
    ],
)
def test_wrong_rules_are_named(config: Path, tmp_path: Path, rules: str, reported: str) -> None:
    other = tmp_path / "other.toml"
    other.write_text(rules)
    result = call(config, "replay", "night", "--rules", str(other))
    assert (result.exit_code, reported in result.stderr) == (1, True)


def test_what_is_not_recorded_is_reported(config: Path) -> None:
    for words in (("replay", "other"), ("replay", "night", "--attempt", "9"), ("export", "other", "x")):
        result = call(config, *words)
        assert (result.exit_code, "is not recorded" in result.stderr) == (1, True)
    assert call(config, "replay").exit_code == 2
    assert call(config, "replay", "night", "--log", "x").exit_code == 2


def test_an_attempt_that_never_was_is_named(config: Path, tmp_path: Path) -> None:
    archive = Archive(tmp_path / "state" / "supervisor.db")
    with pytest.raises(RecordingError, match="attempt 3 of job 'night' is not recorded"):
        of_attempt(archive, "night", 3, now_unix_s=at(500).unix_s)
