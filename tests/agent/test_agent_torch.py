"""The generic hook under real PyTorch trainings, in every training environment."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_by_hand import Attempt, plain_environment

from supervisor.core import attempt_files as at
from tests.rigs.warm import Warm, WarmInterpreter

pytestmark = pytest.mark.train

PRELUDE = """
import sys, torch
from torch import nn
torch.manual_seed(3)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 1))
data = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(8)]
"""

TRAINING = (
    PRELUDE
    + """
from torch.utils.data import DataLoader
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
for batch, target in DataLoader(data, batch_size=None, shuffle=True):
    loss = nn.functional.mse_loss(model(batch), target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(repr(loss.item()))
    with torch.no_grad():
        for _ in DataLoader(data, batch_size=None): pass
print(torch.randn(3).tolist(), [p.double().sum().item() for p in model.parameters()])
"""
)


def _trainer(attempt: Attempt, python: Path, warm: WarmInterpreter | None = None) -> Callable[..., str]:
    def train(program: str, **environment: str) -> str:
        attempt.warm = warm
        finished = attempt.run([python, "-W", "error::UserWarning", "-c", program], **environment)
        assert finished.code == 0, finished.output
        assert not attempt.failures()
        return finished.output

    return train


@pytest.fixture
def train_new(attempt: Attempt, train_python: Path) -> Callable[..., str]:
    """Train in each environment, in an interpreter that imports torch itself: for what the agent does meanwhile."""
    return _trainer(attempt, train_python)


@pytest.fixture
def train(attempt: Attempt, train_python: Path, warm: Warm) -> Callable[..., str]:
    """Train in each environment: for what depends on the version of torch."""
    return _trainer(attempt, train_python, warm(train_python))


@pytest.fixture
def train_once(attempt: Attempt, owner_python: Path, warm: Warm) -> Callable[..., str]:
    """Train in one environment: for what is the agent's alone."""
    return _trainer(attempt, owner_python, warm(owner_python))


@pytest.fixture
def attempt_of_today(attempt: Attempt, current_python: Path, warm: Warm) -> Attempt:
    """An attempt of the current environment."""
    attempt.warm = warm(current_python)
    return attempt


def test_a_plain_training_is_recorded_step_by_step_and_its_numbers_are_unchanged(
    attempt: Attempt, train_new: Callable[..., str], train_python: Path
) -> None:
    attempt.make_recorder()
    attempt.command(at.COMMAND_SAVE, 5)
    output = train_new(TRAINING)
    alone = subprocess.run(
        [str(train_python), "-c", TRAINING], env=plain_environment(), capture_output=True, text=True, check=True
    )
    assert output == alone.stdout, "bit for bit: losses, weights and the generator's state"
    records = attempt.records()
    losses = [float(line) for line in output.splitlines()[:-1]]
    assert [record.step for record in records] == list(range(1, 9))
    assert [record.loss for record in records] == losses
    assert [round(record.lr, 6) for record in records] == [0.1] * 4 + [0.05] * 4
    assert all(record.grad_norm > 0 and record.data_wait_s > 0 for record in records)
    known = at.KNOWN_LOSS | at.KNOWN_LR | at.KNOWN_GRAD_NORM | at.KNOWN_DATA_WAIT
    assert [record.known for record in records] == [known | at.KNOWN_BEGINS] + [known] * 7
    assert attempt.stage() == "exiting", "the script has come to its end"
    assert attempt.answer() == (at.ANSWER_CANNOT, 5), "nothing in this script could save"


def test_samples_and_tokens_are_those_of_the_batches_drawn_for_each_step(
    attempt: Attempt, train: Callable[..., str]
) -> None:
    """Two batches a step; the last one is short. A validation between the steps is none of them."""
    train(
        PRELUDE
        + """
from torch.utils.data import DataLoader
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
texts = [{"attention_mask": torch.ones(7), "input_ids": torch.arange(7)} for _ in range(23)]
for _ in range(2):
    for number, batch in enumerate(DataLoader(texts, batch_size=4)):
        model(batch["input_ids"].float().repeat(1, 2)[:, :8]).mean().backward()
        if number % 2: optimizer.step()
        with torch.no_grad():
            for _ in DataLoader(texts, batch_size=2): pass
"""
    )
    first, *rest = [(record.samples, record.tokens) for record in attempt.records()]
    assert first == (0, 0), "what was drawn before the first step may have been skipped"
    assert rest == [(8, 56), (7, 49), (8, 56), (8, 56), (7, 49)]


def test_samples_of_a_validation_that_draws_with_gradients_on_are_none_of_a_step(
    attempt: Attempt, train: Callable[..., str]
) -> None:
    """As skorch draws them, with one batch in an epoch. Data that is made for each epoch is none of a validation."""
    train(
        PRELUDE
        + """
from torch.utils.data import DataLoader, TensorDataset
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept, held_out = torch.randn(80, 8), TensorDataset(torch.randn(20, 8))
for epoch in range(6):
    made = TensorDataset(torch.randn(40, 8)) if epoch > 3 else kept
    for batch in DataLoader(made, batch_size=256):
        model(batch[0] if epoch > 3 else batch).sum().backward(); optimizer.step()
    for batch in DataLoader(held_out, batch_size=256):
        with torch.no_grad(): model(batch[0])
"""
    )
    assert [record.samples for record in attempt.records()] == [0, 80, 80, 80, 40, 40]


@pytest.mark.parametrize("ahead", [True, False])
def test_a_loader_that_is_a_batch_ahead_leaves_no_step_without_samples(
    attempt: Attempt, train: Callable[..., str], *, ahead: bool
) -> None:
    """As that of accelerate is, to know which batch is the last; over all steps as many are counted as were drawn."""
    train(
        PRELUDE
        + """
from torch.utils.data import DataLoader
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def one_ahead(loader):
    drawn = iter(loader)
    present = next(drawn)
    for following in drawn:
        yield present
        present = following
    yield present
loader = DataLoader(torch.randn(11, 8), batch_size=4)
for epoch in range(4):
    for batch in (one_ahead(loader) if AHEAD else loader):
        model(batch).sum().backward(); optimizer.step()
""".replace("AHEAD", str(ahead))
    )
    drawn = [record.samples for record in attempt.records()]
    assert drawn == ([0, 3, 3, *[5, 3, 3] * 3] if ahead else [0, 4, 3, *[4, 4, 3] * 3])


def test_a_resumed_adam_goes_on_counting(attempt: Attempt, train: Callable[..., str]) -> None:
    train(
        PRELUDE
        + """
def fresh(): return torch.optim.Adam(model.parameters(), lr=1e-3)
def step(optimizer): model(data[0][0]).sum().backward(); optimizer.step()
import os
optimizer = fresh()
if os.fork() == 0:
    for _ in range(5): step(optimizer)
    torch.save(optimizer.state_dict(), "a.pt")
    os._exit(0)
os.wait()
optimizer.load_state_dict(torch.load("a.pt"))
step(optimizer)
"""
    )
    assert [record.step for record in attempt.records()] == [1, 2, 3, 4, 5, 6]


def test_a_step_by_which_a_state_dict_is_filled_is_none_of_the_training(
    attempt_of_today: Attempt, current_python: Path
) -> None:
    """As a program resumes from its own folders of torch.distributed.checkpoint: what it loads into has to be there."""
    program = (
        PRELUDE
        + """
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
def fresh(): return torch.optim.Adam(model.parameters(), lr=1e-3)
def step(optimizer): model(data[0][0]).sum().backward(); optimizer.step()
import os
if os.fork() == 0:
    optimizer = fresh()
    for _ in range(5): step(optimizer)
    torch.save(get_state_dict(model, optimizer), "a.pt")
    os._exit(0)
os.wait()
optimizer = fresh()
get_state_dict(model, optimizer)
weights, moments = torch.load("a.pt")
set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
step(optimizer)
"""
    )
    finished = attempt_of_today.run([current_python, "-c", program])
    assert finished.code == 0, finished.output
    assert not attempt_of_today.failures()
    assert [record.step for record in attempt_of_today.records()] == [1, 2, 3, 4, 5, 6]


def test_two_optimizers_of_one_step_count_once(attempt: Attempt, train_once: Callable[..., str]) -> None:
    train_once(
        PRELUDE
        + """
one, two = (torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.5, 0.25))
for batch, target in data:
    for optimizer in (one, two):
        model(batch).sum().backward()
        optimizer.step()
"""
    )
    assert [round(record.lr, 2) for record in attempt.records()] == [0.5] * 8


def test_another_optimizer_leads_when_the_first_falls_silent_or_is_gone(
    attempt: Attempt, train_once: Callable[..., str]
) -> None:
    attempt.make_recorder(capacity=256)
    train_once(
        PRELUDE
        + """
def steps(optimizer, count):
    for _ in range(count):
        model(data[0][0]).sum().backward()
        optimizer.step()
one, two = (torch.optim.SGD(model.parameters(), lr=lr) for lr in (0.5, 0.25))
steps(one, 2)
steps(two, 60)
two = None
for lr in (0.125, 0.125, 0.0625):  # the next may have the identity of the one before
    steps(torch.optim.SGD(model.parameters(), lr=lr), 3)
"""
    )
    rates = [record.lr for record in attempt.records()]
    assert rates == [0.5] * 2 + [0.25] * 10 + [0.125] * 6 + [0.0625] * 3
    assert [record.step for record in attempt.records()] == list(range(1, 22))
    assert [record.step for record in attempt.records() if record.known & at.KNOWN_BEGINS] == [1, 3, 13, 16, 19]


def test_an_optimizer_that_calls_another_counts_once(attempt: Attempt, train_once: Callable[..., str]) -> None:
    train_once(
        PRELUDE
        + """
class Mine(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        return super().step(closure)
torch.optim.SGD(model.parameters(), lr=0.1)  # so that the step which Mine calls is watched by itself too
optimizer = Mine(model.parameters(), lr=0.1)
for batch, target in data:
    model(batch).sum().backward()
    optimizer.step()
"""
    )
    assert attempt.head() == 8


def test_the_loss_is_the_unscaled_one_and_nan_stays_nan(attempt_of_today: Attempt, current_python: Path) -> None:
    """Only newer versions of torch have a scaler that works without a GPU; the hook is the same for all."""
    attempt = attempt_of_today
    program = (
        PRELUDE
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for value in (2.0, float("nan"), float("nan")):
    loss = model(data[0][0]).sum() * value
    print(repr(loss.item()))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
    )
    finished = attempt.run([current_python, "-c", program])
    assert finished.code == 0, finished.output
    first, second, third = attempt.records()
    assert first.loss == float(finished.output.split()[0])
    assert math.isnan(second.loss)
    assert math.isnan(third.loss), "the scaler skipped both steps"
    assert [record.step for record in (first, second, third)] == [1, 2, 3]


LOADERS = (
    PRELUDE
    + """
EPOCHS = 1 if sys.argv[1:] == ["spawn"] else 2  # each spawned worker imports torch
class Set(torch.utils.data.Dataset):
    def __len__(self): return 16 // EPOCHS
    def __getitem__(self, index): return torch.randn(8)
if __name__ == "__main__":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(EPOCHS):
        for batch in torch.utils.data.DataLoader(Set(), num_workers=2, multiprocessing_context=sys.argv[1]):
            model(batch).sum().backward()
            optimizer.step()
"""
)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_workers_of_a_data_loader_are_silent(
    attempt: Attempt, train_python: Path, tmp_path: Path, context: str, warm: Warm
) -> None:
    attempt.make_recorder()
    attempt.warm = warm(train_python) if context == "fork" else None
    (tmp_path / "program.py").write_text(LOADERS)
    finished = attempt.run([train_python, tmp_path / "program.py", context], OMP_NUM_THREADS="1")
    assert finished.code == 0, finished.output
    assert [record.step for record in attempt.records()] == list(range(1, 17))
    assert len(attempt.list_reports("claimed")) == len(attempt.list_reports("alive")) == 1
    assert not attempt.failures()
    assert list((attempt.folder / at.STACKS).iterdir()) == []


def test_a_script_that_counts_for_itself_is_not_counted_twice(attempt: Attempt, train_once: Callable[..., str]) -> None:
    train_once(
        PRELUDE
        + """
import rocm_agent
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for n, (batch, target) in enumerate(data):
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    rocm_agent.step(loss=loss, step=100 + n, epoch=2, lr=optimizer.param_groups[0]["lr"])
"""
    )
    steps = [record.step for record in attempt.records()]
    assert steps == [1, *range(100, 108)], "the first step was made before the script first spoke"


@pytest.mark.whole_torch(reason="how it is imported")
def test_the_finder_leaves_torch_as_it_was(train_new: Callable[..., str]) -> None:
    output = train_new(
        """
import inspect, importlib, pickle, sys, torch
from importlib.machinery import SourceFileLoader
assert type(torch.__spec__.loader) is SourceFileLoader and torch.__loader__ is torch.__spec__.loader
assert "exec_module" not in vars(torch.__loader__)
assert "PyTorch" in inspect.getsource(torch)
assert pickle.loads(pickle.dumps(torch.optim.SGD)) is torch.optim.SGD
optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)])
assert "closure" in inspect.signature(optimizer.step).parameters
again = pickle.loads(pickle.dumps(optimizer))
assert again.step.__func__ is optimizer.step.__func__
print("fine")
"""
    )
    assert output == "fine\n"


@pytest.mark.whole_torch(reason="compiles")
def test_a_compiled_model_is_still_counted(attempt_of_today: Attempt, current_python: Path) -> None:
    attempt = attempt_of_today
    program = (
        PRELUDE
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
fast = torch.compile(model, backend="eager")
for batch, target in data:
    loss = nn.functional.mse_loss(fast(batch), target)
    loss.backward()
    optimizer.step()
@torch.compile(backend="eager")
def compiled_step(): optimizer.step()
compiled_step()
"""
    )
    finished = attempt.run([current_python, "-c", program], OMP_NUM_THREADS="1")
    assert finished.code == 0, finished.output
    assert attempt.head() >= 8
    assert not attempt.failures()


def test_conv2d_is_patched_when_the_setting_says_so(attempt: Attempt, train_new: Callable[..., str]) -> None:
    program = "import torch; print(torch.nn.Conv2d._conv_forward.__module__)"
    assert train_new(program, **{at.ENV_CONV2D: "off"}) == "torch.nn.modules.conv\n"
    assert attempt.list_reports("patched") == []
    train_new(
        "import torch; from rocm_agent.conv2d import is_patched; assert is_patched()", **{at.ENV_CONV2D: "unfold"}
    )
    (patched,) = attempt.list_reports("patched")
    assert (patched["conv2d"], patched["scope"]) == ("unfold", "modules")
    assert patched["torch"][0].isdigit()


def test_conv2d_everywhere_leaves_the_modules_alone_and_ends_in_silence(
    attempt: Attempt, train_new: Callable[..., str]
) -> None:
    program = """
import torch
from torch.nn.functional import conv1d
x = torch.ones(1, 2, 5, requires_grad=True)
with torch.autograd.profiler.profile() as profile:
    conv1d(x, torch.ones(2, 2, 3)).sum().backward()
print(torch.nn.Conv2d._conv_forward.__module__, any("mm" in event.key for event in profile.key_averages()))
"""
    report = train_new(program, **{at.ENV_CONV2D: "planned", at.ENV_CONV2D_SCOPE: "all"})
    assert report.splitlines()[-1] == "torch.nn.modules.conv True"
    (patched,) = attempt.list_reports("patched")
    assert (patched["conv2d"], patched["scope"]) == ("planned", "all")


def test_an_unknown_conv2d_setting_is_reported_and_changes_nothing(attempt: Attempt, owner_python: Path) -> None:
    finished = attempt.run([owner_python, "-c", "import torch; print('fine')"], **{at.ENV_CONV2D: "magic"})
    assert finished == (0, "fine\n")
    finished = attempt.run(
        [owner_python, "-c", "import torch; print('fine')"],
        **{at.ENV_CONV2D: "planned", at.ENV_CONV2D_SCOPE: "nowhere"},
    )
    assert finished == (0, "fine\n")
    algorithm, scope = attempt.list_reports("hook_failed")
    assert "magic" in algorithm["error"]
    assert "nowhere" in scope["error"]


FAILING = """
import torch
from torch.utils.data import DataLoader
from rocm_agent import batch_count, torch_hook
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
def fail(*_):
    raise ValueError("broken")
batch_count.drawn.saw, torch_hook._watch.draws = fail, fail
for batch in DataLoader(torch.arange(120.0).view(30, 4) / 100, batch_size=None):
    optimizer.zero_grad()
    loss = (weight * batch).square().sum()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
"""


def test_a_hook_that_fails_at_every_batch_is_reported_once_and_costs_no_step_and_no_loss(
    attempt: Attempt, train_python: Path
) -> None:
    """Thirty steps: the first losses are read when a step ends, and those after the twentieth in the backward pass."""
    finished = attempt.run([train_python, "-c", FAILING])
    assert finished.code == 0, finished.output
    assert [record.loss for record in attempt.records()] == list(map(float, finished.output.splitlines()))
    assert [record.step for record in attempt.records()] == list(range(1, 31))
    failed = {report["where"] for report in attempt.list_reports("hook_failed")}
    assert failed == {"torch_hook.draws", "batch_count.saw"}
    assert len(attempt.list_reports("hook_failed")) == 2


STAGE = """
import os
def stage():
    with open(os.path.join(os.environ["ROCM_SUPERVISOR_ATTEMPT_DIR"], "recorder.bin"), "rb") as recorder:
        return recorder.read(260)[256]
"""
"""Has a program read the stage that its recorder shows."""


def test_a_validation_is_no_standstill_of_the_steps(attempt: Attempt, train_once: Callable[..., str]) -> None:
    program = TRAINING + STAGE + "print('then', stage())\nloss = model(batch).sum(); loss.backward(); optimizer.step()"
    report = train_once(program + "\nprint('again', stage())")
    assert f"then {at.STAGES.index('validate')}" in report
    assert f"again {at.STAGES.index('step')}" in report


def test_what_comes_after_the_last_batch_of_a_pass_is_no_late_step(attempt: Attempt, train: Callable[..., str]) -> None:
    """Neither a report that takes minutes, nor a validation that draws its batches with gradients on."""
    program = (
        PRELUDE
        + STAGE
        + """
import io
from torch.utils.data import DataLoader
class Shown(io.BytesIO):
    def write(self, content):
        self.stage = stage()
        return super().write(content)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held_out = DataLoader(torch.randn(8, 8), batch_size=4)
loader = DataLoader(torch.randn(8, 8), batch_size=4)
for epoch in range(2):
    for index, batch in enumerate(loader):
        drawn = stage() if epoch or index else None
        model(batch).sum().backward(); optimizer.step()
    ended = stage()
    for batch in held_out:
        with torch.no_grad():
            model(batch)
    shown = Shown()
    torch.save(model.state_dict(), shown)
    print(drawn, ended, shown.stage, stage())
"""
    )
    step, validate, checkpoint = (at.STAGES.index(name) for name in ("step", "validate", "checkpoint"))
    lines = train(program).splitlines()
    assert lines == [f"{step} {validate} {checkpoint} {validate}"] * 2


def test_what_comes_after_the_last_step_is_no_late_one_of_a_loader_that_looks_ahead(
    attempt: Attempt, train: Callable[..., str]
) -> None:
    """It meets the end of its data before it hands the last batch over; samples are drawn for minutes after that."""
    program = (
        PRELUDE
        + STAGE
        + """
from torch.utils.data import DataLoader
def look_ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for coming in batches:
        yield batch
        batch = coming
    yield batch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(120, 8), batch_size=4)
for epoch in range(2):
    after = []
    for batch in look_ahead(loader):
        model(batch).sum().backward(); optimizer.step()
        after.append(stage())
    print(set(after[:-1]), after[-1], stage())
"""
    )
    step, validate = (at.STAGES.index(name) for name in ("step", "validate"))
    lines = train(program).splitlines()
    assert lines == [f"{{{step}}} {validate} {validate}"] * 2


def test_a_wait_for_a_batch_a_new_shape_and_a_save_are_reported_while_they_last(
    attempt: Attempt, train: Callable[..., str]
) -> None:
    program = (
        PRELUDE
        + """
import io
from torch.utils.data import DataLoader, Dataset
from rocm_agent import claim
def list_reports(what):
    recorder = claim.holding()
    print(what, recorder and recorder.stage, recorder and recorder.aside)
class Data(Dataset):
    def __len__(self): return 7
    def __getitem__(self, index):
        list_reports("batch")
        return data[index][0]
class File(io.BytesIO):
    def write(self, piece):
        if not self.tell(): list_reports("save")
        return super().write(piece)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Data(), batch_size=2):
    list_reports("step of %d" % len(batch))
    model(batch).sum().backward()
    optimizer.step()
