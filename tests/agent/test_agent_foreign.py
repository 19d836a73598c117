"""Trainings of other frameworks, as their users write them: how their steps and saves are followed."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
from agent_by_hand import Attempt, Attempts, plain_environment

from supervisor.agent import prove
from supervisor.core import attempt_files as at
from tests.rigs.warm import LIGHTNING, TRAINERS, Warm

HERE = Path(__file__).resolve().parent

pytestmark = pytest.mark.train


def list_losses(attempt: Attempt) -> list[float | None]:
    return [record.loss if record.known & at.KNOWN_LOSS else None for record in attempt.records()]


def test_lightning_with_its_default_callbacks_is_saved_and_what_it_saves_is_proven(
    foreign_python: Path, tmp_path: Path
) -> None:
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_lightning.py")
    finished = runs.run()
    assert "ENDED 40" in finished.output, finished.output
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    newest = runs.newest()
    assert newest is not None
    own = [path for path in tmp_path.rglob("*.ckpt") if not path.is_symlink()]
    assert own
    for path in (newest, *own):
        assert prove.prove(str(path))["verdict"] == "proven", prove.prove(str(path))["reason"]


def test_an_exact_state_is_taken_next_to_what_lightning_saves_at_the_end_of_an_epoch(
    foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    """None is due by itself, and the last place for one is before the epoch's last batch."""
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_lightning.py", warm=warm(foreign_python, *LIGHTNING))
    finished = runs.run("--epochs", "1", every="300")
    assert "ENDED 20" in finished.output, finished.output
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    assert [(item["step"], item["epoch"], item["kind"]) for item in attempt.list_reports("checkpoint_saved")] == [
        (19, -1, "snapshot")
    ]


