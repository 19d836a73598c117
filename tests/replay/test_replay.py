"""A recorded attempt, judged again, gives the flags that a daemon would have raised, at the second it would have."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core import events as ev
from supervisor.core.flags import Severity
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, Stage, StepRecord
from supervisor.core.rules import RULES
from supervisor.core.rules.stall import Stall
from supervisor.replay.engine import Fired, replay
from supervisor.replay.folder import BUCKETS, EVENTS, HEAD, STEPS, RecordingError, read, write
from supervisor.replay.foreign import of_files
from supervisor.replay.recording import Recording, unfolded
from supervisor.store.records import StepBucket

LAUNCH = Moment(5000.0, 1_763_600_000.0)
RATE = 18


def at(seconds: float) -> Moment:
    return LAUNCH.plus(seconds)


def steps(began: float, ended: float, first: int = 1, loss: float = 0.5) -> list[StepRecord]:
    count = int((ended - began) * RATE)
    return [StepRecord(at=at(began + index / RATE), step=first + index, loss=loss) for index in range(count)]


def recording(records: Iterable[StepRecord], *facts: ev.Event) -> Recording:
    plan = ev.AgentReported(
        at=at(1), job="night", attempt=1, agent_event=ev.AgentEvent.PLAN, facts={"epochs": 3, "device": "cuda:0"}
    )
    stage = ev.StageEntered(at=at(2), job="night", attempt=1, stage=Stage.STEP)
    return Recording(
        job="night", attempt=1, launched_at=LAUNCH, facts=(plan, stage, *facts), steps=tuple(records), made_of="a test"
    )


def exited(seconds: float, *, code: int | None = None, signal: int | None = None) -> ev.Exited:
    return ev.Exited(
        at=at(seconds), job="night", attempt=1, status=ExitStatus(at=at(seconds), code=code, signal=signal)
    )


def fired(value: Recording, **rules: dict[str, object]) -> list[Fired]:
    return list(replay(value, [rule(**rules.get(rule.name, {})) for rule in RULES]))


def stall_of(value: Recording, **rules: dict[str, object]) -> Fired:
    """The stall that would have stopped it; short of its limit it is told first."""
    flags = (each for each in fired(value, **rules) if each.flag.rule == "stall")
    return next(each for each in flags if each.flag.severity is Severity.CRITICAL)


FREEZE = recording(steps(3, 60), exited(400, signal=9))


def test_a_freeze_is_flagged_at_the_second_its_limit_ran_out() -> None:
    stall = stall_of(FREEZE)
    assert 119 <= stall.after_s <= 121.5
    assert stall.step == steps(3, 60)[-1].step


def test_other_limits_give_other_seconds() -> None:
    stall = stall_of(FREEZE, stall={"limit_s": 10.0})
    assert 69 <= stall.after_s <= 71.5
    assert not [flag for flag in fired(FREEZE, stall={"enabled": False}) if flag.flag.rule == "stall"]


def test_one_trouble_is_reported_once_and_the_end_that_came_of_it_too() -> None:
    rules = [flag.flag.rule for flag in fired(FREEZE) if flag.flag.severity is Severity.CRITICAL]
    assert rules.count("stall") == 1
    assert rules.count("crash") == 1


def test_an_absence_of_the_daemon_is_no_stall_in_a_replay_either(tmp_path: Path) -> None:
    """Nothing was judged in it when it was recorded."""
    away = ev.DaemonAway(at=at(460), away_s=399.0)
    went_on = recording([*steps(3, 60), *steps(461, 500, 1027)], away)
    assert not [flag for flag in fired(went_on) if flag.flag.rule == "stall"]
    hung = recording(steps(3, 60), away, exited(700, signal=9))
    assert 518 <= stall_of(hung).after_s <= 521.5
    write(hung, tmp_path / "night")
    assert fired(read(tmp_path / "night")) == fired(hung)


def test_nan_is_flagged_within_the_second_of_its_step() -> None:
    poisoned = [*steps(3, 60), *steps(60, 90, 1027, math.nan)]
    nan = next(flag for flag in fired(recording(poisoned)) if flag.flag.rule == "non_finite_loss")
    assert 60 <= nan.after_s <= 61.5


def test_a_recording_survives_its_journey_unchanged(tmp_path: Path) -> None:
    spoilt = replace(FREEZE, steps=(*FREEZE.steps, StepRecord(at=at(70), step=2000, loss=math.inf, lr=0.01)))
    there = replace(spoilt, rules={"stall": {"limit_s": 30.0}}, gpus_used=("0000:0a:00.0",), buckets=(BUCKET,))
    write(there, tmp_path / "night")
    back = read(tmp_path / "night")
    assert back == there
    assert fired(back) == fired(there)


def test_events_that_have_a_kind_themselves_survive_it_too(tmp_path: Path) -> None:
    at = Moment(1.0, 1e9)
    facts = (
        ev.SupervisionChanged(at=at, job="yolo", attempt=1, place="history", error="ValueError", kind="steps_made"),
        ev.SupervisionChanged(at=at, job="yolo", attempt=1, place="checkpoints", error="OSError"),
        ev.ResortEnded(at=at, job="yolo", attempt=1, kind="reset_gpu", done=True, output=""),
    )
    recording = Recording(job="yolo", attempt=1, launched_at=Moment(0.0, 1e9), facts=facts)
    write(recording, tmp_path / "recording")
    assert read(tmp_path / "recording").facts == facts


def test_a_recording_is_written_over_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        write(FREEZE, tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "reported"),
    [
        (HEAD, b"{", "recording.json: "),
        (HEAD, b'{"version": 9, "job": "x", "attempt": 1, "launched_at": {"monotonic_s": 1, "unix_s": 1}, "rules": {}}',
         "version 9, this version replays version 1"),
        (EVENTS, gzip.compress(b'{"kind": "no_such_thing"}\n', mtime=0), "line 1: has an unknown kind of event"),
        (EVENTS, gzip.compress(b"[]\n", mtime=0), "line 1: is not a JSON object"),
        (EVENTS, gzip.compress(b'{"kind": "tick", "at": {"monotonic_s": "x", "unix_s": 1}}\n', mtime=0), "line 1: "),
        (EVENTS, b"no gzip at all", "events.jsonl.gz: line 0: "),
        (STEPS, gzip.compress(b"head\n1,2,3\n", mtime=0), "line 2: has 3 columns, not 10"),
        (STEPS, gzip.compress(b"head\n1,2,x,,,,,,,\n", mtime=0), "line 2: "),
        (STEPS, gzip.compress(b"head\n1,2,3,,,,,,,\n" * 9999, mtime=0)[:60], "steps.csv.gz: line "),
        (BUCKETS, gzip.compress(b'{"attempt": 1}\n', mtime=0), "line 1: "),
    ],
)  # fmt: skip
def test_a_damaged_recording_is_named_by_file_and_line(
    tmp_path: Path, file: str, content: bytes, reported: str
) -> None:
    write(FREEZE, tmp_path / "night")
    (tmp_path / "night" / file).write_bytes(content)
    with pytest.raises(RecordingError) as error:
        read(tmp_path / "night")
    assert reported in str(error.value)


def test_a_folder_without_a_recording_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="supervisorctl export JOB FOLDER"):
        read(tmp_path)


BUCKET = StepBucket(
    attempt=1, bucket_unix_s=1_763_600_000, steps=20, step_first=1, step_last=20, first_unix_s=1_763_600_000.0,
    last_unix_s=1_763_600_009.5, epoch=0, loss_min=0.1, loss_mean=0.5, loss_max=9.0, loss_last=0.4, lr_last=0.01,
    grad_norm_max=2.0, data_wait_mean_s=0.02, gpu_memory_max_bytes=10, steps_per_s=2.0, non_finite=3,
)  # fmt: skip


def test_a_bucket_unfolds_into_its_steps_with_its_extremes_and_its_nan() -> None:
    records = list(unfolded(BUCKET, FREEZE.moment))
    assert [record.step for record in records] == list(range(1, 21))
    assert (records[0].at.unix_s, records[-1].at.unix_s) == (BUCKET.first_unix_s, BUCKET.last_unix_s)
    losses = [record.loss for record in records if record.loss is not None]
    assert sum(map(math.isnan, losses)) == 3
    finite = [loss for loss in losses if not math.isnan(loss)]
    assert (min(finite), max(finite), finite[-1]) == (0.1, 9.0, 0.4)


def test_steps_that_are_kept_one_by_one_outrank_their_bucket() -> None:
    newer = tuple(steps(5, 6, first=11))
    both = replace(FREEZE, buckets=(BUCKET,), steps=newer)
    made = [record for event in both.events() if isinstance(event, ev.StepsMade) for record in event.records]
    assert [item.step for item in made] == [*range(1, 11), *[item.step for item in newer]]


def test_a_gap_of_years_is_not_ticked_through() -> None:
    broken = recording(steps(3, 4), exited(1e9, code=0))
    assert [item.flag.rule for item in replay(broken, [Stall()])] == []


def test_foreign_files_are_judged_by_the_same_rules(tmp_path: Path) -> None:
    log, kernel, telemetry = tmp_path / "train.log", tmp_path / "dmesg", tmp_path / "gpu.csv"
    log.write_text(
        "".join(f"2026-11-21 10:{index // 60:02}:{index % 60:02} iter {index}: loss 0.5\n" for index in range(1, 300))
        + "2026-11-21 10:05:01 iter 301: loss nan\n"
        + "2026-11-21 10:05:02 RuntimeError: HIP error: unspecified launch failure\n"
    )
    kernel.write_text("[ 100.0] usb 1-2: new device\n[ 400.0] amdgpu 0000:0a:00.0: amdgpu: GPU reset begin!\n")
    rows = "".join(f"{index},0000:0a:00.0,99,{5.9e9}\n" for index in range(300))
    telemetry.write_text(f"time,gpu,gpu_busy_percent,vram_used_bytes\n{rows}")
    seen = fired(of_files(log, kernel, telemetry))
    assert {"gpu_fault"} <= {entry.flag.rule for entry in seen}
    fault = next(entry for entry in seen if entry.flag.rule == "gpu_fault")
    assert fault.after_s == pytest.approx(300, abs=1.5)


def test_an_output_of_ultralytics_that_went_nan_is_flagged(tmp_path: Path) -> None:
    """Its format: two texts of 11 characters, then numbers as %11.4g, then its progress bar."""
    frames = [
        ("%11s" * 2 + "%11.4g" * 5) % (f"{epoch}/3", "1.2G", loss, 2.5, 1.25, 13, 640)
        + f": {percent}% \u2501\u2501\u2501\u2501 {batch}/50 18.0it/s 2.7s"
        for epoch, loss in ((1, 1.5), (2, math.nan), (3, math.nan))
        for batch, percent in ((10, 20), (30, 60), (50, 100))
    ]
    log = tmp_path / "training.log"
    log.write_text("\n".join(frames) + "\n")
    seen = fired(of_files(log, None, None))
    assert "non_finite_loss" in {entry.flag.rule for entry in seen}


def test_a_recorded_training_that_went_nan_is_flagged(corpus: Path) -> None:
    seen = fired(of_files(corpus / "training/recorded/ultralytics-8.4.190.nanpersist.stdout", None, None))
    assert "non_finite_loss" in {entry.flag.rule for entry in seen}


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        ("a,b\n1,2\n", "line 2: "),
        ("time,gpu_busy_percent\n1,many\n", "line 2: could not convert string"),
        ("time,gpu_busy_percent\nnan,3\n", "line 2: not finite"),
        ('{"time": 1, "processes": [1]}\n', "line 1: a field of type"),
        ('{"time": 1}\nnot json\n', "line 2: "),
        ("", "contains no known progress"),
    ],
)
def test_a_telemetry_table_that_is_none_is_named_by_its_line(tmp_path: Path, content: str, reported: str) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(content)
    with pytest.raises(RecordingError) as error:
        of_files(None, None, path)
    assert reported in str(error.value)


def test_the_format_is_plain_text_in_gzip(tmp_path: Path) -> None:
    write(FREEZE, tmp_path / "night")
    with gzip.open(tmp_path / "night" / EVENTS, "rt") as lines:
        assert [json.loads(line)["kind"] for line in lines] == ["agent_reported", "stage_entered", "exited"]
