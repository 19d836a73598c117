"""The replay guard: what rounding makes of a model's gradients is taken, and what is wrong with them is not."""

from __future__ import annotations

import pytest
from agent_by_hand import run_with_agent

from tests.rigs.warm import WarmInterpreter

pytestmark = pytest.mark.train

JUDGED = """
import torch
from rocm_agent.knobs import Refused, proofs, replay
torch.manual_seed(0)
torch.set_num_threads(1)
def judge(net, batches, size=replay.BFLOAT16, **changed):
    calls = replay.Calls(torch)
    calls.keep()
    for batch in batches:
        net(batch)
    before = vars(net).copy()
    try:
        proof = proofs.Proof(torch, calls, list(net.parameters()), size)
        vars(net).update(changed)
        proof.compare()
        print("taken")
    except Refused as error:
        print(str(error)[:44])
    vars(net).update(before)
    calls.stop()
def multiply(rows, weight, share):
    return rows @ (share * weight + (1 - share) * weight.detach())
"""
LENGTHS = "lengths of gradients of the same batches dif"
GRADIENTS = "gradients of the same batches differ by "

WAVES = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.last = torch.nn.Parameter(torch.randn(32, 64)), torch.randn(64, 8)
        self.rounding, self.share = 0.0, 1.0
    def forward(self, batch):
        waves = multiply(10 * batch, self.weight, self.share)
        return 1 + 1e-3 * (waves + self.rounding * waves * torch.randn_like(waves)).cos() @ self.last
net, batches = Net(), torch.randn(8, 16, 32)
judge(net, batches, rounding=4e-3)
judge(net, batches, rounding=4e-3, share=0.8)
"""


def test_gradients_a_fifth_too_small_are_found_where_rounding_turns_them_by_more(unsupervised: WarmInterpreter) -> None:
    """As of a ResNet that has not begun: rounding turns its gradients by a third, and hardly changes their length."""
    rounded, weaker = run_with_agent(unsupervised, JUDGED + WAVES)
    assert rounded == "taken"
    assert weaker == LENGTHS


SCORES = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.values, self.scores = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
        self.share = 1.0
    def forward(self, batch):
        return self.values(batch) + 1e-3 * multiply(batch, self.scores.weight, self.share)
net, batches = Net(), torch.randn(8, 16, 8)
judge(net, batches, share=1.01)
judge(net, batches, share=4.0)
judge(net, batches, size=replay.ROUNDING, share=1.0005)
judge(net, batches, size=replay.ROUNDING, share=1.01)
"""


def test_a_layer_of_short_gradients_is_judged_by_their_own_length(unsupervised: WarmInterpreter) -> None:
    """As of scores next to nothing: without their scale their gradients alone are four times as long."""
    near, scaled, rounded, off = run_with_agent(unsupervised, JUDGED + SCORES)
    assert (near, rounded) == ("taken", "taken")
    assert (scaled, off) == (LENGTHS, LENGTHS)


FEW_CALLS = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.values, self.scores = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
        self.share = 1.0
    def forward(self, batch):
        scores = multiply(batch, self.scores.weight, self.share)
        few = (self.values.weight.sum() - self.sum).detach() * (batch[0, 0] > 2)
        return self.values(batch) + 1e-3 * scores * (1 + 100 * few)
net, batches = Net(), torch.randn(8, 16, 8)
net.sum = net.values.weight.sum().detach()
batches[:, 0, 0] = torch.tensor([3.0, 3.0, *[0.0] * 6])
judge(net, batches)
judge(net, batches, share=0.8)
"""


def test_few_calls_in_which_rounding_scales_a_layer_hide_no_fault_in_all_of_them(unsupervised: WarmInterpreter) -> None:
    """As of words of a young decoder: in two of eight batches shakes scale gradients of a layer by a half."""
    same, weaker = run_with_agent(unsupervised, JUDGED + FEW_CALLS)
    assert same == "taken"
    assert weaker == LENGTHS


NOTHING = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.all_alike, self.rounding = torch.nn.Linear(8, 64), torch.nn.Linear(1, 1, bias=False), 0.0
    def forward(self, batch):
        rows = self.layer(batch) + self.all_alike(batch[:, :1])
        rows = rows + self.rounding * rows * torch.randn_like(rows)
        return rows - rows.mean(1, keepdim=True)
for _ in range(8):
    judge(Net(), torch.randn(4, 16, 8), rounding=4e-3)
"""


