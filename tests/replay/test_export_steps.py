"""The steps of a record leave it as numbers that other programs read, none of them lost or made up."""

from __future__ import annotations

import csv
import io
import json
import math
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from supervisor.cli.app import App
from supervisor.cli.errors import CliError
from supervisor.cli.main import cli
from supervisor.cli.replay.export import _find_buckets
from supervisor.cli.replay.follow import FAILURES_PASSED_OVER, READ_BACK_S, Pause, follow, spans_to_read
from supervisor.cli.replay.series import COLUMNS
from supervisor.cli.replay.source import recorded_steps
from supervisor.cli.replay.tensorboard import TAGS, crc32c, events_file, frame, masked
from supervisor.core import events as ev
from supervisor.core.moments import Moment
from supervisor.core.readings import StepRecord
from supervisor.store.records import StepBucket
from supervisor.store.store import Store
from tests.rigs import small_disk

T0 = Moment(1000.0, 1_763_600_000.0)


def made(attempt: int, first: int, last: int, begun_s: float) -> ev.StepsMade:
    """One step a second."""
    records = tuple(
        StepRecord(at=T0.plus(begun_s + step - first), step=step, epoch=0, loss=1 / step, lr=0.01)
        for step in range(first, last + 1)
    )
    return ev.StepsMade(at=records[-1].at, job="night", attempt=attempt, records=records, cursor=last)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two attempts: steps 1 to 25, then 21 to 40."""
    state = tmp_path / "state"
    state.mkdir()
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    with store.turn(T0.plus(100)):
        store.add_steps(made(1, 1, 25, 0))
        store.add_steps(made(2, 21, 40, 60))
    store.close(T0.plus(100))
    path = tmp_path / "config.toml"
    path.write_text(f"[supervisor]\nstate_dir = '{state}'\n[jobs.night]\ncommand = ['true']\n")
    return path


def export(config: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--config", str(config), "export", *words], obj=App())


def test_csv_and_ndjson_hold_the_same_rows_of_all_attempts(config: Path) -> None:
    table = list(csv.DictReader(io.StringIO(export(config, "--to", "csv", "night").stdout)))
    objects = [json.loads(line) for line in export(config, "--to", "ndjson", "night").stdout.splitlines()]
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in objects] == table
    assert tuple(objects[0]) == COLUMNS
    assert [(row["attempt"], row["step_first"], row["step_last"]) for row in objects] == [
        (1, 1, 10),
        (1, 11, 20),
        (1, 21, 25),
        (2, 21, 30),
        (2, 31, 40),
    ]
    assert (objects[0]["first_time"], objects[0]["grad_norm_max"]) == ("2025-11-20T00:53:20.000Z", None)
    assert objects[0]["loss_max"] == 1.0


def test_one_attempt_is_written_into_a_new_file(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "steps.csv"
    words = ("--to", "csv", "night", "--attempt", "2", "--output", str(target))
    assert "2 rows of 1 attempts" in export(config, *words).stdout
    assert len(target.read_text().splitlines()) == 3
    again = export(config, *words)
    assert (again.exit_code, "File exists" in again.stderr) == (1, True)


def test_tensorboard_gets_a_run_for_each_attempt(config: Path, tmp_path: Path) -> None:
    target = tmp_path / "runs"
    assert export(config, "--to", "tensorboard", "night", "--output", str(target)).exit_code == 0
    files = sorted(target.rglob("*tfevents*"))
    assert [file.parent.name for file in files] == ["attempt-001", "attempt-002"]
    first, second = (list(read_events(file.read_bytes())) for file in files)
    assert first[0][2] == second[0][2] == {"version": "brain.Event:2"}
    assert [(step, scalars["epoch"]) for _, step, scalars in first[1:]] == [(10, 0), (20, 0), (25, 0)]
    assert [unix_s for unix_s, _, _ in second[1:]] == [T0.unix_s + 69, T0.unix_s + 79]
    assert first[1][2]["loss/max"] == 1.0
    assert "gradient_norm/max" not in first[1][2]


def test_following_writes_each_row_once_and_the_last_one_when_it_is_interrupted(config: Path) -> None:
    rows = recorded_steps(App(config_given=config), "night", None)
    longer = replace(rows[1], steps=11, step_last=21)
    rounds = [rows[:2], (rows[0], longer), (*rows[:1], longer, *rows[2:4]), rows]
    asked: list[float | None] = []
    seen: list[int] = []

    def read(since_unix_s: float | None) -> tuple[StepBucket, ...]:
        asked.append(since_unix_s)
        return rounds[len(asked) - 1]

    def wait() -> None:
        seen.append(len(found))
        if len(asked) == len(rounds):
            raise KeyboardInterrupt

    found: list[StepBucket] = []
    for bucket in follow(read, wait):
        found.append(bucket)
    assert found == [rows[0], longer, *rows[2:]]
    assert seen == [1, 1, 3, 4], "a row is written as soon as there is a later one, the newest at the end"
    assert asked[-1] == rows[2].bucket_unix_s - READ_BACK_S


def followed(rounds: Iterable[tuple[StepBucket, ...] | CliError]) -> Iterator[StepBucket]:
    """Follow a record that answers like this poll after poll; the user interrupts after the last."""
    left = deque(rounds)

    def read(_: float | None) -> tuple[StepBucket, ...]:
        answer = left.popleft()
        if isinstance(answer, CliError):
            raise answer
        return answer

    def wait() -> None:
        if not left:
            raise KeyboardInterrupt

    return follow(read, wait)


def test_following_outlasts_a_record_that_is_locked_or_replaced_meanwhile(config: Path) -> None:
    rows = recorded_steps(App(config_given=config), "night", None)
    locked = CliError("database is locked")
    assert list(followed([rows[:2], locked, (), locked, rows])) == [*rows]
    assert list(followed([rows[:2], locked, rows[2:]])) == [*rows], "the new record lacks what was read of the lost one"
    long = followed([rows[:2], *[locked] * FAILURES_PASSED_OVER, rows[:3], *[locked] * (FAILURES_PASSED_OVER + 1)])
    assert [next(long) for _ in range(3)] == [*rows[:3]]
    with pytest.raises(CliError, match="locked"):
        next(long)
    with pytest.raises(CliError, match="locked"):
        next(followed([locked]))


def test_rows_of_the_time_after_the_clock_was_set_back_are_written_too(config: Path) -> None:
    rows = recorded_steps(App(config_given=config), "night", None)
    latest = rows[-1]
    after = replace(latest, bucket_unix_s=latest.bucket_unix_s - 50_000, step_first=41, step_last=50)
    newer = replace(after, bucket_unix_s=after.bucket_unix_s + 10, step_first=51, step_last=60)
    assert list(followed([rows, (*rows, after), (*rows, after, newer)])) == [*rows, after, newer]


def test_a_row_to_which_a_clock_that_was_set_back_adds_steps_is_written_again_with_all_of_them(config: Path) -> None:
    rows = recorded_steps(App(config_given=config), "night", None)
    again = replace(rows[3], steps=rows[3].steps + 7, step_last=47)
    later = replace(rows[-1], bucket_unix_s=rows[-1].bucket_unix_s + 10, step_first=48, step_last=57)
    everything = (*rows[:3], again, rows[4])
    assert list(followed([rows, everything, (*everything, later)])) == [*rows, again, later]


@pytest.mark.parametrize("by_s", [30.0, 3000.0, 50_000.0, 4e7])
def test_what_is_recorded_before_and_after_the_clock_was_set_back_is_read(by_s: float) -> None:
    done, now = 1e9, 1e9 - by_s
    spans = spans_to_read(done - READ_BACK_S, now)
    for recorded in (done - READ_BACK_S + 1, done, done + 10, now - 600, now):
        assert any(since <= recorded < until for since, until in spans if since is not None and until is not None)
    assert sum(until - since for since, until in spans if since is not None and until is not None) < 3.1 * READ_BACK_S


def test_a_daemon_that_was_away_for_long_is_read_up_to_now() -> None:
    ((since, until),) = spans_to_read(1e6, 2e6)
    assert since == 1e6
    assert until is not None
    assert until > 2e6


def test_steps_whose_time_is_ahead_of_the_clock_end_no_following(config: Path) -> None:
    """Recorded before the clock was set back."""
    app = App(config_given=config, now=lambda: T0.unix_s + 120)
    honest = recorded_steps(app, "night", None)
    state = config.parent / "state"
    store = Store.open(f"sqlite:///{state}/supervisor.db", T0, "boot")
    forged = tuple(StepRecord(at=T0.plus(5e9 + 20 * ahead), step=41 + ahead, loss=0.0) for ahead in range(2))
    with store.turn(T0.plus(100)):
        store.add_steps(ev.StepsMade(at=T0.plus(100), job="night", attempt=2, records=forged, cursor=42))
    following = iter(_find_buckets(app, "night", None, Pause()))
    read = [next(following) for _ in (*honest, 1)]
    with store.turn(T0.plus(120)):
        store.add_steps(made(2, 43, 62, 100))
    store.close(T0.plus(120))
    read += [next(following) for _ in range(2)]
    assert read[: len(honest)] == [*honest]
    assert [(row.step_first, row.step_last) for row in read[len(honest) :]] == [(41, 41), (42, 42), (43, 52)]


@pytest.mark.slow
def test_a_followed_file_grows_while_it_is_followed_and_is_whole_after_an_interrupt(
    config: Path, tmp_path: Path
) -> None:
    target = tmp_path / "steps.ndjson"
    words = ["export", "--to", "ndjson", "night", "--follow", "--output", str(target)]
    # What starts the tests in the background may ignore SIGINT, and a child inherits that.
    started = ["env", "--default-signal=INT", sys.executable, "-m", "supervisor.cli", "--config", str(config), *words]
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            deadline = time.perf_counter() + 60
            while (len(target.read_text().splitlines()) if target.exists() else 0) < 4:
                assert process.poll() is None
                assert time.perf_counter() < deadline
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, "5 rows of 2 attempts" in printed) == (0, True)
    assert [json.loads(line)["step_last"] for line in target.read_text().splitlines()] == [10, 20, 25, 30, 40]


@pytest.mark.slow
@pytest.mark.mounts
@pytest.mark.parametrize("kind", ["csv", "tensorboard"])
def test_a_full_disk_is_reported_with_what_helps(config: Path, tmp_path: Path, kind: str) -> None:
    with small_disk.mounted(tmp_path / "small", 1) as small:
        with suppress(OSError):
            (small / "fill").write_bytes(bytes(1 << 21))
        refused = export(config, "--to", kind, "night", "--output", str(small / "x"))
    assert refused.exit_code == 1
    assert "No space left on device" in refused.stderr
    assert f"free space on the disk of {small / 'x'}" in refused.stderr


def test_a_target_that_exists_is_named(config: Path, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    refused = export(config, "--to", "csv", "night", "--output", str(tmp_path / "x"))
    assert "give a path that does not exist yet" in refused.stderr


def test_what_is_not_there_or_contradicts_itself_is_refused(config: Path) -> None:
    for words in (
        ("night", "x", "--to", "csv"),
        ("night",),
        ("night", "x", "--output", "y"),
        ("--to", "excel", "x"),
        ("night", "x", "--follow"),
    ):
        assert export(config, *words).exit_code == 2
    for job in ("other", "night"):
        absent = export(config, "--to", "csv", job, "--attempt", "9")
        assert (absent.exit_code, f"no step of {job}, attempt 9 is recorded" in absent.stderr) == (1, True)


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_checksum_has_the_values_of_rfc_3720(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_a_masked_checksum_is_turned_back() -> None:
    for crc in (0, 1, 0xE3069283, 0xFFFFFFFF):
        turned = (masked(crc) - 0xA282EAD8) & 0xFFFFFFFF
        assert ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF == crc


def test_large_steps_and_values_are_kept_as_far_as_the_format_goes() -> None:
    numbers = dict.fromkeys(StepBucket.__dataclass_fields__)
    numbers |= {
        "step_last": 4_100_000_000,
        "first_unix_s": 1.0,
        "last_unix_s": 2.5,
        "loss_mean": 1e300,
        "loss_min": -0.5,
    }
    bucket = StepBucket(**numbers)  # type: ignore[arg-type]
    _, (unix_s, step, scalars) = read_events(b"".join(events_file([bucket])))
    assert (unix_s, step, scalars) == (2.5, 4_100_000_000, {"loss/mean": math.inf, "loss/min": -0.5})


def test_a_damaged_record_is_seen_by_its_checksum() -> None:
    good = frame(b"some data")
    damaged = good[:14] + b"X" + good[15:]
    with pytest.raises(AssertionError):
        list(read_events(damaged))


Event = tuple[float, int, dict[str, float | str]]


def read_events(content: bytes) -> Iterator[Event]:
    """Decode a file of events by the documented format; a wrong checksum is an assertion."""
    while content:
        (length,) = struct.unpack_from("<Q", content)
        (of_length,), (of_data,) = struct.unpack_from("<I", content, 8), struct.unpack_from("<I", content, 12 + length)
        data = content[12 : 12 + length]
        assert (of_length, of_data) == (masked(crc32c(content[:8])), masked(crc32c(data)))
        content = content[16 + length :]
        yield read_event(data)


def read_event(data: bytes) -> Event:
    unix_s, step, found = 0.0, 0, dict[str, float | str]()
    for number, value in fields(data):
        if number == 1:
            (unix_s,) = struct.unpack("<d", value)
        elif number == 2:
            step = int.from_bytes(value, "little")
        elif number == 3:
            found["version"] = value.decode()
        else:
            assert number == 5
            for _, scalar in fields(value):
                parts = dict(fields(scalar))
                assert parts[1].decode() in TAGS
                (found[parts[1].decode()],) = struct.unpack("<f", parts[2])
    return unix_s, step, found


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field; a varint as eight bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
            yield key >> 3, value.to_bytes(8, "little")
            continue
        length = {1: 8, 5: 4}.get(kind)
        if length is None:
            length, at = varint(data, at)
        yield key >> 3, data[at : at + length]
        at += length


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at
