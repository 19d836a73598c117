"""Where to resume is looked for among real files; each is proven at most once, and none is believed unseen."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import Checkpoint, Given, SetBack, Verdict
from supervisor.daemon.checkpoints.candidates import (
    PROVEN_AT_MOST,
    Search,
    candidates,
    expand_globs,
    find,
    find_folders,
    fingerprint,
    with_resume_step,
)
from supervisor.daemon.checkpoints.unreadable import find_unreadable

BEGAN = 1_700_000_000


class FakeProver:
    """Proves what begins with "good", and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, path: Path) -> Checkpoint:
        self.asked.append(path.name)
        good = path.read_bytes().startswith(b"good")
        verdict, reason = (Verdict.PROVEN, None) if good else (Verdict.REJECTED, "not whole")
        return replace(seen(path), verdict=verdict, reason=reason)


def save(path: Path, content: bytes, age: int) -> Path:
    """Write a file as old as `age` seconds after the beginning."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (BEGAN + age, BEGAN + age))
    return path


def seen(path: Path, step: int | None = None) -> Checkpoint:
    stat = fingerprint(path)
    assert stat is not None
    return Checkpoint(path=str(path), fingerprint=stat, step=step)


def search(cwd: Path, *known: Checkpoint, **changes: object) -> Search:
    settings: dict[str, object] = {
        "known": known,
        "globs": ("weights/*.pt",),
        "cwd": str(cwd),
        "fault_unix_s": None,
        "fault_step": None,
        "batches_per_epoch": None,
        "began_unix_s": None,
    }
    return Search(**{**settings, **changes})  # type: ignore[arg-type]  # the changes are those of a test


def test_the_newest_snapshot_is_proven_next_to_a_newer_checkpoint_and_taken_within_its_interval(tmp_path: Path) -> None:
    save(tmp_path / "snapshots/step-000000000001.pt", b"good 1", 5)
    save(tmp_path / "snapshots/step-000000000002.pt", b"good 2", 10)
    save(tmp_path / "weights/last.pt", b"good last", 20)
    looked_for = search(
        tmp_path,
        globs=("weights/*.pt", "snapshots/*.pt"),
        snapshots=str(tmp_path / "snapshots"),
        given=Given(seconds=10),
    )
    prove = FakeProver()
    point = find(looked_for, prove, lambda _: None)
    assert point.checkpoint is not None
    assert Path(point.checkpoint.path).name == "step-000000000002.pt"
    assert point.checkpoint.kind == "snapshot"
    assert prove.asked == ["last.pt", "step-000000000002.pt"]
    point = find(replace(looked_for, given=Given(seconds=9)), FakeProver(), lambda _: None)
    assert point.checkpoint is not None
    assert Path(point.checkpoint.path).name == "last.pt"


def test_the_newest_is_proven_first_and_the_older_is_left_in_peace(tmp_path: Path) -> None:
    save(tmp_path / "weights/a.pt", b"good a", 10)
    save(tmp_path / "weights/b.pt", b"good b", 20)
    prove = FakeProver()
    point = find(search(tmp_path), prove, lambda _: None)
    assert point.checkpoint is not None
    assert Path(point.checkpoint.path).name == "b.pt"
    assert prove.asked == ["b.pt"]


def test_a_bad_newest_one_gives_way_to_the_one_before_and_both_verdicts_are_reported(tmp_path: Path) -> None:
    save(tmp_path / "weights/a.pt", b"good a", 10)
    save(tmp_path / "weights/b.pt", b"half", 20)
    reported: list[Checkpoint] = []
    point = find(search(tmp_path), FakeProver(), reported.append)
    assert point.checkpoint is not None
    assert Path(point.checkpoint.path).name == "a.pt"
    assert [(Path(report.path).name, report.verdict) for report in reported] == [
        ("b.pt", Verdict.REJECTED),
        ("a.pt", Verdict.PROVEN),
    ]


def test_what_was_saved_after_the_trouble_is_not_even_proven(tmp_path: Path) -> None:
    save(tmp_path / "weights/a.pt", b"good a", 10)
    save(tmp_path / "weights/b.pt", b"good b", 20)
    prove = FakeProver()
    point = find(search(tmp_path, fault_unix_s=BEGAN + 15.0), prove, lambda _: None)
    assert point.checkpoint is not None
    assert Path(point.checkpoint.path).name == "a.pt"
    assert prove.asked == ["a.pt"]


def test_a_verdict_holds_for_an_unchanged_file_and_for_no_other(tmp_path: Path) -> None:
    path = save(tmp_path / "weights/a.pt", b"good a", 10)
    known = replace(seen(path, step=7), verdict=Verdict.PROVEN)
    prove = FakeProver()
    assert find(search(tmp_path, known), prove, lambda _: None).checkpoint == known
    assert prove.asked == []
    save(path, b"half", 30)
    assert not find(search(tmp_path, known), prove, lambda _: None).possible
    assert prove.asked == ["a.pt"]


def test_a_checkpoint_that_was_deleted_is_none(tmp_path: Path) -> None:
    path = save(tmp_path / "weights/a.pt", b"good a", 10)
    known = replace(seen(path), verdict=Verdict.PROVEN)
    path.unlink()
    point = find(search(tmp_path, known), FakeProver(), lambda _: None)
    assert point.checkpoint is None


def test_where_nothing_can_be_proven_the_answer_is_nowhere_and_names_the_files(tmp_path: Path) -> None:
    save(tmp_path / "weights/a.pt", b"half", 10)
    point = find(search(tmp_path), FakeProver(), lambda _: None)
    assert not point.possible
    assert "a.pt: not whole" in point.reason


def test_a_file_named_by_the_agent_and_found_by_its_name_is_one_candidate(tmp_path: Path) -> None:
    path = save(tmp_path / "weights/a.pt", b"good a", 10)
    assert candidates(search(tmp_path, seen(path, step=5))) == (seen(path, step=5),)


def test_patterns_find_files_and_no_folders(tmp_path: Path) -> None:
    save(tmp_path / "runs/1/weights/last.pt", b"good", 1)
    (tmp_path / "runs/2/weights/last.pt").mkdir(parents=True)
    found = list(expand_globs(["runs/*/weights/*.pt", str(tmp_path / "runs/**/last.pt")], str(tmp_path)))
    assert set(found) == {str(tmp_path / "runs/1/weights/last.pt")}


def test_a_pattern_in_the_home_of_a_user_who_is_not_known_finds_nothing(tmp_path: Path) -> None:
    """It ended each search for a resume point, and the job was never resumed."""
    save(tmp_path / "a.pt", b"good", 1)
    assert list(expand_globs(["~no-such-user/*.pt", "a.pt"], str(tmp_path))) == [str(tmp_path / "a.pt")]
    assert find_folders(["~no-such-user/ck"], str(tmp_path)) == ()
    assert find_unreadable(["~no-such-user/*.pt"], str(tmp_path)).everything == ()


def test_a_pattern_for_files_that_is_a_folder_is_found_with_what_to_write(tmp_path: Path) -> None:
    save(tmp_path / "1/ck/a.ckpt", b"good", 1)
    save(tmp_path / "1/ck2/a.pt", b"good", 1)
    (tmp_path / "1/empty").mkdir()
    found = find_folders(["*/ck", "1/ck/", "1/ck/*.ckpt", "1/later", "1/ck/a.ckpt"], str(tmp_path))
    words = 'write "*/ck/*.ckpt" for files in it, or "*/ck/" where the folder itself is one checkpoint'
    assert found == (f'"*/ck" is the folder {tmp_path}/1/ck: {words}',)
    (words,) = find_folders([str(tmp_path / "1/empty")], "/")
    assert f'write "{tmp_path}/1/empty/*.pt"' in words


def test_a_pattern_for_files_that_matches_folders_of_weights_alone_is_found_with_what_to_write(tmp_path: Path) -> None:
    """As `out/checkpoint-*` of a Trainer: nothing of that training was captured, and nothing reported."""
    save(tmp_path / "out/iter_40/mp_rank_00/model.pt", b"good", 1)
    save(tmp_path / "out/logs/events", b"log", 1)
    (found,) = find_folders(["out/iter_*", "out/iter_*/", "out/l*", "out/*/*/*.pt", "later/*"], str(tmp_path))
    assert found.startswith(f'"out/iter_*" matches folders alone, such as {tmp_path}/out/iter_40: write "out/iter_*/*')
    save(tmp_path / "out/checkpoint-40/config.json", b"{}", 1)
    save(tmp_path / "out/checkpoint-40/model.safetensors", b"good", 1)
    (found,) = find_folders(["out/checkpoint-*"], str(tmp_path))
    assert 'write "out/checkpoint-*/*.safetensors" for files in it' in found
    save(tmp_path / "out/iter_50.pt", b"good", 1)
    assert find_folders(["out/iter_*"], str(tmp_path)) == ()


def test_the_verdict_of_a_pruned_generation_leaves_the_step_that_the_training_reported(tmp_path: Path) -> None:
    file = seen(save(tmp_path / "weights/a.pt", b"good a", 10), step=500)
    pruned = replace(
        file, path="/state/generations/000001/a.pt", source=file.path, step=None, epoch=4, verdict=Verdict.PROVEN
    )
    (found,) = candidates(search(tmp_path, file, pruned))
    assert (found.path, found.verdict, found.step, found.epoch) == (file.path, Verdict.PROVEN, 500, 4)
    point = find(search(tmp_path, file, pruned, fault_step=400), FakeProver(), lambda _: None)
    assert not point.possible, "a save of step 500 holds the trouble of step 400"


@pytest.mark.parametrize(("epoch", "batches", "step"), [(0, 10, 10), (4, 10, 50), (None, 10, None), (4, None, None)])
def test_an_epoch_gives_the_step_where_the_plan_is_known(
    tmp_path: Path, epoch: int | None, batches: int | None, step: int | None
) -> None:
    item = replace(seen(save(tmp_path / "a.pt", b"good", 1)), epoch=epoch)
    assert with_resume_step(item, batches).step == step


def test_a_hundred_rejected_ones_do_not_hide_the_proven_one_before_them(tmp_path: Path) -> None:
    good = replace(seen(save(tmp_path / "weights/good.pt", b"good", 1)), verdict=Verdict.PROVEN)
    bad = [save(tmp_path / f"weights/{n}.pt", b"bad", 10 + n) for n in range(100)]
    rejected = [replace(seen(path), verdict=Verdict.REJECTED, reason="not whole") for path in bad]
    assert find(search(tmp_path, good, *rejected), FakeProver(), lambda _: None).checkpoint == good


def test_one_search_has_a_bounded_number_of_checkpoints_proven(tmp_path: Path) -> None:
    for n in range(60):
        save(tmp_path / f"weights/{n}.pt", b"bad", 10 + n)
    prove = FakeProver()
    assert not find(search(tmp_path), prove, lambda _: None).possible
    assert len(prove.asked) == PROVEN_AT_MOST


@pytest.mark.parametrize("steps", [True, False])
def test_what_is_newer_than_the_chosen_one_is_named_where_the_job_wants_it_moved(tmp_path: Path, steps: bool) -> None:
    old, good, spoilt, newest = (
        save(tmp_path / f"weights/{name}.pt", content, age)
        for name, content, age in (("a", b"good", 10), ("b", b"good", 20), ("c", b"nan", 30), ("d", b"nan", 40))
    )
    (tmp_path / "weights/latest.pt").symlink_to(newest)
    save(tmp_path / "snapshots/step-000000000005.pt", b"nan", 50)
    known = [seen(path, 10 * number if steps else None) for number, path in enumerate((old, good, spoilt, newest))]
    asked = search(
        tmp_path,
        *known,
        globs=("weights/*.pt", "snapshots/*.pt"),
        snapshots=str(tmp_path / "snapshots"),
        set_newer_aside=True,
    )
    point = find(asked, FakeProver(), lambda _: None)
    assert point.checkpoint is not None
    assert (point.checkpoint.path, point.newer) == (str(good), (str(spoilt), str(newest)))
    assert find(replace(asked, set_newer_aside=False), FakeProver(), lambda _: None).newer == ()
    back = SetBack(now_unix_s=BEGAN + 15, from_unix_s=BEGAN + 60)
    assert find(replace(asked, set_back=back), FakeProver(), lambda _: None).newer == ()


def test_a_file_that_was_overwritten_since_its_generation_is_newer_than_that(tmp_path: Path) -> None:
    last = save(tmp_path / "weights/last.pt", b"good", 10)
    kept = save(tmp_path / "generations/000001/last.pt", b"good", 10)
    generation = replace(seen(kept, 50), source=str(last), verdict=Verdict.PROVEN)
    asked = search(
        tmp_path,
        generations=(generation,),
        generations_folder=str(tmp_path / "generations"),
        set_newer_aside=True,
    )
    assert find(asked, FakeProver(), lambda _: None).newer == ()
    save(last, b"nan", 20)
    point = find(asked, FakeProver(), lambda _: None)
    assert (point.checkpoint, point.newer) == (generation, (str(last),))


def test_a_folder_is_moved_with_what_it_holds_and_the_chosen_one_loses_nothing(tmp_path: Path) -> None:
    """As the Trainer's folders, of which the agent reports the file of the weights."""
    folders = [tmp_path / f"out/checkpoint-{number}" for number in (30, 40, 50)]
    for number, folder in enumerate(folders):
        weights = save(folder / "model.safetensors", b"good", 10 * number)
        save(folder / "trainer_state.json", b"{}", 10 * number + 5)
        os.utime(folder, (BEGAN + 10 * number + 5, BEGAN + 10 * number + 5))
    chosen = replace(seen(folders[0], 30), verdict=Verdict.PROVEN)
    spoilt = [replace(seen(folder), verdict=Verdict.REJECTED, reason="not finite") for folder in folders[1:]]
    asked = search(
        tmp_path,
        chosen,
        *spoilt,
        replace(seen(weights, 50), verdict=Verdict.REJECTED, reason="not finite"),
        globs=("out/checkpoint-*/", "out/*/*.json", "out/checkpoint-5?/*.safetensors"),
        set_newer_aside=True,
    )
    point = find(asked, FakeProver(), lambda _: None)
    assert point.checkpoint == chosen
    assert sorted(point.newer) == [str(folder) for folder in folders[1:]]


