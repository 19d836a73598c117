"""The end of a growing file, whole lines and whole characters, whatever is done to the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.control.tail import PART_LIMIT_BYTES, Part, tail


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "output.txt"


def test_a_file_that_is_not_there_yet_is_empty(file: Path) -> None:
    assert tail(file.parent, file.name, None, 10) == Part(text="", next_offset=0)


@pytest.mark.parametrize(("lines", "text"), [(0, ""), (1, "c"), (2, "b\nc"), (9, "a\nb\nc")])
def test_the_last_lines_are_given_first(file: Path, lines: int, text: str) -> None:
    file.write_text("a\nb\nc")
    assert tail(file.parent, file.name, None, lines) == Part(text=text, next_offset=5)


def test_a_long_file_is_given_from_a_whole_line_on(file: Path) -> None:
    file.write_text("".join(f"line {number:06d}\n" for number in range(50_000)))
    part = tail(file.parent, file.name, None, 1_000_000)
    assert part.text.startswith("line ")
    assert part.text.endswith("line 049999\n")
    assert len(part.text) <= PART_LIMIT_BYTES


def test_a_cut_file_is_read_from_its_beginning(file: Path) -> None:
    file.write_text("short")
    assert tail(file.parent, file.name, 1000, 10).text == "short"


@given(st.text(alphabet="aé€😀\n", max_size=60), st.lists(st.integers(0, 200), max_size=8))
def test_following_gives_every_character_once_wherever_the_writer_stands(
    tmp_path_factory: pytest.TempPathFactory, text: str, cuts: list[int]
) -> None:
    file = tmp_path_factory.mktemp("tail") / "output.txt"
    content = text.encode()
    seen, offset = "", 0
    for cut in (*sorted(cuts), len(content)):
        file.write_bytes(content[:cut])
        part = tail(file.parent, file.name, offset, 0)
        seen, offset = seen + part.text, part.next_offset
    assert seen == text


def test_bytes_that_are_no_text_are_shown_as_such(file: Path) -> None:
    file.write_bytes(b"\xff\xfeok\xff")
    part = tail(file.parent, file.name, 0, 0)
    assert part.text.startswith("\ufffd\ufffdok")
    assert part.next_offset >= 4
