"""Files that the agent maps into memory have all their blocks, at few requests of a disk that cannot allocate."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from supervisor.core import attempt_files as names
from supervisor.runner.code_copy import INSTALLED
from tests.rigs.hanging_fs import HangingFs

SIZE = names.HEADER_BYTES + names.CAPACITY_DEFAULT * names.RECORD.size
RESERVE = """
import os, sys
from rocm_agent.blocks import reserve_blocks
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
reserve_blocks(file, int(sys.argv[2]))
os.pwrite(file, b"here", 64)  # and it is open to write anywhere, as before
"""


def run(python: Path, code: str, *arguments: object) -> None:
    env = {"PYTHONPATH": str(INSTALLED.agent), "PATH": os.environ["PATH"]}
    subprocess.run([python, "-S", "-c", code, *map(str, arguments)], env=env, check=True, timeout=120)


@pytest.mark.slow
def test_a_file_keeps_its_content_and_has_no_hole(python: Path, tmp_path: Path) -> None:
    for name, content, length in (("absent", b"", 0), ("short", b"x" * 9000, 0), ("sparse", b"x" * 9000, SIZE)):
        path = tmp_path / name
        path.write_bytes(content)
        if length:
            os.truncate(path, length)
        run(python, RESERVE, path, SIZE)
        assert path.stat().st_size == SIZE
        assert path.stat().st_blocks * 512 >= SIZE
        assert path.read_bytes().rstrip(b"\0")[68:] == content[68:]
        assert path.read_bytes()[64:68] == b"here"


@pytest.mark.mounts
@pytest.mark.slow
@pytest.mark.parametrize(("content", "length"), [(b"", 0), (b"x" * 9000, 0), (b"x" * 9000, SIZE), (b"x" * SIZE, 0)])
def test_a_disk_that_cannot_allocate_takes_few_requests(
    python: Path, far: HangingFs, content: bytes, length: int
) -> None:
    real = far.real / "recorder.bin"
    real.write_bytes(content)
    if length:
        os.truncate(real, length)
    run(python, RESERVE, far.at / "recorder.bin", SIZE)
    assert real.stat().st_size == SIZE
    assert real.stat().st_blocks * 512 >= SIZE
    assert real.read_bytes().rstrip(b"\0")[68:] == content[68:]
    assert far.written < 200


@pytest.mark.mounts
@pytest.mark.slow
@pytest.mark.parametrize(
    "opening",
    [
        "from rocm_agent.recorder import open_recorder; assert open_recorder(sys.argv[1] + '/recorder.bin', 0)",
        "from rocm_agent.snapshots.board import Board; Board(sys.argv[1], 40_000)",
    ],
)
def test_recorder_and_board_take_few_requests_of_it(python: Path, far: HangingFs, opening: str) -> None:
    run(python, f"import sys; {opening}", far.at)
    assert far.written < 200