def test_a_layer_whose_gradients_are_rounding_alone_tells_nothing(unsupervised: WarmInterpreter) -> None:
    """As of what a softmax takes out again: in half precision these gradients are thousands of times as long."""
    assert run_with_agent(unsupervised, JUDGED + NOTHING) == 8 * ["taken"]


ZEROS = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        torch.nn.init.zeros_(self.head.weight)
        self.wrong = 1.0
    def forward(self, batch):
        return self.head(self.body(batch) * torch.where(batch[:, :1] > 1.4, self.wrong, 1.0)) + batch
net, batches = Net(), torch.randn(8, 256, 8)
judge(net, batches)
judge(net, batches, wrong=0.8)
weight = net.head.weight
print(bool((weight == 0).all() and not torch.signbit(weight).any()), [param.grad for param in net.parameters()])
"""


def test_what_comes_before_a_head_of_zeros_is_judged_as_if_it_had_begun(unsupervised: WarmInterpreter) -> None:
    """A head of zeros passes nothing on and no gradient back: rows that are lost before it show in neither."""
    same, wrong, weight = run_with_agent(unsupervised, JUDGED + ZEROS)
    assert same == "taken"
    assert wrong.startswith("results of the same batches differ by")
    assert weight == "True [None, None, None, None]", "the head is zeros again, and nothing has a gradient"


MERGED = """
from types import SimpleNamespace
from rocm_agent.knobs import merging
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16))
    def forward(self, rows):
        return rows * self.weight
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.scale, self.last = Scale(), Scale(), torch.randn(16, 8)
        self.nearer, self.share = 1.0, 1.0
    def forward(self, batch):
        nearer, share = (self.nearer, self.share) if len(batch) > 1 else (1.0, 1.0)
        rows = self.scale(batch + 0 * self.places(torch.ones(1, 1, 16)))
        apart = rows - rows.mean(-1, keepdim=True)
        size = apart.norm(dim=-1, keepdim=True)
        found = apart / size @ self.last
        share = torch.where(size < 1e-3, nearer, share)
        return SimpleNamespace(loss=(share * found + (1 - share) * found.detach()).square().sum())
def merge(**changed):
    net, calls = Net(), replay.Calls(torch)
    calls.keep()
    for _ in range(2):
        few = 1 + 1e-6 * torch.randn(1, 1, 16)
        net(batch=torch.cat([torch.randn(1, 4096, 16), few], 1))
    vars(net).update(changed)
    try:
        merging.Merging(torch).follow(torch.optim.SGD(net.parameters(), lr=0.1), calls)._prove(2)
        print("taken")
    except Refused as error:
        print(str(error)[:53])
    print(sum(len(part._forward_hooks) for part in net.modules()), "hooks")
    calls.stop()
merge(nearer=5.0)
merge(share=0.5)
"""


def test_few_rows_of_joined_micro_batches_hide_neither_right_gradients_nor_wrong_ones(
    unsupervised: WarmInterpreter,
) -> None:
    """Words of a young decoder: one in thousands has a gradient that outgrows all others and that rounding changes."""
    taken, _, wrong, hooks = run_with_agent(unsupervised, JUDGED + MERGED)
    assert taken == "taken"
    assert wrong == "gradients of joined micro-batches differ by 0.5, roun"
    assert hooks == "0 hooks"


JUMPS = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.off = torch.nn.Parameter(torch.ones(2)), 0.0
    def forward(self, batch):
        rows = batch * self.weight
        assigned = (rows[1] - rows[0] + self.off > 0) * torch.tensor([0.2, 0.0])
        return rows + assigned * (rows - rows.detach())
def draw(*gaps):
    return [torch.tensor([1.0, 1.0 + gap]) for gap in gaps]
net = Net()
judge(net, draw(1e-6, 2e-5, *[0.5] * 6), size=replay.ROUNDING, off=-4e-5)
judge(net, draw(0.5, 2e-5, *[0.5] * 6), size=replay.ROUNDING, off=-4e-5)
judge(net, draw(1e-6, *[2e-5] * 7), size=replay.ROUNDING, off=-4e-5)
"""


