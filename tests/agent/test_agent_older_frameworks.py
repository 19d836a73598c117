"""What older releases of Keras, Lightning, transformers, torch and orbax do otherwise, by objects of their forms."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "supervisor" / "agent" / "path"))

from agent_by_hand import Attempt
from rocm_agent.snapshots.lightning import _find_loader_setup, _go_on_amid_epoch
from rocm_agent.snapshots.transformers_checkpoint import facts_of
from rocm_agent.snapshots.transformers_place import Place, given_step, lost_batches

from supervisor.core import attempt_files as at


class Progress:
    """Lightning's count of batches: a callback of a batch's end sees it before the batch is completed."""

    def __init__(self) -> None:
        self.ready, self.completed = 4, 3

    def increment_completed(self) -> None:
        self.completed += 1

    def reset_on_restart(self) -> None:
        self.ready = self.completed


class Loop24:
    """The loop of an epoch up to Lightning 2.4, restored from a state that was taken at the end of its fourth batch."""

    def __init__(self) -> None:
        self.batch_progress, self.restarting = Progress(), True

    def reset(self) -> None:
        self.batch_progress.reset_on_restart()


class Loop25(Loop24):
    """The same from 2.5 on."""

    @property
    def restarted_on_train_batch_end(self) -> bool:
        return self.batch_progress.completed == self.batch_progress.ready - 1

    def reset(self) -> None:
        if self.restarted_on_train_batch_end:
            self.batch_progress.increment_completed()
        super().reset()


class FitLoop:
    """The loop of a training: in an epoch in which it restarts, its end does not step what follows a metric."""

    def __init__(self, epoch_loop: Loop24) -> None:
        self.epoch_loop, self._restarting = epoch_loop, True

    def steps_a_plateau(self) -> bool:
        return not self._restarting


@pytest.mark.parametrize("kind", [Loop24, Loop25])
def test_lightning_goes_on_after_the_batch_at_whose_end_the_state_was_taken(kind: type[Loop24]) -> None:
    fit_loop = FitLoop(kind())
    _go_on_amid_epoch(fit_loop, 4)
    fit_loop.epoch_loop.reset()
    assert fit_loop.epoch_loop.batch_progress.ready == 4
    assert fit_loop.steps_a_plateau()


@pytest.mark.parametrize("kind", [Loop24, Loop25])
def test_an_epoch_of_lightning_that_goes_on_before_its_first_batch_is_one_that_begins(kind: type[Loop24]) -> None:
    fit_loop = FitLoop(kind())
    _go_on_amid_epoch(fit_loop, 0)
    assert (fit_loop.epoch_loop.restarting, fit_loop.epoch_loop.batch_progress.completed) == (False, 3)


def test_loaders_are_followed_where_each_lightning_sets_them_up() -> None:
    newer = SimpleNamespace(fit_loop=SimpleNamespace(setup_data=print))
    older = SimpleNamespace(fit_loop=SimpleNamespace(), reset_train_dataloader=print)
    assert _find_loader_setup(newer) == (newer.fit_loop, "setup_data")
    assert _find_loader_setup(older) == (older, "reset_train_dataloader")


@dataclass
class State440:
    """The state of a Trainer up to transformers 4.40; it is read as `State(**json)`."""

    global_step: int = 8
    total_flos: float = 0
    log_history: list[Any] = field(default_factory=list)


@dataclass
class State441(State440):
    """A state that also holds those of callbacks."""

    stateful_callbacks: dict[str, Any] = field(default_factory=dict)


class Stopping:
    """A callback with a state of its own."""

    def state(self) -> dict[str, int]:
        return {"patience": 5}

    from_state = None


@pytest.mark.parametrize(("kind", "kept"), [(State440, None), (State441, {"Stopping": {"patience": 5}})])
def test_a_trainers_state_has_the_fields_that_its_release_reads(kind: type[State440], kept: Any) -> None:
    handler = SimpleNamespace(callbacks=[Stopping()])
    facts = facts_of(SimpleNamespace(state=kind(), callback_handler=handler, control=SimpleNamespace()))
    assert kind(**facts).global_step == 8
    assert facts.get("stateful_callbacks") == kept


def places(release: tuple[int, int], of: int, accumulated: int) -> list[Place]:
    """Return where a Trainer of a release stands after each step of three epochs, as it makes them."""
    found, held = [], 0
    for epoch in range(3):
        for batch in range(1, of + 1):
            held += 1
            last = batch == of and (release >= (4, 46) or of <= accumulated)
            if held == accumulated or last:
                held = 0
                place = (
                    Place(epoch, batch, of, accumulated, 4) if batch < of else Place(epoch + 1, 0, of, accumulated, 4)
                )
                found.append(place)
    return found


@pytest.mark.parametrize("release", [(4, 33), (4, 48), (4, 53), (5, 23)], ids=str)
@pytest.mark.parametrize(("of", "accumulated"), [(12, 1), (12, 4), (12, 5), (7, 2), (13, 4), (3, 8), (8, 8), (9, 8)])
def test_every_release_of_the_trainer_goes_on_at_the_batch_at_which_a_snapshot_was_taken(
    of: int, accumulated: int, release: tuple[int, int]
) -> None:
    rounded_up = -(-of // accumulated)
    reckoned = rounded_up if release >= (4, 52) else max(of // accumulated, 1)
    for step, place in enumerate(places(release, of, accumulated), 1):
        given, passed_over = given_step(place, step, release)
        assert (given // reckoned, given % reckoned * accumulated) == (place.epoch, passed_over)
        assert 0 <= place.batches - passed_over < 2 * accumulated
        if of % accumulated == 0:
            assert (given, passed_over) == (step, place.batches)


def test_the_last_batches_of_an_epoch_that_goes_on_are_lost_in_the_releases_that_make_no_step_of_them() -> None:
    amid, before = Place(1, 5, 12, 5, 4), Place(1, 0, 12, 5, 4)
    assert [bool(lost_batches(amid, release)) for release in ((4, 45), (4, 46), (4, 51), (4, 52))] == [
        False, True, True, False
    ]  # fmt: skip
    assert "4.48 makes no step of the last 2 batches" in lost_batches(amid, (4, 48))
    assert lost_batches(before, (4, 48)) == ""


CALLBACK_LIST = """
class CallbackList:
    def __init__(self, model, **params):
        self.model, self.params = model, params

    def on_train_begin(self, logs=None): pass
    def on_train_end(self, logs=None): pass
    def on_epoch_begin(self, epoch, logs=None): pass
    def on_epoch_end(self, epoch, logs=None): pass
    def on_train_batch_begin(self, batch, logs=None): pass
    def on_train_batch_end(self, batch, logs=None): pass
    def on_test_begin(self, logs=None): pass
    def on_test_end(self, logs=None): pass
