"""Which numbers of a training are read from its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import Attempt

pytestmark = pytest.mark.train

SPREAD = """
import os
import torch
from torch.distributed import device_mesh, init_process_group
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from rocm_agent.scalars import take_local

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
mesh = device_mesh.init_device_mesh("cpu", (1,))
of_rank = torch.tensor([1.5], requires_grad=True)
print(take_local(of_rank) is of_rank, take_local(None) is None, take_local(0.5))
print(take_local(DTensor.from_local(of_rank, mesh, [Replicate()])))
print([take_local(DTensor.from_local(of_rank, mesh, [placement])) for placement in (Partial(), Shard(0))])

model = torch.nn.Linear(2, 2)
from torch.distributed.fsdp import fully_shard
fully_shard(model, mesh=mesh)
model(torch.ones(1, 2)).sum().backward()
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
print(hasattr(norm, "placements"), take_local(norm))
"""


def test_of_a_number_that_is_spread_over_ranks_only_a_whole_one_is_taken(
    attempt: Attempt, current_python: Path, tmp_path: Path
) -> None:
    finished = attempt.run([current_python, "-c", f"import sys\n{SPREAD}", tmp_path / "store"])
    assert finished.code == 0, finished.output
    assert finished.output.splitlines()[-4:] == [
        "True True 0.5",
        "tensor([1.5000])",
        "[None, None]",
        "True tensor(2.4495)",  # this rank has all of the gradients
    ]


EAGER = """
from rocm_agent.scalars import EagerTensor

class Tensor:
    read = 0

    def __init__(self, device):
        self.device = "/job:localhost/replica:0/task:0/device:" + device

    def numpy(self):
        Tensor.read += 1
        return 0.5

class Symbolic:
    device = ""

times = iter([0, 10**9 - 1, 10**9])
eager = EagerTensor(lambda: next(times))
print([eager.read(Tensor("CPU:0")) for _ in range(3)], eager.read(Symbolic()))
print([eager.read(Tensor("GPU:0")) for _ in range(3)], Tensor.read)
"""


def test_a_number_of_tensorflow_is_read_at_once_from_the_cpu_and_once_a_second_from_a_gpu(
    attempt: Attempt, current_python: Path
) -> None:
    finished = attempt.run([current_python, "-c", EAGER])
    assert finished.output == "[0.5, 0.5, 0.5] None\n[0.5, None, 0.5] 5\n", finished.output


AHEAD = """
import sys
from rocm_agent.scalars import FIRST, LateScalars

behind = int(sys.argv[1])
done = 0

class Tensor:
    is_cuda, dtype = True, "float32"
    def __init__(self, value=0.0): self.value = value
    def numel(self): return 1
    def detach(self): return self
    def view(self, count): return self
    def copy_(self, other, non_blocking): self.value = other.value
    def __float__(self): return self.value

class Event:
    def record(self): self.step = step
    def query(self): return self.step <= done

class cuda:
    Event = Event
    is_current_stream_capturing = staticmethod(lambda: False)

class torch:
    empty = staticmethod(lambda count, dtype, pin_memory: Tensor())
torch.cuda = cuda

scalars, found = LateScalars(torch), []
for step in range(1, FIRST + 40):
    done = step - behind
    found.append(scalars.exchange(Tensor(float(step)), None)[0])
kept = [loss for loss in found if loss is not None]
print(kept[:FIRST] == [float(step) for step in range(1, FIRST + 1)], kept == sorted(set(kept)))
print(max(step - loss for step, loss in list(enumerate(found, 1))[FIRST:] if loss is not None))
"""


@pytest.mark.parametrize("behind", [0, 1, 3, 12])
def test_the_first_losses_are_all_recorded_however_far_the_host_is_ahead_of_the_gpu(
    attempt: Attempt, current_python: Path, behind: int
) -> None:
    finished = attempt.run([current_python, "-c", AHEAD, str(behind)])
    whole, latest = finished.output.splitlines()
    assert whole == "True True", finished.output
    assert float(latest) <= 2 * behind + 2
