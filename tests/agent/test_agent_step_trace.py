"""What the time of traced steps was spent on: by a trace written by hand, and by a training."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_by_hand import AGENT_PATH, Attempt, wait_for

if TYPE_CHECKING:
    from tests.rigs.warm import Warm

sys.path.insert(0, str(AGENT_PATH))

from rocm_agent import step_trace
from rocm_agent.step_trace import FORWARD, STEP, WAIT, Event

MS = 1_000_000
TUNED = "tune.json"


def at(name: str, begin_ms: float, end_ms: float, thread: int = 1, **more: Any) -> Event:
    return Event(name, (int(begin_ms * MS), int(end_ms * MS)), thread, **more)


def sum_up(*events: Event, on_gpu: bool = False) -> dict[str, Any]:
    found = step_trace.sum_up(sorted(events, key=lambda event: (event.begin, -event.end)), on_gpu=on_gpu)
    assert found is not None
    return dict(found)


def test_a_step_of_a_processor_is_split_into_waiting_computing_and_what_neither_does() -> None:
    found = sum_up(
        at(STEP, 0, 0),
        at(WAIT, 10, 30),
        at("aten::stack", 12, 14),  # the loader's own work is waiting
        at(FORWARD, 30, 60),
        at("aten::linear", 35, 45),
        at("aten::addmm", 36, 44),  # called by it
        at("aten::relu", 45, 46),
        at("aten::view", 47, 47.005),  # takes no longer than its call
        at("autograd::engine::evaluate_function: MmBackward0", 60, 80),
        at("aten::mm", 61, 79),
        at("Optimizer.step#SGD.step", 80, 90),
        at("aten::_foreach_add_", 82, 86),
        at("aten::mm", 20, 90, thread=7),  # another thread's
        at(STEP, 100, 100),
    )
    assert (found["steps"], found["span_s"], found["waited_s"], found["starved_s"]) == (1, 0.1, 0.02, 0.02)
    assert found["computing_s"] == pytest.approx(0.033)
    assert found["matrix_s"] == pytest.approx(0.028)
    assert found["phases"] == pytest.approx({"forward": 0.011, "backward": 0.018, "optimizer": 0.004, "transfer": 0.0})
    assert found["communication_s"] == 0.0


def test_matrix_products_of_a_compiled_net_are_seen_within_its_calls() -> None:
    found = sum_up(
        at(STEP, 0, 0),
        at(FORWARD, 10, 60),
        at("Torch-Compiled Region: 0/0", 12, 52),
        at("CompiledFunction", 12, 50),
        at("aten::addmm", 15, 35),
        at("aten::mm", 55, 58),  # outside of it
        at("aten::gelu", 36, 40),
        at(STEP, 100, 100),
    )
    assert found["computing_s"] == pytest.approx(0.043)
    assert found["matrix_s"] == pytest.approx(0.023)


def test_ranks_are_waited_for_only_while_nothing_is_computed() -> None:
    found = sum_up(
        at(STEP, 0, 0),
        at("aten::mm", 10, 40),
        at("c10d::allreduce_", 30, 30.1),
        at("gloo:all_reduce", 30, 70, thread=9),
        at("gloo:all_reduce", 60, 80, thread=8),
        at(STEP, 100, 100),
    )
    assert found["communication_s"] == pytest.approx(0.04)


def test_a_gpu_computes_kernels_and_copies_wherever_they_were_called_from() -> None:
    found = sum_up(
        at(STEP, 0, 0),
        at(WAIT, 0, 20),
        at(FORWARD, 20, 30),
        at("aten::mm", 21, 22, ids=(5, 0)),
        at("autograd::engine::evaluate_function: MmBackward0", 30, 40, thread=2),
        at("aten::mul", 31, 32, thread=2, ids=(6, 0)),
        at("Memcpy HtoD (Pageable -> Device)", 10, 15, thread=0, gpu=True),
        at("sm90_xmma_gemm_bf16", 40, 60, thread=0, gpu=True, ids=(105, 5)),
        at("void at::native::vectorized_elementwise_kernel", 60, 70, thread=0, gpu=True, ids=(106, 6)),
        at("ncclDevKernel_AllReduce_Sum_f32", 65, 90, thread=3, gpu=True),
        at("nccl:all_reduce", 32, 33, thread=2),  # the call
        at(STEP, 100, 100),
        on_gpu=True,
    )
    assert (found["waited_s"], found["starved_s"]) == (pytest.approx(0.02), pytest.approx(0.015))
    assert found["computing_s"] == pytest.approx(0.035)
    assert found["matrix_s"] == pytest.approx(0.02)
    assert found["communication_s"] == pytest.approx(0.02)
    assert found["phases"] == pytest.approx({"forward": 0.02, "backward": 0.01, "optimizer": 0.0, "transfer": 0.005})


def test_a_trace_that_shows_no_whole_step_says_nothing() -> None:
    assert step_trace.sum_up([at(STEP, 0, 0), at("aten::mm", 1, 2)], on_gpu=False) is None


def test_fewer_steps_are_traced_where_one_takes_seconds_and_more_where_they_are_short() -> None:
    assert not step_trace.are_enough(3, 1_400 * MS)
    assert step_trace.are_enough(2, 2_400 * MS), "1.2 s each"
    assert step_trace.are_enough(1, 20_000 * MS)
    assert not step_trace.are_enough(0, 20_000 * MS), "the step in which the profiler began"
    assert not step_trace.are_enough(11, 900 * MS)
    assert step_trace.are_enough(12, 900 * MS)


class Raw:
    """An event as torch's profiler gives it."""

    def __init__(self, name: str, begin_ms: float, took_ms: float = 0.0) -> None:
        self._name, self._begin_ms, self._took_ms = name, begin_ms, took_ms

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return int(self._begin_ms * MS)

    def duration_ns(self) -> int:
        return int(self._took_ms * MS)

    def device_type(self) -> str:
        return "DeviceType.CPU"

    def correlation_id(self) -> int:
        return 0

    linked_correlation_id = start_thread_id = correlation_id


