"""What a server of the page answers, asked over HTTP by a client that follows no rule of a browser."""

from __future__ import annotations

import hashlib
import http.client
import re
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from served_page import ServedPage, serving_page

import supervisor.web
from supervisor.core.reports.timeline import Use
from supervisor.web.serve import CONNECTIONS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("page")]  # it is started once


@pytest.fixture(scope="module")
def signed_in(page: ServedPage) -> ServedPage:
    assert page.sign_in().status == 200
    return page


def read(page: ServedPage, path: str) -> Any:
    answer = page.get(path)
    assert answer.status == 200, answer.body
    return answer.json


def test_the_page_itself_is_all_that_is_served_without_a_session(page: ServedPage) -> None:
    index = page.ask("/").body.decode()
    files = re.findall(r'"(/static/[^"]+)"', index)
    assert len(files) == 5
    assert [page.ask(file).status for file in files] == [200] * 5
    routes = (
        "/api/overview",
        "/api/trainings/yolo",
        "/api/trainings/yolo/steps",
        "/api/trainings/yolo/tune.png",
        "/api/gpus",
        "/api/alerts",
        "/metrics",
    )
    assert {route: page.ask(route).status for route in routes} == dict.fromkeys(routes, 401)


def test_a_token_is_good_once(page: ServedPage, signed_in: ServedPage) -> None:
    assert page.ask("/session", "POST", f'{{"token": "{page.token}"}}'.encode()).status == 401
    assert signed_in.get("/api/overview").status == 200


def test_half_of_a_session_is_none(signed_in: ServedPage) -> None:
    for name in ("Cookie", "X-Page-Key"):
        assert signed_in.ask("/api/overview", headers={name: signed_in.secrets[name]}).status == 401


def test_the_cookie_is_of_this_port_and_out_of_reach_of_scripts(state: Path) -> None:
    with serving_page(state) as page:
        cookie = page.sign_in().headers["set-cookie"]
        assert cookie.startswith(f"rocm_supervisor_{page.port}=")
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "localhost.evil.example:{port}"},
        {"Host": "127.0.0.1:{port}@evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ],
)
def test_a_request_of_another_site_is_refused(signed_in: ServedPage, headers: Mapping[str, str]) -> None:
    given = {name: value.format(port=signed_in.port) for name, value in headers.items()}
    for path in ("/", "/api/overview", "/metrics"):
        assert signed_in.ask(path, headers={**signed_in.secrets, **given}).status == 403


def test_a_link_on_another_site_may_lead_to_the_page_and_no_further(signed_in: ServedPage) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert signed_in.ask("/", headers=link).status == 200
    assert signed_in.ask("/api/overview", headers={**signed_in.secrets, **link}).status == 403


@pytest.mark.parametrize(
    "path",
    ["/static/../../../etc/passwd", "/static/%2e%2e/%2e%2e/page.js", "//etc/passwd", "/static//etc/passwd", "/..",
     "/static/page.js",
     "/api/trainings/..%2f..%2fetc/log", "/static/%00", "/api/incidents/..%2f..%2f..%2fetc%2fpasswd"],
)  # fmt: skip
def test_no_path_leads_to_a_file_that_is_not_of_the_page(signed_in: ServedPage, path: str) -> None:
    answer = signed_in.get(path)
    assert answer.status in (400, 404), answer.body
    assert b"root:" not in answer.body


def test_nothing_can_be_changed(signed_in: ServedPage) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ("/", "/api/overview", "/api/trainings/yolo", "/metrics"):
            assert signed_in.ask(path, method, b"{}", signed_in.secrets).status == 405


