"""From which number an attempt's steps are counted: by the optimizer, by what was loaded, or by itself, and said so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_by_hand import Attempt, interpreters, name_of

from supervisor.core import attempt_files as at
from supervisor.runner.attempt_folder import resume_steps
from tests.rigs.warm import Warm

SCRIPT = """
import sys
import rocm_agent
{before}
for _ in range(3):
    rocm_agent.step(loss=1.0)
"""
LOOP = """
import sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.{optimizer}
{before}
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    {each}
"""
SGD, ADAM = "SGD(model.parameters(), lr=0.1)", "Adam(model.parameters(), lr=0.1)"
BEFORE = "torch.load(sys.argv[1])"

Run = Callable[..., tuple[list[int], dict[str, Any]]]


def given(path: Path, step: int | None, *, asked: bool = False, chosen: bool = True) -> dict[str, str]:
    """Return what the daemon hands over: the path to resume from and what it knows of that file."""
    stat = path.stat()
    files = [[str(path), stat.st_size, stat.st_mtime_ns, step]]
    note = {"step": step if chosen else None, "asked": asked, "files": files}
    return {at.ENV_RESUME_FROM: str(path) if chosen else "", at.ENV_RESUME_STEPS: json.dumps(note)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "ckpt.bin"
    path.write_bytes(b"saved")
    return path


def counted(attempt: Attempt, program: str, python: Path, *words: str, **env: str) -> tuple[list[int], dict[str, Any]]:
    finished = attempt.run([python, "-c", program, *words], **env)
    assert finished.code == 0, finished.output
    assert not attempt.failures()
    (reported,) = attempt.list_reports("counting")
    return [record.step for record in attempt.records()], reported


# --- without torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", interpreters(), ids=name_of)
def test_a_script_that_asks_where_to_resume_goes_on_from_that_step(attempt: Attempt, python: Path, saved: Path) -> None:
    steps, reported = counted(attempt, SCRIPT.format(before="rocm_agent.resume_from()"), python, **given(saved, 40))
    assert steps == [41, 42, 43]
    assert (reported["scale"], reported["resumed"], reported["path"]) == ("training", True, str(saved))


@pytest.mark.parametrize(
    ("env", "rank", "ranks"),
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 1, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "RANK": "0", "WORLD_SIZE": "4"}, 0, 4),
        ({"PMI_RANK": "0"}, 0, 1),
    ],
)
def test_a_rank_that_mpi_started_is_one(attempt: Attempt, env: dict[str, str], rank: int, ranks: int) -> None:
    """Of two processes of a Horovod training the second was taken for a further training, which is not followed."""
    finished = attempt.run([interpreters()[-1], "-c", SCRIPT.format(before="")], **env)
    assert finished.code == 0, finished.output
    (claimed,) = attempt.list_reports("claimed")
    assert (claimed["rank"], claimed["world_size"]) == (rank, ranks)
    assert [record.step for record in attempt.records(rank)] == [1, 2, 3]


def test_a_script_that_asks_for_nothing_counts_itself_and_says_so(attempt: Attempt, saved: Path) -> None:
    steps, reported = counted(attempt, SCRIPT.format(before=""), interpreters()[-1], **given(saved, 40))
    assert (steps, reported["scale"], reported["resumed"]) == ([1, 2, 3], "attempt", None)


def test_a_command_that_names_the_checkpoint_is_believed_until_something_else_is_known(
    attempt: Attempt, saved: Path
) -> None:
    steps, reported = counted(attempt, SCRIPT.format(before=""), interpreters()[-1], **given(saved, 40, asked=True))
    assert (steps, reported["scale"], reported["resumed"]) == ([41, 42, 43], "training", None)


def test_a_checkpoint_of_which_no_step_is_known_leaves_the_count_the_attempts_own(
    attempt: Attempt, saved: Path
) -> None:
    program = SCRIPT.format(before="rocm_agent.resume_from()")
    steps, reported = counted(attempt, program, interpreters()[-1], **given(saved, None))
    assert (steps, reported["scale"], reported["resumed"]) == ([1, 2, 3], "attempt", True)


def test_a_beginning_counts_the_training(attempt: Attempt) -> None:
    steps, reported = counted(attempt, SCRIPT.format(before=""), interpreters()[-1])
    assert (steps, reported["scale"], reported["resumed"]) == ([1, 2, 3], "training", None)


def test_a_program_that_loads_by_itself_what_no_proof_can_open_may_go_on_from_anywhere(attempt: Attempt) -> None:
    env = {at.ENV_RESUME_FROM: "", at.ENV_RESUME_STEPS: resume_steps(None, [], asked=False, loads_itself=True)}
    steps, reported = counted(attempt, SCRIPT.format(before=""), interpreters()[-1], **env)
    assert (steps, reported["scale"], reported["resumed"]) == ([1, 2, 3], "attempt", None)


@pytest.mark.parametrize(("epoch", "scale"), [("run.0.1", "training"), ("run.0.2", "attempt"), ("run.1.1", "attempt")])
def test_a_later_launch_on_several_nodes_may_go_on_from_what_this_node_does_not_know(
    attempt: Attempt, epoch: str, scale: str
) -> None:
    env = {at.ENV_EPOCH: epoch}
    steps, reported = counted(attempt, SCRIPT.format(before=""), interpreters()[-1], **env)
    assert (steps, reported["scale"], reported["resumed"]) == ([1, 2, 3], scale, None)


def test_what_the_daemon_hands_over_may_be_anything(attempt: Attempt, saved: Path) -> None:
    env = {**given(saved, 40), at.ENV_RESUME_STEPS: '{"files": [[1, 2], [null, null, null, null]], "step": "many"}'}
    finished = attempt.run([interpreters()[-1], "-c", SCRIPT.format(before="")], **env)
    assert finished.code == 0, finished.output
    assert [record.step for record in attempt.records()] == [1, 2, 3]


# --- under torch -----------------------------------------------------------------------------------------------------


@pytest.fixture
def warm_attempt(attempt: Attempt, train_python: Path, warm: Warm) -> Attempt:
    attempt.warm = warm(train_python)
    return attempt


@pytest.fixture
def checkpoint(train_python: Path, tmp_path: Path, make_once: Callable[..., Path], warm: Warm) -> Path:
    """Weights and an Adam that has made three steps; each test has a copy of its own."""

    def train(path: Path) -> None:
        ends = f"torch.save({{'model': model.state_dict(), 'optimizer': optimizer.state_dict()}}, {str(path)!r})"
        program = LOOP.format(optimizer=ADAM, before="", each="") + ends
        assert Attempt(tmp_path / "before", warm=warm(train_python)).run([train_python, "-c", program]).code == 0

    made = make_once(f"origin of {train_python.parts[-3]}.pt", train)
    return Path(shutil.copy(made, tmp_path / "ckpt.pt"))


@pytest.mark.train
def test_an_optimizer_without_a_count_goes_on_from_the_step_of_what_was_loaded(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path
) -> None:
    program = LOOP.format(optimizer=SGD, before=BEFORE, each="")
    env = given(checkpoint, 40, chosen=False)
    steps, reported = counted(warm_attempt, program, train_python, str(checkpoint), **env)
    assert steps == [41, 42, 43]
    assert (reported["scale"], reported["by"], reported["resumed"]) == ("training", "checkpoint", True)


@pytest.mark.train
def test_a_loop_without_an_optimizer_goes_on_from_the_step_of_what_was_loaded(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path
) -> None:
    program = f"""
