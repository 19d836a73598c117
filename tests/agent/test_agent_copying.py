"""What the copier does with a state from one snapshot to the next, on tensors and GPUs that only note what is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from agent_by_hand import AGENT_PATH


@dataclass(eq=False)
class Tensor:
    """As much of one as is looked at; `value` is what it holds."""

    value: float
    at: int
    shape: tuple[int, ...] = (2, 3)
    dtype: str = "float32"
    gpu: int | None = None

    @property
    def is_cuda(self) -> bool:
        return self.gpu is not None

    @property
    def device(self) -> int | None:
        return self.gpu

    def get_device(self) -> int:
        assert self.gpu is not None
        return self.gpu

    def data_ptr(self) -> int:
        return self.at

    def numel(self) -> int:
        return self.shape[0]

    def stride(self) -> tuple[int, ...]:
        return self.shape[1:]

    def detach(self) -> Tensor:
        return self


@dataclass(eq=False)
class Spread:
    """As much of a DTensor as is looked at; `_spec` is the same object until it is spread otherwise."""

    _local_tensor: Any
    _spec: object = field(default_factory=object)
    first: int = 0

    device_mesh = "mesh"
    shape = (4, 3)

    @property
    def placements(self) -> tuple[int]:
        return (self.first,)

    def data_ptr(self) -> int:
        raise AssertionError("torch would dispatch it")

    detach = to_local = data_ptr


class Torch:
    """Notes what is enqueued, on which stream."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.made = 0
        self._stream = "main"
        self.cuda = SimpleNamespace(
            Stream=lambda _: SimpleNamespace(wait_stream=lambda main: self.log.append(f"side waits for {main.name}")),
            Event=lambda **_: Event(self),
            current_stream=lambda _: SimpleNamespace(
                name=self._stream, wait_event=lambda _: self.log.append(f"{self._stream} waits")
            ),
            stream=self.on_stream,
        )
        self.no_grad = nullcontext

    @contextmanager
    def on_stream(self, _: object) -> Iterator[None]:
        self._stream = "side"
        yield
        self._stream = "main"

    @staticmethod
    def inference_mode(*, mode: bool) -> nullcontext[None]:
        assert not mode
        return nullcontext()

    def zeros_like(self, tensor: Tensor, **_: object) -> Tensor:
        self.made += 1
        return Tensor(0.0, -self.made, tensor.shape, tensor.dtype)

    empty_like = zeros_like

    def _foreach_copy_(self, targets: list[Tensor], sources: list[Tensor], *, non_blocking: bool) -> None:
        assert non_blocking
        self.log.append(f"copies {[source.value for source in sources]} on {self._stream}")
        for target, source in zip(targets, sources, strict=True):
            assert target.shape == source.shape
            target.value = source.value


@dataclass
class Event:
    torch: Torch
    looks: int = 0

    def record(self, _: object) -> None:
        self.torch.log.append("event")

    def query(self) -> bool:
        self.looks += 1
        return self.looks > 2

    def elapsed_time(self, _: Event) -> float:
        return 5.0


@pytest.fixture(scope="module")
def copying() -> Iterator[Any]:
    sys.path.insert(0, str(AGENT_PATH))
    from rocm_agent.snapshots import copying  # noqa: PLC0415 - after the path is set

    yield copying
    sys.path.remove(str(AGENT_PATH))