def test_every_answer_has_the_strict_policy(signed_in: ServedPage) -> None:
    for answer in (
        signed_in.ask("/"),
        signed_in.get("/api/overview"),
        signed_in.ask("/none"),
        signed_in.ask("/", headers={"Host": "x"}),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_record_is_shown_while_no_daemon_runs(signed_in: ServedPage) -> None:
    overview = read(signed_in, "/api/overview")
    assert [training["name"] for training in overview["trainings"]] == ["yolo"]
    assert "no daemon" in overview["problem"]
    training = read(signed_in, "/api/trainings/yolo")
    assert [incident["fault"] for incident in training["incidents"]] == ["gpu_hang"]
    assert [attempt["attempt"] for attempt in training["attempts"]] == [1, 2]


def test_a_window_is_answered_in_its_own_resolution(signed_in: ServedPage) -> None:
    everything = read(signed_in, "/api/trainings/yolo/steps?points=100")
    middle = everything["since"] + 3600
    window = read(signed_in, f"/api/trainings/yolo/steps?points=100&from={middle}&to={middle + 600}")
    assert everything["width_s"] == 300  # whole rows of a minute
    assert window["width_s"] == 10
    assert len(window["steps"]["at"]) == 60


def test_what_is_no_number_and_what_is_not_recorded_is_answered_in_words(signed_in: ServedPage) -> None:
    assert signed_in.get("/api/trainings/yolo/steps?from=nan").status == 400
    assert signed_in.get("/api/trainings/yolo/steps?points=-1").status == 400
    assert signed_in.get("/api/compare?of=yolo:x").status == 400
    missing = signed_in.get("/api/trainings/none")
    assert missing.status == 404
    assert "no training 'none' is recorded" in str(missing.json["error"])


def test_a_tune_that_is_not_known_is_nothing(signed_in: ServedPage) -> None:
    assert read(signed_in, "/api/trainings/yolo/tune") == {"tune": None}
    assert signed_in.get("/api/trainings/yolo/tune.png").status == 404


def test_a_record_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with serving_page(tmp_path) as page:
        page.sign_in()
        assert "the daemon has recorded nothing yet" in str(page.get("/api/trainings/yolo").json)
        assert page.get("/api/overview").status == 200


def test_a_record_of_another_version_is_named_in_every_view(tmp_path: Path) -> None:
    """Which may be there for the first time while the page is open: the package was upgraded or put back."""
    older = (Path(__file__).parents[1] / "store/databases/0003_samples.sql").read_text(encoding="utf-8")
    views = ("trainings/night", "trainings/night/steps", "trainings/night/samples", "gpus", "compare?of=night:1")
    with closing(sqlite3.connect(tmp_path / "supervisor.db")) as record, serving_page(tmp_path) as page:
        page.sign_in()
        record.executescript(older)
        for revision, remedy in (
            ("0003_samples", "start the daemon"),
            ("0009_later", "Install the version that wrote"),
        ):
            record.execute("UPDATE alembic_version SET version_num = ?", (revision,))
            record.commit()
            overview = read(page, "/api/overview")
            assert overview["trainings"] == []
            assert "no daemon" in overview["problem"]
            texts = [overview["problem"]]
            for view in views:
                answer = page.get(f"/api/{view}")
                assert answer.status == 503
                texts.append(str(answer.json["error"]))
            assert [text for text in texts if revision not in text or remedy not in text] == []


def test_the_time_account_has_a_place_and_a_colour_for_every_use() -> None:
    folder = Path(supervisor.web.__file__).parent / "static"
    drawn = re.search(r"const USES = \[(.*?)\]", (folder / "page.js").read_text())
    assert drawn is not None
    assert sorted(re.findall(r'"(\w+)"', drawn[1])) == sorted(use.value for use in Use)
    colours = re.findall(r"\.use(\d+) \{ background: (.*?) \}", (folder / "page.css").read_text())
    assert [int(number) for number, _ in colours] == list(range(len(Use)))
    assert len({colour for _, colour in colours}) == len(Use)


def test_the_vendored_files_are_those_of_the_release() -> None:
    folder = Path(supervisor.web.__file__).parent / "static"
    lines = [line.split() for line in (folder / "uPlot.origin").read_text().splitlines()]
    sums = {line[1]: line[0] for line in lines if len(line) == 2}
    assert set(sums) == {"uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE"}
    for name, expected in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected


def test_what_costs_memory_or_could_write_is_not_imported() -> None:
    """SQLAlchemy alone is a third of what the page may take, rules and their settings a sixth; nothing here writes."""
    heavy = (
        "sqlalchemy", "alembic", "apscheduler", "torch", "supervisor.store.writer", "supervisor.daemon",
        "supervisor.config", "supervisor.core.rules", "supervisor.core.job",
    )  # fmt: skip
    script = f"import sys, supervisor.cli.web; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_half_requests_keep_the_page_from_nobody_for_long(page: ServedPage) -> None:
    with ExitStack() as crowd:
        for _ in range(2 * CONNECTIONS):
            peer = crowd.enter_context(socket.create_connection(("127.0.0.1", page.port)))
            with suppress(OSError):
                peer.send(b"GET / HT")
        end_s = time.monotonic() + 60  # noqa: TID251 - a test's deadline
        while not is_served(page):
            assert time.monotonic() < end_s  # noqa: TID251 - the same


def is_served(page: ServedPage) -> bool:
    """Whether the page is answered; a refused connection takes a moment, so that asking again costs little."""
    try:
        return page.ask("/").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_for_another_machine_the_line_to_type_there_is_printed_behind_the_address(state: Path) -> None:
    config = state / "ssh.toml"
    config.write_text(f'[supervisor]\nstate_dir = "{state}"\n')
    command = [sys.executable, "-m", "supervisor.cli", "--config", str(config), "web", "--ssh"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout is not None
        port = urlsplit(served.stdout.readline().strip()).port
        assert f"ssh -N -L {port}:127.0.0.1:{port} " in served.stdout.readline()
        served.terminate()
    refused = subprocess.run([*command, "--listen", "0.0.0.0"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout, "--tls-certificate" in refused.stderr) == (1, "", True)
