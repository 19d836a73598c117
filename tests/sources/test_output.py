"""Following a training's output: bounded cost, bounded disk, nothing important lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor import untrusted_files
from supervisor.core.findings import FaultClass
from supervisor.core.moments import Moment
from supervisor.sources.attempt.output import BEHIND_LIMIT_BYTES, BYTES_PER_READ, OutputPage, OutputReader

NOW = Moment(100.0, 1_700_000_000.0)
MIB = 1 << 20


def read_all(reader: OutputReader) -> list[OutputPage]:
    pages = [reader.read(NOW)]
    while pages[-1].new_bytes:
        pages.append(reader.read(NOW))
    return [*pages, reader.finish(NOW)]


def append(folder: Path, data: bytes) -> None:
    (folder / "run").mkdir(exist_ok=True)
    with (folder / "run" / "output.log").open("ab") as file:
        file.write(data)


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_output_that_is_not_there_yet_is_no_problem(tmp_path: Path) -> None:
    page = OutputReader(tmp_path, MIB).read(NOW)
    assert page == OutputPage(new_bytes=0)


def test_lines_are_handed_out_once_and_kept_folded(tmp_path: Path) -> None:
    reader = OutputReader(tmp_path, MIB)
    append(tmp_path, b"\x1b[1mstart\x1b[0m\r\n\r 1/3\r 2/3")
    page = reader.read(NOW)
    assert (page.lines, page.last_line, page.new_bytes) == (("start",), " 2/3", 25)
    append(tmp_path, b"\r 3/3\nend")
    page = reader.read(NOW)
    assert (page.lines, page.last_line) == ((" 3/3",), "end")
    assert reader.read(NOW) == OutputPage(new_bytes=0, last_line="end")
    assert reader.finish(NOW).lines == ("end",)
    assert (tmp_path / "output.txt").read_text() == "start\n 3/3\nend\n"


def test_a_new_daemon_goes_on_at_the_offset_and_misses_no_line(tmp_path: Path) -> None:
    old = OutputReader(tmp_path, MIB)
    append(tmp_path, b"one\ntwo\r")
    old.read(NOW)
    append(tmp_path, b"\nRuntimeError: HIP out of memory. Tried to allocate 2 GiB")
    new = OutputReader(tmp_path, MIB, offset=old.offset)
    pages = read_all(new)
    assert next(line for page in pages for line in page.lines) == "two"
    assert [finding.fault for page in pages for finding in page.findings] == [FaultClass.OOM_GPU]
    assert (tmp_path / "output.txt").read_text().startswith("one\ntwo\nRuntimeError")


def test_a_finding_carries_its_line_and_the_moment(tmp_path: Path) -> None:
    append(
        tmp_path,
        b"  0%|   | 0/6 [00:00<?, ?it/s]MIOpen Error: /MIOpen/src/hipoc.cpp:300: Code object build failed.\r\n",
    )
    (finding,) = OutputReader(tmp_path, MIB).read(NOW).findings
    assert (finding.fault, finding.at) == (FaultClass.MIOPEN, NOW)
    assert finding.line.endswith("Code object build failed.")


def test_far_behind_it_jumps_says_so_and_still_sees_the_end(tmp_path: Path) -> None:
    filler = b"".join(b"line %07d of a flood\n" % number for number in range(400_000))
    append(tmp_path, b"RuntimeError: HIP error: invalid device function\n" + filler[: MIB // 2])
    reader = OutputReader(tmp_path, 64 * MIB)
    first = reader.read(NOW)
    append(tmp_path, filler + b"torch.OutOfMemoryError: HIP out of memory.\n")
    pages = [first, *read_all(reader)]
    skipped = sum(page.skipped_bytes for page in pages)
    assert skipped > BEHIND_LIMIT_BYTES
    assert sum(page.new_bytes for page in pages) == (tmp_path / "run" / "output.log").stat().st_size
    faults = [finding.fault for page in pages for finding in page.findings]
    assert faults == [FaultClass.NO_KERNEL_IMAGE, FaultClass.OOM_GPU]
    assert f"\n[{skipped} bytes of output skipped]\n" in (tmp_path / "output.txt").read_text()


@pytest.mark.alone(reason="compares processor time with a limit")
def test_a_flood_of_100_megabytes_costs_bounded_reads_and_bounded_disk(tmp_path: Path) -> None:
    """A process prints 100 MB as fast as it can, while a reader with a limit of 8 MiB follows."""
    program = "import sys\nfor n in range(1000): sys.stdout.write(('%d spam ' % n + 'x' * 90 + '\\n') * 1000)"
    append(tmp_path, b"")
    with (tmp_path / "run" / "output.log").open("ab") as log:
        flood = subprocess.Popen([sys.executable, "-c", program], stdout=log)
    reader, worst_s, seen = OutputReader(tmp_path, 8 * MIB), 0.0, 0
    while True:
        over = flood.poll() is not None
        started = time.thread_time()
        page = reader.read(NOW)
        worst_s = max(worst_s, time.thread_time() - started)
        seen += page.new_bytes
        assert page.problem is None
        assert len(page.lines) < BYTES_PER_READ // 90
        if over and page.new_bytes == 0:
            break
    assert seen == (tmp_path / "run" / "output.log").stat().st_size > 95_000_000
    assert worst_s < 0.5
    assert disk_bytes(tmp_path / "run" / "output.log") <= 8 * MIB + 2 * BEHIND_LIMIT_BYTES
    assert (tmp_path / "output.txt").stat().st_size <= 8 * MIB
    assert page.last_line.startswith("999 spam")


def test_what_was_read_becomes_a_hole_and_the_newest_half_stays(tmp_path: Path) -> None:
    reader = OutputReader(tmp_path, MIB)
    for _ in range(6):
        append(tmp_path, b"0123456789abcde\n" * (MIB // 32))
        reader.read(NOW)
    log = tmp_path / "run" / "output.log"
    assert log.stat().st_size == 3 * MIB
    assert disk_bytes(log) < 2 * MIB
    raw = log.read_bytes()
    assert raw[: MIB // 2] == b"\0" * (MIB // 2)
    assert raw[-MIB // 2 :] == b"0123456789abcde\n" * (MIB // 32)


def test_the_folded_copy_keeps_its_head_and_its_newest_tail(tmp_path: Path) -> None:
    reader = OutputReader(tmp_path, 64 * 1024)
    for number in range(40):
        append(tmp_path, b"".join(b"%03d-%03d %s\n" % (number, at, b"y" * 50) for at in range(100)))
        reader.read(NOW)
    text = (tmp_path / "output.txt").read_text()
    assert len(text) <= 64 * 1024
    lines = text.splitlines()
    assert (lines[0][:7], lines[-1][:7]) == ("000-000", "039-099")
    (marker,) = [line for line in lines if line.endswith("bytes left out]")]
    left_out = int(marker.split()[0][1:])
    assert left_out + len(text) - len(marker) - 1 == 40 * 100 * 59


def test_a_file_that_its_owner_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    reader = OutputReader(tmp_path, MIB)
    append(tmp_path, b"a long first line\n")
    reader.read(NOW)
    (tmp_path / "run" / "output.log").write_bytes(b"anew\n")
    assert reader.read(NOW).lines == ("anew",)


def rotate(folder: Path, to: str = "output.log.1") -> None:
    """Rename the output and create it again, as logrotate does without `copytruncate`."""
    (folder / "run" / "output.log").rename(folder / "run" / to)
    (folder / "run" / "output.log").touch()


@pytest.mark.parametrize("keep_open", [True, False])
def test_a_training_that_writes_on_into_a_renamed_file_is_followed_there(tmp_path: Path, *, keep_open: bool) -> None:
    append(tmp_path, b"1/9\n")
    reader = OutputReader(tmp_path, MIB, keep_open=keep_open)
    with (tmp_path / "run" / "output.log").open("ab", buffering=0) as training:
        assert reader.read(NOW).lines == ("1/9",)
        training.write(b"2/9\n")
        for day in range(6):
            for number in range(day, 0, -1):
                (tmp_path / "run" / f"output.log.{number}").rename(tmp_path / "run" / f"output.log.{number + 1}")
            rotate(tmp_path)
            training.write(b"%d/9\n" % (day + 3))
            page = reader.read(NOW)
            assert (page.lines[-1], page.unreadable) == (f"{day + 3}/9", None)
            assert reader.read(NOW).new_bytes == 0
        append(tmp_path, b"of one that opens the path\n")
        training.write(b"9/9\n")
        assert sorted(reader.read(NOW).lines) == ["9/9", "of one that opens the path"]
    assert (tmp_path / "output.txt").read_text().splitlines()[:3] == ["1/9", "2/9", "3/9"]
    reader.close()


def test_what_was_not_read_before_a_truncation_is_read_in_the_copy_of_it(tmp_path: Path) -> None:
    """As logrotate's `copytruncate` makes it; older rotations are as long, and none of it."""
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "output.log.2").write_bytes(b"of an older day\n" * 9)
    (tmp_path / "run" / "output.log.3.gz").write_bytes(b"compressed" * 9)
    os.utime(tmp_path / "run" / "output.log.2", (1.0, 1.0))
    append(tmp_path, b"1/9\nhalf ")
    reader = OutputReader(tmp_path, MIB)
    assert reader.read(NOW).lines == ("1/9",)
    append(tmp_path, b"a line\n2/9\nRuntimeError: HIP out of mem")
    output = tmp_path / "run" / "output.log"
    output.with_name("output.log.1").write_bytes(output.read_bytes())
    output.write_bytes(b"3/9\n")
    assert reader.read(NOW).lines == ("half a line", "2/9", "RuntimeError: HIP out of mem", "3/9")
    assert reader.read(NOW).lines == ()
    reader.close()