def test_a_call_that_jumps_as_shaken_ones_do_is_no_fault_unless_most_do(unsupervised: WarmInterpreter) -> None:
    """As a detector assigns boxes: in some batches another way with any rounding, and shakes meet some of these."""
    few, unknown, most = run_with_agent(unsupervised, JUDGED + JUMPS)
    assert few == "taken"
    assert unknown.startswith(GRADIENTS), "no shake has made any call jump"
    assert most.startswith(GRADIENTS)


CHAINS = """
runs = []
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.rounding, self.share = torch.nn.Linear(8, 8, bias=False), 0.0, 1.0
    def forward(self, batch):
        runs.append(len(batch))
        result = multiply(batch, self.layer.weight, self.share)
        return result + self.rounding * result * torch.randn_like(result)
net = Net()
calls = replay.Calls(torch)
calls.keep()
for _ in range(replay.CALLS):
    net(torch.randn(16, 8))
def prove(size=replay.BFLOAT16, **changed):
    runs.clear()
    before = vars(net).copy()
    proof = proofs.Proof(torch, calls, list(net.parameters()), size)
    vars(net).update(changed)
    try:
        proof.compare()
        print("taken", len(runs) / replay.CALLS)
    except Refused as error:
        vars(net).update(before)
        print(str(error)[:39], len(runs) / replay.CALLS)
prove(rounding=1e-3)
prove(share=0.8)
prove(rounding=2e-3)
prove(replay.TF32)
net(torch.randn(16, 8))
prove()
calls.stop()
"""


def test_a_proof_begins_with_what_the_one_before_has_measured(unsupervised: WarmInterpreter) -> None:
    """A decoder's owner, shaken and not, takes 16 s on a GPU, and three settings are proven by one order."""
    first, faulty, second, finer, later = run_with_agent(unsupervised, JUDGED + CHAINS)
    assert first == "taken 5.0", "its owner's twice, two shakes of it, and the changed one"
    assert faulty == f"{GRADIENTS.strip()} 1.0", "by what the first one made"
    assert second == "taken 1.0", "a refused one is gone"
    assert finer == "taken 3.0", "shaken by another rounding"
    assert later == "taken 5.0", "another step was seen"


DROPPING = """
import torch
from rocm_agent.knobs import replay
from torch.nn import functional
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout, self.weight = 0.3, torch.nn.Parameter(torch.randn(8, 8))
    def forward(self, rows):
        return functional.dropout(rows @ self.weight, p=self.dropout, training=self.training)
class DropPath(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.drop_prob = 0.3
    def forward(self, rows):
        return rows * rows.new_empty(len(rows), 1).bernoulli_(1 - self.drop_prob) / (1 - self.drop_prob)
class StochasticDepth(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.p = 0.3
    def forward(self, rows):
        return functional.dropout(rows, self.p, self.training)
net = torch.nn.Sequential(torch.nn.Dropout(0.3), Attention(), DropPath(), StochasticDepth())
batch = torch.randn(64, 8)
calls = replay.Calls(torch)
calls.keep()
net(batch)
with calls.replaying(list(net.parameters())):
    [(_, found)] = calls.run()
print(torch.equal(found, batch @ net[1].weight))
print(net[0].p, net[1].dropout, net[2].drop_prob, net[3].p)
"""


def test_a_replay_drops_nothing_whatever_its_rate_is_called(unsupervised: WarmInterpreter) -> None:
    """On a GPU bfloat16 draws other numbers than float32: a T5, whose attention drops by itself, was refused it."""
    same, rates = run_with_agent(unsupervised, DROPPING)
    assert same == "True"
    assert rates == "0.3 0.3 0.3 0.3", "as the training has them"