import sys, torch
{BEFORE}
weight = torch.ones(2, requires_grad=True)
for _ in range(3):
    weight.sum().backward()
    weight.data -= 0.1 * weight.grad
"""
    env = given(checkpoint, 40, chosen=False)
    steps, reported = counted(warm_attempt, program, train_python, str(checkpoint), **env)
    assert steps == [41, 42, 43]
    assert (reported["scale"], reported["resumed"]) == ("training", True)


@pytest.mark.train
def test_a_copy_under_another_name_is_known_by_its_size_and_time(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path, tmp_path: Path
) -> None:
    program = LOOP.format(optimizer=SGD, before=BEFORE, each="")
    env = given(checkpoint, 40)
    other = checkpoint.rename(tmp_path / "renamed.pt")
    steps, reported = counted(warm_attempt, program, train_python, str(other), **env)
    assert (steps, reported["resumed"]) == ([41, 42, 43], True)
    assert reported["path"] == str(checkpoint), "what it was given, wherever that was put"


@pytest.mark.train
@pytest.mark.parametrize("found_without_a_step", [True, False])
def test_a_file_of_the_scripts_own_is_known_by_its_content_though_another_was_chosen(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path, saved: Path, *, found_without_a_step: bool
) -> None:
    """Nothing was kept of it, or nothing that a step is known of; the remedy chose an older generation."""
    program = LOOP.format(optimizer=SGD, before=BEFORE, each="")
    stat, env = checkpoint.stat(), given(saved, 25)
    note = json.loads(env[at.ENV_RESUME_STEPS])
    if found_without_a_step:
        note["files"].append([str(checkpoint), stat.st_size, stat.st_mtime_ns, None])
    note["files"].extend([[None, stat.st_size, stat.st_mtime_ns - 1, 50], [None, stat.st_size, stat.st_mtime_ns, 75]])
    env[at.ENV_RESUME_STEPS] = json.dumps(note)
    steps, reported = counted(warm_attempt, program, train_python, str(checkpoint), **env)
    assert steps == [76, 77, 78]
    assert (reported["scale"], reported["resumed"], reported["path"]) == ("training", True, str(checkpoint))


@pytest.mark.train
def test_what_is_loaded_besides_the_chosen_one_is_not_what_it_goes_on_from(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """As the best weights so far are, for a comparison."""
    env, best = given(checkpoint, 40), tmp_path / "best.pt"
    best.write_bytes(checkpoint.read_bytes() + b"\0")
    stat, note = best.stat(), json.loads(env[at.ENV_RESUME_STEPS])
    note["files"].append([str(best), stat.st_size, stat.st_mtime_ns, 25])
    env[at.ENV_RESUME_STEPS] = json.dumps(note)
    before = f"{BEFORE}; torch.load(sys.argv[2])"
    program = LOOP.format(optimizer=SGD, before=before, each="")
    steps, reported = counted(warm_attempt, program, train_python, str(checkpoint), str(best), **env)
    assert (steps, reported["path"]) == ([41, 42, 43], str(checkpoint))


SAVES = """
import os
if os.path.exists(sys.argv[1]):
    torch.load(sys.argv[1])
