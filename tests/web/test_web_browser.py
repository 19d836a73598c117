"""The page in a real Chromium: it draws under its strict policy, asks nobody else, and obeys the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser, browser
from served_page import ServedPage, serving_page

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.waits,
]
CHARTS = "Array.from(document.querySelectorAll('figure:not([hidden]) h3'), h => h.textContent)"


@pytest.fixture(scope="module")
def shown(page: ServedPage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser") / "profile") as started:
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


def test_the_page_fits_a_phone(shown: Browser) -> None:
    shown.resize(360, 740, phone=True)
    try:
        for view, until in (("#/", "document.querySelector('.card')"), ("#/training/yolo", f"{CHARTS}.length === 8")):
            show(shown, view, until)
            assert shown.evaluate("document.documentElement.scrollWidth") <= 360
    finally:
        shown.resize(1200, 900)


def test_without_a_session_the_page_says_what_to_do(page: ServedPage, state: Path, tmp_path: Path) -> None:
    with serving_page(state) as other, browser(tmp_path / "profile") as fresh:
        fresh.open(f"{other.origin}/#a-wrong-token")
        fresh.wait_for("document.querySelector('h1').textContent === 'Sign in'")
        assert "supervisorctl web" in fresh.evaluate("document.body.innerText")
