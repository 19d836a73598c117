"""On a terminal of 80 columns no line of a table is wider; where stdout is no terminal nothing is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from supervisor.cli import checkpoints, history, limits_view, status
from supervisor.cli.app import App
from supervisor.cli.gpus import table as gpus
from supervisor.cli.main import cli
from supervisor.cli.table import Cell, Pen, cells, cut
from supervisor.control import record_types, types
from supervisor.control.present import gpu_status
from supervisor.core import decisions as de
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, Verdict
from supervisor.core.flags import RedFlag, Severity
from supervisor.core.incident import Incident
from supervisor.core.job import Attempt, Job
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, GpuReading
from supervisor.core.remedies.trials import Trial
from supervisor.store.store import Store

NOW = 1_763_165_520.0
NARROW, WIDE, FILE = Pen(width=80), Pen(width=120), Pen()
REASON = "exit code 1: torch.OutOfMemoryError: HIP out of memory, tried to allocate 2.50 GiB"
JOB = types.JobStatus(
    name="yolo-of-the-long-name",
    phase="running",
    stage="validate",
    attempt=12,
    epoch=11,
    epochs=50,
    step=80_321,
    steps_total=4_100_000,
    steps_per_s=18.25,
    loss=1.2345,
    eta=NOW + 223_200,
    restarts=4,
    reason=REASON,
    last_step_at=NOW,
    hooked=True,
)
DAEMON = types.DaemonStatus(version="0.1.0", pid=4711, uptime_s=9_000.0, state_dir="/s", database="/s/supervisor.db")
SAVE = record_types.CheckpointEntry(
    path="/srv/runs/detect/night/generations/0123456789abcdef0123456789abcdef/weights/epoch12.pt",
    source="/srv/runs/detect/night/weights/last.pt",
    epoch=11,
    step=80_321,
    saved_at=NOW - 720,
    size_bytes=6_000_000,
    kind="snapshot",
    verdict="rejected",
    kept_by="newest, best",
    reason="loss is not finite in 3 of 225 tensors, the first is model.22.cv3.0.2.weight",
)
READING = GpuReading(
    at=Moment(1.0, NOW - 1),
    gpu="0000:0a:00.0",
    name="Navi 10 [Radeon RX 5600 OEM/5600 XT / 5700/5700 XT]",
    source="sysfs",
    gpu_busy_percent=99.0,
    vram_used_bytes=4_812_345_344,
    vram_total_bytes=6_425_673_728,
    junction_c=79.0,
    edge_c=70.0,
    memory_c=80.0,
    power_w=131.0,
)


def plain(body: msgspec.Struct) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(body)
    return made


def shown(pen: Pen) -> dict[str, list[str]]:
    """Return the lines of each table."""
    report = plain(types.Status(daemon=DAEMON, jobs=[JOB], gpus=[gpu_status(READING)]))
    saved = [plain(SAVE), plain(msgspec.structs.replace(SAVE, path=SAVE.path + "x", verdict="proven"))]
    away = record_types.OutageEntry(job=JOB.name, attempt=12, at=NOW - 90_000, until=NOW - 600)
    return {
        "status": "\n".join(status.lines(report, NOW, pen)).splitlines(),
        "checkpoints": "\n".join(checkpoints.lines(saved, NOW, pen, None)).splitlines(),
        "one checkpoint": "\n".join(checkpoints.lines(saved[:1], NOW, pen, None)).splitlines(),
        "gpus": gpus.lines([READING], pen, {}),
        "history": history.outage_story(plain(away), NOW, pen),
    }


@pytest.mark.parametrize("pen", [NARROW, WIDE])
@pytest.mark.parametrize("name", ["status", "checkpoints", "one checkpoint", "gpus", "history"])
def test_no_line_is_wider_than_the_terminal(name: str, pen: Pen) -> None:
    assert pen.width is not None
    assert [line for line in shown(pen)[name] if cells(line) > pen.width] == []


def test_nothing_that_matters_is_lost_at_80_columns() -> None:
    text = {name: "\n".join(found) for name, found in shown(NARROW).items()}
    for part in ("80321/4100000", "18.25", "1.234", "in 2 d 14 h", "exit code 1: torch", "131 W"):
        assert part in text["status"]
    assert "hts/epoch12.pt" in text["one checkpoint"]
    assert "…" in text["one checkpoint"]
    assert "loss is not finite" in text["checkpoints"]
    assert "(1 d" in text["history"]


def test_each_part_of_a_table_of_gauges_names_its_rules() -> None:
    gauge = types.WatchedStatus(
        rule="checkpoint_overdue", group="storage", what="work that no checkpoint holds", unit="s", now=9000.0,
        limit=14400.0, share=0.625, severity="warning",
    )  # fmt: skip
    for pen, parts in ((NARROW, 2), (WIDE, 1)):
        found = limits_view.gauge_lines({"name": "yolo", "watched": [plain(gauge)]}, pen, show_all=True)
        assert "\n".join(found).count("checkpoint_overdue") == parts


def test_a_reason_that_the_table_of_one_job_has_cut_is_shown_in_full() -> None:
    job = plain(msgspec.structs.replace(JOB, phase="failed", reason=f"{REASON}; {REASON}"))
    table = status.lines(plain(types.Status(daemon=DAEMON, jobs=[])), NOW, NARROW)
    found = status.explain_in_full(job, table, NARROW)
    assert " ".join(found) == f" {JOB.name} failed: {REASON}; {REASON}"
    assert max(map(cells, found)) <= 80
    assert status.explain_in_full(job, [f"x {REASON}; {REASON}"], NARROW) == []
    assert status.explain_in_full(job, table, FILE) == []


def test_where_stdout_is_no_terminal_nothing_is_cut() -> None:
    for found in shown(FILE).values():
        assert "…" not in "\n".join(found)
    assert any(SAVE.path in line for line in shown(FILE)["one checkpoint"])
    assert any(REASON in line for line in shown(FILE)["status"])


def test_the_end_of_a_path_in_a_sentence_and_what_follows_it_are_kept() -> None:
    sentence = f"checkpoint_bad: {SAVE.path}: not finite"
    assert cut(sentence, 80).startswith("checkpoint_bad: /srv/")
    assert cut(sentence, 80).endswith("weights/epoch12.pt: not finite")
    assert cells(cut(sentence, 80)) <= 80
    assert cut(sentence, cells(sentence)) == sentence
    assert cut("not a path but " * 8, 30).endswith("…")


# --- every table of one record ------------------------------------------------------------------------------------

LONG = "thermal-yolov8n-night-run"
T0 = Moment(100.0, NOW)
BAD = RedFlag(
    rule="checkpoint_bad", severity=Severity.CRITICAL, at=T0, message=f"{SAVE.path}: 3 of 225 tensors are not finite"
)


@dataclass(frozen=True, kw_only=True)
class Keeping(Pen):
    """A pen that keeps the tables that it made."""

    made: list[str] = field(default_factory=list)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
        self.made.append(super().table(head, rows))
        return self.made[-1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a daemon that is away and left something for each table; its folder has a long name."""
    folder = tmp_path_factory.mktemp("a-folder-with-a-rather-long-name") / "and-another-one-in-it"
    state = folder / "state"
    (state / "jobs" / LONG / "1").mkdir(parents=True)
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    launch = de.Launch(at=T0, job=LONG, attempt=1, resume_from=None, reason=f"newest proven checkpoint: {SAVE.path}")
    point = Checkpoint(
        path=SAVE.path, fingerprint=Fingerprint(size_bytes=6_000_000, modified_ns=1, inode=7), step=80_321
    )
    with store.turn(T0):
        store.open_attempt(launch, f"{state}/jobs/{LONG}/1")
        store.record_decision(launch)
        store.record_flag(LONG, 1, BAD)
        store.record_decision(de.Stop(at=T0.plus(9), job=LONG, attempt=1, reason=BAD.message, save=False, flag=BAD))
        incident = Incident(id=f"{LONG}-1", job=LONG, attempt=1, flag=BAD, decision="stop", last_step=80_400)
        store.save_incident(incident.relaunched(point).stepping_again(T0.plus(105), went_on=True))
        store.save_checkpoint(LONG, 1, replace(point, verdict=Verdict.REJECTED, reason=SAVE.reason), T0)
        store.save_checkpoint(LONG, 1, replace(point, path=SAVE.path + "x", verdict=Verdict.PROVEN), T0)
        ended = Attempt(number=1, launched_at=T0, exit=ExitStatus(at=T0.plus(10), code=1))
        store.close_attempt(LONG, ended, T0.plus(10))
        trial = Trial(attempt=2, at=T0, cause="non_finite", remedy="restart", step=40, reason=f"after {BAD.message}")
        store.save_trial(LONG, trial)
        store.save_job(replace(Job(name=LONG, since=T0), attempt=ended))
    store.close(T0.plus(10))
    path = folder / "config.toml"
    alerts = "[alerts.phone-of-the-night-shift]\nkind = 'ntfy'\nurl = 'https://ntfy.example/a-topic-with-a-long-name'\n"
    path.write_text(f"[supervisor]\nstate_dir = '{state}'\n[jobs.{LONG}]\ncommand = ['true']\n{alerts}")
    return path