"""


@pytest.mark.train
@pytest.mark.parametrize("same", [True, False])
def test_a_process_that_its_launcher_starts_again_goes_on_from_what_the_one_before_has_saved(
    warm_attempt: Attempt, train_python: Path, tmp_path: Path, same: bool
) -> None:
    """Ranks are started again by torchrun within one attempt; a further stage of a script is another command line."""
    path = str(tmp_path / "ckpt.pt")
    program = LOOP.format(optimizer=SGD, before=SAVES, each="torch.save(model.state_dict(), sys.argv[1])")
    for more in ((), () if same else ("--stage=2",)):
        finished = warm_attempt.run([train_python, "-c", program, path, *more])
        assert finished.code == 0, finished.output
    assert not warm_attempt.failures()
    first, second = warm_attempt.list_reports("counting")
    assert (first["first"], second["first"]) == (1, 4 if same else 1)
    assert (second["scale"], second["path"], second["resumed"]) == (
        ("training", None, True) if same else ("training", None, None)
    )
    assert [record.step for record in warm_attempt.records()][-3:] == ([4, 5, 6] if same else [1, 2, 3])


@pytest.mark.train
def test_an_optimizers_own_count_comes_first(warm_attempt: Attempt, train_python: Path, checkpoint: Path) -> None:
    before = f"found = {BEFORE}; optimizer.load_state_dict(found['optimizer'])"
    program = LOOP.format(optimizer=ADAM, before=before, each="")
    steps, reported = counted(warm_attempt, program, train_python, str(checkpoint), **given(checkpoint, 5000))
    assert (steps, reported["by"], reported["resumed"]) == ([4, 5, 6], "optimizer", True)


@pytest.mark.train
def test_a_count_that_lags_by_skipped_steps_does_not_move_the_scale(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path
) -> None:
    before = f"found = {BEFORE}; optimizer.load_state_dict(found['optimizer'])"
    program = LOOP.format(optimizer=ADAM, before=before, each="")
    steps, _ = counted(warm_attempt, program, train_python, str(checkpoint), **given(checkpoint, 9))
    assert steps == [10, 11, 12]


@pytest.mark.train
def test_an_optimizer_that_begins_with_one_and_loaded_nothing_began_again(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path
) -> None:
    program = LOOP.format(optimizer=ADAM, before="", each="")
    steps, reported = counted(warm_attempt, program, train_python, **given(checkpoint, 40))
    assert (steps, reported["scale"], reported["resumed"]) == ([1, 2, 3], "training", False)


UNREADABLE = """
try:
    torch.load(sys.argv[1])
except Exception:
    pass
