"""No string from a job, the kernel or the network acts on the terminal, and none of its words is lost."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.sanitize import one_line, sanitize, sanitized


@pytest.mark.parametrize(
    ("hostile", "harmless"),
    [
        ("plain text, ümläut, 熱, 🔥", "plain text, ümläut, 熱, 🔥"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a\nb"),
        ("over\rwritten", "overwritten"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]52;c;cm0gLXJmIC8=\x1b\\text", "text"),
        ("\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0;2;0;0;0\x1b\\text", "text"),
        ("\x1b_apc\x1b\\text", "text"),
        ("\x9b31mred", "red"),
        ("\x9d0;title\x9ctext", "text"),
        ("\x1b(0lqqk\x1b(B", "lqqk"),
        ("\x1bc reset", " reset"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("bell\x07 back\x08 del\x7f nul\x00", "bell back del nul"),
        ("user\u202enimda", "usernimda"),
        ("\u2066isolate\u2069 \u200fmark", "isolate mark"),
        ("two\u2028lines\u2029", "twolines"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("tag \U000e0041", "tag "),
    ],
)
def test_what_a_terminal_acts_on_is_taken_out(hostile: str, harmless: str) -> None:
    assert sanitize(hostile) == harmless


def test_an_unfinished_sequence_swallows_no_more_than_itself() -> None:
    assert sanitize("\x1b]0;never ended\x1b[0mtext") == "text"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert sanitize("x" * 5000, 10) == "xxxxxxxxx…"


def test_a_cell_is_one_line() -> None:
    assert one_line("a\n  b\t\tc\u2028d\x1b[5A") == "a b cd"


def test_strings_deep_in_an_answer_are_made_harmless() -> None:
    assert sanitized({"a": ["\x1b[31mx", {"b": "\x07y"}], "n": 1.5, "u": None}) == {
        "a": ["x", {"b": "y"}],
        "n": 1.5,
        "u": None,
    }


@given(st.text(alphabet=st.characters() | st.sampled_from("\x1b\x9b\x9d\x90[];\\m0\x07\u202e"), max_size=60))
def test_nothing_harmful_ever_comes_out(text: str) -> None:
    clean = sanitize(text)
    assert not any(unicodedata.category(item) in ("Cc", "Cs") and item not in "\t\n" for item in clean)
    assert not set(clean) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")
    assert sanitize(clean) == clean


@given(st.text(alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=80))
def test_printable_ascii_is_left_as_it_is(text: str) -> None:
    assert sanitize(text) == text