torch.save(model.state_dict(), File())
list_reports("end")
"""
    )
    lines = [line for line in train(program).splitlines() if line not in ("batch None None", "step of 2 None None")]
    step, wait, compiles = at.STAGES.index("step"), at.ASIDES.index("data_wait"), at.ASIDES.index("compile")
    first_known = lines.index(f"step of 2 {step} {compiles}")
    assert lines[:first_known] == [f"batch {step} {wait}"] * 2, "the agent's first sight of that shape"
    assert f"step of 2 {step} 0" in lines[first_known:]
    assert lines[-4:] == [
        f"batch {step} {wait}",
        f"step of 1 {step} {compiles}",
        f"save {at.STAGES.index('checkpoint')} 0",
        f"end {at.STAGES.index('validate')} 0",
    ]
    assert attempt.header(at.ASIDE_OFFSET, at.ASIDE)[1] == 0, "what a script does between its steps is not known"


def test_the_writer_of_a_snapshot_leaves_the_stage_to_the_training(train: Callable[..., str]) -> None:
    """A training that hangs while its snapshot is written would be granted the time of a save otherwise."""
    program = (
        PRELUDE
        + """
import io, threading
from rocm_agent import claim
from rocm_agent.snapshots.files import Unfailing
class File(io.BytesIO):
    def write(self, piece):
        stages.add(claim.holding().stage)
        return super().write(piece)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(data[0][0]).sum().backward(); optimizer.step()
