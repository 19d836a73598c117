"""Every view in a real Chromium, with a daemon that answers: light and dark, wide and on a phone, without a fault."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from browser import CHROMIUM, Browser, Chromium
from long_record import BEGAN_UNIX_S
from served_page import ServedPage, serving_page

from supervisor.control import record_types, types
from supervisor.control.present import gpu_status
from supervisor.core.moments import Moment
from supervisor.core.readings import GpuReading
from tests.view_by_hand import DELIVERED, FREEZE, FakeView, serving

AXE = Path(
    os.environ.get("ROCM_SUPERVISOR_AXE", Path.home() / ".cache/rocm-supervisor/axe-core-4.14.1/package/axe.min.js")
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.waits,
]

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b]0;owned\x07"
VIEWS = {
    "#/": "document.querySelector('.card canvas')",
    "#/training/yolo": "document.querySelectorAll('figure:not([hidden]) canvas').length === 8",
    "#/training/yolo?last=3600": "document.querySelector('.tune canvas')",
    "#/incident/yolo-2": "document.body.innerText.includes('no step for 61 s')",
    "#/compare?of=yolo:1&of=yolo:2&by=epoch": "document.querySelector('figure canvas')",
    "#/gpus?last=40000000": "document.body.innerText.includes('Radeon') && document.querySelector('figure canvas')",
    "#/log/yolo": "document.querySelector('pre').textContent.includes('onerror')",
    "#/alerts": "document.body.innerText.includes('phone')",
}
TUNE = record_types.TuneReport(
    job="yolo",
    state="ended",
    samples_per_s=record_types.BeforeAfterRate(before=49.0, after=422.0),
    adopted=[
        record_types.KnobAdopted(knob="workers", value=16, gain=7.6, low=7.1, high=8.2),
        record_types.KnobAdopted(knob="channels_last", value=True, gain=0.21, low=0.04, high=0.38, remark=MARKUP),
    ],
    refused=[record_types.KnobRefused(knob="threads", value=8, why="gains at most 1.2 %")],
)
JOB = types.JobStatus(
    name="yolo",
    phase="running",
    stage="step",
    attempt=2,
    epoch=6,
    epochs=50,
    step=200_000,
    steps_per_s=18.3,
    loss=0.9,
    flags=[MARKUP],
    reason=MARKUP,
    eta=BEGAN_UNIX_S + 90_000.0,
)


AUDIT = """axe.run({resultTypes: ['violations']}).then(
  found => found.violations.map(violation => [violation.id, violation.nodes[0].html]))"""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> FakeView:
    folder = tmp_path_factory.mktemp("output")
    (folder / "output.txt").write_text(f"epoch 6\n{MARKUP}\n\x1b[31mred\x1b[0m\n", newline="")
    at = Moment(1.0, float(BEGAN_UNIX_S))
    gpu = gpu_status(
        GpuReading(
            at=at, gpu="0000:00:00.0", source="sysfs", name="Radeon", edge_c=71.0, power_w=140.0, power_cap_w=150.0
        )
    )
    phone = types.AlertReceiver(name="phone", state="failing", problem=MARKUP)
    failed = msgspec.structs.replace(DELIVERED, state="failed", error="status 404: no such topic, " + "x" * 40)
    return FakeView(
        folder=folder, jobs=[JOB], gpus=[gpu], history=[FREEZE], receivers=[phone], sent=[failed], tuned=TUNE
    )


@pytest.fixture(scope="module")
def page(view: FakeView, state: Path) -> Iterator[ServedPage]:
    with serving(view) as socket, serving_page(state, socket=socket) as served:
        yield served


@pytest.fixture(scope="module")
def shown(page: ServedPage, chromium: Chromium) -> Iterator[Browser]:
    with chromium.page() as started:
        started.send("Page.setBypassCSP", enabled=False)
        started.open(page.address)
        started.wait_for("document.querySelector('.card')")
        yield started


def show(shown: Browser, view: str) -> None:
    shown.evaluate(f"location.hash = {view!r}")
    shown.wait_for(VIEWS[view])


@pytest.mark.parametrize("view_path", VIEWS)
def test_a_view_shows_text_of_a_training_as_text_and_breaks_no_policy(
    shown: Browser, page: ServedPage, view_path: str
) -> None:
    shown.resize(1200, 900)
    show(shown, view_path)
    assert shown.output() == []
    assert "owned" not in shown.evaluate("document.title")
    assert shown.evaluate("document.querySelectorAll('img, main script, iframe').length") == 0
    assert [url for url in shown.requested() if not url.startswith((page.origin, "about:"))] == []


BLUE = """{const canvas = document.querySelector('.tune canvas');
  const found = new Map();
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < pixels.length; i += 4) {
    const color = `${pixels[i]},${pixels[i + 1]},${pixels[i + 2]}`;
    found.set(color, (found.get(color) || 0) + 1);
  }
  [canvas.width, canvas.getBoundingClientRect().right <= innerWidth, [...found].sort((a, b) => b[1] - a[1])[0][0]]}"""


def test_what_a_tune_came_to_is_drawn_for_the_screen_and_in_words(shown: Browser, view: FakeView) -> None:
    found = []
    for width, scheme in ((1200, "light"), (360, "dark")):
        shown.resize(width, 800, phone=width == 360)
        shown.scheme(scheme)
        shown.evaluate("location.hash = '#/'")
        shown.wait_for("document.querySelector('.card')")
        show(shown, "#/training/yolo?last=3600")
        found.append(shown.evaluate(BLUE))
    shown.resize(1200, 900)
    shown.scheme("light")
    assert found == [[760, True, "255,255,255"], [320, True, "18,23,28"]]
    words = shown.evaluate("document.querySelector('.tune canvas').getAttribute('aria-label')")
    assert "Tune: 49 samples/s before, 422 after (8.61 times as many). " in words
    assert "workers = 16: +760.0 % (+710.0 % to +820.0 %); " in words.replace("\u00a0", " ")
    assert "threads = 8" in shown.evaluate("document.querySelector('.tune table').innerText")


def test_the_log_has_no_escape_sequences_and_can_be_searched(shown: Browser) -> None:
    show(shown, "#/log/yolo")
    assert "\x1b" not in shown.evaluate("document.querySelector('pre').textContent")
    shown.evaluate(
        "{const s = document.getElementById('search'); s.value = 'RED'; s.dispatchEvent(new Event('input'))}"
    )
    assert shown.evaluate("document.querySelector('pre').textContent") == "red"


def test_attempts_are_compared_by_step_epoch_and_time(shown: Browser) -> None:
    for by, unit in (("step", "step"), ("epoch", "epoch"), ("time", "hours")):
        shown.evaluate(f"location.hash = '#/compare?of=yolo:1&of=yolo:2&by={by}'")
        shown.wait_for(f"document.querySelector('figcaption h2')?.textContent === 'Loss by {unit}'")
        shown.wait_for("document.querySelector('.legend').textContent.includes('yolo attempt 2')")


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core could not be fetched by make test")
def test_no_view_has_a_fault_of_accessibility(page: ServedPage, view: FakeView, chromium: Chromium) -> None:
    found = []
    with serving(view) as socket, serving_page(page.state, socket=socket) as own, chromium.page() as shown:
        shown.send("Page.setBypassCSP", enabled=True)
        shown.open(own.address)
        shown.wait_for("document.querySelector('.card')")
        shown.evaluate(AXE.read_text())
        for width in (1200, 360):
            shown.resize(width, 800, phone=width == 360)
            for scheme in ("light", "dark"):
                shown.scheme(scheme)
                for path in VIEWS:
                    show(shown, path)
                    shown.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
                    broken = shown.evaluate(AUDIT)
                    found += [(width, scheme, path, *rule) for rule in broken]
                    if shown.evaluate("document.documentElement.scrollWidth") > width:
                        found.append((width, scheme, path, "is wider than the screen"))
    assert found == []


def test_what_is_wrong_with_a_receiver_is_read_on_a_phone_without_scrolling_sideways(shown: Browser) -> None:
    shown.resize(360, 740, phone=True)
    try:
        show(shown, "#/alerts")
        edges = "Array.from(document.querySelectorAll('main .bad'), each => each.getBoundingClientRect().right)"
        assert [0 < edge <= 360 for edge in shown.evaluate(edges)] == [True, True], "of the receiver, of its alert"
    finally:
        shown.resize(1200, 900)
