"""What a probe without a GPU computes as a GPU would, it computes so again where activations are checkpointed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Finished

from tests.rigs.warm import Warm

pytestmark = pytest.mark.train

CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint
from rocm_agent.memory import as_on_gpu
as_on_gpu.AsOnGpu().install()
block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.GELU())
rows = torch.randn(3, 4, requires_grad=True)
checkpoint(block, rows, use_reentrant=False).sum().backward()
print(rows.grad is not None)
"""

KEPT = """
import sys, torch
from rocm_agent.memory.what_if import Outermost
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        rows = [layer for _ in range(2) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
        self.layers = torch.nn.Sequential(*rows)
    def forward(self, rows):
        return self.layers(rows)
def build():
    torch.manual_seed(0)
    if sys.argv[1] == "blocks":
        return torch.nn.Sequential(*[Block() for _ in range(4)])
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
    row = torch.nn.Sequential(*layers)
    return row if sys.argv[1] == "row" else torch.nn.ModuleDict({"row": row})
def train(model):
    kept = {}
    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor
    call = model["row"] if isinstance(model, torch.nn.ModuleDict) else model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = call(torch.ones(16, 8))
    weights = {param.data_ptr() for param in model.parameters()}
    result.sum().backward()
    grads = [param.grad.clone() for param in model.parameters()]
    return sum(count for at, count in kept.items() if at not in weights), grads
plain, grads = train(build())
outermost = Outermost(torch, precision=None, checkpointing=True)
outermost.install()
fewer, again = train(build())
print(outermost.checkpointed, fewer < 0.7 * plain, all(map(torch.equal, grads, again)), sep="; ")
"""


@pytest.fixture
def run(attempt: Attempt, current_python: Path, warm: Warm) -> Callable[..., Finished]:
    """Run a program under the agent, with all of torch."""
    attempt.warm = warm(current_python)
    return lambda program, *words: attempt.run([current_python, "-c", program, *words])


@pytest.mark.parametrize(
    ("kind", "checkpointed"),
    [("blocks", "4 blocks"), ("row", "4 segments of 16 layers"), ("held", "4 segments of 16 layers")],
)
def test_a_bare_sequential_is_checkpointed_and_keeps_less_for_the_same_gradients(
    run: Callable[..., Finished], kind: str, checkpointed: str
) -> None:
    assert run(KEPT, kind) == (0, f"{checkpointed}; True; True\n")


def test_dropout_under_checkpointing_has_the_masks_of_a_gpu_in_both_passes(run: Callable[..., Finished]) -> None:
    """Else torch finds that the tensors computed again are others, and raises CheckpointError."""
    assert run(CHECKPOINTED) == (0, "True\n")


PASSES = """
import torch
from rocm_agent.memory.account import Account
weight = torch.ones(1 << 18, requires_grad=True)
account = Account()
with account:
    for backward in (False, True):
        account.reset_peak()
        loss = weight.exp().sum()
        if backward:
            loss.backward()
        print(account.peak_bytes >> 20, account.forward_peak_bytes >> 20, account.backward_peak_bytes >> 20)
"""


def test_the_passes_of_a_step_have_a_peak_each(run: Callable[..., Finished]) -> None:
    """A MiB of exponentials in the forward pass; in the second a loss is still there, and there is one of gradients."""
    assert run(PASSES) == (0, "1 1 0\n2 2 2\n")


LIMITED = """
from types import SimpleNamespace
from rocm_agent.memory.probe import Probe
given = []
cuda = SimpleNamespace(
    is_available=lambda: True,
    get_device_properties=lambda _: SimpleNamespace(total_memory=80),
    set_per_process_memory_fraction=given.append,
)
for room in (20, 200, None):
    probe = Probe({"room_bytes": room})
    probe._torch = SimpleNamespace(cuda=cuda)
    probe._limit_memory()
    probe._limit_memory()
print(given)
"""


GPU_PASSES = """
from types import SimpleNamespace
from rocm_agent.memory.gauges import GpuGauge
class Cuda:
    now = peak = 0
    def hold(self, count):
        self.now, self.peak = count, max(self.peak, count)
    def max_memory_allocated(self):
        return self.peak
    def reset_peak_memory_stats(self):
        self.peak = self.now
cuda = Cuda()
def compute(*counts):
    for count in counts:
        cuda.hold(count)
        if count == 13:
            torch.autograd.backward(11)  # of activations that are computed again
torch = SimpleNamespace(cuda=cuda, autograd=SimpleNamespace(backward=compute))
gauge = GpuGauge(torch)
gauge.follow_passes()
for passes in ([(8, 12), (12, 9, 6)], [(8, 9), (9, 13, 6), (6, 10), (10, 15, 6)], [(8, 20, 7)]):
    for number, counts in enumerate(passes):
        (torch.autograd.backward if number % 2 else compute)(*counts)
    print(*gauge.pass_peaks().values(), gauge.take_peak_bytes())
"""


def test_the_passes_of_a_step_on_a_gpu_have_a_peak_each_too(run: Callable[..., Finished]) -> None:
    """The highest of several micro-batches; where no backward pass is seen, only that of all is known."""
    assert run(GPU_PASSES) == (0, "12 12 12\n10 15 15\nNone None 20\n")