def test_a_file_that_has_no_name_any_more_is_read_on(tmp_path: Path) -> None:
    append(tmp_path, b"1/9\n")
    reader, apart = OutputReader(tmp_path, MIB), OutputReader(tmp_path, MIB, keep_open=False)
    with (tmp_path / "run" / "output.log").open("ab", buffering=0) as training:
        assert reader.read(NOW).lines == apart.read(NOW).lines == ("1/9",)
        (tmp_path / "run" / "output.log").unlink()
        training.write(b"2/9\n")
        page = reader.read(NOW)
        assert (page.lines, page.unreadable) == (("2/9",), None)
        assert "is not seen" in str(apart.read(NOW).unreadable), "without a descriptor of it"
    reader.close()


def test_of_many_renamed_files_those_are_followed_that_grew_last(tmp_path: Path) -> None:
    append(tmp_path, b"1/9\n")
    reader, opened = OutputReader(tmp_path, MIB), len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20):
        reader.read(NOW)
        rotate(tmp_path, f"output.log-{number}")
        append(tmp_path, b"a line\n")
    assert reader.read(NOW).lines == ("a line",)
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened + 4
    reader.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_a_new_daemon_finds_the_renamed_file_and_goes_on_at_the_offset(tmp_path: Path) -> None:
    old = OutputReader(tmp_path, MIB)
    append(tmp_path, b"1/9\n")
    with (tmp_path / "run" / "output.log").open("ab", buffering=0) as training:
        old.read(NOW)
        training.write(b"2/9\n")
        rotate(tmp_path)
        new = OutputReader(tmp_path, MIB, offset=old.offset)
        assert new.read(NOW).lines == ("2/9",)
        training.write(b"3/9\n")
        append(tmp_path, b"at the path\n")
        page = new.read(NOW)
        assert (sorted(page.lines), page.unreadable) == (["3/9", "at the path"], None)
    for reader in (old, new):
        reader.close()