def test_lightning_goes_on_from_a_state_with_a_class_of_the_users_among_its_hyperparameters(
    foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script = HERE / "checks_lightning_hyperparameters.py"
    runs = Attempts(foreign_python, tmp_path, script, warm=warm(foreign_python, *LIGHTNING))
    runs.run(every="0.001")
    newest = runs.newest()
    assert newest is not None
    finished = runs.run(every="0")
    assert "ENDED 8" in finished.output, finished.output
    resumed = runs.attempts[1]
    assert resumed.failures() == []
    assert resumed.records()[0].step == int(newest.stem.partition("-")[2]) + 1


@pytest.mark.parametrize("options", [(), ("--accumulate", "2"), ("--past-lightning",)], ids=["plain", "joined", "past"])
def test_the_steps_of_two_networks_under_lightning_are_counted_once_in_records_snapshots_and_saves(
    options: tuple[str, ...], foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    """Lightning's own count has those of both optimizers, and none of what a program calls past it."""
    script = HERE / "checks_lightning_gan.py"
    runs = Attempts(
        foreign_python, tmp_path, script, "--folder", tmp_path, *options, warm=warm(foreign_python, *LIGHTNING)
    )
    undisturbed = runs.run(every="0")
    first = runs.attempts[0]
    batches = 2 if "--accumulate" in options else 1
    saves = [(Path(item["path"]).name, item["step"]) for item in first.list_reports("file_saved")]
    if "--past-lightning" not in options:  # its callback sees no step, and saves nothing
        assert saves == [(f"epoch={epoch}.ckpt", (epoch + 1) * 10 // batches) for epoch in range(3)]
    assert {prove.prove(str(path))["step"] for path in tmp_path.rglob("*.ckpt")} <= {None}, "the reports have it"
    runs.run("--die-at-batch", "17", every="0.0001")
    newest = runs.newest()
    assert newest is not None
    step = int(newest.stem.partition("-")[2])
    assert prove.prove(str(newest))["step"] == step <= runs.attempts[1].records()[-1].step
    again = runs.run(every="0")
    assert again.output.partition("DIGEST")[2] == undisturbed.output.partition("DIGEST")[2] != ""
    resumed = runs.attempts[2]
    assert resumed.failures() == []
    assert [record.step for record in resumed.records()] == list(range(step + 1, 30 // batches + 1))


def test_of_two_optimizers_a_limit_of_lightnings_steps_is_no_number_of_recorded_ones(
    foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script = HERE / "checks_lightning_gan.py"
    runs = Attempts(foreign_python, tmp_path, script, "--folder", tmp_path, warm=warm(foreign_python, *LIGHTNING))
    assert "DIGEST" in runs.run("--max-steps", "24", every="0").output
    assert len(runs.attempts[0].records()) == 12
    assert [plan.get("total_steps") for plan in runs.attempts[0].list_reports("plan")] == [None, None]


@pytest.mark.parametrize(
    ("options", "steps_of_epochs"),
    [
        pytest.param(("--samples", "4", "--epochs", "9"), (1,) * 9, id="one batch an epoch"),
        pytest.param(("--samples", "14", "--epochs", "9", "--accumulate", "8"), (1,) * 9, id="one step an epoch"),
        pytest.param(
            ("--samples", "20", "--schedule", "1:3,2:2"), (5, 2, 3), id="another number of batches each epoch"
        ),
    ],
)
def test_lightning_goes_on_exactly_whatever_number_of_steps_its_epochs_have(
    options: tuple[str, ...], steps_of_epochs: tuple[int, ...], foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script, words = HERE.parent / "bench" / "exact_lightning.py", ("--folder", str(tmp_path), *options)
    runs = Attempts(foreign_python, tmp_path, script, *words, warm=warm(foreign_python, *LIGHTNING))
    undisturbed = runs.run(every="0")
    epochs = [epoch for epoch, steps in enumerate(steps_of_epochs) for _ in range(steps)]
    (plan,) = runs.attempts[0].list_reports("plan")
    assert plan["total_steps"] == len(epochs)
    assert [record.epoch for record in runs.attempts[0].records()] == epochs
    runs.run("--die-after", "12" if "--accumulate" in options else "6", every="0.0001")
    newest = runs.newest()
    assert newest is not None
    step = int(newest.stem.partition("-")[2])
    again = runs.run(every="0")
    assert again.output.partition("DIGEST")[2] == undisturbed.output.partition("DIGEST")[2] != ""
    resumed = runs.attempts[2]
    assert resumed.failures() == []
    numbered = [(record.step, record.epoch) for record in resumed.records()]
    assert numbered == list(enumerate(epochs, 1))[step:]


@pytest.mark.parametrize(
    ("options", "total_steps"), [((), 30), (("--accumulate", "2"), None)], ids=["each", "every second"]
)
def test_how_many_steps_manual_optimization_will_make_is_known_where_each_of_the_first_batches_made_one(
    options: tuple[str, ...], total_steps: int | None, foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script, words = HERE / "checks_lightning_gan.py", ("--folder", str(tmp_path), *options)
    runs = Attempts(foreign_python, tmp_path, script, *words, warm=warm(foreign_python, *LIGHTNING))
    assert "DIGEST" in runs.run(every="0").output
    plans = runs.attempts[0].list_reports("plan")
    assert (plans[-1]["epochs"], plans[-1].get("total_steps")) == (3, total_steps)


@pytest.mark.parametrize("by_hand", [0, 4])
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_of_several_trainings_in_a_script_the_one_that_a_snapshot_was_taken_of_goes_on_from_it(
    framework: str, by_hand: int, foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    modules = LIGHTNING if framework == "lightning" else TRAINERS
    command = (HERE / "checks_several_trainings.py", framework, "--folder", tmp_path, "--by-hand", str(by_hand))
    runs = Attempts(foreign_python, tmp_path, *command, warm=warm(foreign_python, *modules))
    undisturbed = runs.run(every="0", HF_HUB_OFFLINE="1")
    runs.run("--die-after", str(by_hand + 16), every="0.0001", HF_HUB_OFFLINE="1")
    newest = runs.newest()
    assert newest is not None
    step = int(newest.stem.partition("-")[2])
    before = by_hand + 6
    assert before < step < before + 12, "a snapshot of the second training, numbered over all"
    assert step <= runs.attempts[1].records()[-1].step
    again = runs.run(every="0", HF_HUB_OFFLINE="1")
    assert list_trained(again.output) == list_trained(undisturbed.output), again.output
    attempt = runs.attempts[2]
    assert attempt.failures() == []
    assert [(item["path"], item["step"]) for item in attempt.list_reports("resumed")] == [(str(newest), step)]
    (counting,) = attempt.list_reports("counting")
    assert (counting["first"], counting["resumed"]) == (1, False), "the first training is made again"
    assert [record.step for record in attempt.records()] == [*range(1, before + 1), *range(step + 1, before + 16)]
    assert [item["total_steps"] for item in attempt.list_reports("plan")] == [before, before + 12, before + 15]


@pytest.mark.parametrize(("again", "messages"), [((), ["the fifth batch"]), (("again",), [])])
def test_what_left_the_last_fit_of_a_script_is_reported_at_its_end_though_it_was_caught(
    again: tuple[str, ...], messages: list[str], foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_caught.py", warm=warm(foreign_python, *LIGHTNING))
    finished = runs.run(*again, every="0")
    assert (finished.code, "CAUGHT" in finished.output) == (0, True), finished.output
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    assert [item["message"] for item in attempt.list_reports("exception")] == messages


def list_trained(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("TRAINED")]


def test_lightning_reports_its_epochs_and_how_many_steps_there_will_be(
    foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_lightning.py", warm=warm(foreign_python, *LIGHTNING))
    finished = runs.run("--pace-s", "0", every="0")
    assert "ENDED 40" in finished.output, finished.output
    (attempt,) = runs.attempts
    (plan,) = attempt.list_reports("plan")
    assert (plan["epochs"], plan["total_steps"], plan["steps_per_epoch"]) == (2, 40, 20)
    assert [record.epoch for record in attempt.records()] == [0] * 20 + [1] * 20
    assert attempt.stage() == "ended", "what a script does after fit is no step that fails to come"


def test_the_trainer_of_hugging_face_reports_its_epochs_and_steps(
    foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script = HERE.parent / "bench" / "exact_transformers.py"
    runs = Attempts(foreign_python, tmp_path, script, "--folder", tmp_path, warm=warm(foreign_python, *TRAINERS))
    finished = runs.run(every="0", HF_HUB_OFFLINE="1")
    assert "DIGEST" in finished.output, finished.output
    (attempt,) = runs.attempts
    (plan,) = attempt.list_reports("plan")
    assert (plan["framework"], plan["epochs"], plan["total_steps"]) == ("transformers", 3, 36)
    assert [record.epoch for record in attempt.records()] == [0] * 12 + [1] * 12 + [2] * 12
    assert attempt.stage() == "ended", "what a script does after train is no step that fails to come"


def test_a_snapshot_of_a_trainer_whose_state_also_holds_its_model_keeps_what_the_trainer_itself_saves_of_it(
    foreign_python: Path, tmp_path: Path, warm: Warm
) -> None:
    script = HERE.parent / "bench" / "exact_transformers.py"
    runs = Attempts(
        foreign_python, tmp_path, script, "--folder", tmp_path, "--holds", warm=warm(foreign_python, *TRAINERS)
    )
    finished = runs.run(every="0.05", HF_HUB_OFFLINE="1")
    assert "DIGEST" in finished.output, finished.output
    (attempt,) = runs.attempts
    assert attempt.list_reports("save_failed") == []
    newest = runs.newest()
    assert newest is not None
    assert prove.prove(str(newest))["verdict"] == "proven"


def test_a_loop_without_an_optimizer_is_followed_by_its_backward_passes(train_python: Path, tmp_path: Path) -> None:
    runs = Attempts(train_python, tmp_path, HERE / "checks_own_update.py")
    finished = runs.run(every="0")
    assert finished.output == "ENDED\n"
    (attempt,) = runs.attempts
    records = attempt.records()
    assert [record.step for record in records] == list(range(1, 26))
    assert 0 < records[-1].loss < records[0].loss
    assert attempt.failures() == []


def test_keras_is_followed_batch_by_batch_on_any_backend(foreign_python: Path, tmp_path: Path) -> None:
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_keras.py")
    finished = runs.run(every="0")
    assert finished.output.endswith("ENDED\n"), finished.output
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    assert [record.step for record in attempt.records()] == list(range(1, 19))
    assert [record.epoch for record in attempt.records()] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(loss is not None and loss > 0 for loss in list_losses(attempt))
    (plan,) = attempt.list_reports("plan")
    assert (plan["framework"], plan["epochs"], plan["total_steps"], plan["steps_per_epoch"]) == ("keras", 3, 18, 6)
    assert attempt.stage() == "ended"


def test_a_loss_that_keras_computes_in_the_background_is_recorded_a_step_late_and_nan_is_nan(
    foreign_python: Path, tmp_path: Path
) -> None:
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_keras.py", "nan")
    finished = runs.run(every="0", KERAS_BACKEND="jax")
    assert finished.output.endswith("ENDED\n"), finished.output
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    losses = list_losses(attempt)
    assert losses[0] is None, "no step waits for its loss"
    arrived = [loss for loss in losses if loss is not None]  # under load not each has, when the next step is made
    assert arrived
    assert all(math.isnan(loss) for loss in arrived)


def test_a_jax_training_that_became_nan_is_recorded_so_and_no_other_number_is_taken_for_its_loss(
    foreign_python: Path, tmp_path: Path
) -> None:
    runs = Attempts(foreign_python, tmp_path, HERE / "checks_optax.py", "poisoned")
    runs.run(every="0")
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    losses = list_losses(attempt)
    assert losses[:7] == [None] * 7, "the seventh step reads a batch of NaN"
    assert any(loss is not None and math.isnan(loss) for loss in losses[7:])


@pytest.fixture
def compiles_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAX keeps what it compiles by what it compiles: a second training that does the same has it from there."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@pytest.mark.usefixtures("compiles_once")
def test_every_update_of_a_jax_training_is_a_step_also_inside_compiled_functions(
    foreign_python: Path, tmp_path: Path
) -> None:
    script = HERE / "checks_optax.py"
    runs = Attempts(foreign_python, tmp_path, script)
    finished = runs.run(every="0")
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    assert attempt.head() == 12 * len(finished.output.splitlines()) == 108, finished.output
    records = attempt.records()
    assert [record.step for record in records] == [*range(9, 13), *list(range(1, 13)) * 5], "the ring holds the last 64"
    assert attempt.stage() == "validate", "the last of them evaluates after its last step"
    command = [str(foreign_python), str(script)]
    alone = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=600, check=True)
    assert finished.output == alone.stdout, "the same weights as without a supervisor"


@pytest.mark.usefixtures("compiles_once")
def test_a_jax_training_whose_steps_lie_in_a_compiled_loop_reports_the_loop_from_its_tracing_on(
    foreign_python: Path, tmp_path: Path
) -> None:
    script, ways = HERE / "checks_optax.py", ["scanned", "epochs", "uncompiled", "shared"]
    runs = Attempts(foreign_python, tmp_path, script, *ways)
    finished = runs.run(every="0")
    (attempt,) = runs.attempts
    assert attempt.failures() == []
    asides = [line for line in finished.output.splitlines() if line.startswith("traced")]
    assert asides
    assert set(asides) == {"traced in loop"}, "before the first call ends"
    assert attempt.head() == 1 + 3 + 3 + 3, "each call is one step"
    assert [report["device"] for report in attempt.list_reports("device")] == ["cpu"] * len(ways)
    command = [str(foreign_python), str(script), *ways]
    alone = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=600, check=True)
    digests = [line for line in finished.output.splitlines() if line.startswith(tuple(ways))]
    assert digests == alone.stdout.splitlines(), "the same weights as without a supervisor"


def test_a_save_with_orbax_is_reported_as_a_checkpoint_for_as_long_as_it_takes(
    foreign_python: Path, tmp_path: Path
) -> None:
    attempt = Attempt(tmp_path / "attempt")
    finished = attempt.run([foreign_python, HERE / "checks_orbax.py", tmp_path / "saves"])
    assert finished.code == 0, finished.output
    printed = [line for line in finished.output.splitlines() if line.startswith(("during", "after"))]
    assert printed == ["during checkpoint", "after step"] * 2
    assert attempt.failures() == []


def test_what_orbax_restores_in_a_later_attempt_makes_its_steps_those_of_the_attempt(
    foreign_python: Path, tmp_path: Path
) -> None:
    """They go on from a count that is not reported; counted from 1, two attempts would end at the same place."""
    command = [foreign_python, HERE / "checks_orbax_restore.py", tmp_path / "saves"]
    scales: list[object] = []
    for number in ("1", "2", "1"):
        attempt = Attempt(tmp_path / f"attempt-{len(scales)}")
        finished = attempt.run(command, ROCM_SUPERVISOR_ATTEMPT=number)
        assert finished.code == 0, finished.output
        assert attempt.failures() == []
        scales += [report["scale"] for report in attempt.list_reports("counting")]
    assert scales == ["training", "attempt", "training"], "what a first attempt restores is not its own"