"""


@pytest.mark.train
@pytest.mark.parametrize("optimizer", [ADAM, SGD])
def test_a_checkpoint_that_could_not_be_read_is_none_that_the_training_goes_on_from(
    warm_attempt: Attempt, train_python: Path, checkpoint: Path, optimizer: str
) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:-200])
    program = LOOP.format(optimizer=optimizer, before=UNREADABLE, each="")
    steps, reported = counted(warm_attempt, program, train_python, str(checkpoint), **given(checkpoint, 40))
    assert steps == [1, 2, 3]
    assert reported["path"] is None
    assert reported["resumed"] is (False if optimizer == ADAM else None), "without a count nothing is known"


@pytest.mark.train
def test_a_script_that_looks_for_a_checkpoint_before_any_was_saved_meets_no_failure_of_the_agent(
    warm_attempt: Attempt, train_python: Path, tmp_path: Path
) -> None:
    program = LOOP.format(optimizer=SGD, before=UNREADABLE, each="")
    steps, reported = counted(warm_attempt, program, train_python, str(tmp_path / "none.pt"))
    assert (steps, reported["scale"]) == ([1, 2, 3], "training")


@pytest.mark.train
def test_each_save_is_reported_with_the_step_that_it_holds(
    warm_attempt: Attempt, train_python: Path, tmp_path: Path
) -> None:
    part = tmp_path / "part"
    each = f"torch.save(model.state_dict(), {str(part)!r})"
    counted(warm_attempt, LOOP.format(optimizer=SGD, before="", each=each), train_python)
    reported = warm_attempt.list_reports("file_saved")
    assert [report["step"] for report in reported] == [1, 2, 3]
    stat = part.stat()
    assert (reported[-1]["size_bytes"], reported[-1]["modified_s"]) == (stat.st_size, stat.st_mtime_ns // 10**9)
    assert reported[-1]["modified_ns"] == stat.st_mtime_ns % 10**9


OPEN = """
    if {when}:
        with open({part!r}, "wb") as file:
            torch.save(model.state_dict(), file)
"""


@pytest.mark.train
def test_a_save_into_an_open_file_is_reported_as_the_file_is_once_it_was_closed(
    warm_attempt: Attempt, train_python: Path, tmp_path: Path
) -> None:
    """As fsspec hands one out: a state that no pattern names can be loaded by the program, and has its step."""
    part = tmp_path / "best.pth"
    each = OPEN.format(part=str(part), when="_ == 1")
    steps, _ = counted(warm_attempt, LOOP.format(optimizer=SGD, before="", each=each), train_python)
    (reported,) = warm_attempt.list_reports("file_saved")
    assert (steps, reported["step"], reported["path"]) == ([1, 2, 3], 2, str(part))
    stat = part.stat()
    assert reported["size_bytes"] == stat.st_size
    assert (reported["modified_s"], reported["modified_ns"]) == divmod(stat.st_mtime_ns, 10**9)


GAN = """
import sys, torch
generator, critic = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
optimizers = [torch.optim.Adam(part.parameters(), lr=lr) for part, lr in ((generator, 0.5), (critic, 0.25))]
made = 0
if len(sys.argv) > 1:
    found = torch.load(sys.argv[1])
    made = found["made"]
    for optimizer, state in zip(optimizers, found["optimizers"]):
        optimizer.load_state_dict(state)
for batch in range(made, made + 13):
    if batch % 5 == 0:
        critic(generator(torch.ones(1, 2))).sum().backward()
        optimizers[0].step()
    critic(torch.ones(1, 2)).sum().backward()
    optimizers[1].step()
if len(sys.argv) == 1:
    torch.save({"made": 13, "optimizers": [optimizer.state_dict() for optimizer in optimizers]}, "gan.pt")
"""


def test_the_optimizer_that_counted_before_counts_after_a_resume_though_another_steps_first(
    tmp_path: Path, current_python: Path
) -> None:
    """The generator steps once for five steps of its critic, and the training goes on between two of its steps."""
    program, first, second = GAN, Attempt(tmp_path / "1"), Attempt(tmp_path / "2")
    first.make_recorder()
    second.make_recorder()
    finished = first.run([current_python, "-c", program])
    assert finished.code == 0, finished.output
    assert [(record.step, record.lr) for record in first.records()] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    (note,) = first.list_reports("file_saved")
    path = Path(note["path"])
    assert note["step"] == 3
    steps, reported = counted(second, program, current_python, str(path), **given(path, 3))
    assert (steps, reported["scale"], reported["by"]) == ([4, 5, 6], "training", "optimizer")
    assert [record.lr for record in second.records()] == [0.5, 0.5, 0.5]