@pytest.mark.parametrize("rotated", [False, True])
def test_the_weights_of_a_folder_that_is_rejected_are_no_checkpoint_next_to_an_older_folder(
    tmp_path: Path, rotated: bool
) -> None:
    """As of the Trainer, whose newest folder lost the end of its random states: its weights alone resume nothing."""
    folders = [tmp_path / f"out/checkpoint-{number}" for number in (40, 50)]
    for number, folder in enumerate(folders):
        weights = save(folder / "model.safetensors", b"good", 10 * number)
    kept = save(tmp_path / "generations/000008/model.safetensors", b"good", 10)
    generation = replace(seen(kept, 50), source=str(weights), verdict=Verdict.PROVEN)
    older = replace(seen(folders[0], 40), verdict=Verdict.PROVEN)
    cut = replace(seen(folders[1], 50), verdict=Verdict.REJECTED, reason="rng_state.pth: truncated")
    if rotated:
        weights.unlink()
        folders[1].rmdir()
    asked = search(
        tmp_path,
        older,
        cut,
        globs=("out/checkpoint-*/",),
        generations=(generation,),
        generations_folder=str(tmp_path / "generations"),
        set_newer_aside=True,
    )
    point = find(asked, FakeProver(), lambda _: None)
    assert (point.checkpoint, point.newer) == (older, () if rotated else (str(folders[1]),))
    alone = find(replace(asked, known=(cut,), globs=("out/checkpoint-5?/",)), FakeProver(), lambda _: None)
    assert alone.checkpoint == generation, "where no folder can be resumed from, they are better than a beginning"


def test_a_link_to_a_folder_that_is_named_as_well_is_no_checkpoint_of_its_own(tmp_path: Path) -> None:
    """LeRobot's `last` names the newest of the folders next to it; alone it is what a pattern names."""
    save(tmp_path / "out" / "000300" / "model.safetensors", b"good", 1)
    (tmp_path / "out" / "last").symlink_to("000300")
    named = [Path(path).name for path in expand_globs(("out/*/",), str(tmp_path))]
    assert named == ["000300"]
    assert [Path(path).name for path in expand_globs(("out/last/",), str(tmp_path))] == ["last"]