def save_and_show(target):
    writer = threading.Thread(target=torch.save, args=(model.state_dict(), target))
    writer.start(); writer.join()
    print(*stages); stages.clear()
stages = set()
save_and_show(Unfailing(File()))
save_and_show(File())
"""
    )
    step, checkpoint = (at.STAGES.index(name) for name in ("step", "checkpoint"))
    assert train(program).splitlines() == [f"{step}", f"{checkpoint}"]


@pytest.mark.whole_torch(reason="compiles")
def test_a_compilation_is_reported_while_it_lasts(attempt_of_today: Attempt, current_python: Path) -> None:
    attempt = attempt_of_today
    program = (
        PRELUDE
        + """
from rocm_agent import claim
def backend(module, inputs):
    recorder = claim.holding()
    print("compiling", recorder and recorder.aside)
    return module.forward
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(module):
    module(data[0][0]).sum().backward()
    optimizer.step()
step(model)
step(torch.compile(model, backend=backend))
print("then", claim.holding().aside)
"""
    )
    finished = attempt.run([current_python, "-c", program])
    assert finished.code == 0, finished.output
    assert f"compiling {at.ASIDES.index('compile')}\nthen 0\n" in finished.output


def test_on_rocm_a_patched_training_keeps_batch_norm_from_miopen_too(attempt: Attempt, owner_python: Path) -> None:
    program = "import torch; print(torch.backends.cudnn.enabled)"
    assert _trainer(attempt, owner_python)(program, **{at.ENV_CONV2D: "unfold"}) == "True\n"
    # A torch that was built for ROCm cannot be had here; what tells one from it is this one value.
    as_rocm = "import torch, torch.version; torch.version.hip = '5.2'\nfrom rocm_agent.process import _avoid_miopen\n"
    assert (
        _trainer(attempt, owner_python)(as_rocm + "_avoid_miopen(torch); print(torch.backends.cudnn.enabled)")
        == "False\n"
    )


LONG = """
import torch
from torch.utils.data import DataLoader
from rocm_agent import torch_hook
torch.set_num_threads(1)
weight = torch.ones(4, requires_grad=True)
class Still(torch.optim.Optimizer):
    def step(self, closure=None): pass