@pytest.mark.parametrize("created", [True, False])
def test_where_a_new_daemon_cannot_find_the_file_silence_is_none_until_progress_is_seen(
    tmp_path: Path, *, created: bool
) -> None:
    append(tmp_path, b"1/9\n")
    old = OutputReader(tmp_path, MIB)
    old.read(NOW)
    (tmp_path / "run" / "output.log").unlink()
    if created:
        append(tmp_path, b"")
    new = OutputReader(tmp_path, MIB, offset=old.offset)
    assert "was moved or removed" in str(new.read(NOW).unreadable)
    append(tmp_path, b"of another program\n")
    page = new.read(NOW)
    assert (page.lines, page.unreadable is None) == (("of another program",), False)
    append(tmp_path, b" 50%|#####     | 5/10 [00:05<00:05,  1.00it/s]\n")
    assert new.read(NOW).unreadable is None
    for reader in (old, new):
        reader.close()


def test_a_link_in_the_attempt_s_folder_is_not_followed(tmp_path: Path) -> None:
    victim, attempt = tmp_path / "victim", tmp_path / "attempt"
    (attempt / "run").mkdir(parents=True)
    victim.write_text("precious")
    (attempt / "run" / "output.log").symlink_to(victim)
    assert OutputReader(attempt, 10).read(NOW).problem is not None
    (attempt / "run" / "output.log").unlink()
    (attempt / "output.txt").symlink_to(victim)
    append(attempt, b"a line\n")
    page = OutputReader(attempt, 10).read(NOW)
    assert (page.lines, page.problem is not None) == (("a line",), True)
    assert victim.read_text() == "precious"


