"""Keeping generations: whole or not at all, of the training's own files alone, and in nobody else's reach."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from attempts_by_hand import until

from supervisor.core.checkpoints.checkpoint import Checkpoint, Verdict
from supervisor.runner.clone_file import NoRoomError
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.generation_store import ChangedError, GenerationStore, NotTheirsError, Wanted
from tests.rigs.small_disk import mounted

OURS = os.geteuid()
WRITER = """
import sys, itertools
for number in itertools.count():
    with open(sys.argv[1], "r+b" if number else "wb", buffering=0) as file:
        for _ in range(64):
            file.write(bytes([number % 256]) * 4096)
"""


@pytest.fixture
def shelf(tmp_path: Path) -> GenerationStore:
    return GenerationStore(tmp_path / "generations", reserve_bytes=0)


def wanted(path: Path, content: bytes | None = None, **changes: object) -> Wanted:
    if content is not None:
        path.write_bytes(content)
    seen = Checkpoint(path=str(path), fingerprint=fingerprint_of(path), step=7)
    return Wanted(seen=replace(seen, **changes), attempt=1, owner=OURS)  # type: ignore[arg-type]  # of a test


def rewritten(path: Path, content: bytes) -> Wanted:
    """Replace a file as careful writers do."""
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").replace(path)
    return wanted(path)


def test_a_generation_is_the_file_with_its_time_and_what_was_reported_about_it(
    shelf: GenerationStore, tmp_path: Path
) -> None:
    item = wanted(tmp_path / "last.pt", b"state", kind="snapshot", epoch=3)
    os.utime(tmp_path / "last.pt", (1_600_000_000, 1_600_000_000.5))
    item = replace(item, seen=replace(item.seen, fingerprint=fingerprint_of(tmp_path / "last.pt")))
    taken = shelf.take(item)
    assert Path(taken.path).read_bytes() == b"state"
    assert (taken.source, taken.kind, taken.epoch, taken.step) == (str(tmp_path / "last.pt"), "snapshot", 3, 7)
    assert taken.saved_unix_s == item.seen.saved_unix_s
    assert taken.is_of(item.seen)
    assert shelf.all() == (taken,)
    assert shelf.holds(taken)
    assert not shelf.holds(item.seen)


def test_a_file_that_is_rewritten_in_place_leaves_its_generation_as_it_was(
    shelf: GenerationStore, tmp_path: Path
) -> None:
    path = tmp_path / "last.pt"
    taken = [shelf.take(wanted(path, content)) for content in (b"first", b"second", b"third", b"fourth")]
    path.write_bytes(b"rubbish")
    assert [Path(item.path).read_bytes() for item in taken] == [b"first", b"second", b"third", b"fourth"]
    assert all(Path(item.path).stat().st_ino != path.stat().st_ino for item in taken)
    assert shelf.all() == tuple(taken)


def test_a_path_that_is_replaced_each_time_is_linked_from_the_third_time_on(
    shelf: GenerationStore, tmp_path: Path
) -> None:
    path = tmp_path / "last.pt"
    linked = []
    kept = []
    for content in (b"one", b"two", b"three", b"four"):
        taken = shelf.take(rewritten(path, content))
        linked.append(Path(taken.path).stat().st_ino == path.stat().st_ino)
        kept.append(path.with_name(content.decode()))
        kept[-1].hardlink_to(path)  # so that no number of a file is used again
    assert linked == [False, False, True, True]


def test_a_snapshot_is_linked_at_once(shelf: GenerationStore, tmp_path: Path) -> None:
    path = tmp_path / "snapshots" / "a.pt"
    path.parent.mkdir()
    taken = shelf.take(wanted(path, b"state", kind="snapshot"))
    assert Path(taken.path).stat().st_ino == path.stat().st_ino
    path.unlink()
    assert Path(taken.path).read_bytes() == b"state"


def test_a_linked_generation_that_somebody_writes_into_is_none_any_more(shelf: GenerationStore, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    shelf.take(wanted(path, b"state", kind="snapshot"))
    path.write_bytes(b"other state")
    assert shelf.all() == ()


def test_what_is_not_what_was_saved_any_more_is_not_taken(shelf: GenerationStore, tmp_path: Path) -> None:
    item = wanted(tmp_path / "last.pt", b"state")
    (tmp_path / "last.pt").write_bytes(b"half of the next")
    with pytest.raises(ChangedError):
        shelf.take(item)
    assert shelf.all() == ()
    assert [path.name for path in shelf.folder.iterdir()] == ["serial"]


def test_a_file_that_is_written_while_it_is_taken_is_not_taken(shelf: GenerationStore, tmp_path: Path) -> None:
    """Nobody said that it is whole: most moments are those of a write, and none of these leaves anything behind."""
    path = tmp_path / "last.pt"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
        until(lambda: path.exists() and path.stat().st_size == 64 * 4096, "the first pass to be over")
        refused = 0
        for _ in range(200):
            try:
                shelf.drop(shelf.take(wanted(path)))
            except ChangedError:
                refused += 1
        writer.kill()
    assert refused > 0
    assert [item.name for item in shelf.folder.iterdir()] == ["serial"]


def test_a_file_of_another_user_is_not_handed_on_to_the_training(shelf: GenerationStore, tmp_path: Path) -> None:
    """A training that names the daemon's secrets as its checkpoint must not get a copy that it can read."""
    item = wanted(tmp_path / "secret", b"whsec_x")
    for owner in (OURS + 1, None):
        text = "user of the training" if owner else "user of attempt 1, which is not known"
        with pytest.raises(NotTheirsError, match=text):
            shelf.take(replace(item, owner=owner))
    assert shelf.all() == ()