def test_the_story_of_an_incident_is_shown_in_full_on_any_terminal(recorded: Path) -> None:
    app = App(now=lambda: NOW + 720)
    app.pen = Keeping(width=80)
    output = CliRunner().invoke(cli, ["--config", str(recorded), "show", f"{LONG}-1"], obj=app).output
    story = output[output.index("DETAIL") :]
    assert "tensors are not finite" in " ".join(story.split())
    assert "\u2026" not in story


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("show", f"{LONG}-1"), "flag checkpoint_bad"),
        (("account", LONG), "down: stalled, or between two attempts"),
        (("checkpoints", LONG), "epoch12.pt"),
        (("remedies", LONG), "AGAINST"),
        (("alerts",), "phone-of-the-night-shift"),
        (("du",), LONG),
    ],
)
def test_every_table_of_a_record_fits_the_terminal(
    recorded: Path, words: tuple[str, ...], shown: str, width: int
) -> None:
    app = App(now=lambda: NOW + 720)
    app.pen = pen = Keeping(width=width)
    result = CliRunner().invoke(cli, ["--config", str(recorded), *words], obj=app)
    assert result.exit_code == 0, result.output
    assert any(shown in text for text in pen.made), result.output
    assert not [line for text in pen.made for line in text.splitlines() if cells(line) > width]
