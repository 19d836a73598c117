"""A checkpoint of torch.distributed.checkpoint is proven by every number in its shards, or rejected with its reason."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.agent import prove
from supervisor.agent.prove.kinds import Rejected
from supervisor.agent.prove.sharded import check_chunks, check_items
from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.runner.proving import Prover

HERE = Path(__file__).resolve().parent
ENVIRONMENT = "ROCM_SUPERVISOR_TRAIN_PYTHON"
"""FSDP2 is not in the torch of the owner's environment."""
FIRST, SECOND = "__0_0.distcp", "__1_0.distcp"

pytestmark = pytest.mark.xdist_group("sharded")


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sound saves of two ranks, and a poisoned one."""
    python = os.environ.get(ENVIRONMENT)
    if not python:
        pytest.skip(f"needs a training environment: {ENVIRONMENT}")
    folder = tmp_path_factory.mktemp("sharded")
    command = [python, str(HERE / "sharded_by_hand.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return folder


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    """A sound save that may be spoilt."""
    return Path(shutil.copytree(saved / "step-40", tmp_path / "step-40"))


def reason_of(folder: Path) -> str:
    checkpoint = Prover().prove(folder)
    assert checkpoint.verdict is Verdict.REJECTED
    return checkpoint.reason or ""


def test_a_sound_save_is_proven_with_its_place_and_every_chunk(saved: Path) -> None:
    found = [Prover().prove(saved / f"step-{step}") for step in (40, 41)]
    assert [(item.verdict, item.reason, item.epoch, item.step) for item in found] == [
        (Verdict.PROVEN, None, 3, 40),
        (Verdict.PROVEN, None, 3, 41),
    ]
    answer = prove.prove(str(saved / "step-40" / ".metadata"))
    rows = {row[0]: row[2] for row in answer["profile"]["tensors"]}
    assert (rows["model.0.weight[0, 0]"], rows["model.0.weight[4, 0]"]) == ([4, 16], [3, 16])
    assert "train_state.step" not in rows


def test_a_save_in_a_folder_of_the_checkpoint_is_proven_too(copy: Path, tmp_path: Path) -> None:
    """The weights and the optimizer's state each have such a folder in a checkpoint of accelerate."""
    checkpoint = tmp_path / "checkpoint-40"
    shutil.copytree(copy, checkpoint / "pytorch_model_fsdp_0")
    assert Prover().prove(checkpoint).verdict is Verdict.PROVEN
    (checkpoint / "pytorch_model_fsdp_0" / SECOND).unlink()
    assert reason_of(checkpoint).startswith("pytorch_model_fsdp_0/.metadata: shard __1_0.distcp is missing")


def test_a_shard_of_a_later_save_that_did_not_end_is_refused_by_its_time(saved: Path, copy: Path) -> None:
    """Torch loads half of step 41 with half of step 40 without an error."""
    written_ns = (copy / ".metadata").stat().st_mtime_ns
    os.utime(copy / SECOND, ns=(written_ns, written_ns + 1_000_000_000))
    assert Prover().prove(copy).verdict is Verdict.PROVEN, "clocks may differ by a second"
    shutil.copyfile(saved / "step-41" / SECOND, copy / SECOND)
    os.utime(copy / SECOND, ns=(written_ns, written_ns + 60_000_000_000))
    assert reason_of(copy).startswith(".metadata: __1_0.distcp was written 60 s after its .metadata: by a later save")


def test_numbers_that_are_not_finite_are_found_in_any_shard(saved: Path) -> None:
    assert "not finite: 14 of 14 numbers in model.1.weight" in reason_of(saved / "poisoned")


def flip_a_bit(path: Path) -> None:
    data = bytearray((path / SECOND).read_bytes())
    place = data.index(b"/data/0") + 200
    data[place] ^= 1
    (path / SECOND).write_bytes(data)


def cut(path: Path) -> None:
    os.truncate(path / FIRST, (path / FIRST).stat().st_size - 1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (flip_a_bit, "__1_0.distcp: damaged: "),
        (cut, "truncated: __0_0.distcp ends before "),
        (lambda path: (path / FIRST).unlink(), "shard __0_0.distcp is missing, with "),
        (lambda path: (path / ".metadata").unlink(), "incomplete: .metadata is missing"),
        (lambda path: (path / ".metadata").write_bytes(b""), "its .metadata has 0 bytes"),
        (lambda path: (path / ".metadata").write_bytes(b"\x80\x04 nonsense"), "its pickle is damaged"),
        (lambda path: (path / ".metadata").write_bytes(pickle.dumps({"a": 1})), "its .metadata is not that of "),
        (lambda path: (path / ".metadata").write_bytes(pickle.dumps(os.system)), "hostile: loading it would call "),
        (lambda path: shutil.copy(path / FIRST, path / SECOND), "__1_0.distcp"),
    ],
    ids=["bit", "cut", "missing", "no metadata", "empty", "nonsense", "other pickle", "hostile", "another rank's"],
)
def test_what_is_damaged_is_rejected_and_named(copy: Path, spoil: Callable[[Path], object], why: str) -> None:
    spoil(copy)
    assert why in reason_of(copy)


def test_a_shard_that_is_a_link_is_not_followed(copy: Path, tmp_path: Path) -> None:
    (copy / FIRST).rename(tmp_path / "elsewhere")
    (copy / FIRST).symlink_to(tmp_path / "elsewhere")
    assert str(prove.prove(str(copy / ".metadata"))["reason"]).startswith("unreadable: ")


Place = tuple[int, ...]
WHOLE: tuple[Place, list[tuple[Place, Place]]] = ((4,), [((0,), (2,)), ((2,), (2,))])
STORED: dict[tuple[str, Place], tuple[str, int, int]] = {("w", (0,)): (FIRST, 0, 8), ("w", (2,)): (SECOND, 0, 8)}


def test_the_chunks_of_a_tensor_are_all_of_it_and_none_twice() -> None:
    check_chunks("w", *WHOLE, STORED)


@pytest.mark.parametrize(
    ("shape", "chunks", "why"),
    [
        ((4,), [((0,), (2,))], "the chunks of w are not all of it"),
        ((4,), [((0,), (3,)), ((2,), (1,))], "two chunks of w overlap"),
        ((3,), [((0,), (2,)), ((2,), (2,))], "a chunk of w lies outside of it"),
        ((4,), [((0, 0), (2, 2))], "a chunk of w lies outside of it"),
        ((4,), [((0,), (2,)), ((1,), (2,))], "the chunk of w at \\[1\\] is not stored"),
    ],
)
def test_chunks_that_do_not_make_the_tensor_are_rejected(
    shape: Place, chunks: list[tuple[Place, Place]], why: str
) -> None:
    with pytest.raises(Rejected, match=why):
        check_chunks("w", shape, chunks, STORED)


def test_no_item_lies_over_another(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(bytes(16))
    with (tmp_path / FIRST).open("rb") as file:
        check_items({("w", ()): (FIRST, 0, 8), ("v", ()): (FIRST, 8, 8)}, {FIRST: file})
        with pytest.raises(Rejected, match="w lies over v"):
            check_items({("v", ()): (FIRST, 0, 9), ("w", ()): (FIRST, 8, 8)}, {FIRST: file})
        with pytest.raises(Rejected, match="ends before w does"):
            check_items({("w", ()): (FIRST, 8, 9)}, {FIRST: file})
