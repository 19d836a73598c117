"""The gate: what a hostile user puts in place of a file is refused, named and waited for by nobody."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from supervisor import untrusted_files as gate
from tests.rigs.hanging_fs import HangingFs

LIMIT = 1024
PROGRAM_PATIENCE_S = 60.0
"""With the start of an interpreter: what waits at the mount does so for ever."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "attempt"
    (made / "run").mkdir(parents=True)
    (made / "run" / "note").write_bytes(b"sound")
    (tmp_path / "secret").write_bytes(b"another's")
    return made


def in_time(call: Callable[[], object], patience_s: float = 5.0) -> object:
    """Return what a call returns or raises; fail where it waits for somebody."""
    came: list[object] = []

    def run() -> None:
        try:
            came.append(call())
        except OSError as error:
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(patience_s)
    assert came, "the call did not return"
    return came[0]


READERS: list[Callable[[Path, str], object]] = [
    lambda folder, name: gate.read_bytes(folder, name, LIMIT),
    lambda folder, name: gate.read_part(folder, name, 0, LIMIT),
    lambda folder, name: gate.read_tail(folder, name, LIMIT),
    lambda folder, name: os.close(gate.open_file(folder, name)),
    lambda folder, name: os.close(gate.open_file(folder, name, os.O_RDWR | os.O_APPEND)),
    lambda folder, name: os.close(gate.open_file(folder, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
    gate.file_status,
]


def replaced_by_pipe(path: Path) -> None:
    os.mkfifo(path)


def replaced_by_link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "secret")


def replaced_by_dangling_link(path: Path) -> None:
    path.symlink_to(path.parents[2] / "made-by-the-daemon")


def replaced_by_folder(path: Path) -> None:
    path.mkdir()


def replaced_by_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may be 107 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def replaced_by_device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this user makes no devices")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "replace",
    [
        replaced_by_pipe,
        replaced_by_link,
        replaced_by_dangling_link,
        replaced_by_folder,
        replaced_by_socket,
        replaced_by_device,
    ],
)
def test_nothing_but_a_regular_file_is_opened(
    folder: Path, read: Callable[[Path, str], object], replace: Callable[[Path], None]
) -> None:
    note = folder / "run" / "note"
    note.unlink()
    replace(note)
    came = in_time(lambda: read(folder, "run/note"))
    assert isinstance(came, gate.UntrustedFileError), came
    assert str(note) in str(came)
    assert "remove it" in str(came)
    assert (folder.parent / "secret").read_bytes() == b"another's"
    assert not (folder.parent / "made-by-the-daemon").exists()


@pytest.mark.parametrize("read", READERS)
def test_a_link_in_the_middle_of_the_path_leads_nowhere(folder: Path, read: Callable[[Path, str], object]) -> None:
    """The folder that holds the file may be replaced, too, by one that looks the same."""
    (folder / "run").rename(folder / "moved")
    (folder / "run").symlink_to(folder / "moved")
    came = in_time(lambda: read(folder, "run/note"))
    assert isinstance(came, gate.LinkRefusedError), came
    assert (folder / "moved" / "note").read_bytes() == b"sound"


ROOT = Path(__file__).parents[2]
ASKED: list[Callable[[Path, str], object]] = [
    *READERS,
    gate.entry_status,
    lambda folder, name: gate.is_unchanged(folder, name, (0, 0, 0)),
    lambda folder, _: gate.list_names(folder, "run"),
    lambda folder, _: gate.list_files(folder, "run"),
    gate.open_pipe,
    gate.remove,
    lambda folder, _: gate.make_folders(folder, "run/below"),
]


@contextmanager
def mounted_over(at: Path, real: Path) -> Iterator[HangingFs]:
    """Mount over a folder what shows another, and hangs."""
    real.mkdir()
    (real / "note").write_bytes(b"sound")
    try:
        served = HangingFs(real, at)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        served.hang(beyond_sigkill=True)
        yield served
    finally:
        served.end()


