"""A probe goes on without cuDNN where that prepares convolutions for seconds, and a proof has it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import Attempt

FAKE = """
import types
from rocm_agent.memory.cudnn_skip import Convolutions

class Conv: pass
class Linear: pass

def make(*, hip=None, benchmark=False, compiling=False):
    space = types.SimpleNamespace
    return space(
        cuda=space(is_available=lambda: True),
        version=space(hip=hip),
        compiler=space(is_compiling=lambda: compiling),
        backends=space(cudnn=space(enabled=True, benchmark=benchmark)),
        nn=space(modules=space(conv=space(_ConvNd=Conv))),
    )

def run(calls_s, **facts):
    torch = make(**facts)
    convolutions = Convolutions(torch)
    convolutions.begin(may_skip=True)
    for call_s in calls_s:
        if convolutions.follows(Conv()):
            convolutions.note_call(call_s)
    return torch, convolutions

def is_skipped(calls_s, **facts):
    torch, convolutions = run(calls_s, **facts)
    assert convolutions.is_skipped is not torch.backends.cudnn.enabled
    return convolutions.is_skipped
"""


@pytest.mark.parametrize(
    ("calls", "skipped"),
    [
        ("[1.5, 0.17, 0.17, 0.2]", True),
        ("[0.1, 1.6]", True),
        ("[3.0, 0.17, 0.17]", False),
        ("[0.1] + 99 * [0.05]", False),
        ("[1.5, 0.3, 0.3], hip='6.2'", False),
        ("[1.5, 0.3, 0.3], benchmark=True", False),
        ("[1.5, 0.3, 0.3], compiling=True", False),
    ],
    ids=["prepared", "prepared at once", "loaded", "many", "MIOpen", "looked for", "compiled"],
)
def test_cudnn_is_left_out_once_it_has_prepared_for_half_a_second(
    attempt: Attempt, current_python: Path, calls: str, *, skipped: bool
) -> None:
    finished = attempt.run([current_python, "-c", f"{FAKE}\nprint(is_skipped({calls}))"])
    assert finished.output == f"{skipped}\n"


AGAIN = """
torch, convolutions = run([1.5, 0.3, 0.3])
print(convolutions.follows(Conv()), torch.backends.cudnn.enabled)
convolutions.begin(may_skip=True)
print(convolutions.is_skipped, torch.backends.cudnn.enabled)
convolutions.begin(may_skip=False)
print(convolutions.is_skipped, torch.backends.cudnn.enabled, convolutions.follows(Conv()))
convolutions.begin(may_skip=True)
print(convolutions.follows(Conv()), convolutions.follows(Linear()))
"""


def test_the_next_probe_goes_without_it_from_its_beginning_and_a_proof_has_it(
    attempt: Attempt, current_python: Path
) -> None:
    finished = attempt.run([current_python, "-c", FAKE + AGAIN])
    assert finished.output.splitlines() == ["False False", "True False", "False True False", "True False"]
