"""The page in a real Firefox: it draws under its strict policy, asks nobody else, obeys the keyboard, fits a phone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from firefox import FIREFOX, Firefox, firefox
from served_page import ServedPage

pytestmark = [
    pytest.mark.skipif(FIREFOX is None, reason="Debian's package firefox-esr is not installed"),
    pytest.mark.xdist_group("firefox"),  # it is started once
    pytest.mark.waits,
]
CHARTS = "document.querySelectorAll('figure:not([hidden]) canvas').length"
RIGHT, PLUS, ZERO = "\ue014", "+", "0"


@pytest.fixture(scope="module")
def shown(page: ServedPage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with firefox(tmp_path_factory.mktemp("browser") / "profile") as started:
        started.open(page.address)
        started.wait_for("document.querySelector('.card canvas')")
        yield started


def show(shown: Firefox, view: str, until: str) -> None:
    shown.run(f"location.hash = '{view}'")
    shown.wait_for(until)


def test_a_training_is_drawn_and_nothing_is_requested_elsewhere(shown: Firefox, page: ServedPage) -> None:
    assert shown.evaluate("location.hash") == "#/"
    show(shown, "#/training/yolo", f"{CHARTS} === 8")
    shown.wait_for("document.querySelector('.plot').getAttribute('aria-label').includes(' fell from ')")
    urls = shown.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [url for url in urls if not url.startswith(page.origin)] == []
    assert shown.complaints() == []


def test_every_other_view_is_shown(shown: Firefox) -> None:
    for view, until in (
        ("#/compare?of=yolo:1&of=yolo:2&by=step", "document.querySelector('figure canvas')"),
        ("#/gpus?last=40000000", "document.querySelector('figure canvas')"),
        ("#/alerts", "document.querySelector('h1').textContent === 'Alerts'"),
    ):
        show(shown, view, until)
    assert shown.complaints() == []


def test_keys_read_the_values_and_zoom(shown: Firefox) -> None:
    show(shown, "#/training/yolo", f"{CHARTS} === 8")
    shown.run("document.querySelector('.plot').focus()")
    shown.press(RIGHT)
    shown.wait_for("document.getElementById('said').textContent.startsWith('Loss: ')")
    shown.press(PLUS)
    shown.wait_for("location.hash.includes('from=')")
    shown.press(ZERO)
    shown.wait_for("location.hash === '#/training/yolo'")


def test_the_page_fits_a_narrow_window(shown: Firefox) -> None:
    show(shown, "#/training/yolo", f"{CHARTS} === 8")
    shown.resize(360, 800)  # Firefox makes no window as narrow
    shown.wait_for("innerWidth < 600")
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_fault_of_the_page_and_a_style_against_its_policy_are_seen(shown: Firefox) -> None:
    shown.run("document.body.setAttribute('style', 'color: red')")
    shown.run("setTimeout(() => { throw new Error('planted') })")
    shown.wait_until(lambda: len(shown.complaints()) == 2)
    style, planted = shown.complaints()
    assert "Content-Security-Policy" in style
    assert "planted" in planted