@pytest.mark.slow
@pytest.mark.mounts
@pytest.mark.parametrize("ask", ASKED)
def test_what_is_mounted_over_a_folder_is_asked_nothing(
    folder: Path, tmp_path: Path, ask: Callable[[Path, str], object]
) -> None:
    """Its server may never answer: whoever asks is beyond SIGKILL then, and so is the end of the daemon."""
    with mounted_over(folder / "run", tmp_path / "real") as served:
        came = in_time(lambda: ask(folder, "run/note"))
        assert isinstance(came, gate.KindRefusedError), came
        assert "another file system is mounted there; unmount it" in str(came)
        assert str(folder / "run") in str(came)
        assert served.held == 0


@pytest.mark.slow
@pytest.mark.mounts
def test_a_tree_is_measured_listed_and_removed_around_what_is_mounted_in_it(folder: Path, tmp_path: Path) -> None:
    (folder / "run" / "held").mkdir()
    with mounted_over(folder / "run" / "held", tmp_path / "real") as served:
        assert in_time(lambda: gate.list_files(folder, "run")) == (("note", 5),)
        assert (
            in_time(lambda: gate.tree_bytes(folder.parent, folder.name))
            == (folder / "run" / "note").stat().st_blocks * 512
        )
        assert in_time(lambda: gate.exists(folder, "run/held")) is False
        assert in_time(lambda: gate.remove_tree(folder.parent, folder.name)) is False
        assert not (folder / "run" / "note").exists()
        assert served.held == 0


@pytest.mark.slow
@pytest.mark.mounts
@pytest.mark.parametrize("read", READERS)
def test_a_file_that_is_mounted_over_is_refused(folder: Path, read: Callable[[Path, str], object]) -> None:
    note = folder / "run" / "note"
    mount = subprocess.run(["mount", "--bind", folder.parent / "secret", note], capture_output=True, check=False)
    if mount.returncode != 0:
        pytest.skip("mounts a file over another, for which it needs root")
    try:
        came = in_time(lambda: read(folder, "run/note"))
        assert isinstance(came, gate.KindRefusedError), came
    finally:
        subprocess.run(["umount", note], check=True)
    assert gate.read_bytes(folder, "run/note", LIMIT) == b"sound"
    assert (folder.parent / "secret").read_bytes() == b"another's"


