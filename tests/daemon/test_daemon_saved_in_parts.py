"""A program that saves in several files is handed its own, next to which the others lie."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, ResumePoint, Verdict
from supervisor.daemon.checkpoints.candidates import Prove, Search
from supervisor.daemon.checkpoints.saved_in_parts import find_untorn, hand_over_in_place, misses_file_next_to
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.generation_store import GenerationStore, Wanted


def captured(folder: Path, name: str) -> Checkpoint:
    """A file that a training has saved, of which a generation is proven."""
    (folder / "out").mkdir(exist_ok=True)
    path = folder / "out" / name
    path.write_bytes(b"weights")
    seen = Checkpoint(path=str(path), fingerprint=fingerprint_of(path), step=41)
    store = GenerationStore(folder / "generations", reserve_bytes=0)
    return replace(store.take(Wanted(seen=seen, attempt=1, owner=os.geteuid())), verdict=Verdict.PROVEN)


def test_a_file_of_a_save_in_parts_is_handed_over_where_the_others_lie(tmp_path: Path) -> None:
    """guided-diffusion reads opt000040.pt from the folder of the model that it is given."""
    generation = captured(tmp_path, "model000040.pt")
    (tmp_path / "out" / "opt000040.pt").write_bytes(b"state")
    handed_over = hand_over_in_place(generation)
    assert (handed_over.path, handed_over.source) == (str(tmp_path / "out" / "model000040.pt"), None)
    assert (handed_over.step, handed_over.verdict) == (41, Verdict.PROVEN)
    assert generation.is_of(handed_over), "what it resumed from stays known"


def test_a_rank_in_the_name_of_another_part_is_no_number_of_the_save(tmp_path: Path) -> None:
    """The program nanochat reads optim_000025_rank0.pt from next to model_000025.pt."""
    generation = captured(tmp_path, "model_000025.pt")
    (tmp_path / "out" / "optim_000025_rank0.pt").write_bytes(b"state")
    assert hand_over_in_place(generation).path == str(tmp_path / "out" / "model_000025.pt")


@pytest.mark.parametrize("other", ["sac_replay_buffer_500_steps.pkl", "sac_vecnormalize_500_steps.npz"])
def test_a_part_may_have_another_suffix_of_saved_state(tmp_path: Path, other: str) -> None:
    """The callback of stable-baselines3 saves the replay buffer so: from a copy, SAC went on with an empty one."""
    generation = captured(tmp_path, "sac_500_steps.zip")
    (tmp_path / "out" / other).write_bytes(b"state")
    assert hand_over_in_place(generation).path == str(tmp_path / "out" / "sac_500_steps.zip")


@pytest.mark.parametrize(
    ("name", "other"), [("0.pt", "0.yaml"), ("last.pt", "last.json"), ("net_40.pt", "net_40.pt.json")]
)
def test_what_a_program_writes_about_a_save_under_its_name_is_a_part_of_it(
    tmp_path: Path, name: str, other: str
) -> None:
    """WeNet reads epoch and step from the .yaml next to the .pt: from a copy it began with epoch 0 again."""
    generation = captured(tmp_path, name)
    (tmp_path / "out" / other).write_bytes(b"epoch: 0")
    assert hand_over_in_place(generation).path == str(tmp_path / "out" / name)


@pytest.mark.parametrize("other", ["last.log", "settings.yaml", "last_ema.json"])
def test_what_has_another_name_or_another_kind_is_none(tmp_path: Path, other: str) -> None:
    generation = captured(tmp_path, "last.pt")
    (tmp_path / "out" / other).write_bytes(b"text")
    assert hand_over_in_place(generation) is generation


@pytest.mark.parametrize("other", ["opt000020.pt", "sample000040.png", "notes.pt", "opt000040.pt/part.pt"])
def test_another_save_or_another_kind_of_file_is_none_of_its_parts(tmp_path: Path, other: str) -> None:
    generation = captured(tmp_path, "model000040.pt")
    (tmp_path / "out" / other).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / other).write_bytes(b"state")
    assert hand_over_in_place(generation) is generation


def test_a_file_without_a_number_is_handed_over_as_captured(tmp_path: Path) -> None:
    generation = captured(tmp_path, "last.pt")
    (tmp_path / "out" / "best.pt").write_bytes(b"weights")
    assert hand_over_in_place(generation) is generation


@pytest.mark.parametrize("remains", [None, b"weig", b"WEIGHTS"])
def test_a_file_that_is_not_any_more_what_was_proven_is_handed_over_as_captured(
    tmp_path: Path, remains: bytes | None
) -> None:
    generation = captured(tmp_path, "model000040.pt")
    (tmp_path / "out" / "opt000040.pt").write_bytes(b"state")
    path = tmp_path / "out" / "model000040.pt"
    path.unlink()
    if remains is not None:
        path.write_bytes(remains)
    assert hand_over_in_place(generation) is generation


@pytest.mark.parametrize("name", ["checkpoint_40.pth", "last.pt"])
def test_what_is_known_to_read_others_is_handed_its_own_file_whatever_lies_next_to_it(
    tmp_path: Path, name: str
) -> None:
    generation = captured(tmp_path, name)
    handed_over = hand_over_in_place(generation, needs_others=True)
    assert handed_over.path == str(tmp_path / "out" / name)
    (tmp_path / "out" / name).write_bytes(b"cut")
    assert hand_over_in_place(generation, needs_others=True) is generation


def test_a_file_that_was_missing_next_to_a_generation_is_read_from_the_exception(tmp_path: Path) -> None:
    """Coqui's trainer reads config.json from the folder of the checkpoint that it continues."""
    generation, folder = captured(tmp_path, "checkpoint_40.pth"), tmp_path / "generations"

    def misses(path: Path | str) -> bool:
        message = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}' (File \"train.py\", line 19)"
        return misses_file_next_to(folder, [generation], message)

    assert misses(folder / "000002" / "config.json")
    assert misses(folder / "opt.yaml"), "YOLOv7 saves into weights/, below the folder of its settings"
    assert not misses(folder / "000001"), "that is a generation that was pruned"
    assert not misses(generation.path), "that is the checkpoint itself"
    assert not misses(tmp_path / "out" / "config.json")
    assert not misses("config.json")


