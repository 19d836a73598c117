"""Writes the record of a long training into a new database, as the daemon would have left it after days.

python tests/bench/long_record.py FILE --hours 62 --steps 4100000 --gpus 1
"""

from __future__ import annotations

import argparse
import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from supervisor.core.job import Job, Phase
from supervisor.core.moments import Moment
from supervisor.store import schema
from supervisor.store.database import Database
from supervisor.store.jobs import encode
from supervisor.store.rollup import WINDOWS_AT_ONCE, Rollup
from supervisor.store.tiers import FIVE_MINUTES_S

BEGAN_UNIX_S = 1_763_600_000
TRAINING = "yolo"
CRASH_EVERY_S = 7 * 3600
REDONE_S = 300
DOWN_S = 60
GB = 10**9


def write_long_record(path: Path, *, hours: float = 62.0, steps: int = 4_100_000, gpus: int = 1) -> float:
    """Write a training of so many hours and steps, with a crash every seven hours; return its end, Unix seconds."""
    schema.bring_to_head(path)
    drawn = random.Random(20)
    seconds = int(hours * 3600)
    pace = steps / seconds
    attempts = [
        (index + 1, start, min(seconds, start + CRASH_EVERY_S))
        for index, start in enumerate(range(0, seconds, CRASH_EVERY_S))
    ]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN")
        _insert(connection, "step_metrics", _step_rows(attempts, pace, drawn))
        _insert(connection, "gpu_samples", _gpu_rows(seconds, gpus, drawn))
        _insert(connection, "process_samples", _process_rows(attempts))
        _insert(
            connection,
            "gpus",
            (
                {"gpu": f"0000:{number:02x}:00.0", "name": "Radeon", "seen_unix_s": BEGAN_UNIX_S}
                for number in range(gpus)
            ),
        )
        _insert(connection, "attempts", _attempt_rows(attempts, pace, seconds))
        _insert(connection, "incidents", _incident_rows(attempts, seconds, pace))
        moment = Moment(1000.0, float(BEGAN_UNIX_S))
        job = Job(name=TRAINING, phase=Phase.RUNNING, since=moment)
        _insert(
            connection,
            "jobs",
            [
                {
                    "name": TRAINING,
                    "phase": "running",
                    "desired_state": "running",
                    "attempt": len(attempts),
                    "since_unix_s": BEGAN_UNIX_S,
                    "state": encode(job),
                    "boot_id": "boot",
                    "saved_monotonic_s": 1000.0,
                    "saved_unix_s": BEGAN_UNIX_S + seconds,
                }
            ],
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _aggregate(path, seconds)
    return float(BEGAN_UNIX_S + seconds)


def _aggregate(path: Path, seconds: int) -> None:
    """Write the tiers as the daemon does, minute by minute, so that the last minutes have none."""
    database, rollup = Database(path), Rollup()
    database.connect()
    for _ in range(seconds // (WINDOWS_AT_ONCE * FIVE_MINUTES_S) + 2):
        rollup.run(database, float(BEGAN_UNIX_S + seconds))
    database.close()


def _insert(
    connection: sqlite3.Connection, table: str, rows: Iterator[dict[str, object]] | list[dict[str, object]]
) -> None:
    found = iter(rows)
    first = next(found, None)
    if first is None:
        return
    sql = f"INSERT INTO {table} ({', '.join(first)}) VALUES ({', '.join('?' * len(first))})"
    connection.execute(sql, tuple(first.values()))
    connection.executemany(sql, (tuple(row.values()) for row in found))


def _step_rows(attempts: list[tuple[int, int, int]], pace: float, drawn: random.Random) -> Iterator[dict[str, object]]:
    for attempt, start, end in attempts:
        redone = (attempt - 1) * (REDONE_S + DOWN_S)
        down = DOWN_S if attempt > 1 else 0
        for second in range(start + down, end, 10):
            first = int((second - redone) * pace) + 1
            last = int((second + 10 - redone) * pace)
            loss = 0.8 + 5.5 * math.exp(-second / 40_000) + 0.15 * drawn.random()
            yield {
                "job": TRAINING,
                "attempt": attempt,
                "rank": 0,
                "bucket_unix_s": BEGAN_UNIX_S + second,
                "steps": last - first + 1,
                "step_first": first,
                "step_last": last,
                "first_unix_s": BEGAN_UNIX_S + second + 0.02,
                "last_unix_s": BEGAN_UNIX_S + second + 9.98,
                "epoch": second // 4464,
                "loss_known": last - first + 1,
                "loss_min": loss - 0.2 * drawn.random(),
                "loss_mean": loss,
                "loss_max": loss + 0.5 * drawn.random(),
                "loss_last": loss,
                "lr_last": 0.01 * (1 - second / 250_000),
                "grad_norm_max": 1 + 4 * drawn.random(),
                "data_wait_known": last - first + 1,
                "data_wait_mean_s": 0.001 + 0.001 * drawn.random(),
                "gpu_memory_max_bytes": int(4.2 * GB),
                "steps_per_s": pace * (0.97 + 0.06 * drawn.random()),
                "non_finite": 0,
            }


def _gpu_rows(seconds: int, gpus: int, drawn: random.Random) -> Iterator[dict[str, object]]:
    for second in range(seconds):
        for number in range(gpus):
            yield {
                "at_unix_s": BEGAN_UNIX_S + second + 0.01 * number,
                "gpu": f"0000:{number:02x}:00.0",
                "source": "sysfs",
                "gpu_busy_percent": 95 + 5 * drawn.random(),
                "vram_used_bytes": int(4.3 * GB),
                "edge_c": 70 + 3 * drawn.random(),
                "junction_c": 80 + 5 * math.sin(second / 9000) + drawn.random(),
                "power_w": 140 + 10 * drawn.random(),
            }


def _process_rows(attempts: list[tuple[int, int, int]]) -> Iterator[dict[str, object]]:
    for attempt, start, end in attempts:
        for second in range(start + 60, end, 10):
            yield {
                "at_unix_s": float(BEGAN_UNIX_S + second),
                "job": TRAINING,
                "attempt": attempt,
                "processes": 9,
                "rss_bytes": int(3 * GB + second * 1000),
                "cpu_percent": 320.0,
                "uninterruptible": 0,
            }


def _attempt_rows(attempts: list[tuple[int, int, int]], pace: float, seconds: int) -> Iterator[dict[str, object]]:
    for attempt, start, end in attempts:
        yield {
            "job": TRAINING,
            "number": attempt,
            "launched_unix_s": float(BEGAN_UNIX_S + start),
            "ended_unix_s": None if end == seconds else float(BEGAN_UNIX_S + end),
            "resume_from": None if attempt == 1 else "/d/weights/last.pt",
            "resume_step": None if attempt == 1 else int((start + DOWN_S - (attempt - 1) * (REDONE_S + DOWN_S)) * pace),
            "exit_signal": None if end == seconds else 9,
        }


def _incident_rows(attempts: list[tuple[int, int, int]], seconds: int, pace: float) -> Iterator[dict[str, object]]:
    for attempt, _, end in attempts:
        if end == seconds:
            continue
        yield {
            "id": f"{TRAINING}-{attempt}",
            "job": TRAINING,
            "attempt": attempt,
            "opened_unix_s": float(BEGAN_UNIX_S + end),
            "rule": "gpu_fault",
            "fault": "gpu_hang",
            "message": "ring gfx timeout on 0000:00:00.0",
            "decision": "kill",
            "outcome": "resumed",
            "last_step": int(end * pace),
            "resumed_from": "/d/weights/last.pt",
            "resumed_unix_s": float(BEGAN_UNIX_S + end + 60),
            "lost_steps": int(REDONE_S * pace),
            "downtime_s": 60.0,
            "closed": 1,
            "state": "{}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--hours", type=float, default=62.0)
    parser.add_argument("--steps", type=int, default=4_100_000)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    write_long_record(given.file, hours=given.hours, steps=given.steps, gpus=given.gpus)


if __name__ == "__main__":
    main()