@pytest.mark.parametrize("name", ["generation.json", "serial"])
def test_a_pipe_in_place_of_its_notes_is_not_waited_for(shelf: GenerationStore, tmp_path: Path, name: str) -> None:
    first = Path(shelf.take(wanted(tmp_path / "last.pt", b"state")).path)
    note = shelf.folder / name if name == "serial" else first.parent / name
    note.unlink()
    os.mkfifo(note)
    taken: list[Checkpoint] = []
    taking = threading.Thread(target=lambda: taken.append(shelf.take(wanted(tmp_path / "next.pt", b"n"))), daemon=True)
    taking.start()
    taking.join(20)
    assert not taking.is_alive()
    assert [Path(item.path).name for item in taken] == ["next.pt"]


def test_what_is_no_file_is_not_taken(shelf: GenerationStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ChangedError):
        shelf.take(wanted(tmp_path / "fifo"))
    item = wanted(tmp_path / "gone.pt", b"x")
    (tmp_path / "gone.pt").unlink()
    with pytest.raises(ChangedError, match="was removed before it was captured"):
        shelf.take(item)


def test_nobody_but_the_daemon_can_write_into_a_copy(shelf: GenerationStore, tmp_path: Path) -> None:
    taken = shelf.take(wanted(tmp_path / "last.pt", b"state"))
    assert Path(taken.path).stat().st_mode & 0o777 == 0o640
    assert Path(taken.path).parent.stat().st_mode & 0o777 == 0o750
    assert shelf.folder.stat().st_mode & 0o777 == 0o750