# --- a part that was written again ------------------------------------------------------------------------------------


def proves_nothing(path: Path) -> Checkpoint:
    pytest.fail(f"{path} is proven already")


def looked_for(
    folder: Path,
    *generations: Checkpoint,
    needs_others: bool = False,
    older_than: Checkpoint | None = None,
    globs: tuple[str, ...] = (),
    prove: Prove = proves_nothing,
) -> ResumePoint:
    """Where a training resumes that has these generations, all of them proven."""
    search = Search(
        known=(),
        generations=generations,
        generations_folder=str(folder / "generations"),
        globs=globs,
        cwd=str(folder),
        fault_unix_s=None,
        fault_step=None,
        batches_per_epoch=None,
        began_unix_s=None,
        older_than=older_than,
    )
    return find_untorn(search, prove, lambda _: None, needs_others=needs_others)


def saved_in_two(folder: Path, number: int) -> Checkpoint:
    """Both files of a save, of which the discriminator is captured and proven."""
    generation = replace(captured(folder, f"D_{number}.pth"), step=8 * number)
    (folder / "out" / f"G_{number}.pth").write_bytes(b"weights")
    return generation


def test_a_save_of_which_a_part_was_written_again_is_passed_over(tmp_path: Path) -> None:
    """PyTorch-GAN's cyclegan.py had NaN at the end of the epoch that it did again, and saved that over the first."""
    first, second = saved_in_two(tmp_path, 1), saved_in_two(tmp_path, 2)
    assert looked_for(tmp_path, first, second).checkpoint == second
    (tmp_path / "out" / "D_2.pth").write_bytes(b"not finite")
    point = looked_for(tmp_path, first, second)
    assert point.checkpoint == first
    assert f"not all there as they were saved: {second.title}" in point.reason