"""
FIT = """
from {package} import CallbackList

callbacks = CallbackList(object(), epochs=2, steps=3)
callbacks.on_train_begin()
for epoch in range(2):
    callbacks.on_epoch_begin(epoch)
    for batch in range(3):
        callbacks.on_train_batch_begin(batch)
        callbacks.on_train_batch_end(batch, {{"loss": 1.0 / (1 + batch)}})
callbacks.on_train_end()
"""
KERAS_3 = "from .callback_list import CallbackList"


@pytest.mark.parametrize(
    "files",
    [
        {"keras/callbacks.py": CALLBACK_LIST},
        {"keras/src/callbacks.py": CALLBACK_LIST, "keras/callbacks.py": "from keras.src.callbacks import CallbackList"},
        {"tf_keras/src/callbacks.py": CALLBACK_LIST},
        {"keras/src/callbacks/callback_list.py": CALLBACK_LIST, "keras/src/callbacks/__init__.py": KERAS_3},
    ],
    ids=["2.6", "2.15", "tf_keras", "3"],
)
def test_keras_is_followed_by_its_list_of_callbacks_wherever_a_release_has_it(
    files: dict[str, str], attempt: Attempt, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    package = list(files)[-1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    attempt.make_recorder()
    finished = attempt.run([sys.executable, "-c", FIT.format(package=package)], PYTHONPATH=str(tmp_path))
    assert finished == (0, "")
    assert attempt.failures() == []
    assert [(item.step, item.epoch, item.loss) for item in attempt.records()] == [
        (1 + batch + 3 * epoch, epoch, 1.0 / (1 + batch)) for epoch in range(2) for batch in range(3)
    ]
    assert attempt.stage() == "ended"


TOGETHER = """
from types import SimpleNamespace
from keras.callbacks import CallbackList