def test_a_folded_copy_that_cannot_be_written_costs_no_finding(tmp_path: Path) -> None:
    (tmp_path / "output.txt").mkdir()
    append(tmp_path, b"OSError: [Errno 28] No space left on device\n")
    page = OutputReader(tmp_path, MIB).read(NOW)
    assert [finding.fault for finding in page.findings] == [FaultClass.DISK_FULL]
    assert "output.txt" in (page.problem or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that another user owns")
def test_another_user_s_output_is_read_although_it_cannot_be_punched(tmp_path: Path) -> None:
    append(tmp_path, b"theirs\n" * 3000)
    (tmp_path / "run" / "output.log").chmod(0o444)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    os.seteuid(65534)
    try:
        page = OutputReader(tmp_path, 10).read(NOW)
    finally:
        os.seteuid(0)
    assert len(page.lines) == 3000
    assert (page.problem or "").startswith("output.log: cannot be kept within its size limit")


@given(st.lists(st.binary(max_size=200), max_size=8), st.integers(0, 9000))
def test_no_bytes_make_it_raise(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], limit: int) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    reader = OutputReader(folder, limit)
    for piece in pieces:
        append(folder, piece)
        page = reader.read(NOW)
        assert page.problem is None
        assert page.new_bytes == len(piece)
        assert page.progress is None
    reader.finish(NOW)
    assert reader.offset == sum(map(len, pieces))


def test_output_that_rests_is_opened_again_only_once_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, opened = OutputReader(tmp_path, MIB), []
    append(tmp_path, b"one\n 1/3")
    assert reader.read(NOW).lines == ("one",)
    assert reader.read(NOW) == OutputPage(new_bytes=0, last_line=" 1/3")
    open_file = untrusted_files.open_file

    def counted(folder: Path, name: str, *rest: int, **further: bool) -> int:
        opened.append(name)
        return open_file(folder, name, *rest, **further)

    monkeypatch.setattr(untrusted_files, "open_file", counted)
    assert [reader.read(NOW) for _ in range(3)] == [OutputPage(new_bytes=0, last_line=" 1/3")] * 3
    assert opened == []
    append(tmp_path, b"\r 2/3\n")
    assert reader.read(NOW).lines == (" 2/3",)
    (tmp_path / "run" / "output.log").unlink()
    assert reader.read(NOW) == OutputPage(new_bytes=0, last_line=" 2/3")
    append(tmp_path, b"two\n")
    assert reader.read(NOW).lines == ("two",)