def test_a_save_of_which_a_kill_has_left_no_second_file_is_passed_over(tmp_path: Path) -> None:
    """The program nanochat writes optim_000025_rank0.pt after model_000025.pt, and asserts that it is there."""
    saves = [replace(captured(tmp_path, f"model_{number:06d}.pt"), step=number) for number in (25, 50, 75)]
    for number in (25, 50):
        (tmp_path / "out" / f"optim_{number:06d}_rank0.pt").write_bytes(b"state")
    point = looked_for(tmp_path, *saves)
    assert point.checkpoint == saves[1]
    assert f"not all there as they were saved: {saves[2].title}" in point.reason
    (tmp_path / "out" / "optim_000025_rank0.pt").unlink()
    assert looked_for(tmp_path, *saves).checkpoint == saves[2], "not each save has that file"


def test_a_save_about_which_a_kill_has_let_nothing_be_written_is_passed_over(tmp_path: Path) -> None:
    """WeNet writes 2.yaml after 2.pt."""
    saves = [replace(captured(tmp_path, f"{epoch}.pt"), step=40 * (epoch + 1)) for epoch in (0, 1, 2)]
    for epoch in (0, 1):
        (tmp_path / "out" / f"{epoch}.yaml").write_bytes(b"epoch")
    assert looked_for(tmp_path, *saves).checkpoint == saves[1]


@pytest.mark.parametrize("others", [{10}, {10, 20, 40}, set[int]()])
def test_a_save_is_complete_where_others_do_not_show_what_belongs_to_it(tmp_path: Path, others: set[int]) -> None:
    """One save before it, a later one, which shows that the program had gone on, or none in several files."""
    last = replace(captured(tmp_path, "model30.pt"), step=30)
    for number in others:
        for name in ("model", "opt"):
            (tmp_path / "out" / f"{name}{number}.pt").write_bytes(b"state")
    assert looked_for(tmp_path, last).checkpoint == last


def test_a_file_that_has_no_other_parts_may_be_written_again(tmp_path: Path) -> None:
    first, second = captured(tmp_path, "model-1.pt"), replace(captured(tmp_path, "model-2.pt"), step=42)
    (tmp_path / "out" / "model-2.pt").write_bytes(b"not finite")
    assert looked_for(tmp_path, first, second).checkpoint == second


def test_files_that_are_written_again_under_a_number_that_stays_are_no_parts_of_a_save(tmp_path: Path) -> None:
    """A best and a last state of a model in its second version: each is one file, written over at each save."""
    best = replace(captured(tmp_path, "best_v2.pt"), step=20)
    last = replace(captured(tmp_path, "last_v2.pt"), step=60)
    (tmp_path / "out" / "last_v2.pt").write_bytes(b"not finite")
    assert looked_for(tmp_path, best, last).checkpoint == last


def test_where_every_save_is_torn_the_newest_is_resumed_from(tmp_path: Path) -> None:
    both = saved_in_two(tmp_path, 1), saved_in_two(tmp_path, 2)
    for number in (1, 2):
        (tmp_path / "out" / f"D_{number}.pth").write_bytes(b"not finite")
    assert looked_for(tmp_path, *both).checkpoint == both[1]


def test_a_program_that_needs_others_is_given_the_newest_save_that_lies_in_its_place(tmp_path: Path) -> None:
    saves = [replace(captured(tmp_path, f"checkpoint_{step}.pth"), step=step) for step in (20, 40, 60)]
    (tmp_path / "out" / "checkpoint_60.pth").write_bytes(b"cut")
    (tmp_path / "out" / "checkpoint_20.pth").unlink()
    assert looked_for(tmp_path, *saves).checkpoint == saves[2]
    assert looked_for(tmp_path, *saves, needs_others=True).checkpoint == saves[1]
    older_one = looked_for(tmp_path, *saves, needs_others=True, older_than=saves[1])
    assert older_one.checkpoint == saves[1], "none that is older can be read"


