"""What two nodes offer of one folder, and what follows: all ranks resume from one proven generation, or from none."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from supervisor.core.fleet import messages as ms
from supervisor.core.fleet.epoch import Epoch
from supervisor.core.fleet.resume import AskAgain, NoneProven, Offer, Resume, choose_resume
from supervisor.daemon.roles.resume_offers import OwnCheckpoints, ResumeOffers
from supervisor.runner.proving import Proof, Prover
from supervisor.runner.unexamined import UnexaminedError
from tests.cluster.generations_by_hand import damage, write_generation, write_shard
from tests.rigs.hanging_fs import HangingFs

RANKS = 3


class Nodes:
    """Two nodes that share a folder."""

    def __init__(self, folder: Path, own: OwnCheckpoints | None = None) -> None:
        self.folder, self.proofs = folder, 0
        self.nodes = {name: ResumeOffers(folder, self.examine, own) for name in ("n0", "n1")}
        self.began_unix_s = 0.0

    def examine(self, folder: Path, share: int, shares: int) -> Proof:
        self.proofs += 1
        return Prover().examine_share(folder, share, shares)

    def choose(self, rejected: frozenset[str] = frozenset()) -> Resume | NoneProven:
        """Ask as the leader does, until there is an answer."""
        asked = ms.FindResume(number=1, share=0, shares=2, rejected=tuple(rejected))
        offers = {
            name: node.find(
                ms.FindResume(number=1, share=share, shares=2, rejected=asked.rejected, since_unix_s=self.began_unix_s)
            )
            for share, (name, node) in enumerate(self.nodes.items())
        }
        answer = choose_resume(offers, rejected)
        return self.choose(answer.rejected) if isinstance(answer, AskAgain) else answer


def resumed(answer: Resume | NoneProven) -> int | None:
    assert isinstance(answer, Resume), answer
    return None if answer.offer is None else answer.offer.step


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    for step in (10, 20, 30):
        write_generation(tmp_path / "all", step, "0.1", RANKS)
    return Nodes(tmp_path / "all")


def of_another_step(generation: Path) -> None:
    shutil.copyfile(
        generation.with_name("step-000000000010") / "rank-00001.shard.pt", generation / "rank-00001.shard.pt"
    )


def without_a_manifest(generation: Path) -> None:
    (generation / "rocm-shards.json").unlink()


def renamed(generation: Path) -> None:
    generation.rename(generation.with_name("step-000000000099"))


def test_a_node_whose_prover_the_kernel_kills_offers_nothing_until_it_has_proven_the_newest(
    nodes: Nodes, tmp_path: Path
) -> None:
    """A generation that one node calls rejected is passed over by all: it is asked again instead."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ -e {tmp_path}/room ] || kill -KILL $$\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    nodes.nodes["n1"] = ResumeOffers(nodes.folder, Prover(python).examine_share)
    with pytest.raises(UnexaminedError, match="killed by SIGKILL"):
        nodes.choose()
    (tmp_path / "room").touch()
    assert resumed(nodes.choose()) == 30


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: damage(path, 0),
        lambda path: damage(path, 1),
        of_another_step,
        lambda path: (path / "rank-00002.shard.pt").unlink(),
        without_a_manifest,
        renamed,
    ],
    ids=["bit_of_rank_0", "bit_of_rank_1", "of_another_step", "missing", "without_a_manifest", "renamed"],
)
def test_whichever_rank_s_shard_is_spoilt_all_nodes_resume_from_the_generation_before(
    nodes: Nodes, spoil: Callable[[Path], object]
) -> None:
    spoil(nodes.folder / "step-000000000030")
    assert resumed(nodes.choose()) == 20


def test_each_node_proves_its_share_once(nodes: Nodes) -> None:
    assert resumed(nodes.choose()) == 30
    assert resumed(nodes.choose()) == 30
    assert nodes.proofs == 2


def test_without_a_folder_or_a_generation_the_training_begins_and_with_spoilt_ones_it_stops(nodes: Nodes) -> None:
    assert resumed(Nodes(nodes.folder / "not_there_yet").choose()) is None
    assert ResumeOffers(None, nodes.examine).find(ms.FindResume(number=1, share=0, shares=1)) == ()
    for step in (10, 20, 30):
        damage(nodes.folder / f"step-{step:012d}", 2)
    answer = nodes.choose()
    assert isinstance(answer, NoneProven)
    assert "step-000000000030: n0: rank-00002.shard.pt does not have the hash in its manifest" in answer.reason


def test_what_is_launched_is_what_was_proven(nodes: Nodes) -> None:
    answer = nodes.choose()
    assert isinstance(answer, Resume)
    assert answer.offer is not None
    found = nodes.nodes["n1"].locate(_launch(answer.offer))
    assert found is not None
    assert (found.path, found.step, found.kind) == (str(nodes.folder / answer.offer.name), 30, "snapshot")
    manifest = nodes.folder / answer.offer.name / "rocm-shards.json"
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(ValueError, match="its manifest is not the one that was proven"):
        nodes.nodes["n1"].locate(_launch(answer.offer))
    with pytest.raises(ValueError, match="no such generation is known here"):
        nodes.nodes["n1"].locate(_launch(Offer(name="../elsewhere", digest="a")))