def test_a_gpu_that_is_only_asked_about_is_as_small_for_the_allocator(current_python: Path) -> None:
    path = Path(__file__).parents[2] / "supervisor" / "agent" / "path"
    words = [str(current_python), "-c", LIMITED]
    environment = os.environ | {"PYTHONPATH": str(path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.returncode) == ("[0.25, 1.0]\n", 0), done.stderr


NAMED = """
import torch
from rocm_agent.memory.what_if import Samplers
samplers = Samplers(torch)
samplers.install()
source = torch.utils.data.SequentialSampler(range(6))
named = torch.utils.data.BatchSampler(sampler=source, batch_size=2, drop_last=False)
print(list(named))
samplers.change(2, 4)
print(list(named))
"""


def test_a_sampler_of_a_programs_own_that_is_made_by_names_is_followed_too(
    attempt: Attempt, current_python: Path
) -> None:
    finished = attempt.run([current_python, "-c", NAMED])
    assert finished.output == "[[0, 1], [2, 3], [4, 5]]\n[[0, 1, 2, 3], [4, 5]]\n", finished.output


COMPILED = """
from types import SimpleNamespace
from rocm_agent.memory.probe import Probe
for asks in (False, True):
    torch, probe = SimpleNamespace(compile=lambda model, **given: (model, given)), Probe({})
    probe._follow_compiler(torch)
    result = torch.compile("a net", mode="default") if asks else None
    print(probe._asks_compiler, result)
"""


def test_a_training_that_asks_for_the_compiler_is_known(current_python: Path) -> None:
    agent = str(Path(__file__).parents[2] / "supervisor/agent/path")
    ended = subprocess.run(
        [str(current_python), "-c", COMPILED], env={**os.environ, "PYTHONPATH": agent}, capture_output=True, check=True
    )
    assert ended.stdout.decode() == "False None\nTrue ('a net', {'mode': 'default'})\n"


TRACED = """
from types import SimpleNamespace
from rocm_agent.memory.trace import MOST_EVENTS, Trace
class Cuda:
    ready = recording = False
    taken = 0
    def __init__(self):
        self.entries, self.memory = [], SimpleNamespace(
            _record_memory_history=lambda enabled, **_: setattr(self, "recording", enabled is not None),
            _snapshot=lambda: {"device_traces": [self.entries]},
        )
    def _lazy_init(self):
        self.ready = True
    is_initialized = lambda self: self.ready
    current_device = lambda self: 0
    def memory_stats(self):
        return {"allocation.all.allocated": self.taken}
    def take(self, address, size):
        self.taken += 1
        self.note("alloc", address, size)
    def give_back(self, address):
        self.note("free_requested", address)
        self.note("free_completed", address)
    def note(self, action, address, size=0):
        if self.recording:
            self.entries.append({"action": action, "addr": address, "size": size})
def start(wanted=True, has=None):
    cuda = Cuda()
    if has is not None:  # an older torch: it has no such function, or one of other arguments
        cuda.memory = SimpleNamespace(**{name: lambda enabled: None for name in has})
    trace = Trace(SimpleNamespace(cuda=cuda))
    trace.install()
    trace.begin(wanted=wanted)
    cuda._lazy_init()
    return cuda, trace
"""


def test_what_a_probe_takes_of_its_allocator_is_traced_from_the_first_use_of_the_gpu_or_its_own_steps(
    run: Callable[..., Finished],
) -> None:
    program = """
cuda, trace = start()
cuda.take(7, 1024)
trace.mark_first()
trace.begin(wanted=True)  # after a look
cuda.take(9, 513)
cuda.give_back(9)
trace.mark()
cuda.take(9, 1)
cuda.give_back(7)
trace.mark()
print(trace.describe())
trace.begin(wanted=True)
trace.mark_first()
cuda.give_back(9)
cuda.take(8, 2048)
cuda.give_back(8)
trace.mark()
print(trace.describe())
trace.begin(wanted=False)
print(trace.describe(), start(wanted=False)[1].describe())
cuda, trace = start()
for _ in range(MOST_EVENTS // 2 + 1):
    cuda.take(7, 512)
    cuda.give_back(7)
print(trace.describe())
cuda, trace = start(has=())
trace.mark()
print(trace.describe(), cuda.ready)
cuda, trace = start(has=("_record_memory_history",))
print(trace.describe(), cuda.ready)
"""
    assert run(TRACED + program) == (
        0,
        "{'events': [2, 2, -2, 1, -1], 'marks': [1, 2, 3], 'whole': True}\n"
        "{'events': [4, -1], 'marks': [0, 1], 'whole': False}\n"
        "None None\n"
        "None\n"
        "None True\n"
        "None True\n",
    )


COUNTED = """
import torch
from rocm_agent.memory.account import Account
from rocm_agent.memory.trace import CountedTrace
trace = CountedTrace()
trace.begin(wanted=True)
print(trace.describe())
account = Account()
trace.follow(account)
with account:
    weight = torch.zeros(256)
    trace.mark_first()
    trace.begin(wanted=True)  # after a look
    passing = torch.zeros(100)
    trace.mark()
    del passing
    kept = torch.zeros(1000)
    trace.mark()
    print(trace.describe())
    trace.begin(wanted=True)
    trace.mark_first()
    del kept
    later = torch.zeros(10)
    trace.mark()
    del later
print(trace.describe())
"""


def test_an_account_of_tensors_is_a_trace_too(run: Callable[..., Finished]) -> None:
    assert run(COUNTED) == (
        0,
        "None\n"
        "{'events': [2, 1, -2, 8], 'marks': [1, 2, 3], 'whole': True}\n"
        "{'events': [1, -1], 'marks': [0, 1], 'whole': False}\n",
    )