optimizer = Still([weight], {"lr": 0.5})
texts = torch.arange(4 * 299).view(299, 4) % 7
changed = {40: 0.25, 41: torch.tensor(0.125), 43: 1e300, 45: 0.5}
for number, (batch, following) in enumerate(DataLoader(list(zip(texts, texts)), batch_size=5)):
    if number == 35: torch_hook.epoch_is(1)
    optimizer.param_groups[0]["lr"] = changed.get(number, optimizer.param_groups[0]["lr"])
    loss = (weight * batch.float()).sum()
    loss.backward()
    if number % 2:
        norm = torch.nn.utils.clip_grad_norm_([weight], 1e9)
        torch_hook._watch.grad_norm = {51: norm.double() * 1e300, 53: 3.0}.get(number, norm)
    if number != 57: optimizer.step()
    if number == 30: optimizer.step()
    print(loss.item())
"""


def test_steps_like_the_last_one_are_recorded_with_numbers_of_their_own(
    attempt: Attempt, train: Callable[..., str]
) -> None:
    """From the twenty-first on: an epoch, a learning rate, a norm or a batch that changes is of its own step."""
    losses = [float(line) for line in train(LONG).splitlines()]
    records = attempt.records()
    assert [record.step for record in records] == list(range(1, 61))
    again = records.pop(31)
    assert (again.loss, again.known, again.samples) == (0.0, at.KNOWN_LR, 0), "one that drew nothing"
    assert len(losses) == 60
    del losses[57]  # no step was made of it
    for number, (record, loss) in enumerate(zip(records, losses, strict=True)):
        batch = number + (number >= 57)
        epoch, norm = (at.KNOWN_EPOCH if batch >= 35 else 0), (at.KNOWN_GRAD_NORM if batch % 2 or batch == 58 else 0)
        begins = at.KNOWN_BEGINS if number == 0 else 0
        assert record.known == at.KNOWN_LOSS | at.KNOWN_LR | at.KNOWN_DATA_WAIT | epoch | norm | begins, batch
        assert (record.loss, record.epoch, record.grad_norm > 0) == (loss, int(batch >= 35), norm > 0)
        lr = 0.5 if not 40 <= batch < 45 else 0.25 if batch == 40 else 0.125 if batch < 43 else 3.4028235e38
        assert record.lr == pytest.approx(lr)
        assert record.data_wait_s > 0
    assert records[51].grad_norm == pytest.approx(3.4028235e38)
    assert records[53].grad_norm == 3.0
    assert {(record.samples, record.tokens) for record in records[1:57]} == {(5, 20)}
    assert [(record.samples, record.tokens) for record in records[57:]] == [(10, 40), (4, 16)]


COMMANDED = """
import torch
from time import monotonic
from rocm_agent import claim, layout
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.01)
def step():
    weight.sum().backward()
    optimizer.step()
for _ in range(40): step()
memory, deadline = claim.holding()._memory, monotonic() + 20
layout.COMMAND.pack_into(memory, layout.COMMAND_OFFSET, layout.COMMAND_SAVE, 9)
while layout.ANSWER.unpack_from(memory, layout.ANSWER_OFFSET)[0] == 0 and monotonic() < deadline: step()
"""


def test_a_command_is_answered_while_thousands_of_steps_are_alike(
    attempt: Attempt, train_once: Callable[..., str]
) -> None:
    train_once(COMMANDED)
    assert attempt.answer() == (at.ANSWER_CANNOT, 9)
    records = attempt.records()
    assert [record.step for record in records] == list(range(1, len(records) + 1))
