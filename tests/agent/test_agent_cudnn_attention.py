"""cuDNN is left out of attention that another kernel takes without its matrix, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import Attempt

FAKE = """
from types import SimpleNamespace as Space
from rocm_agent.memory.cudnn_attention import Attention

class Item:
    def __init__(self, kind="float", device="cuda"):
        self.kind, self.device = kind, Space(type=device)
    def is_floating_point(self):
        return True
    def to(self, kind):
        return Item(kind)

class Params:
    def __init__(self, query, key, value, mask, dropout_p, is_causal, enable_gqa):
        self.is_half, self.joins = query.kind == "half", enable_gqa

class Kernels:
    def __init__(self, cudnn=True):
        self.cudnn = cudnn
        self.SDPAParams = Params
    def can_use_cudnn_attention(self, params):
        return self.cudnn and params.is_half
    def can_use_flash_attention(self, params):
        return False
    def can_use_efficient_attention(self, params):
        return not params.joins
    def enable_cudnn_sdp(self, enabled):
        self.cudnn = enabled

HALF, FACTS = Item("half"), {"hip": None, "compiling": False, "autocast": False, "has_gpu": True}

def run(query=HALF, *, may_skip=True, cudnn=True, kernels=Kernels, enable_gqa=False, **given):
    facts = Space(**{**FACTS, **given})
    used, home = [], kernels(cudnn)
    def attend(*args, **kwargs):
        used.append(home.cudnn)
    torch = Space(
        nn=Space(functional=Space(scaled_dot_product_attention=attend)),
        backends=Space(cuda=home),
        cuda=Space(is_available=lambda: facts.has_gpu),
        version=Space(hip=facts.hip),
        compiler=Space(is_compiling=lambda: facts.compiling),
        is_autocast_enabled=lambda _: facts.autocast,
        get_autocast_dtype=lambda _: "half",
    )
    attention = Attention(torch)
    attention.install()
    attention.begin(may_skip=may_skip)
    torch.nn.functional.scaled_dot_product_attention(query, query, query, enable_gqa=enable_gqa)
    assert home.cudnn == cudnn
    return used, attention.is_skipped

class Older:
    def __init__(self, cudnn):
        self.cudnn = cudnn
"""


@pytest.mark.parametrize(
    ("given", "skipped"),
    [
        ("", True),
        ("Item(), autocast=True", True),
        ("Item()", False),
        ("enable_gqa=True", False),
        ("may_skip=False", False),
        ("hip='6.2'", False),
        ("compiling=True", False),
        ("Item('half', 'cpu')", False),
        ("kernels=Older", False),
        ("has_gpu=False", False),
    ],
    ids=["half", "autocast", "single", "no other", "not asked", "MIOpen", "compiled", "CPU", "older torch", "no GPU"],
)
def test_cudnn_is_left_out_of_attention_that_another_kernel_takes(
    attempt: Attempt, current_python: Path, given: str, *, skipped: bool
) -> None:
    finished = attempt.run([current_python, "-c", f"{FAKE}\nprint(run({given}))"])
    assert finished.output == f"([{not skipped}], {skipped})\n"


def test_where_the_program_has_turned_cudnns_attention_off_it_stays_off(attempt: Attempt, current_python: Path) -> None:
    finished = attempt.run([current_python, "-c", f"{FAKE}\nprint(run(cudnn=False))"])
    assert finished.output == "([False], False)\n"