callbacks = CallbackList(SimpleNamespace(steps_per_execution={together}), epochs=2, steps=10)
callbacks.on_train_begin()
for epoch in range(2):
    callbacks.on_epoch_begin(epoch)
    for begins, ends in ((0, {ends[0]}), (4, {ends[1]}), (8, {ends[2]})):
        callbacks.on_train_batch_begin(begins)
        callbacks.on_train_batch_end(ends, {{"loss": 1.0}})
callbacks.on_train_end()
"""


@pytest.mark.parametrize(
    ("together", "ends"), [("None", (3, 7, 9)), ("4", (0, 4, 8)), ("4", (3, 7, 9))], ids=["2", "3.0", "3.15"]
)
def test_keras_counts_all_batches_of_an_execution_whether_its_end_names_the_last_of_them_or_the_first(
    together: str, ends: tuple[int, int, int], attempt: Attempt, tmp_path: Path
) -> None:
    """Releases of Keras 3 up to 3.8 name the first; Keras 2, whose model has no such number, names the last."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/callbacks.py").write_text(CALLBACK_LIST)
    attempt.make_recorder()
    program = TOGETHER.format(together=together, ends=ends)
    assert attempt.run([sys.executable, "-c", program], PYTHONPATH=str(tmp_path)) == (0, "")
    assert attempt.failures() == []
    assert [item.step for item in attempt.records()] == [4, 8, 10, 14, 18, 20]


CUT_SHORT = """
from types import SimpleNamespace
from rocm_agent import claim
from rocm_agent.layout import STAGES
from keras.callbacks import CallbackList

callbacks = CallbackList(SimpleNamespace(steps_per_execution=4), epochs=2, steps=10)
callbacks.on_train_begin()
for epoch in range(2):
    callbacks.on_epoch_begin(epoch)
    for batch in (0, 4):
        callbacks.on_train_batch_begin(batch)
        callbacks.on_train_batch_end(batch, {"loss": 1.0})
    callbacks.on_train_batch_begin(8)
    if epoch:
        callbacks.on_test_begin()
        print(STAGES[claim.holding().stage])
        callbacks.on_test_end()
    callbacks.on_epoch_end(epoch, {"loss": 0.5})
callbacks.on_train_end()
"""


def test_the_last_batches_of_an_epoch_of_keras_are_counted_whose_execution_ends_without_a_callback(
    attempt: Attempt, tmp_path: Path
) -> None:
    """Up to 3.6, on TensorFlow, the data's end leaves the execution that has too few of them."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/callbacks.py").write_text(CALLBACK_LIST)
    attempt.make_recorder()
    assert attempt.run([sys.executable, "-c", CUT_SHORT], PYTHONPATH=str(tmp_path)) == (0, "validate\n")
    assert attempt.failures() == []
    steps = [(item.step, item.epoch, item.loss if item.known & at.KNOWN_LOSS else None) for item in attempt.records()]
    assert steps == [(4, 0, 1.0), (8, 0, 1.0), (10, 0, 0.5), (14, 1, 1.0), (18, 1, 1.0), (20, 1, None)]


UNKNOWN_LENGTH = """
from types import SimpleNamespace
from keras.callbacks import CallbackList

