"""A loop of one's own that goes on from a snapshot is given the rest of its batches, whatever kind of loader it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_by_hand import run_with_agent

from tests.rigs.warm import Warm, WarmInterpreter

pytestmark = pytest.mark.train

STOPPED = """
import copy
import random
import torch
from rocm_agent.snapshots.copying import all_made
from rocm_agent.snapshots.loop import State

STOPS = ()
{loader}

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index + random.random() + torch.rand(()).item()

class Account:
    '''Keeps account of its batches, and draws a seed where a pass begins or goes on.'''

    def __init__(self):
        self.given = 0

    def __iter__(self):
        self.seed = torch.randint(9, (1,)).item()
        return self

    def __next__(self):
        if self.given == 4:
            self.given = 0
            raise StopIteration
        self.given += 1
        return torch.rand(3) + self.given

    def state_dict(self):
        return {{"given": self.given}}

    def load_state_dict(self, state):
        self.given = state["given"]

def begin():
    random.seed(5)
    torch.manual_seed(5)
    loader = make()
    return loader, State(torch, loader, {{}})

def train(loader, state, stop=None):
    made = []
    for epoch in range(state.epoch, 3):
        for batch in loader:
            state.step += 1
            made.append((state.step, epoch, state.epoch, [float(item) for item in batch], torch.rand(()).item()))
            if state.step == stop:
                return made, copy.deepcopy(all_made(state.collect()))
    return made, None

alone, _ = train(*begin())
steps = len(alone)
for stop in STOPS or range(1, steps):
    made, found = train(*begin(), stop)
    loader, state = begin()
    state.put_back(found, exactly=True)
    rest, _ = train(loader, state)
    assert made + rest == alone, (stop, (made + rest)[stop - 1:stop + 2], alone[stop - 1:stop + 2])
print(steps, [epoch == of for _, epoch, of, *_ in alone].count(False))
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

def make():
    settings = DataLoaderConfiguration(use_seedable_sampler=%s)
    loader = torch.utils.data.DataLoader(Points(), 3, shuffle=True)
    return Accelerator(cpu=True, dataloader_config=settings).prepare(loader)
"""
WITH_WORKERS = """
STOPS = 1, 6, 11
make = lambda: torch.utils.data.DataLoader(Points(), 3, shuffle=True, num_workers=2, persistent_workers=%s)
"""
BATCH_SAMPLER = """
def make():
    sampler = torch.utils.data.RandomSampler(range(10))
    return torch.utils.data.DataLoader(Points(), batch_sampler=torch.utils.data.BatchSampler(sampler, 3, False))
"""
OF_TORCHDATA = BATCH_SAMPLER.replace(
    "make():",
    """make():
    def load(self, state):
        raise NotImplementedError
    members = {"state_dict": load, "load_state_dict": load, "__module__": "torchdata.stateful_dataloader"}
    kind = type("StatefulDataLoader", (torch.utils.data.DataLoader,), members)""",
).replace("torch.utils.data.DataLoader(Points", "kind(Points")
UNDER_ACCELERATE = """
class StatefulDataLoader(torch.utils.data.DataLoader):
    '''As torchdata's, which has its first iterator made where its state is asked for.'''

    def state_dict(self):
        self._iterator = self._get_iterator()
        return {}

    def load_state_dict(self, state):
        self._iterator = None

    def __iter__(self):
        made, self._iterator = self._iterator or self._get_iterator(), None
        return made

StatefulDataLoader.__module__ = "torchdata.stateful_dataloader"

class Outer:
    def __init__(self, loader):
        self.base_dataloader = loader
        loader.state_dict()

    def __iter__(self):
        return iter(self.base_dataloader)

    def __getattr__(self, name):
        return getattr(self.__dict__["base_dataloader"], name)

def make():
    return Outer(StatefulDataLoader(Points(), 3, shuffle=True))
"""
STREAM_OF_TORCHDATA = """
class Stream(torch.utils.data.IterableDataset):
    at = 0

    def __iter__(self):
        while self.at < 12:
            self.at += 1
            yield self.at + torch.rand(()).item()
        self.at = 0

