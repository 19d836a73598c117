"""A folder as one checkpoint: kept, proven and found whole, or not at all."""

from __future__ import annotations

import bz2
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import OTHER_FORMATS, Checkpoint, Verdict
from supervisor.daemon.checkpoints.candidates import Search, expand_globs, find
from supervisor.runner.folder_checkpoints import TreeError, files_in, fingerprint_of
from supervisor.runner.generation_store import ChangedError, GenerationStore, Wanted
from supervisor.runner.place_checkpoint import put
from supervisor.runner.proving import Prover


def safetensors(value: float = 1.0) -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + struct.pack("<f", value)


def folder(path: Path, **files: bytes) -> Path:
    for name, content in files.items():
        place = path / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What accelerate leaves: weights, states that cannot be looked into, a note, and a folder in the folder."""
    return folder(
        tmp_path / "out" / "checkpoint-100",
        model_dot_safetensors=safetensors(),
        random_states_0_dot_pkl=b"pickled",
        sub__optimizer_dot_safetensors=safetensors(2.0),
    )


def proven(path: Path) -> Checkpoint:
    return Prover().prove(path)


def test_a_folder_whose_files_are_sound_is_proven(saved: Path) -> None:
    item = proven(saved)
    assert (item.verdict, item.reason) == (Verdict.PROVEN, None)
    assert item.fingerprint.size_bytes == sum(path.stat().st_size for path in files_in(saved))


def test_what_an_evaluation_writes_into_it_makes_it_no_later_save(saved: Path) -> None:
    """As results do that are found while the training goes on; the folder is another content all the same."""
    for number, path in enumerate(files_in(saved)):
        os.utime(path, (1000 + number, 1000 + number))
    before = fingerprint_of(saved)
    assert before.modified_ns == (saved / "sub" / "optimizer.safetensors").stat().st_mtime_ns
    (saved / "results.json").write_text("{}")
    after = fingerprint_of(saved)
    assert (after.modified_ns, after.size_bytes) == (before.modified_ns, before.size_bytes + 2)


def test_a_folder_of_a_format_of_its_own_is_as_old_as_its_newest_file(tmp_path: Path) -> None:
    kept = folder(tmp_path / "state", a_dot_npy=b"1", b_dot_json=b"2")
    os.utime(kept / "a.npy", (1000, 1000))
    assert fingerprint_of(kept).modified_ns == (kept / "b.json").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(safetensors()[:-2]), "sub/optimizer.safetensors: "),
        (lambda path: path.write_bytes(safetensors(float("nan"))), "sub/optimizer.safetensors: "),
        (lambda path: path.write_bytes(b""), "sub/optimizer.safetensors: empty"),
    ],
    ids=["cut", "NaN", "empty"],
)
def test_one_bad_file_rejects_the_folder_and_is_named(saved: Path, spoil: Callable[[Path], object], why: str) -> None:
    spoil(saved / "sub" / "optimizer.safetensors")
    item = proven(saved)
    assert item.verdict is Verdict.REJECTED
    assert (item.reason or "").startswith(why)


def test_a_pickle_in_it_may_hold_anything_and_is_not_cut(saved: Path) -> None:
    """As the random states of accelerate are, which torch.save writes last, into an archive."""
    states = saved / "random_states_0.pkl"
    with zipfile.ZipFile(states, "w") as archive:
        archive.writestr("any/data.pkl", b"cos\nsystem\n.")
    assert proven(saved).verdict is Verdict.PROVEN, "what it does when it is loaded is for its own program to know"
    states.write_bytes(states.read_bytes()[:-30])
    assert proven(saved).reason == "random_states_0.pkl: truncated: it begins as a torch archive and has no end"
    states.write_bytes(b"")
    assert proven(saved).reason == "random_states_0.pkl: empty"


def test_a_pickle_of_a_program_in_it_is_not_cut_either(saved: Path) -> None:
    """What a script registers with accelerate, or saves by itself: of any classes, or of no pickle by its content."""
    states, whole = saved / "random_states_0.pkl", pickle.dumps({"generator": random.Random(7).getstate()})
    states.write_bytes(whole)
    assert proven(saved).verdict is Verdict.PROVEN
    for length in (len(whole) - 1, len(whole) // 2, 40):
        states.write_bytes(whole[:length])
        assert (proven(saved).reason or "").startswith("random_states_0.pkl: its pickle is damaged or cut short"), (
            length
        )
    for other in (bz2.compress(whole), pickle.dumps(Fraction(1, 3)), pickle.dumps(date(2026, 1, 2))):
        states.write_bytes(other)
        assert proven(saved).verdict is Verdict.PROVEN


def test_a_text_in_it_may_have_the_suffix_of_a_checkpoint_and_random_bytes_may_not(saved: Path) -> None:
    """As SpeechBrain saves how many epochs were made, and how far into one it is, next to the networks."""
    (saved / "counter.ckpt").write_bytes(b"1")
    (saved / "brain.ckpt").write_bytes(b"avg_train_loss: 0.0\noptimizer_step: 12\nstep: 0\n")
    assert proven(saved).verdict is Verdict.PROVEN
    (saved / "brain.ckpt").write_bytes(bytes(range(16, 64)))
    assert proven(saved).reason == "brain.ckpt: no checkpoint: neither a torch file nor safetensors"
    (saved / "brain.ckpt").write_bytes(b"")
    assert proven(saved).reason == "brain.ckpt: empty"


def test_a_text_in_place_of_its_weights_rejects_it(saved: Path) -> None:
    """As the pointer is that Git LFS leaves where a file was not fetched."""
    (saved / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert proven(saved).reason == "model.safetensors: no checkpoint: neither a torch file nor safetensors, but text"


def test_a_save_of_orbax_is_complete_once_its_metadata_is_there(tmp_path: Path) -> None:
    path = folder(tmp_path / "100", default___METADATA=b"{}", default__d__abc=b"numbers")
    assert proven(path).reason == "incomplete: _CHECKPOINT_METADATA is missing"
    (path / "_CHECKPOINT_METADATA").write_bytes(b"{}")
    assert proven(path).verdict is Verdict.PROVEN


def test_a_folder_of_which_nothing_can_be_proven_is_not(tmp_path: Path) -> None:
    reason = proven(folder(tmp_path / "x", notes_dot_txt=b"text")).reason
    assert reason == "the folder contains no file of a type that can be proven"
    assert reason in OTHER_FORMATS


def test_weights_in_a_file_without_a_suffix_are_known_by_their_content(tmp_path: Path) -> None:
    """As those of Sockeye's `training_state` are, next to an optimizer in a pickle and an empty mark."""
    path = folder(tmp_path / "state", params=safetensors(), version=b"3.1", done=b"", optimizer_dot_pkl=b"pickled")
    assert proven(path).verdict is Verdict.PROVEN
    (path / "params").write_bytes(safetensors(float("nan")))
    assert (proven(path).reason or "").startswith("params: not finite")
    (path / "params").write_bytes(safetensors()[:-2])
    assert (proven(path).reason or "").startswith("params: ")
    (path / "params").write_bytes(bytes(range(16, 64)))
    assert proven(path).reason in OTHER_FORMATS


