"""The page in a real Chromium: it draws under its strict policy, asks nobody else, and obeys the keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, Chromium
from served_page import ServedPage, serving_page

import supervisor.web

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.waits,
]
STATIC = Path(supervisor.web.__file__).parent / "static"
NEWER = (
    r"\.(at|findLast|findLastIndex|toSorted|toReversed|toSpliced|with|hasIndices|isWellFormed)\(",
    r"\b(structuredClone|Object\.(hasOwn|groupBy)|Promise\.(withResolvers|try)|AbortSignal\.(timeout|any)|URL\.canParse)\(",
    r"\bstatic\s*\{|\bthis\.#|^\s+#\w+|^\s+static\b|^(const .*= )?await\b|/[gimsuy]*[dv][gimsuy]*\.test",
)
"""Of ECMAScript 2022 and later, and what browsers got with it."""
CUT_HEADS = """[...document.querySelectorAll('th')].map(head => {
  const words = document.createRange();
  words.selectNodeContents(head);
  return [head.textContent, words.getClientRects().length];
}).filter(([text, lines]) => lines > text.split(' ').length).map(([text]) => text)"""
"""Heads of tables that take more lines than they have words."""
CHARTS = "Array.from(document.querySelectorAll('figure:not([hidden]) h3'), h => h.textContent)"


@pytest.fixture(scope="module")
def shown(page: ServedPage, chromium: Chromium) -> Iterator[Browser]:
    with chromium.page() as started:
        started.resize(1200, 900)
        started.open(page.address)
        started.wait_for("document.querySelector('.card canvas')")
        yield started


def show(shown: Browser, view: str, until: str) -> None:
    shown.evaluate(f"location.hash = '{view}'")
    shown.wait_for(until)


def test_the_token_is_gone_from_the_address_once_it_was_used(shown: Browser) -> None:
    assert shown.evaluate("location.hash") == "#/"


def test_a_training_is_drawn_and_nothing_is_requested_elsewhere(shown: Browser, page: ServedPage) -> None:
    show(shown, "#/training/yolo", f"{CHARTS}.length === 8")
    shown.wait_for("document.querySelector('.account')")
    assert shown.evaluate(CHARTS) == [
        "Loss", "Pace", "Data wait", "Learning rate", "Gradient norm", "Memory", "Temperature", "Power",
    ]  # fmt: skip
    assert "gpu_hang" in shown.evaluate("document.body.innerText")
    elsewhere = [url for url in shown.requested() if not url.startswith(page.origin) and url != "about:blank"]
    assert elsewhere == []
    assert shown.output() == []


def test_a_time_account_that_cannot_be_had_says_why(shown: Browser) -> None:
    show(shown, "#/training/none", "document.querySelector('main').textContent.includes('Being read from the record')")
    shown.wait_for("document.querySelector('main').textContent.includes('Not available: ')")
    assert "none" in shown.evaluate("document.querySelector('main .bad').textContent")


def test_a_chart_says_what_it_shows_and_has_a_table(shown: Browser) -> None:
    show(shown, "#/training/yolo", "document.querySelector('figure canvas')")
    shown.wait_for("document.querySelector('.plot').getAttribute('aria-label').includes('1 incident')")
    sentence = shown.evaluate("document.querySelector('.plot').getAttribute('aria-label')")
    assert sentence.startswith("Loss: ")
    assert " fell from " in sentence
    shown.evaluate("document.querySelector('figure details').open = true")
    shown.wait_for("document.querySelectorAll('figure tbody tr').length > 20")
    assert shown.evaluate("document.querySelectorAll('figure tbody tr').length") <= 25


def test_keys_read_the_values_and_zoom(shown: Browser) -> None:
    show(shown, "#/training/yolo", "document.querySelector('figure canvas')")
    shown.evaluate("document.querySelector('.plot').focus()")
    for name in ("End", "ArrowLeft"):
        shown.send("Input.dispatchKeyEvent", type="keyDown", key=name)
    shown.wait_for("document.getElementById('said').textContent.startsWith('Loss: ')")
    shown.send("Input.dispatchKeyEvent", type="keyDown", key="+", text="+")
    shown.wait_for("location.hash.includes('from=')")
    shown.send("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
    shown.wait_for("location.hash === '#/training/yolo'")


def test_a_browser_that_is_too_old_for_the_page_reads_which_it_needs(page: ServedPage, chromium: Chromium) -> None:
    with chromium.page() as old:
        old.send("Network.setBlockedURLs", urls=["*page.js*"])  # as where its syntax is not known
        old.open(page.address)
        old.wait_for("getComputedStyle(document.querySelector('.late')).visibility === 'visible'")
        assert "needs a browser since the end of 2020" in old.evaluate("document.querySelector('main').innerText")


def test_the_module_uses_nothing_newer_than_what_it_asks_for() -> None:
    source = (STATIC / "page.js").read_text()
    assert [name for name in NEWER if re.search(name, source)] == []


def test_the_page_fits_a_phone(shown: Browser) -> None:
    shown.resize(360, 740, phone=True)
    try:
        for view, until in (("#/", "document.querySelector('.card')"), ("#/training/yolo", f"{CHARTS}.length === 8")):
            show(shown, view, until)
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360
        shown.wait_for("document.querySelector('main').textContent.includes('how it ended')")
        assert shown.evaluate(CUT_HEADS) == [], "a table scrolls in its own frame; its words are not cut"
    finally:
        shown.resize(1200, 900)


def test_without_a_session_the_page_says_what_to_do(page: ServedPage, state: Path, chromium: Chromium) -> None:
    with serving_page(state) as other, chromium.page() as fresh:
        fresh.open(f"{other.origin}/#a-wrong-token")
        fresh.wait_for("document.querySelector('h1').textContent === 'Sign in'")
        assert "supervisorctl web" in fresh.evaluate("document.body.innerText")


def test_a_duration_is_rounded_before_it_is_cut_into_parts(shown: Browser) -> None:
    source = (STATIC / "page.js").read_text()
    start, end = source.index("const known ="), source.index("const GOOD =")
    words = shown.evaluate(
        f"(() => {{ {source[start:end]}; return [59, 299.7, 3599.6, 172769, 172770, 3e7].map(duration) }})()"
    )
    assert words == ["59 s", "5 min 0 s", "1 h 0 min", "47 h 59 min", "2 d 0 h", "347 d 5 h"]