def make():
    members = {
        "state_dict": lambda self: {"at": self.dataset.at},
        "load_state_dict": lambda self, state: vars(self.dataset).update(state),
        "__module__": "torchdata.stateful_dataloader",
    }
    return type("StatefulDataLoader", (torch.utils.data.DataLoader,), members)(Stream(), 3)
"""


@pytest.mark.parametrize(
    "loader",
    [
        "make = lambda: torch.utils.data.DataLoader(Points(), 3, shuffle=True)",
        BATCH_SAMPLER,
        OF_TORCHDATA,
        STREAM_OF_TORCHDATA,
        "make = lambda: Account()",
        UNDER_ACCELERATE,
        ACCELERATE % False,
        ACCELERATE % True,
        WITH_WORKERS % False,
        WITH_WORKERS % True,
        "STOPS = 2, 7\n" + (ACCELERATE % False).replace("shuffle", "num_workers=3, shuffle"),
    ],
    ids=[
        "torch",
        "batch sampler",
        "batch sampler of torchdata's",
        "stream of torchdata's",
        "own account",
        "torchdata's under accelerate",
        "accelerate",
        "accelerate by seed",
        "workers",
        "workers that stay",
        "accelerate with workers",
    ],
)
def test_a_loop_that_goes_on_after_any_step_makes_the_batches_and_epochs_that_were_left(
    loader: str, unsupervised: WarmInterpreter
) -> None:
    """With the numbers that its data and its own body draw."""
    assert run_with_agent(unsupervised, STOPPED.format(loader=loader)) == ["12 0"]


REST_OF_A_PASS = """
import random
import torch
from rocm_agent.snapshots import randomness
from rocm_agent.snapshots.position import positioned

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index + random.random() + torch.rand(()).item()

class Skipping:
    def __init__(self, batch_sampler, skip_batches):
        self.batch_sampler, self.skip_batches = batch_sampler, skip_batches

    def __iter__(self):
        return (batch for number, batch in enumerate(self.batch_sampler) if number >= self.skip_batches)

def begin():
    torch.manual_seed(5)
    loader = torch.utils.data.DataLoader(Points(), 3, shuffle=True, num_workers=2, persistent_workers=True)
    return loader, positioned(torch, loader, ahead=True)

loader, _ = begin()
alone = [batch.tolist() for _ in range(3) for batch in loader]
loader, place = begin()
batches = iter(loader)
made = [next(batches).tolist()]
now = randomness.capture(torch)
state = place.begun[0], 0, 0, place.random_from(1, now), place.workers_at(0, 1)
loader, place = begin()
place.resume(*state)
rest = torch.utils.data.DataLoader(
    Points(), batch_sampler=Skipping(place, 1), num_workers=2, persistent_workers=True
)
made += [batch.tolist() for batch in rest]
made += [batch.tolist() for _ in range(2) for batch in loader]
print(made == alone)
"""


def test_workers_that_stay_go_on_after_a_pass_whose_rest_another_loader_gave(unsupervised: WarmInterpreter) -> None:
    """As accelerate has one made that passes over the batches which were made."""
    assert run_with_agent(unsupervised, REST_OF_A_PASS) == ["True"]


CYCLIC = """
import pickle
import torch
from rocm_agent.snapshots.copying import all_made
from rocm_agent.snapshots.loop import State

def make():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.9, step_size_up=3)

def train(scheduler, steps):
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
    return scheduler

alone = train(make(), 7)
found = pickle.dumps(all_made(State(torch, None, {"scheduler": train(make(), 4)}).collect()))
resumed = make()
State(torch, None, {"scheduler": resumed}).put_back(pickle.loads(found), exactly=True)
print(train(resumed, 3).get_last_lr() == alone.get_last_lr())
"""


def test_a_scheduler_that_refers_to_its_own_method_is_in_a_snapshot(quickest_python: Path, plain: Warm) -> None:
    """As CyclicLR of torch 1.13 does, whose state cannot be pickled."""
    assert run_with_agent(plain(quickest_python), CYCLIC) == ["True"]