@pytest.mark.parametrize(("most", "steps"), [(1000, 4), (24, 2), (12, 1), (5, 1)])
def test_of_a_trace_with_too_many_events_the_last_whole_steps_are_read_one_at_least(most: int, steps: int) -> None:
    trace = [Raw(STEP, 100 * step) for step in range(5)]
    trace += [Raw("aten::mm", 100 * step + 10 * number, 5) for step in range(4) for number in range(1, 10)]
    found = step_trace.sum_up(step_trace.read(trace, most), on_gpu=False)
    assert found is not None
    assert (found["steps"], found["span_s"]) == (steps, 0.1 * steps)
    assert found["computing_s"] == pytest.approx(0.045 * steps)


MANY = """
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.01)
rows = torch.ones(300, 300)
while True:
    found = weight
    for _ in range(10_000):
        found = found * 1.0
    (rows @ rows * found).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.train
def test_steps_of_very_many_operators_are_traced_too(
    attempt: Attempt, current_python: Path, warm: Warm, order: Callable[[dict[str, object]], None]
) -> None:
    """Each has about 100,000 events: as many steps as are traced elsewhere have more than are read."""
    attempt.warm = warm(current_python)
    attempt.make_recorder(4096)
    program = attempt.start([current_python, "-c", MANY])
    wait_for(lambda: attempt.head() >= 1)
    order({"id": 1, "settings": {}, "traces": True})
    program.kill()
    program.communicate()
    (answer,) = attempt.list_reports("tuning")
    assert 1 <= answer["traced"]["steps"] <= 3
    assert 0 < answer["traced"]["computing_s"] < answer["traced"]["span_s"]
    assert not attempt.failures()


STARVED = """
import time, torch
from torch.utils.data import DataLoader
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((8,), index / 100_000)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def is_ours(method):
    return method.__code__.co_filename.endswith("step_trace.py")
for rows in DataLoader(Rows(), batch_size=1):
    model(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    drawn = torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    print(torch.autograd._profiler_enabled(), is_ours(torch.nn.Module.__call__), is_ours(drawn), flush=True)
"""


@pytest.mark.train
def test_steps_are_traced_for_an_order_that_asks_and_nothing_of_it_is_left(
    attempt: Attempt, train_python: Path, warm: Warm, order: Callable[[dict[str, object]], None]
) -> None:
    attempt.warm = warm(train_python)
    attempt.make_recorder(4096)
    program = attempt.start([train_python, "-c", STARVED])
    wait_for(lambda: attempt.head() >= 5)
    order({"id": 1, "settings": {}, "traces": True})
    wait_for(lambda: attempt.head() >= 40)
    program.kill()
    lines = program.communicate()[0].splitlines()
    (answer,) = attempt.list_reports("tuning")
    traced = answer["traced"]
    assert 4 <= traced["steps"] <= 12
    assert traced["span_s"] >= traced["waited_s"] == traced["starved_s"] >= traced["steps"] * 0.02
    assert not traced["on_gpu"]
    assert set(lines[:4]) == set(lines[-8:]) == {"False False False"}
    assert "True True True" in lines
    assert not attempt.failures()


@pytest.fixture
def order(attempt: Attempt) -> Callable[[dict[str, object]], None]:
    def give(fields: dict[str, object]) -> None:
        draft = attempt.folder / "draft"
        draft.write_text(json.dumps({"version": 1, "until_ns": None, **fields}))
        draft.replace(attempt.folder / TUNED)
        wait_for(lambda: any(fact["id"] == fields["id"] for fact in attempt.list_reports("tuning")))

    return give
