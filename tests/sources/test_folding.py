"""Folding of redraws and escapes, as a terminal would show them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.sources.attempt.folding import PENDING_LIMIT_BYTES, Folder, clean


def fold(data: bytes, piece: int = 1 << 20) -> list[str]:
    folder, lines = Folder(), []
    for at in range(0, len(data), piece):
        lines += folder.feed(data[at : at + piece]).lines
    return lines + folder.finish().lines


def test_of_a_progress_bar_only_the_last_frame_stays() -> None:
    assert fold(b"start\n\r 0%\r 50%\r100%\nend\n") == ["start", "100%", "end"]


def test_a_frame_that_erases_itself_first_is_a_frame() -> None:
    assert fold("\r\x1b[K1/2 ━━── 1/6\r\x1b[K1/2 ━━━━ 6/6\n".encode()) == ["1/2 ━━━━ 6/6"]


def test_windows_line_ends_and_a_terminal_s_are_line_ends() -> None:
    assert fold(b"one\r\ntwo\r\r\nthree\n") == ["one", "two", "three"]


def test_a_carriage_return_at_the_end_of_a_piece_keeps_the_line() -> None:
    assert fold(b"one\r\ntwo\r\n", piece=4) == ["one", "two"]


def test_lines_that_are_drawn_over_are_taken_back() -> None:
    assert fold(b"bar 1: 0%\nbar 2: 0%\x1b[A\rbar 1: 100%\nbar 2: 100%\n") == ["bar 1: 100%", "bar 2: 100%"]


def test_colours_titles_and_controls_are_removed_and_tabs_stay() -> None:
    text = "\x1b[34m\x1b[1mtrain: \x1b[0mok\x1b]0;a title\x07\ta\x08b\x00\x9b"
    assert clean(text) == "train: ok\tab"


def test_an_escape_that_never_ends_hides_nothing() -> None:
    assert clean("\x1b]0;RuntimeError: boom") == "0;RuntimeError: boom"


def test_invalid_utf8_is_shown_not_lost() -> None:
    assert fold(b"caf\xe9 \xff\n") == ["caf\\xe9 \\xff"]


def test_a_line_without_end_is_broken_into_lines() -> None:
    lines = fold(b"x" * (3 * PENDING_LIMIT_BYTES), piece=50_000)
    assert "".join(lines) == "x" * (3 * PENDING_LIMIT_BYTES)
    assert max(map(len, lines)) <= PENDING_LIMIT_BYTES + 50_000


TERMINAL = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"\x1b[K", b"\x1b[31m", b"abc", b"  ", "━é".encode(), b"\xff", b"10%"])
    | st.binary(max_size=5),
    max_size=30,
).map(b"".join)


@given(TERMINAL, st.integers(1, 7))
def test_the_pieces_do_not_matter(data: bytes, piece: int) -> None:
    # A cursor-up takes back only what has not been handed out, so it is the one thing that depends on the pieces.
    if b"A" not in data and b"F" not in data:
        assert fold(data, piece) == fold(data)


@given(TERMINAL, st.integers(0, 200))
def test_another_folder_goes_on_where_the_first_one_stopped(data: bytes, cut: int) -> None:
    if b"A" in data or b"F" in data:
        return
    first, second = Folder(), Folder()
    lines = first.feed(data[:cut]).lines
    on = len(data[:cut]) - first.unsettled_bytes
    lines = lines + second.feed(data[on:]).lines + second.finish().lines
    assert [line for line in lines if line] == [line for line in fold(data) if line]


@given(st.text(max_size=80))
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    assert not any(ord(character) < 32 and character not in "\t\n" for character in clean(text))
