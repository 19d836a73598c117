"""Values of other programs: within their bounds or unknown, in time that grows with their length alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.foreign_values import (
    COUNT_MAX,
    DEPTH_MAX,
    ITEMS_MAX,
    NAME_CHARS_MAX,
    PATH_CHARS_MAX,
    TEXT_CHARS_MAX,
    as_bounded,
    as_dict,
    as_float,
    as_int,
    as_list,
    as_message,
    as_path,
    as_text,
    read_json,
    read_json_object,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def test_a_whole_number_is_one_within_its_limits() -> None:
    assert [as_int(value, 1, 9) for value in (0, 1, 9, 10, True, 1.0, "1", None, 10**400, -(10**400))] == [
        *(None, 1, 9),
        *(None,) * 7,
    ]


def test_a_float_is_finite_and_within_its_limits() -> None:
    assert as_float(2, 0.0, 2.0) == 2.0
    assert [as_float(value, 0.0) for value in (-0.1, math.nan, math.inf, 10**400, -(10**400), True, "1", None)] == [
        None
    ] * 8


def test_a_name_that_is_too_long_is_none_and_a_message_is_cut() -> None:
    assert (as_text("x" * 9, 8), as_text("", 8), as_text(b"x", 8), as_text("x" * 8, 8)) == (None, None, None, "x" * 8)
    assert (as_message("x" * 9, 8), as_message(3, 8)) == ("x" * 7 + "…", None)
    assert as_message("\ud800 boom") == "? boom"


def test_lists_and_objects_are_bounded() -> None:
    assert len(as_list(list(range(ITEMS_MAX + 5)))) == ITEMS_MAX
    assert as_list({"a": 1}) == []
    assert len(as_dict({str(number): number for number in range(ITEMS_MAX + 5)})) == ITEMS_MAX
    assert as_dict({"x" * (NAME_CHARS_MAX + 1): 1, 3: 4, "a": 1}) == {"a": 1}
    assert as_dict([]) == {}


def test_a_number_that_no_reader_accepts_is_unknown_before_it_is_converted() -> None:
    """A number of n digits takes n * n to convert: a megabyte of them would hold a thread up for half a minute."""
    text = '{"a": %s, "b": -%s, "c": %s.5, "d": 1e999, "e": NaN, "f": -Infinity, "g": 7, "h": 0.5}'
    digits = "9" * 1_000_000
    assert read_json(text % (digits, digits, digits)) == {**dict.fromkeys("abcdef"), "g": 7, "h": 0.5}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1),
        '{"a": 1, "a": 2}',
        '{"x": [{"a": 1, "b": 2, "a": 3}]}',
        "",
        "nonsense",
        "{} {}",
    ],
)
def test_what_is_no_plain_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)
    assert read_json_object(text) is None


def test_only_an_object_is_an_object() -> None:
    assert (read_json_object("[1]"), read_json_object(b'{"a": 1}'), read_json_object(b'{"a": "\xff"}')) == (
        None,
        {"a": 1},
        None,
    )


@given(JSON)
def test_whatever_a_value_is_what_is_kept_of_it_can_be_stored_and_sent(value: object) -> None:
    kept = as_bounded(json.loads(json.dumps(value)))
    assert json.loads(json.dumps(kept, allow_nan=False).encode()) == kept

    def check(value: object) -> None:
        if isinstance(value, int):
            assert abs(value) <= COUNT_MAX
        if isinstance(value, str):
            value.encode("utf-8")
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    check(kept)


def test_a_path_is_one_that_a_file_system_can_have() -> None:
    assert as_path(os.fsdecode(b"/runs/\xff.pt")) == "/runs/\udcff.pt"
    assert [as_path(value) for value in ("/a\ud800.pt", "/a\0b", "", "x" * 4097, 3, None)] == [None] * 6


def test_limits_belong_to_what_is_allowed() -> None:
    assert [as_int(value) for value in (-1, 0, COUNT_MAX, COUNT_MAX + 1)] == [None, 0, COUNT_MAX, None]
    assert [as_float(value, -1.5, 2.5) for value in (-1.6, -1.5, 2.5, 2.6)] == [None, -1.5, 2.5, None]
    assert [as_float(value) for value in (2**1023, 2**1023 + 1, -(2**1023), -(2**1023) - 1)] == [
        2.0**1023,
        None,
        -(2.0**1023),
        None,
    ]
    assert as_float(-1.7e308) == -1.7e308
    assert type(as_float(3)) is float


@pytest.mark.parametrize(
    ("read", "longest"), [(as_text, NAME_CHARS_MAX), (as_path, PATH_CHARS_MAX), (as_message, TEXT_CHARS_MAX)]
)
def test_a_text_has_the_longest_length_of_its_kind(read: Callable[[str], str | None], longest: int) -> None:
    assert read("x" * longest) == "x" * longest
    longer = read("x" * (longest + 1))
    assert longer == (None if read is not as_message else "x" * (longest - 1) + "…")
    assert read("x") == "x"
    assert read("") is None


def test_a_path_has_a_length_of_its_own_where_it_is_given() -> None:
    assert (as_path("abc", 3), as_path("abcd", 3)) == ("abc", None)


def test_the_first_items_and_entries_are_kept_and_others_than_names_left_out() -> None:
    assert as_list([1, 2, 3], 2) == [1, 2]
    assert as_dict({"a": 1, "b": 2, "c": 3}, 2) == {"a": 1, "b": 2}
    assert as_dict({3: 1, "b": 2, "c": 3}, 2) == {"b": 2}, "what is left out is one of the first"
    longest = "x" * NAME_CHARS_MAX
    assert as_dict({longest: 1, "\ud800": 2}) == {longest: 1, "?": 2}


def test_a_value_of_any_kind_is_kept_six_levels_deep() -> None:
    """Each list and each object is a level."""

    def nested(levels: int) -> object:
        value: object = "inside"
        for level in range(levels):
            value = [value] if level % 2 else {"a": value}
        return value

    assert as_bounded(nested(6)) == nested(6)
    assert as_bounded([nested(6)]) == [[{"a": [{"a": [None]}]}]]
    assert as_bounded([[1]], depth=1) == [None]
    assert as_bounded({"a": {"b": 1}}, depth=1) == {"a": None}
    assert as_bounded("x" * (TEXT_CHARS_MAX + 1)) == "x" * (TEXT_CHARS_MAX - 1) + "…"
    values = (None, True, False, COUNT_MAX, COUNT_MAX + 1, -COUNT_MAX, -COUNT_MAX - 1, 0.5, math.nan, "\udc00", b"x")
    kept = (None, True, False, COUNT_MAX, None, -COUNT_MAX, None, 0.5, None, "?", None)
    assert [as_bounded(value) for value in values] == list(kept)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "^nested too deep$"),
        ("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), "^nested too deep$"),
        ('{"a":' * (DEPTH_MAX + 1) + "1" + "}" * (DEPTH_MAX + 1), "^nested too deep$"),
        ('{"a": 1, "a": 2}', "^an object has a duplicate key$"),
    ],
)
def test_json_that_is_refused_names_its_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_json(text)


def test_json_may_be_sixteen_levels_deep() -> None:
    lists, objects = "[" * DEPTH_MAX + "]" * DEPTH_MAX, '{"a":' * DEPTH_MAX + "1" + "}" * DEPTH_MAX
    assert json.dumps(read_json(lists), separators=(",", ":")) == lists
    assert json.dumps(read_json(objects), separators=(",", ":")) == objects
    assert read_json("3") == 3


def test_a_number_of_thirty_two_characters_is_read_and_a_longer_one_is_unknown() -> None:
    digits = "9" * 32
    assert read_json(f"[{digits}, {digits}9, 0.{digits[2:]}, 0.{digits[1:]}]") == [int(digits), None, 1.0, None]


def test_bytes_that_are_no_text_are_read_as_what_they_are() -> None:
    assert read_json(b'["\xc3\xa4"]') == ["ä"]
    with pytest.raises(ValueError, match=r"Invalid .*escape"):
        read_json(b'["\xff"]')
    assert read_json_object('{"a": "\\ud800"}') == {"a": "\ud800"}
