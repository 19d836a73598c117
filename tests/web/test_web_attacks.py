"""Pages of an attacker in the browser of somebody who is signed in, and what can be stolen from that browser."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import CHROMIUM, Browser, Chromium, browser
from served_page import ServedPage

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed"),
    pytest.mark.xdist_group("chromium"),
    pytest.mark.waits,
]
RULES = "MAP evil.example 127.0.0.1, MAP rebound.example 127.0.0.1"
ATTACK = """(async () => {
  const base = %s, read = [], later = ms => new Promise(done => setTimeout(done, ms));
  const attempt = async call => {
    try { const got = await call(); if (got && got.ok) read.push(await got.text()); } catch (error) {} };
  for (const path of ['/api/overview', '/api/trainings/yolo/steps', '/metrics', '/']) {
    await attempt(() => fetch(base + path, {credentials: 'include'}));
    await attempt(() => fetch(base + path, {credentials: 'include', mode: 'no-cors'}));
    await attempt(() => fetch(base + path, {credentials: 'include', headers: {'X-Page-Key': 'x'}}));
    const frame = document.createElement('iframe'); frame.src = base + path; document.body.append(frame);
    await later(100);
    try { if (frame.contentDocument.body.innerText.includes('yolo')) read.push('a frame'); } catch (error) {}
    const script = document.createElement('script'); script.src = base + path; document.body.append(script);
    new Image().src = base + path;
  }
  const post = {method: 'POST', mode: 'no-cors', credentials: 'include', body: '{"token": "x"}'};
  await attempt(() => fetch(base + '/session', post));
  const opened = window.open(base + '/');
  await later(500);
  try { if (opened && opened.document.body) read.push('a window'); } catch (error) {}
  return JSON.stringify([read, Object.keys(localStorage), document.cookie]);
})()"""


class Thief:
    """An attacker's server on another port of the same host; `cookies` are those that browsers sent it."""

    def __init__(self) -> None:
        cookies: list[str] = []
        self.cookies = cookies

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>attacker</title><body>a harmless page</body>")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def thief() -> Iterator[Thief]:
    site = Thief()
    yield site
    site.close()


@pytest.fixture(scope="module")
def victim(page: ServedPage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that is signed in."""
    with browser(tmp_path_factory.mktemp("victim") / "profile", RULES) as started:
        started.open(page.address)
        started.wait_for("document.querySelector('.card')")
        yield started


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_reads_nothing(victim: Browser, page: ServedPage, thief: Thief, host: str) -> None:
    log = page.state / "page.log"
    before = log.read_text().count("web.foreign_request")
    victim.open(f"http://{host}:{thief.port}/")
    read, stored, _ = json.loads(victim.evaluate(ATTACK % json.dumps(page.origin)))
    assert read == []
    assert stored == []
    assert log.read_text().count("web.foreign_request") >= before + 10, "the requests did not come to the server"


def test_under_a_rebound_name_the_page_is_nobody(victim: Browser, page: ServedPage) -> None:
    victim.open(f"http://rebound.example:{page.port}/")
    assert "another host" in victim.evaluate("document.body.innerText")
    for path in ("/api/overview", "/metrics", "/"):
        assert victim.evaluate(f"fetch('{path}').then(answer => answer.status)") == 403


def test_a_cookie_that_another_port_collected_opens_nothing(victim: Browser, page: ServedPage, thief: Thief) -> None:
    thief.cookies.clear()
    victim.open(f"http://127.0.0.1:{thief.port}/")
    stolen = next(cookie for cookie in thief.cookies if f"rocm_supervisor_{page.port}=" in cookie)
    for path in ("/api/overview", "/api/trainings/yolo", "/metrics"):
        for more in ({}, {"X-Page-Key": ""}, {"X-Page-Key": stolen.partition("=")[2]}):
            assert page.ask(path, headers={"Cookie": stolen, **more}).status == 401


@pytest.mark.usefixtures("victim")
def test_an_address_that_was_used_lets_nobody_else_in(page: ServedPage, chromium: Chromium) -> None:
    with chromium.page() as other:
        other.open(page.address)
        other.wait_for("document.querySelector('h1').textContent === 'Sign in'")
        assert other.evaluate("localStorage.length") == 0


def test_after_all_of_it_the_session_is_still_good(victim: Browser, page: ServedPage) -> None:
    victim.open(f"{page.origin}/")
    victim.wait_for("document.querySelector('.card')")
