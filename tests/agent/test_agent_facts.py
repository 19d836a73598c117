"""What the agent tells of a training beside its steps: allocator, loader workers, precision."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from agent_by_hand import Attempt

from tests.rigs.warm import Warm

LOADING = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(3)
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.full((4,), float(index))
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(torch.ones(4, 4))
if __name__ == "__main__":
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Stream() if sys.argv[1] == "stream" else Numbers()
    loader = DataLoader(data, batch_size=2, num_workers=int(sys.argv[2]))
    for epoch in range(2):
        for batch in loader:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print([p.double().sum().item() for p in model.parameters()])
"""

HALF = """
import sys, torch
from torch import nn
torch.manual_seed(3)
model, entered = nn.Linear(4, 1), sys.argv[1] == "autocast"
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu") if sys.argv[1] == "scaler" else None
for step in range(25):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=entered):
        loss = model(torch.ones(2, 4)).float().pow(2).mean()
    optimizer.zero_grad()
    (scaler.scale(loss) if scaler else loss).backward()
    scaler.step(optimizer) if scaler else optimizer.step()
    scaler and scaler.update()
print("patched" if hasattr(torch.amp.autocast_mode.autocast.__enter__, "__wrapped__") else "as it was")
for step in range(300):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=entered): pass
print("patched" if hasattr(torch.amp.autocast_mode.autocast.__enter__, "__wrapped__") else "as it was")
"""

ALLOCATOR = """
import sys
from types import SimpleNamespace
from rocm_agent import scalars
stats = {"reserved_bytes.all.current": 1000, "allocated_bytes.all.current": 600, "num_alloc_retries": 0}
second_gpu = {}
cuda = SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 2,
    memory_stats=lambda gpu: dict([stats, second_gpu][gpu]),
    get_device_properties=lambda gpu: SimpleNamespace(total_memory=24000),
)
clock = [0]
memory = scalars.GpuMemory(SimpleNamespace(cuda=cuda), clock=lambda: clock[0])
def second(**changed):
    clock[0] += 1_000_000_000
    stats.update(changed)
    return memory.read()
print([second() for _ in range(29)][-1])
second(**{"reserved_bytes.all.current": 1005})
cuda.get_per_process_memory_fraction = lambda gpu: 0.25
second(num_alloc_retries=1), second(num_alloc_retries=2), second(num_alloc_retries=3)
stats.clear()
second(), second()
second_gpu.update({"reserved_bytes.all.current": 8000, "allocated_bytes.all.current": 5000})
print(second())
"""

NEEDS_A_GPU = """
import torch
if not torch.cuda.is_available():
    raise SystemExit(77)
weights = torch.zeros(1 << 20, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for step in range(5):
    (weights * 2).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def warm_attempt(attempt: Attempt, request: pytest.FixtureRequest, warm: Warm) -> Attempt:
    """An attempt in whichever environment the test names, forked from an interpreter with torch."""
    (name,) = {"train_python", "current_python", "owner_python"}.intersection(request.fixturenames)
    attempt.warm = warm(request.getfixturevalue(name))
    return attempt


def run(attempt: Attempt, python: Path | str, tmp_path: Path, program: str, *words: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(program)
    finished = attempt.run([python, script, *words], OMP_NUM_THREADS="1")
    assert finished.code == 0, finished.output
    assert not attempt.failures()
    return finished.output


@pytest.mark.train
def test_workers_are_named_when_they_begin_when_drawn_from_and_when_they_are_released(
    warm_attempt: Attempt, train_python: Path, tmp_path: Path
) -> None:
    run(warm_attempt, train_python, tmp_path, LOADING, "map", "2")
    reported = warm_attempt.list_reports("workers")
    assert [
        (report["loader"], len(report["pids"]), report.get("training"), report.get("ended")) for report in reported
    ] == [
        (1, 2, False, None),
        (1, 2, True, None),
        (1, 0, None, True),
        (2, 2, False, None),
        (2, 0, None, True),
    ]
    assert not any(report.get("iterable") for report in reported)
    assert len({report["pid"] for report in reported}) == 1
    assert reported[0]["pid"] not in reported[0]["pids"]


@pytest.mark.train
def test_a_loader_without_workers_says_so_once_and_a_stream_is_named_one(
    warm_attempt: Attempt, owner_python: Path, tmp_path: Path
) -> None:
    run(warm_attempt, owner_python, tmp_path, LOADING, "map", "0")
    (reported,) = warm_attempt.list_reports("workers")
    assert (reported["pids"], reported["training"]) == ([], True)
    run(warm_attempt, owner_python, tmp_path, LOADING, "stream", "1")
    assert {report["iterable"] for report in warm_attempt.list_reports("workers")[1:] if not report.get("ended")} == {
        True
    }


@pytest.mark.train
def test_the_precision_that_is_used_is_reported_once_and_autocast_is_given_back(
    warm_attempt: Attempt, train_python: Path, tmp_path: Path
) -> None:
    output = run(warm_attempt, train_python, tmp_path, HALF, "autocast")
    (reported,) = warm_attempt.list_reports("precision")
    assert (reported["asked"], reported["used"], reported["device"]) == ("bfloat16", "bfloat16", "cpu")
    assert output.split() == ["patched", "as", "it", "was"]


@pytest.mark.train
def test_a_scaler_without_an_autocast_is_half_asked_and_single_used(
    warm_attempt: Attempt, current_python: Path, tmp_path: Path
) -> None:
    run(warm_attempt, current_python, tmp_path, HALF, "scaler")
    (reported,) = warm_attempt.list_reports("precision")
    assert (reported["asked"], reported["used"], reported["why"]) == (
        "half",
        "single",
        "no autocast was entered for cpu",
    )


@pytest.mark.train
def test_where_nobody_asks_for_a_precision_nothing_is_reported(
    warm_attempt: Attempt, owner_python: Path, tmp_path: Path
) -> None:
    run(warm_attempt, owner_python, tmp_path, HALF, "plain")
    assert warm_attempt.list_reports("precision") == []


def test_the_allocator_is_reported_each_half_minute_and_at_once_where_it_tried_again(
    attempt: Attempt, tmp_path: Path
) -> None:
    output = run(attempt, sys.executable, tmp_path, ALLOCATOR)
    assert output.split() == ["1000", "8000"], "of the fuller GPU"
    reported = attempt.list_reports("allocator")
    first = {"reserved_bytes": 1000, "allocated_bytes": 600, "inactive_split_bytes": 0, "total_bytes": 24000}
    assert first.items() <= reported[0].items()
    assert [(report["gpu_index"], report["retries"]) for report in reported] == [(0, 0), (0, 1), (0, 3), (0, 0), (1, 0)]
    assert reported[4]["reserved_bytes"] == 8000, "a model may be split over several"
    assert reported[1]["total_bytes"] == 6000, "a program that allows itself a share of the card is full when that is"


@pytest.mark.train
def test_on_a_gpu_the_allocators_own_numbers_are_reported(attempt: Attempt, train_python: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NEEDS_A_GPU)
    finished = attempt.run([train_python, script])
    if finished.code == 77:
        pytest.skip("torch sees no GPU here")
    assert finished.code == 0, finished.output
    assert not attempt.failures()
    reported = attempt.list_reports("allocator")[0]
    assert 4 << 20 <= reported["allocated_bytes"] <= reported["reserved_bytes"] <= reported["total_bytes"]
    assert (reported["retries"], reported["ooms"]) == (0, 0)
