"""On a terminal of 80 columns no line of a table is wider; where stdout is no terminal nothing is cut."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from supervisor.cli import checkpoints, history, status
from supervisor.cli.gpus import table as gpus
from supervisor.cli.table import Pen, cells
from supervisor.control import types
from supervisor.control.present import gpu_status
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading

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
SAVE = types.CheckpointEntry(
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
    away = types.OutageEntry(job=JOB.name, attempt=12, at=NOW - 90_000, until=NOW - 600)
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


def test_where_stdout_is_no_terminal_nothing_is_cut() -> None:
    for found in shown(FILE).values():
        assert "…" not in "\n".join(found)
    assert any(SAVE.path in line for line in shown(FILE)["one checkpoint"])
    assert any(REASON in line for line in shown(FILE)["status"])