def test_what_lies_in_the_place_of_torn_saves_is_proven_once_and_not_again_for_each(tmp_path: Path) -> None:
    saves = [saved_in_two(tmp_path, number) for number in range(1, 6)]
    for number in range(2, 6):
        (tmp_path / "out" / f"D_{number}.pth").write_bytes(b"not finite")
    asked: list[str] = []

    def prove(path: Path) -> Checkpoint:
        asked.append(path.name)
        found = Checkpoint(path=str(path), fingerprint=fingerprint_of(path))
        return replace(found, verdict=Verdict.REJECTED, reason="not finite")

    patterns = ("out/D_*.pth",)
    assert looked_for(tmp_path, *saves, prove=prove, globs=patterns).checkpoint == saves[0]
    assert sorted(asked) == [f"D_{number}.pth" for number in range(2, 6)]


# --- a part that is damaged -------------------------------------------------------------------------------------------


def looked_for_with(folder: Path, damaged: str, *generations: Checkpoint) -> ResumePoint:
    """Where a training resumes of whose files one is found damaged when it is examined."""

    def prove(path: Path) -> Checkpoint:
        found = Checkpoint(path=str(path), fingerprint=fingerprint_of(path))
        if path.name != damaged:
            return replace(found, verdict=Verdict.PROVEN)
        return replace(found, verdict=Verdict.REJECTED, reason="truncated: its central directory is missing")

    return looked_for(folder, *generations, prove=prove, globs=("out/*.pt",))


def saved_by_rank_0(folder: Path, step: int) -> Checkpoint:
    """A model, which is captured and proven, and its optimizer, which the same save wrote."""
    generation = replace(captured(folder, f"model_{step:06}.pt"), step=step)
    (folder / "out" / f"optim_{step:06}_rank0.pt").write_bytes(b"state")
    return generation


def test_a_save_of_which_another_part_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    """A kill cut the optimizer of nanochat short: the model of that step alone ended the next start."""
    first, second = saved_by_rank_0(tmp_path, 25), saved_by_rank_0(tmp_path, 50)
    assert looked_for_with(tmp_path, "nothing", first, second).checkpoint == second
    point = looked_for_with(tmp_path, "optim_000050_rank0.pt", first, second)
    assert point.checkpoint == first
    assert f"not all there as they were saved: {second.title}" in point.reason


def test_where_the_only_save_has_a_damaged_part_it_is_resumed_from_all_the_same(tmp_path: Path) -> None:
    (only,) = [saved_by_rank_0(tmp_path, 25)]
    assert looked_for_with(tmp_path, "optim_000025_rank0.pt", only).checkpoint == only


def test_a_damaged_file_with_a_number_that_stays_is_no_part_of_a_save(tmp_path: Path) -> None:
    best, older_best = replace(captured(tmp_path, "best_v2.pt"), step=20), replace(captured(tmp_path, "a.pt"), step=10)
    (tmp_path / "out" / "last_v2.pt").write_bytes(b"cut")
    assert looked_for_with(tmp_path, "last_v2.pt", older_best, best).checkpoint == best


# --- the last number stays, and another tells ------------------------------------------------------------------------


def saved_by_epoch(folder: Path, epoch: int, *, is_cut: bool = False) -> Checkpoint:
    """A model as AllenNLP saves it, and next to it, unless a kill came before, what its trainer goes on from."""
    generation = replace(captured(folder, f"model_state_e{epoch}_b0.pt"), step=100 * epoch)
    if not is_cut:
        (folder / "out" / f"training_state_e{epoch}_b0.pt").write_bytes(b"state")
    return generation


def test_saves_whose_last_number_stays_are_known_by_all_their_numbers(tmp_path: Path) -> None:
    saves = [saved_by_epoch(tmp_path, epoch) for epoch in (1, 2, 3)]
    assert looked_for_with(tmp_path, "training_state_e1_b0.pt", *saves).checkpoint == saves[2]
    assert looked_for_with(tmp_path, "training_state_e3_b0.pt", *saves).checkpoint == saves[1]


def test_a_save_whose_last_number_stays_lacks_what_those_before_it_have(tmp_path: Path) -> None:
    saves = [saved_by_epoch(tmp_path, epoch, is_cut=epoch == 3) for epoch in (1, 2, 3)]
    assert looked_for(tmp_path, *saves).checkpoint == saves[1]
    (tmp_path / "out" / "training_state_e3_b0.pt").write_bytes(b"state")
    assert looked_for(tmp_path, *saves).checkpoint == saves[2]
