"""The engine of the fault tables: what it takes, what it refuses with which words, and which row wins."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.findings import FaultClass, FaultSeverity
from supervisor.sources.faults.kernel_table import kernel_grammar
from supervisor.sources.faults.pasted_log import findings_in
from supervisor.sources.faults.phrases import Phrases
from supervisor.sources.faults.prefilter import EDGE, needle_of, word_of, words_in
from supervisor.sources.faults.table import GrammarError, parse
from supervisor.sources.kernel.log_lines import log_line
from tests.rigs.row_examples import unproven

HEAD = """
kind = "kernel"
[remedies]
restart = "start again"
[speakers]
amd = '^amdgpu: '
[classes.gpu_hang]
event = "card"
rank = 1
[classes.gpu_reset]
event = "card"
rank = 2
within_s = 60
[codes.xid]
13 = { what = "Graphics exception", remedy = "look at the program", severity = "warn" }
79 = { what = "Fallen off the bus", remedy = "@restart" }
"""
ROW = {
    "class": '"gpu_hang"',
    "severity": '"fatal"',
    "speaker": '"amd"',
    "pattern": "'ring \\S+ timeout'",
    "device": '"gpu"',
    "remedy": '"@restart"',
    "source": '"amdgpu_job.c"',
    "examples": "['amdgpu: ring gfx timeout']",
}
RESET = {
    **ROW, "class": '"gpu_reset"', "pattern": "'GPU reset begin'", "examples": "['amdgpu: GPU reset begin!']"
}  # fmt: skip
XID = {
    **ROW, "class": '"xid"', "speaker": "'amd'", "pattern": "'Xid \\(PCI:(?P<pci>[0-9a-fA-F:.]+)\\): (?P<code>\\d+)'",
    "codes": '"xid"', "examples": "['amdgpu: Xid (PCI:0000:9b:00): 79']",
}  # fmt: skip


def table(*rows: dict[str, str]) -> str:
    return HEAD + "".join("[[row]]\n" + "".join(f"{key} = {value}\n" for key, value in row.items()) for row in rows)


def test_a_row_reports_class_severity_remedy_and_source() -> None:
    grammar = parse(table(ROW))
    found = grammar.match("amdgpu: ring comp_1.0.0 timeout, signaled seq=1")
    assert found is not None
    assert (found.fault, found.severity) == (FaultClass.GPU_HANG, FaultSeverity.FATAL)
    assert (found.remedy, found.row.source) == ("start again", "amdgpu_job.c")
    assert grammar.match("python: amdgpu: ring comp_1.0.0 timeout") is None
    assert unproven(grammar) == []


def test_the_first_row_that_fits_wins() -> None:
    soft = {**ROW, "severity": '"warn"', "pattern": "'ring \\S+ timeout, but soft recovered'"}
    soft["examples"] = "['amdgpu: ring gfx timeout, but soft recovered']"
    line = "amdgpu: ring gfx timeout, but soft recovered"
    for rows, severity in (((soft, ROW), FaultSeverity.WARN), ((ROW, soft), FaultSeverity.FATAL)):
        found = parse(table(*rows)).match(line)
        assert found is not None
        assert found.severity is severity
    (wrong,) = unproven(parse(table(ROW, soft)))
    assert wrong.startswith("row 2 (ring \\S+ timeout, but soft recovered): the example is matched by row 1")


def test_a_needle_without_an_example_is_reported() -> None:
    (wrong,) = unproven(parse(table({**ROW, "needles": "[' timeout', '|hang|']"})))
    assert wrong.endswith("no example contains the needle: hang")


def test_an_example_that_no_row_fits_is_reported() -> None:
    (wrong,) = unproven(parse(table({**ROW, "examples": "['amdgpu: fine']"})))
    assert "is matched by no row: amdgpu: fine" in wrong


def test_a_number_means_what_its_table_says() -> None:
    grammar = parse(table(XID))
    known, fatal, unknown = (grammar.match(f"amdgpu: Xid (PCI:0000:9B:00): {code}, x") for code in (13, 79, 9999))
    assert known is not None
    assert (known.what, known.severity, known.remedy) == (
        "Graphics exception", FaultSeverity.WARN, "look at the program",
    )  # fmt: skip
    assert known.pci == "0000:9b:00.0"
    assert fatal is not None
    assert (fatal.severity, fatal.remedy) == (FaultSeverity.FATAL, "start again")
    assert unknown is not None
    assert (unknown.what, unknown.severity) == (None, FaultSeverity.FATAL)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class": '"nonsense"'}, "row 1 (ring \\S+ timeout): 'nonsense' is not a fault class"),
        ({"severity": '"bad"'}, "severity 'bad' must be one of info, warn, fatal"),
        ({"remedy": '"@pray"'}, "remedy 'pray' is not defined; defined: restart"),
        ({"speaker": '"nv"'}, "speaker 'nv' is not defined; defined: amd"),
        ({"device": '"moon"'}, "device 'moon' must be one of gpu, pci"),
        ({"source": '""'}, "source is missing"),
        ({"patern": '"x"'}, "unknown key 'patern'"),
        ({"pattern": "'a|b'"}, "no literal of 4 characters is in every matching line; add needles"),
    ],
)
def test_a_wrong_row_is_named_with_its_fault(change: dict[str, str], words: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(words)):
        parse(table({**ROW, **change}))


def test_a_pattern_that_is_no_expression_is_reported() -> None:
    (wrong,) = unproven(parse(table({**ROW, "pattern": "'ring timeout(?P<x'", "needles": "['ring timeout']"})))
    assert "row 1" in wrong
    assert "pattern: " in wrong


@pytest.mark.parametrize(
    ("pattern", "needle", "word"),
    [
        (r"ring \S+ timeout", " timeout", None),
        (r"ring \S+ timeout\b", " timeout", "timeout"),
        (r"^GPU reset\(\d+\) failed", "GPU reset(", "reset"),
        (r"(?:one|other) thing done", " thing done", "thing"),
        (r"colou?r of it", "r of it", "of"),
        (r"[|(] after it [)\]x]", " after it ", "after"),
        (r"a{2,3}bcd", "bcd", None),
        (r"one|other", None, None),
        (r"\d+", None, None),
        (r"fo+bar", "bar", None),
    ],
)
def test_a_needle_is_in_every_line_that_the_pattern_fits(pattern: str, needle: str | None, word: str | None) -> None:
    found = needle_of(pattern)
    assert (found and found.strip(EDGE)) == needle
    assert (word_of(found) if found else None) == word


WORDED = r"^GPU reset\(\d+\) (?:end|begin)? ?with ret = -[0-9]{1,3}!*"


@given(st.from_regex(WORDED))
def test_no_fitting_line_lacks_the_needle_or_its_word(line: str) -> None:
    needle = needle_of(WORDED)
    assert needle is not None
    assert needle.strip(EDGE) in line
    word = word_of(needle)
    assert word is not None
    assert word.encode() in words_in(line)


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["a.b", "not a word", "caf\u00e9s", "x\u00a0y", "_1"])).map(" ".join)
)
def test_the_words_of_a_text_are_its_runs_of_letters_whatever_else_is_in_it(text: str) -> None:
    bare = "".join(char if char.isalnum() or char == "_" or ord(char) > 127 else " " for char in text)
    assert words_in(text) == [word.encode("utf-8", "surrogatepass") for word in bare.split()]


REFUSED = (
    "mount",
    "re-?mounted",
    r"\bno errors?\b",
    r"\b0 (?:\w+ ){0,3}errors?\b",
    ": (?:table|init): ",
    "errors=",
    r"DM(?:CU|B)\b",
)
TEXTS = ("x", " ", "mounted", "Re-Mounted", " NO error ", "0 of errors", ": Init: ", "ERRORS=", "dmcub", "amount")


@given(st.lists(st.sampled_from(TEXTS)).map("".join))
def test_a_phrase_is_found_by_its_literal_wherever_its_expression_is(text: str) -> None:
    """Literals that overlap, and ones of which one begins another, hide none."""
    for number in range(1, len(REFUSED) + 1):
        known = re.search("|".join(REFUSED[:number]), text, re.IGNORECASE | re.ASCII)
        assert Phrases(REFUSED[:number]).are_in(text) == (known is not None)


def test_a_phrase_without_a_literal_is_refused_with_its_row() -> None:
    with pytest.raises(GrammarError, match=r"shape 2 .*unless: no literal .*a\|b"):
        parse(shaped(ROW).replace("'will be reset'", "'will be reset', 'a|b'"))


def test_every_needle_of_the_table_of_kernel_faults_holds_a_whole_word() -> None:
    """So that the words of a line are all that has to be looked up."""
    assert kernel_grammar().pieces == ()


LINE = "amdgpu: ring gfx timeout"


@pytest.mark.parametrize(
    ("prefix", "at_s"),
    [
        ("", None),
        ("[ 5334.652667] ", 5334.652667),
        ("[76466.463156] [ T179892] ", 76466.463156),
        ("[   32.298491][  T896] ", 32.298491),
        ("[    2.304006] kernel: ", 2.304006),
        ("[  240.] ", 240.0),
        ("2025 Jul  2 06:56:57.5 host ERR kernel: ", 25017.5),
        ("Sat Jan  2 08:14:38 2021 kern.err kernel: ", 29678.0),
        ("10月 21 21:38:58 host kernel: ", 77938.0),
        ("[    2.304006] host kernel: ", 2.304006),
        ("[  +0.000844] ", None),
        ("[Sat Nov 21 03:00:15 2026] ", "some"),
        ("2026-11-21T03:00:15,652667+00:00 ", "some"),
        ("2025-01-06T14:37:38+0100 archdesktop kernel: ", "some"),
        ("2025-01-06T14:37:38.123456+01:00 archdesktop kernel: [ 12.5] ", "some"),
        ("Mon 2025-01-06 14:37:38 CET archdesktop kernel: ", "some"),
        ("kern  :err   : [ 5334.652667] ", 5334.652667),
        ("kern  :crit  : [  424.414068] [   T5607] ", 424.414068),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ", "some"),
        ("Jan 06 14:37:38 archdesktop kernel: ", 52658.0),
        ("Jan  6 14:37:38 archdesktop kernel: [ 12.5] ", 52658.0),
        ("Jan 15 00:53:02 kernel: ", 3182.0),
        ("kvě 25 10:11:12 cz kernel: ", 36672.0),
        ("Jan 02 21:35:19  kernel: ", 77719.0),
        ("Dec 16 00:32:40 [kernel] [529658.719358][T25609] ", 1960.0),
        ("13:35:43  ", 48943.0),
        ("<6>[    2.608284] ", 2.608284),
        ("4,360,5334652667,-;", 5334.652667),
        ("4,360,5334652667,-,caller=T123;", 5334.652667),
        ("kernel: ", None),
        ("> [ 12.5] ", 12.5),
        ("[2026-09-10T01:28:40.861261Z ERROR vm_console] [   60.892060] ", 60.89206),
    ],
)
def test_the_prefixes_of_every_tool_come_off(prefix: str, at_s: float | str | None) -> None:
    line = log_line(prefix + LINE + "\n")
    assert (line.message, line.user) == (LINE, False)
    if at_s == "some":
        assert line.at_s is not None
    else:
        assert line.at_s == at_s


def test_lines_of_json_are_read() -> None:
    assert log_line('   "msg": "amdgpu: ring gfx timeout"').message == LINE
    assert log_line('{"MESSAGE":"amdgpu: ring gfx timeout","PRIORITY":"3"}').message == LINE


def test_a_line_of_a_program_is_known_as_one() -> None:
    line = log_line("Jan 06 14:37:39 host /usr/lib/gdm-wayland-session[4553]: amdgpu: ring gfx timeout")
    assert (line.message, line.user) == (LINE, True)
    assert list(findings_in(["Jan 06 14:37:39 host python[4553]: " + LINE], parse(table(ROW)))) == []


def test_lines_of_one_event_become_one_finding_with_the_weightiest_class() -> None:
    grammar = parse(table(ROW, RESET))
    log = ["[ 10.0] usb 1-1: new device", "[ 12.0] amdgpu: ring gfx timeout", "[ 20.0] amdgpu: GPU reset begin!"]
    (finding,) = findings_in(log, grammar)
    assert (finding.fault, finding.line_number, finding.lines) == (FaultClass.GPU_RESET, 2, 2)
    assert finding.line == LINE
    later = [*log, "[ 500.0] amdgpu: ring gfx timeout"]
    assert [item.line_number for item in findings_in(later, grammar)] == [2, 4]


def test_two_gpus_are_two_events() -> None:
    either = {**ROW, "speaker": "'any'", "examples": "['amdgpu 0000:0a:00.0: ring gfx timeout']"}
    grammar = parse(table(either).replace("amd = '^amdgpu: '", "amd = '^amdgpu: '\nany = '^amdgpu [0-9a-f:.]+: '"))
    log = [f"[ 1.0] amdgpu 0000:0{card}:00.0: ring gfx timeout" for card in "aba"]
    assert [(item.device, item.lines) for item in findings_in(log, grammar)] == [
        ("0000:0a:00.0", 2),
        ("0000:0b:00.0", 1),
    ]


@given(st.text(max_size=200))
def test_no_line_makes_the_prefixes_raise(text: str) -> None:
    assert log_line(text).message in (text.rstrip("\r\n"), log_line(text).message)


SHAPE = {
    "class": '"gpu_hang"', "severity": '"warn"', "speaker": '"amd"', "about": "'\\b(?:engine|GPU)\\b'",
    "trouble": '"bad"', "unless": '["well"]', "device": '"gpu"', "remedy": '"@restart"', "source": '"amdgpu_vcn.c"',
    "examples": "['amdgpu: engine 3 is stuck']",
}  # fmt: skip
WORDS = '[words]\nbad = ["stuck", "not responding"]\n[phrases]\nwell = [\'will be reset\']\n'


def shaped(*rows: dict[str, str], shape: dict[str, str] = SHAPE) -> str:
    return table(*rows) + WORDS + "[[shape]]\n" + "".join(f"{key} = {value}\n" for key, value in shape.items())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("amdgpu: engine 3 is stuck", True),
        ("amdgpu: the Engine is NOT RESPONDING!", True),
        ("amdgpu: engine 3 is stuck and will be reset", False),
        ("amdgpu: fan is stuck", False),
        ("amdgpu: engine 3 is started", False),
        ("amdgpu: engine 3 is unstuckable", False),
        ("python: amdgpu: engine 3 is stuck", False),
    ],
)
def test_a_shape_needs_its_speaker_an_object_and_a_word_of_trouble(line: str, expected: bool) -> None:
    found = parse(shaped(ROW)).match(line)
    assert (found is not None) is expected


def test_a_row_goes_before_a_shape_wherever_the_shape_stands() -> None:
    grammar = parse(shaped({**ROW, "pattern": "'GPU engine is stuck'", "examples": "['amdgpu: GPU engine is stuck']"}))
    assert unproven(grammar) == []
    row, shape = (grammar.match(f"amdgpu: {words} is stuck") for words in ("GPU engine", "engine 3"))
    assert row is not None
    assert shape is not None
    assert (row.severity, shape.severity) == (FaultSeverity.FATAL, FaultSeverity.WARN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trouble": '"none"'}, "trouble 'none' is not defined; defined: bad"),
        ({"unless": '["ill"]'}, "unless 'ill' is not defined; defined: well"),
        ({"pattern": '"x"'}, "unknown key 'pattern'"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused_by_its_place(change: dict[str, str], words: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(words)) as refused:
        parse(shaped(ROW, shape={**SHAPE, **change}))
    assert str(refused.value).startswith("shape 2 (")


def test_a_row_names_the_event_that_a_shape_began_and_a_shape_renames_nothing() -> None:
    grammar = parse(shaped(ROW, RESET))
    (item,) = findings_in(
        ["amdgpu: engine 3 is stuck", "amdgpu: GPU reset begin!", "amdgpu: engine 4 is stuck"], grammar
    )
    assert (item.fault, item.severity, item.lines) == (FaultClass.GPU_RESET, FaultSeverity.FATAL, 3)