def test_a_program_goes_on_by_itself_from_a_folder_of_its_own_format(tmp_path: Path) -> None:
    """As one that pickles its arrays: as it does from a file of which nothing can be proven."""
    folder(tmp_path / "ckpt" / "100", agent_dot_pkl=pickle.dumps({"w": [1.0]}), step_dot_pkl=b"K\x02.", done=b"")
    search = Search(
        known=(),
        globs=("ckpt/*/",),
        cwd=str(tmp_path),
        fault_unix_s=None,
        fault_step=None,
        batches_per_epoch=None,
        loads_itself=True,
    )
    point = find(search, proven, lambda _: None)
    assert (point.possible, point.checkpoint, point.loads_itself) == (True, None, True), point.reason


def test_a_folder_whose_only_candidate_is_of_another_format_is_of_another_format(saved: Path, tmp_path: Path) -> None:
    """What spaCy saves as lookups.bin is an empty map of msgpack: one byte, with which a pickle begins as well."""
    reason = proven(folder(tmp_path / "x", lookups_dot_bin=b"\x80", model=b"\x84\xa5nodes")).reason
    assert reason in OTHER_FORMATS
    (saved / "pytorch_model.bin").write_bytes(b"\x84\xa5nodes")
    assert proven(saved).reason == f"pytorch_model.bin: {reason}", "next to others it may have been weights"


def test_a_folder_with_a_link_is_no_checkpoint(saved: Path) -> None:
    (saved / "latest").symlink_to("/etc/hostname")
    with pytest.raises(TreeError, match="latest is a link"):
        fingerprint_of(saved)