optimizer = SimpleNamespace(iterations=SimpleNamespace(numpy=lambda: 24))
callbacks = CallbackList(SimpleNamespace(steps_per_execution=4, optimizer=optimizer), epochs=5, steps=None)
callbacks.on_train_begin()
for epoch, batches in ((3, (3, 7)), (4, (0, 4))):
    callbacks.on_epoch_begin(epoch)
    for batch in batches:
        callbacks.on_train_batch_begin(batch)
        callbacks.on_train_batch_end(batch, {"loss": 1.0})
    callbacks.on_train_batch_begin(8 if epoch == 4 else 11)
    callbacks.on_epoch_end(epoch, {"loss": 0.5})
callbacks.on_train_end()
"""


def test_keras_goes_on_from_its_optimizers_count_where_the_length_of_an_epoch_is_not_known(
    attempt: Attempt, tmp_path: Path
) -> None:
    """In the first epoch of a process releases up to 3.6 begin an execution with the number of its last batch."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras/callbacks.py").write_text(CALLBACK_LIST)
    attempt.make_recorder()
    assert attempt.run([sys.executable, "-c", UNKNOWN_LENGTH], PYTHONPATH=str(tmp_path)) == (0, "")
    assert attempt.failures() == []
    assert [(item.step, item.epoch) for item in attempt.records()] == [(28, 3), (32, 3), (36, 4), (40, 4)]


COMPILER = """
def compile_frame(frame):
    return _compile(frame)

def _compile(frame):
    return frame + " compiled"
"""
COMPILING = """
from rocm_agent import claim
from rocm_agent.layout import STEP
from torch._dynamo import convert_frame

recorder = claim.take(claim.GENERIC)
recorder.stage, recorder.aside = STEP, 0
print(convert_frame.compile_frame("forward"), recorder.aside)
"""


@pytest.mark.parametrize(("callbacks", "aside"), [(None, 2), ("class Handler: pass", 0)], ids=["2.2", "2.3"])
def test_a_compilation_is_reported_where_the_compiler_has_no_callbacks(
    callbacks: str | None, aside: int, attempt: Attempt, tmp_path: Path
) -> None:
    """The later releases, which have them, are watched by these."""
    (tmp_path / "torch" / "_dynamo").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "_dynamo" / "__init__.py").touch()
    (tmp_path / "torch" / "_dynamo" / "convert_frame.py").write_text(COMPILER)
    if callbacks is not None:
        (tmp_path / "torch" / "_dynamo" / "callback.py").write_text(callbacks)
    attempt.make_recorder()
    finished = attempt.run([sys.executable, "-c", COMPILING], PYTHONPATH=str(tmp_path))
    assert finished == (0, f"forward compiled {aside}\n")


CHECKPOINTER = """
class Checkpointer:
    def save(self, directory, item):
        return item()
"""
SAVING = """
from rocm_agent import claim
from rocm_agent.layout import STAGES, STEP
from orbax.checkpoint.{module} import Checkpointer

recorder = claim.take(claim.GENERIC)
recorder.stage = STEP
print(STAGES[Checkpointer().save("folder", lambda: recorder.stage)], STAGES[recorder.stage])
"""


@pytest.mark.parametrize("place", ["checkpointer", "_src.checkpointers.checkpointer"], ids=["0.4", "0.12"])
def test_a_save_with_orbax_is_reported_wherever_a_release_has_its_checkpointer(
    place: str, attempt: Attempt, tmp_path: Path
) -> None:
    path = tmp_path / "orbax" / "checkpoint" / f"{place.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    path.write_text(CHECKPOINTER)
    attempt.make_recorder()
    finished = attempt.run([sys.executable, "-c", SAVING.format(module=place)], PYTHONPATH=str(tmp_path))
    assert finished == (0, "checkpoint step\n")
