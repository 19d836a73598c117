"""The record costs the thread that decides next to nothing, and the events that come every second stay out of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from record_by_hand import START, at, gpu, host, job, made, open_store, tree

from supervisor.core import events as ev
from supervisor.core.findings import FaultClass, FaultSeverity, KernelFinding, OutputFinding
from supervisor.core.readings import Stage
from supervisor.store.archive import Archive
from supervisor.store.database import CACHE_KIB, Database


@pytest.mark.alone(reason="compares processor time with a limit")
def test_a_second_of_a_busy_machine_costs_less_than_three_milliseconds(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    costs = []
    for second in range(60):
        began = time.process_time()
        with store.turn(at(second)):
            store.add_steps(made(range(18 * second + 1, 18 * second + 19), cursor=18 * second + 18))
            store.add_gpu_samples(
                gpu(second, source, f"0000:0{card}:00.0") for source in ("sysfs", "rocm-smi") for card in range(8)
            )
            store.add_host_sample(host(second))
            store.add_process_sample("night", 1, tree(second))
            store.save_offsets("night", 1, output_bytes=second)
            store.save_job(job())
        store.flush(at(second))
        costs.append(time.process_time() - began)
    store.close(START)
    # Among the quickest: whatever else runs on the machine only ever adds.
    assert sorted(costs)[len(costs) // 10] < 0.003


@pytest.mark.alone(reason="compares processor time with a limit")
def test_a_hundred_thousand_steps_after_an_outage_are_taken_in_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    began = time.process_time()
    store.add_steps(made(range(1, 100_001), cursor=100_000))
    store.flush(START)
    assert time.process_time() - began < 5.0
    assert sum(metric.steps for metric in Archive(store.path).step_metrics("night")) == 100_000
    store.close(START)


def test_only_rare_events_are_kept_complete(tmp_path: Path) -> None:
    fault = KernelFinding(
        at=START,
        sequence=7,
        fault=FaultClass.GPU_RESET,
        severity=FaultSeverity.FATAL,
        gpu="0000:0a:00.0",
        line="amdgpu: \x1b[31mreset\udcff",
    )
    printed = OutputFinding(at=START, fault=FaultClass.OOM_GPU, line="out of memory")
    rare: list[ev.Event] = [
        ev.UserRequest(at=START, job="night", ask=ev.Ask.STOP, by="uid 1000"),
        ev.KernelReported(at=START, findings=(fault,), sequence=7),
        ev.OutputSeen(at=START, job="night", attempt=1, new_bytes=9, last_line="x", findings=(printed,)),
        ev.StageEntered(at=START, job="night", attempt=1, stage=Stage.VALIDATE),
        ev.AgentReported(at=START, job="night", attempt=1, agent_event=ev.AgentEvent.EXCEPTION, facts=hostile_facts()),
        ev.ClockStepped(at=START, by_s=-3600.0),
        ev.DaemonAway(at=START, away_s=6.0),
    ]
    common: list[ev.Event] = [
        ev.Tick(at=START),
        made([1], cursor=1),
        ev.GpusRead(at=START, readings=(gpu(),)),
        ev.HostRead(at=START, reading=host()),
        ev.ProcessesRead(at=START, job="night", attempt=1, reading=tree()),
        ev.KernelReported(at=START, findings=(), sequence=8),
        ev.OutputSeen(at=START, job="night", attempt=1, new_bytes=9, last_line="x"),
        ev.AlertTried(at=START, alert="a", delivered=True, error=None),
    ]
    store = open_store(tmp_path)
    with store.turn(START):
        for event in [*common, *rare]:
            store.record_event(event)
    assert store.problem is None
    store.close(START)
    kept = Archive(store.path).events()
    assert [entry.kind for entry in kept] == [
        "user_request",
        "kernel_reported",
        "output_seen",
        "stage_entered",
        "agent_reported",
        "clock_stepped",
        "daemon_away",
    ]
    assert max(len(entry.body) for entry in kept) < 200_000


def hostile_facts() -> dict[str, object]:
    """What a training could write into its log to hurt a reader."""
    deep: object = 1
    for _ in range(50):
        deep = [deep]
    return {
        "traceback": "x" * 5_000_000,
        "list": list(range(100_000)),
        "surrogate": "\udc80",
        "number": 2**200,
        "nan": float("nan"),
        "deep": deep,
        "\udcff": b"bytes",
        "object": object(),
    }


def test_what_is_kept_of_the_file_in_memory_does_not_grow_with_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.close(START)
    database = Database(store.path)
    database.connect()
    [(kept,)] = database.pragma("cache_size")
    database.close()
    assert kept == -CACHE_KIB, "in KiB, as SQLite counts what is below zero"
    assert CACHE_KIB <= 512