@pytest.mark.parametrize("loads_itself", [False, True])
def test_a_folder_of_weights_that_is_not_looked_into_is_there_all_the_same(
    tmp_path: Path, *, loads_itself: bool
) -> None:
    """As Sockeye's, whose `params` is a link: the training is not started over what it may have saved in it."""
    path = folder(tmp_path / "out" / "state", optimizer_dot_pkl=b"pickled")
    folder(tmp_path / "out" / "wandb", notes_dot_txt=b"text")
    (path / "params").symlink_to("../params.00018")
    (tmp_path / "out" / "wandb" / "latest-run").symlink_to("run-1")
    search = Search(
        known=(),
        globs=("out/*/",),
        cwd=str(tmp_path),
        fault_unix_s=None,
        fault_step=None,
        batches_per_epoch=None,
        loads_itself=loads_itself,
    )
    point = find(search, proven, lambda _: None)
    assert (point.checkpoint, point.possible, point.loads_itself) == (None, loads_itself, loads_itself)
    assert loads_itself or "params is a link" in point.reason
    path.rename(tmp_path / "gone")
    assert find(search, proven, lambda _: None).reason == "no checkpoint saved yet: from the beginning"


# --- kept ------------------------------------------------------------------------------------------------------------


def wanted(path: Path) -> Wanted:
    return Wanted(seen=Checkpoint(path=str(path), fingerprint=fingerprint_of(path)), attempt=1, owner=os.geteuid())


def test_it_is_kept_complete_proven_as_kept_and_pruned_completely(saved: Path, tmp_path: Path) -> None:
    shelf = GenerationStore(tmp_path / "shelf", 0)
    taken = shelf.take(wanted(saved))
    assert shelf.all() == (taken,)
    kept = Path(taken.path)
    assert [item.relative_to(kept) for item in files_in(kept)] == [item.relative_to(saved) for item in files_in(saved)]
    assert taken.is_of(Checkpoint(path=str(saved), fingerprint=fingerprint_of(saved)))
    (saved / "model.safetensors").write_bytes(b"overwritten in place")
    assert proven(kept).verdict is Verdict.PROVEN
    shelf.drop(taken)
    assert shelf.all() == ()
    assert not kept.exists()


def test_one_that_changed_since_it_was_seen_is_not_kept(saved: Path, tmp_path: Path) -> None:
    shelf, seen = GenerationStore(tmp_path / "shelf", 0), wanted(saved)
    (saved / "late.safetensors").write_bytes(safetensors())
    with pytest.raises(ChangedError):
        shelf.take(seen)
    assert shelf.all() == ()
    assert not list((tmp_path / "shelf").glob(".*"))


def test_a_kept_folder_that_was_written_into_is_none_any_more(saved: Path, tmp_path: Path) -> None:
    shelf = GenerationStore(tmp_path / "shelf", 0)
    taken = shelf.take(wanted(saved))
    (Path(taken.path) / "more").write_bytes(b"more")
    assert shelf.all() == ()


def test_it_is_put_back_completely(saved: Path, tmp_path: Path) -> None:
    taken = Path(GenerationStore(tmp_path / "shelf", 0).take(wanted(saved)).path)
    target = folder(tmp_path / "state", half=b"half")
    aside = put(str(taken), str(target))
    assert aside == str(target.with_name(".state.aside-1"))
    assert put(str(taken), str(saved)) is None, "what was kept of it is as it still is"
    assert [item.relative_to(target) for item in files_in(target)] == [
        item.relative_to(taken) for item in files_in(taken)
    ]


# --- found -----------------------------------------------------------------------------------------------------------


def test_a_pattern_that_ends_in_a_slash_names_folders_and_any_other_files(saved: Path) -> None:
    parent = saved.parent
    (parent / "last.pt").write_bytes(b"")
    (parent / "checkpoint-200.orbax-checkpoint-tmp-7").mkdir()
    assert list(expand_globs(["out/*/"], str(parent.parent))) == [str(saved)]
    assert list(expand_globs(["out/*"], str(parent.parent))) == [str(parent / "last.pt")]


def test_the_newest_folder_that_is_complete_is_resumed_from(saved: Path) -> None:
    newer = folder(saved.parent / "checkpoint-200", model_dot_safetensors=safetensors()[:-1])
    os.utime(newer / "model.safetensors", (2_000_000_000, 2_000_000_000))
    search = Search(
        known=(),
        globs=("out/checkpoint-*/",),
        cwd=str(saved.parents[1]),
        fault_unix_s=None,
        fault_step=None,
        batches_per_epoch=None,
    )
    point = find(search, proven, lambda _: None)
    assert point.checkpoint is not None, point.reason
    assert point.checkpoint.path == str(saved)