def test_a_checkpoint_of_the_trainer_is_kept_with_what_lies_next_to_it(shelf: GenerationStore, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"
    folder.mkdir()
    for name in ("trainer_state.json", "optimizer.pt", "rng_state.pth"):
        (folder / name).write_text(name)
    taken = shelf.take(wanted(folder / "model.safetensors", b"weights"))
    beside = {path.name for path in Path(taken.path).parent.iterdir()}
    assert beside >= {"model.safetensors", "trainer_state.json", "optimizer.pt", "rng_state.pth"}


def test_a_verdict_and_a_profile_stay_with_their_generation(shelf: GenerationStore, tmp_path: Path) -> None:
    taken = shelf.take(wanted(tmp_path / "last.pt", b"state"))
    shelf.judge(replace(taken, verdict=Verdict.PROVEN, fitness=0.5), {"tensors": []})
    shelf.mark(taken, "newest")
    (again,) = GenerationStore(shelf.folder, reserve_bytes=0).all()
    assert again == replace(taken, verdict=Verdict.PROVEN, fitness=0.5, kept_by="newest")
    assert shelf.profile(again) == {"tensors": []}


def test_verdicts_and_marks_of_two_threads_are_both_kept(shelf: GenerationStore, tmp_path: Path) -> None:
    taken = shelf.take(wanted(tmp_path / "last.pt", b"state"))
    for n in range(50):
        threads = [
            threading.Thread(target=shelf.judge, args=(replace(taken, verdict=Verdict.PROVEN, step=n),)),
            threading.Thread(target=shelf.mark, args=(taken, str(n))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (found,) = shelf.all()
        assert (found.step, found.kept_by) == (n, str(n))


def test_a_serial_is_never_given_twice(shelf: GenerationStore, tmp_path: Path) -> None:
    first = shelf.take(wanted(tmp_path / "last.pt", b"a"))
    shelf.drop(first)
    shelf.judge(replace(first, verdict=Verdict.PROVEN))  # a proof that comes too late
    assert shelf.all() == ()
    second = GenerationStore(shelf.folder, reserve_bytes=0).take(wanted(tmp_path / "last.pt", b"a"))
    assert Path(second.path).parent.name == "000002"


def test_damaged_notes_are_no_generation_and_no_error(shelf: GenerationStore, tmp_path: Path) -> None:
    taken = shelf.take(wanted(tmp_path / "last.pt", b"state"))
    for content in (b"", b"{", b"[]", b'{"name": "../../x"}', b'{"name": 3}', b"\xff"):
        (Path(taken.path).parent / "generation.json").write_bytes(content)
        assert shelf.all() == ()


KILLED = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
from supervisor.core.checkpoints.checkpoint import Checkpoint
from supervisor.runner.generation_store import GenerationStore, Wanted
from supervisor.runner.folder_checkpoints import fingerprint_of
import os
shelf, path = GenerationStore(pathlib.Path(sys.argv[2]), 0), pathlib.Path(sys.argv[3])
print("began", flush=True)
while True:
    seen = Checkpoint(path=str(path), fingerprint=fingerprint_of(path))
    shelf.take(Wanted(seen=seen, attempt=1, owner=os.geteuid()))
    if len(shelf.all()) > 3:
        shelf.drop(shelf.all()[0])
"""


def test_one_who_is_killed_while_taking_or_dropping_leaves_only_whole_generations(tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    (tmp_path / "last.pt").write_bytes(content)
    folder = tmp_path / "generations"
    program = [sys.executable, "-c", KILLED, str(Path(__file__).parents[2]), str(folder), str(tmp_path / "last.pt")]
    for number in range(8):
        with subprocess.Popen(program, stdout=subprocess.PIPE) as daemon:
            assert daemon.stdout is not None
            daemon.stdout.readline()
            until(lambda: any(folder.glob("[0-9]*")), "one to be taken")
            threading.Event().wait(0.004 * number)  # the moment of the kill is what varies
            daemon.send_signal(signal.SIGKILL)
        shelf = GenerationStore(folder, 0)
        assert all(Path(item.path).read_bytes() == content for item in shelf.all())
        shelf.tidy()
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
        assert shelf.all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", megabytes=2) as small:
        yield small


def test_a_full_disk_takes_nothing_and_leaves_nothing(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(os.urandom(1 << 20))
    shelf = GenerationStore(small_disk / "generations", reserve_bytes=0)
    first = shelf.take(wanted(tmp_path / "last.pt"))
    for reserve_bytes in (0, 1 << 30):
        with pytest.raises(NoRoomError, match=r"free|space"):
            GenerationStore(shelf.folder, reserve_bytes).take(wanted(tmp_path / "last.pt"))
    assert shelf.all() == (first,)
    assert shutil.disk_usage(small_disk).free > 0.9 * (1 << 20)
    shelf.drop(first)
    taken = shelf.take(wanted(tmp_path / "last.pt"))
    assert shelf.all() == (taken,)


# --- links ----------------------------------------------------------------------------------------------------------


def relinked(folder: Path, number: int) -> Path:
    """Save as Lightning does with `save_last="link"`: a new file, and last.ckpt replaced by a link to it."""
    (folder / f"epoch={number}.ckpt").write_bytes(f"state {number}".encode())
    (folder / "last.new").symlink_to(f"epoch={number}.ckpt")
    (folder / "last.new").replace(folder / "last.ckpt")
    return folder / "last.ckpt"


@pytest.mark.parametrize("kind", ["checkpoint", "snapshot"])
def test_of_a_link_that_is_replaced_at_each_save_the_files_are_kept(
    shelf: GenerationStore, tmp_path: Path, kind: str
) -> None:
    """Generations were links themselves: dangling as soon as the training cleared up, and listed as proven."""
    for number in range(6):
        shelf.take(wanted(relinked(tmp_path, number), kind=kind))
        (tmp_path / f"epoch={number}.ckpt").unlink()
    kept = [Path(item.path) for item in shelf.all()]
    assert [entry.read_bytes() for entry in kept] == [f"state {number}".encode() for number in range(6)]
    assert not any(entry.is_symlink() for entry in kept)


def test_a_link_on_the_shelf_is_no_generation(shelf: GenerationStore, tmp_path: Path) -> None:
    taken = Path(shelf.take(wanted(tmp_path / "last.pt", b"state")).path)
    taken.rename(tmp_path / "elsewhere.pt")
    taken.symlink_to(tmp_path / "elsewhere.pt")
    assert shelf.all() == ()


def test_a_link_to_somebody_elses_file_is_not_taken(shelf: GenerationStore, tmp_path: Path) -> None:
    path = relinked(tmp_path, 1)
    with pytest.raises(NotTheirsError):
        shelf.take(replace(wanted(path), owner=OURS + 1))
    assert shelf.all() == ()


def test_a_file_and_a_link_to_it_are_one_save(shelf: GenerationStore, tmp_path: Path) -> None:
    path = relinked(tmp_path, 1)
    shelf.take(wanted(tmp_path / "epoch=1.ckpt"))
    assert shelf.has_taken(fingerprint_of(path))
    relinked(tmp_path, 2)
    assert not shelf.has_taken(fingerprint_of(path))


@pytest.mark.parametrize("name", ["las\\ud800.pt", "a\\u0000b", "..", "", 3])
def test_a_note_that_names_no_file_is_no_generation(shelf: GenerationStore, name: object) -> None:
    (shelf.folder / "000001").mkdir(parents=True)
    text = json.dumps({"name": name, "size_bytes": 1, "modified_ns": 1}).replace("\\\\u", "\\u")
    (shelf.folder / "000001" / "generation.json").write_text(text)
    assert shelf.all() == ()