@pytest.fixture
def layouts(copying: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each look at how a tensor lies, what it is spread along."""
    looked: list[int] = []

    def look(tensor: Spread) -> dict[str, Any]:
        looked.append(tensor.first)
        return {"placements": tensor.placements}

    monkeypatch.setattr(copying.sharding, "layout_at", look)
    return looked


def test_a_gpu_copies_the_weights_while_the_rest_is_made_and_the_training_waits_for_all_of_it(copying: Any) -> None:
    torch = Torch()
    copier = copying.Copier(torch)

    def make() -> dict[str, Any]:
        torch.log.append("made")
        return {"random": Tensor(4.0, 4), "also": Tensor(5.0, 5, gpu=0)}

    state = {"model": [Tensor(1.0, 1, gpu=0)], "step": Tensor(2.0, 2), "ours": copying.Later(make)}
    copied, wait = copier.copy(state)
    assert torch.log == [
        "side waits for main",
        "event",
        "copies [1.0] on side",
        "made",
        "copies [5.0] on side",
        "event",
        "main waits",
        "copies [2.0] on main",
        "copies [4.0] on main",
    ]
    assert wait() == 0.005
    assert (copied["model"][0].value, copied["step"].value, copied["ours"]["random"].value) == (1.0, 2.0, 4.0)
    torch.log.clear()
    copier.copy(state)
    assert torch.log[:3] == ["side waits for main", "event", "copies [1.0] on side"], "again, with events of its own"
    assert torch.made == 4


def test_ties_and_tensors_that_change_are_what_they_are_now(copying: Any) -> None:
    torch = Torch()
    copier = copying.Copier(torch)
    weight = Tensor(1.0, 1)
    copier.reserve({"model": {"a": weight, "b": weight}})
    assert torch.made == 1
    assert torch.log == [], "nothing is copied before its time"
    view = Tensor(1.0, 1, shape=(6, 1))
    copied, _ = copier.copy({"model": {"a": weight, "b": weight, "c": view, "d": view}})
    made = copied["model"]
    assert made["a"] is made["b"], "tied weights stay tied"
    assert made["c"] is made["d"], "of another shape"
    assert made["a"] is not made["c"]
    other = Tensor(7.0, 9, shape=(3, 3))
    copied, _ = copier.copy({"model": {"a": weight, "b": other}, "more": Tensor(8.0, 8)})
    made = copied["model"]
    assert (made["a"].value, made["b"].value, copied["more"].value) == (1.0, 7.0, 8.0)
    empty = Tensor(0.0, 0, shape=(0, 3))
    copied, _ = copier.copy({"model": [empty, Tensor(0.0, 0, shape=(0, 3))]})
    assert copied["model"][0] is not copied["model"][1], "two that hold nothing lie in the same place"


def test_of_a_spread_tensor_the_part_is_known_until_it_changes(copying: Any, layouts: list[int]) -> None:
    torch = Torch()
    copier = copying.Copier(torch, parts=True)
    spread = Spread(Tensor(1.0, 1))
    state = {"model": {"weight": spread, "tied": spread}}
    copied, _ = copier.copy(state)
    first = copied["model"]["weight"]
    assert first[copying.sharding.LOCAL].value == 1.0
    assert copied["model"]["tied"][copying.sharding.LOCAL] is first[copying.sharding.LOCAL]
    assert layouts == [0, 0]
    spread._local_tensor = Tensor(2.0, 3)
    copied, _ = copier.copy(state)
    assert copied["model"]["weight"][copying.sharding.LOCAL].value == 2.0
    assert layouts == [0, 0], "nothing is looked at again"
    spread.first, spread._spec = 1, object()
    copied, _ = copier.copy(state)
    assert copied["model"]["weight"]["placements"] == (1,)
    spread._local_tensor = Tensor(3.0, 3, dtype="bfloat16")
    copied, _ = copier.copy(state)
    assert copied["model"]["weight"][copying.sharding.LOCAL].dtype == "bfloat16"
    assert copied["model"]["weight"][copying.sharding.LOCAL].value == 3.0


@pytest.mark.parametrize("read", [lambda copier: copier.reserve, lambda copier: copier.copy])
def test_what_the_training_gives_up_is_not_kept(copying: Any, read: Callable[[Any], Callable[[Any], object]]) -> None:
    copier = copying.Copier(Torch())
    tensor = Tensor(1.0, 1)
    before = sys.getrefcount(tensor)
    read(copier)({"model": [tensor]})
    assert sys.getrefcount(tensor) == before