@pytest.mark.slow
@pytest.mark.mounts
@pytest.mark.parametrize("ask", range(len(ASKED)))
def test_what_is_mounted_is_asked_nothing_where_openat2_is_refused(folder: Path, tmp_path: Path, ask: int) -> None:
    """As in the daemon's own unit: RestrictSUIDSGID= refuses openat2."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor import untrusted_files as gate\n"
        "from tests.border.test_untrusted_files import ASKED\n"
        "from tests.rigs import refused_calls\nrefused_calls.CLOSE_RANGE = 437\nrefused_calls.refuse()\n"
        "try:\n    ASKED[int(sys.argv[2])](Path(sys.argv[1]), 'run/note')\n"
        "except gate.KindRefusedError as error:\n    print(error.strerror)"
    )
    with mounted_over(folder / "run", tmp_path / "real") as served:
        words = [sys.executable, "-c", code, str(folder), str(ask)]
        start = partial(subprocess.run, words, cwd=ROOT, capture_output=True, text=True, check=True)
        ran = in_time(start, PROGRAM_PATIENCE_S)
        assert isinstance(ran, subprocess.CompletedProcess), ran
        assert ran.stdout == "another file system is mounted there; unmount it\n"
        assert served.held == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls")
def test_a_refusal_of_openat2_is_asked_for_once(folder: Path) -> None:
    """Every poll of every file would pay for it: under the daemon's own unit it is always refused."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor import untrusted_files as gate\n"
        "from tests.rigs import refused_calls\nrefused_calls.CLOSE_RANGE = 437\nrefused_calls.refuse()\n"
        "folder = Path(sys.argv[1])\nstate = gate.state_of(gate.entry_status(folder, 'run/note'))\n"
        "assert all(gate.is_unchanged(folder, 'run/note', state) for _ in range(20))\n"
    )
    words = ["strace", "-f", "-e", "trace=openat2", sys.executable, "-c", code, str(folder)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stderr.count("openat2(") == 2, "the first file, and the root to be sure"


@pytest.mark.slow
@pytest.mark.mounts
def test_where_openat2_is_refused_another_file_system_is_still_not_read(folder: Path) -> None:
    (folder / "run" / "held").mkdir()
    code = (
        "import sys\nfrom pathlib import Path\nfrom supervisor import untrusted_files as gate\n"
        "from tests.rigs import refused_calls\nrefused_calls.CLOSE_RANGE = 437\nrefused_calls.refuse()\n"
        "folder = Path(sys.argv[1])\nprint(gate.read_bytes(folder, 'run/note', 9).decode())\n"
        "try:\n    gate.list_names(folder, 'run/held')\n"
        "except gate.KindRefusedError as error:\n    print(error.strerror)"
    )
    mount = subprocess.run(["mount", "-t", "tmpfs", "none", folder / "run" / "held"], capture_output=True, check=False)
    if mount.returncode != 0:
        pytest.skip("mounts a file system, for which it needs root")
    try:
        words = [sys.executable, "-c", code, str(folder)]
        ran = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
        assert ran.stdout == "sound\nanother file system is mounted there; unmount it\n"
    finally:
        subprocess.run(["umount", folder / "run" / "held"], check=True)


def test_links_up_to_the_trusted_folder_are_the_administrators(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to(folder)
    assert gate.read_bytes(tmp_path / "state", "run/note", LIMIT) == b"sound"


@pytest.mark.parametrize("name", ["", "..", "run/..", "run/../../secret", "/etc/passwd", "run//note", "./note", "a\0b"])
def test_a_name_stays_below_its_folder(folder: Path, name: str) -> None:
    with pytest.raises(gate.UntrustedFileError):
        gate.read_bytes(folder, name, LIMIT)


def test_an_absent_file_is_absent_and_not_refused(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        gate.read_bytes(folder, "run/none", LIMIT)
    with pytest.raises(FileNotFoundError):
        gate.read_bytes(folder, "none/note", LIMIT)
    assert gate.file_status(folder, "none/note") is None
    assert not gate.exists(folder, "run/none")


def test_a_sparse_file_of_a_terabyte_is_refused_by_its_size(folder: Path) -> None:
    os.truncate(folder / "run" / "note", 1 << 40)
    with pytest.raises(gate.SizeRefusedError, match="larger than the limit of 1024 bytes"):
        gate.read_bytes(folder, "run/note", LIMIT)
    assert gate.read_tail(folder, "run/note", LIMIT) == gate.Tail(
        content=bytes(LIMIT), start=(1 << 40) - LIMIT, size=1 << 40
    )


def test_a_file_of_just_the_limit_is_read(folder: Path) -> None:
    (folder / "run" / "note").write_bytes(b"x" * LIMIT)
    assert len(gate.read_bytes(folder, "run/note", LIMIT)) == LIMIT
    (folder / "run" / "note").write_bytes(b"x" * (LIMIT + 1))
    with pytest.raises(gate.SizeRefusedError):
        gate.read_bytes(folder, "run/note", LIMIT)


def test_a_file_of_another_owner_is_refused_where_the_owner_matters(folder: Path) -> None:
    own = os.geteuid()
    assert gate.read_bytes(folder, "run/note", LIMIT, owner=own) == b"sound"
    with pytest.raises(gate.OwnerRefusedError, match=f"belongs to uid {own}"):
        gate.read_bytes(folder, "run/note", LIMIT, owner=own + 1)


def test_a_file_with_a_second_name_is_not_written(folder: Path) -> None:
    """A hard link to a file of somebody else's looks like a file of the attempt."""
    os.link(folder / "run" / "note", folder.parent / "another-name")
    with pytest.raises(gate.OwnerRefusedError, match="2 names"):
        gate.open_file(folder, "run/note", os.O_RDWR | os.O_TRUNC, only_name=True)
    assert gate.read_bytes(folder, "run/note", LIMIT) == b"sound"


def test_a_file_that_is_replaced_at_every_moment_is_either_read_or_refused(folder: Path) -> None:
    """Replaced between two looks: never the link's target, whenever the exchange happens."""
    note, aside = folder / "run" / "note", folder / "run" / "aside"
    aside.symlink_to(folder.parent / "secret")
    ended = threading.Event()

    def exchange() -> None:
        while not ended.is_set():
            for source, target in ((note, "kept"), (aside, "note"), (note.with_name("note"), "aside")):
                source.rename(note.with_name(target))
            note.with_name("kept").rename(note)

    thread = threading.Thread(target=exchange)
    thread.start()
    came = set()
    try:
        for _ in range(3000):
            try:
                came.add(gate.read_bytes(folder, "run/note", LIMIT))
            except (gate.UntrustedFileError, FileNotFoundError):
                came.add(b"refused")
    finally:
        ended.set()
        thread.join()
    assert came <= {b"sound", b"refused"}


def test_a_listing_is_bounded(folder: Path) -> None:
    for number in range(50):
        (folder / "run" / f"recorder.rank{number}.bin").touch()
    listing = gate.list_names(folder, "run", limit=20)
    assert len(listing.names) == 20
    assert listing.more
    whole = gate.list_names(folder, "run")
    assert len(whole.names) == 51
    assert not whole.more


def test_a_link_in_place_of_a_folder_is_not_listed(folder: Path) -> None:
    (folder / "stacks").symlink_to(folder.parent)
    with pytest.raises(gate.LinkRefusedError):
        gate.list_names(folder, "stacks")
    with pytest.raises(gate.KindRefusedError, match="is a file, not a directory"):
        gate.list_names(folder, "run/note")


def test_a_pipe_is_opened_for_writing_only_where_it_is_one(folder: Path) -> None:
    os.mkfifo(folder / "run" / "door")
    with pytest.raises(OSError, match="No such device or address"):
        gate.open_pipe(folder, "run/door")  # nobody reads
    reading = os.open(folder / "run" / "door", os.O_RDONLY | os.O_NONBLOCK)
    writing = gate.open_pipe(folder, "run/door")
    os.write(writing, b"go")
    assert os.read(reading, 2) == b"go"
    os.close(reading)
    os.close(writing)
    with pytest.raises(gate.KindRefusedError, match="is a file, not a named pipe"):
        gate.open_pipe(folder, "run/note")
    (folder / "run" / "link").symlink_to(folder / "run" / "door")
    with pytest.raises(gate.LinkRefusedError):
        gate.open_pipe(folder, "run/link")


def test_removing_never_leaves_the_folder(folder: Path) -> None:
    outside = folder.parent / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "kept").write_bytes(b"kept")
    (folder / "run" / "link").symlink_to(outside)
    assert gate.remove_tree(folder, "run")
    assert not (folder / "run").exists()
    assert (outside / "kept").read_bytes() == b"kept"
    (folder / "run").symlink_to(outside)
    assert not gate.remove_tree(folder, "run/deep")
    assert (outside / "deep").is_dir()
    assert gate.remove(folder, "run")
    assert (outside / "deep").is_dir()


@pytest.mark.slow
def test_folders_deeper_than_python_recurses_are_left_and_nothing_raises(folder: Path) -> None:
    at = os.open(folder / "run", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    try:
        assert not gate.remove_tree(folder, "run")
        assert not (folder / "run" / "note").exists()
    finally:
        # Deeper than pytest's own clean-up recurses as well: left there, it would end the next session.
        subprocess.run(["rm", "-rf", folder / "run"], check=True)


def test_no_descriptor_is_left_open(folder: Path) -> None:
    (folder / "run" / "link").symlink_to("note")
    os.mkfifo(folder / "run" / "pipe")
    for name in ("run/note", "run/link", "run/pipe", "run/none", "run", "none/none", "run/note/below"):
        for read in READERS[:3]:
            try:
                read(folder, name)
            except OSError:
                continue
    gate.list_names(folder, "run", limit=1)
    assert open_under(folder) == []


def open_under(folder: Path) -> list[str]:
    """Return what this process holds open in a folder; other threads may open and close what they like elsewhere."""
    held = []
    for item in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed since it was listed
            held.append(str(item.readlink()))
    return [path for path in held if Path(path).is_relative_to(folder)]
