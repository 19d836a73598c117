"""cuDNN is left out of depthwise convolutions once it prepares them for seconds, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import Attempt

FAKE = """
import time, types
from rocm_agent.memory.cudnn_skip import Convolutions

class Conv:
    def __init__(self, groups=1):
        self.groups, self.in_channels = groups, 8

class Conv3d(Conv): pass
class Conv2d(Conv): pass
class Linear: pass

dense, depthwise, grouped = Conv2d(), Conv2d(8), Conv2d(2)
result = types.SimpleNamespace(grad_fn=None)

def make(*, hip=None, benchmark=False, compiling=False, enabled=True):
    space = types.SimpleNamespace
    return space(
        cuda=space(is_available=lambda: True),
        version=space(hip=hip),
        compiler=space(is_compiling=lambda: compiling),
        backends=space(cudnn=space(enabled=enabled, benchmark=benchmark)),
        nn=space(Conv2d=Conv2d, modules=space(conv=space(_ConvNd=Conv))),
    )

def call(torch, convolutions, called, call_s=0.0):
    used = []
    def run():
        used.append(torch.backends.cudnn.enabled)
        time.sleep(call_s)
        return result
    assert convolutions.call(called, None, run) is result
    assert torch.backends.cudnn.enabled
    return used[0]

def run(calls, **facts):
    torch = make(**facts)
    convolutions = Convolutions(torch)
    convolutions.begin(may_skip=True)
    for called, call_s in calls:
        if convolutions.follows(called):
            call(torch, convolutions, called, call_s)
    return torch, convolutions

LONG = [(dense, 0.0), (depthwise, 0.16), (depthwise, 0.16)]
"""


@pytest.mark.parametrize(
    ("calls", "skipped"),
    [
        ("LONG", True),
        ("[(depthwise, 0.32), *LONG[:2]]", False),
        ("[(dense, 0.16), (grouped, 0.16), (Conv3d(8), 0.16)] + 9 * [(depthwise, 0.02)]", False),
        ("LONG, hip='6.2'", False),
        ("LONG, benchmark=True", False),
        ("LONG, compiling=True", False),
        ("LONG, enabled=False", False),
    ],
    ids=["prepared", "loaded", "others", "MIOpen", "looked for", "compiled", "off"],
)
def test_cudnn_is_left_out_once_it_has_prepared_depthwise_convolutions_for_long(
    attempt: Attempt, current_python: Path, calls: str, *, skipped: bool
) -> None:
    finished = attempt.run([current_python, "-c", f"{FAKE}\nprint(run({calls})[1].is_skipped)"])
    assert finished.output == f"{skipped}\n"


AGAIN = """
torch, convolutions = run(LONG)
def print_used():
    used = [call(torch, convolutions, called) for called in (dense, grouped, depthwise)]
    print(convolutions.follows(Linear()), *used)
print_used()
convolutions.begin(may_skip=True)
print_used()
convolutions.begin(may_skip=False)
print(convolutions.is_skipped, convolutions.follows(depthwise))
convolutions.begin(may_skip=True)
print_used()
convolutions.begin(may_skip=True, is_skipped=True)
print_used()
"""


def test_the_next_probe_goes_without_it_from_its_beginning_and_so_does_a_proof_that_is_asked_to(
    attempt: Attempt, current_python: Path
) -> None:
    finished = attempt.run([current_python, "-c", FAKE + AGAIN])
    without, with_it = "False True True False", "False True True True"
    assert finished.output.splitlines() == [without, without, "False False", with_it, without]


LAYOUTS = """
import torch
from rocm_agent.memory.cudnn_skip import Convolutions

for dtype in (torch.float32, torch.float16, torch.bfloat16):
    for layout in (torch.contiguous_format, torch.channels_last):
        convolutions, used = Convolutions(torch), []
        convolutions._may_skip = True  # as if a GPU were there
        layer, given = torch.nn.Conv2d(8, 8, 3, groups=8), torch.zeros(2, 8, 9, 9, dtype=dtype)
        run = lambda: used.append(torch.backends.cudnn.enabled) or layer(torch.zeros(2, 8, 9, 9))
        convolutions.call(layer, given.to(memory_format=layout), run)
        print(dtype, *used, convolutions.is_skipped)
"""


def test_it_is_left_out_at_once_where_it_compiles_kernels(attempt: Attempt, train_python: Path) -> None:
    finished = attempt.run([train_python, "-c", LAYOUTS])
    with_it, without = "True False", "False True"
    halves = [f"torch.{kind} {used}" for kind in ("float16", "bfloat16") for used in (with_it, without)]
    assert finished.output.splitlines() == [*2 * [f"torch.float32 {with_it}"], *halves]


BACKWARD = """
import torch
from rocm_agent.memory.what_if import Outermost

cudnn = torch.backends.cudnn
net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 1), torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.ReLU(inplace=True), torch.nn.Conv2d(8, 2, 1)
)
seen = {}

def follow(layer, given, result):
    node = result.grad_fn
    node.register_hook(lambda *_: seen.__setitem__(net.index(layer), cudnn.enabled))

outermost = Outermost(torch, precision=None, checkpointing=None)
outermost.install()
outermost.begin({"without_cudnn": True})
outermost.convolutions._may_skip = outermost.convolutions.is_skipped = True  # as if a GPU were there
net.index = list(net).index
for layer in net:
    layer.register_forward_hook(follow)
net(torch.rand(2, 3, 9, 9)).sum().backward()
print(seen, cudnn.enabled, all(p.grad is not None for p in net.parameters()))
"""


def test_in_the_backward_pass_it_is_left_out_of_theirs_alone(attempt: Attempt, train_python: Path) -> None:
    finished = attempt.run([train_python, "-c", BACKWARD])
    assert finished.output == "{3: True, 2: True, 1: False, 0: True} True True\n"