@pytest.mark.mounts
def test_a_folder_that_hangs_is_unknown_and_no_reason_to_begin_or_to_wait(far: HangingFs, tmp_path: Path) -> None:
    write_generation(far.at, 10, "0.1", RANKS)
    own = OwnCheckpoints(globs=("at-*",), cwd=str(far.at), examine=Prover(look_limit_s=0.2).examine)
    asked = ms.FindResume(number=1, share=0, shares=1)
    far.hang()
    for folder in (far.at, None):
        offers = ResumeOffers(folder, Prover(look_limit_s=0.2).examine_share, own, limit_s=0.2)
        with pytest.raises(TimeoutError, match=r"does not answer within 0\.2 s"):
            offers.find(asked)
        with pytest.raises(TimeoutError, match=r"does not answer within 0\.2 s"):
            Prover(look_limit_s=0.2).examine(far.at / "model.pt")
    far.go_on()


def test_of_a_training_that_has_finished_nothing_is_resumed(nodes: Nodes) -> None:
    nodes.nodes["n0"].clear()
    assert resumed(nodes.choose()) is None


@pytest.fixture
def saving(tmp_path: Path) -> Nodes:
    """Two nodes of a program that saves a folder by itself."""
    for number, name in enumerate(("at-10", "at-20", "at-30")):
        (tmp_path / "own" / name).mkdir(parents=True)
        path = tmp_path / "own" / name / "model.pt"
        write_shard(path, {"step": 10})
        os.utime(path, (1000.0 + number, 1000.0 + number))

    def examine(path: Path) -> Proof:
        made.proofs += 1
        return Prover().examine(path)

    made = Nodes(tmp_path / "all", OwnCheckpoints(globs=("own/at-*/",), cwd=str(tmp_path), examine=examine))
    return made


def chosen(answer: Resume | NoneProven) -> str | None:
    assert isinstance(answer, Resume), answer
    return None if answer.offer is None else Path(answer.offer.name).name


def test_the_newest_proven_checkpoint_of_the_program_s_own_is_what_all_resume_from(
    saving: Nodes, tmp_path: Path
) -> None:
    assert (chosen(saving.choose()), saving.proofs) == ("at-30", 1), "one node proves it for all that see the same"
    path = tmp_path / "own" / "at-30" / "model.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, (1003.0, 1003.0))
    answer = saving.choose()
    assert chosen(answer) == "at-20"
    assert isinstance(answer, Resume)
    assert answer.offer is not None
    found = saving.nodes["n1"].locate(_launch(answer.offer))
    assert found is not None
    assert (found.path, found.kind) == (str(tmp_path / "own" / "at-20"), "checkpoint")
    (tmp_path / "own" / "at-20" / "more.pt").touch()
    with pytest.raises(ValueError, match="is not what was proven"):
        saving.nodes["n1"].locate(_launch(answer.offer))
    with pytest.raises(ValueError, match="no checkpoint of the configuration is there"):
        saving.nodes["n1"].locate(_launch(Offer(name=str(tmp_path), digest="a")))


def test_what_was_saved_before_the_training_began_is_another_s_and_an_exact_generation_comes_first(
    saving: Nodes,
) -> None:
    saving.began_unix_s = 1002.5
    assert chosen(saving.choose()) is None
    saving.began_unix_s = 1001.0
    assert chosen(saving.choose()) == "at-30"
    write_generation(saving.folder, 7, "0.1", RANKS)
    assert chosen(saving.choose()) == "step-000000000007"


@pytest.mark.parametrize("loads_itself", [True, False])
def test_what_only_the_program_can_read_is_left_to_it_where_no_command_names_a_file(
    tmp_path: Path, *, loads_itself: bool
) -> None:
    for number, name in enumerate(("model-10.own", "model-20.own")):
        (tmp_path / name).write_text("a format that only this program reads")
        os.utime(tmp_path / name, (1000.0 + number, 1000.0 + number))
    own = OwnCheckpoints(globs=("model-*",), cwd=str(tmp_path), examine=Prover().examine, loads_itself=loads_itself)
    nodes = Nodes(tmp_path / "all", own)
    answer = nodes.choose()
    if not loads_itself:
        assert isinstance(answer, NoneProven)
        assert "neither a torch file nor safetensors" in answer.reason
        return
    assert answer == Resume(offer=None, loads_itself=True)
    (tmp_path / "model-30.pt").write_bytes(b"PK\x03\x04 half a torch file")
    assert isinstance(nodes.choose(), NoneProven), "a file that is damaged is a loss that a start would hide"
    write_generation(nodes.folder, 7, "0.1", RANKS)
    assert chosen(nodes.choose()) == "step-000000000007"


def _launch(offer: Offer) -> ms.Launch:
    return ms.Launch(
        epoch=Epoch("run", 0, 2),
        node_rank=0,
        nodes=2,
        host="h",
        port=29400,
        resume_from=offer.name,
        resume_digest=offer.digest,
    )
