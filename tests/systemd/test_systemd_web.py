"""The page under its real units: begun by a request, in its sandbox, ended by itself, without a right to write."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.alerts.certificate_by_hand import make_certificate
from tests.rigs.installed_box import PYTHON, ROOT, STATE, InstalledBox

pytestmark = pytest.mark.systemd
EXPOSURE_LIMIT = 1.5
UNITS = "rocm-supervisor-web.service rocm-supervisor-web.socket"
DROP_IN = f"""\
[Service]
Environment=PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1
ExecStart=
ExecStart={PYTHON} -m supervisor.cli --config /etc/rocm-supervisor/config.toml web --activated --idle-s 3
"""
PORT = 8443
SOCKET_DROP_IN = f"[Socket]\nListenStream={PORT}\n"
TLS = "/etc/rocm-supervisor/tls.pem"
TLS_SETTINGS = f'[web]\nhosts = ["hooks.example"]\ntls_certificate = "{TLS}"\ntls_key = "{TLS}"\n'
WRITE = f"""\
import sqlite3, sys, time
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests/bench")!r}]
from pathlib import Path
from long_record import write_long_record
path = Path({STATE!r}) / "supervisor.db"
write_long_record(path, hours=1, steps=1000, gpus=1)
writer = sqlite3.connect(path)
writer.execute("UPDATE gpus SET name = 'living'")
writer.commit()
print("written", flush=True)
time.sleep(600)
"""
LOOK = """\
import http.client, json, socket, sys
sys.path.insert(0, ROOT)
from supervisor.web.login import ask_login
from pathlib import Path
class Web(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/rocm-supervisor-web/web.sock")
web = Web("localhost")
body = json.dumps({"token": ask_login(Path("/run/rocm-supervisor-web/login.sock"), "token")})
web.request("POST", "/session", body)
opened = web.getresponse()
headers = {"Cookie": opened.headers["Set-Cookie"].partition(";")[0], "X-Page-Key": json.load(opened)["key"]}
for path in ("/api/trainings/yolo/steps", "/api/trainings/yolo/account", "/api/overview"):
    web.close()  # it ends a connection on which nothing is asked for a while
    web.request("GET", path, headers=headers)
    answer = web.getresponse()
    print(answer.status, answer.read()[:3000])
""".replace("ROOT", repr(str(ROOT)))


@pytest.fixture(scope="module")
def web(installed: InstalledBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledBox]:
    box = installed.box
    box.write("/etc/systemd/system/rocm-supervisor-web.service.d/test.conf", DROP_IN)
    box.write("/etc/systemd/system/rocm-supervisor-web.socket.d/test.conf", SOCKET_DROP_IN)
    box.write("/etc/rocm-supervisor/conf.d/web.toml", TLS_SETTINGS)
    box.write(TLS, make_certificate(tmp_path_factory.mktemp("tls")).read_text())
    box.run(f"chgrp rocm-supervisor {TLS}; chmod 640 {TLS}", check=True)
    box.run("systemctl daemon-reload; systemctl start rocm-supervisor-web.socket", check=True)
    box.write("/opt/writer.py", WRITE)
    writer = f"systemd-run --unit=writer -p User=rocm-supervisor -p UMask=0007 {PYTHON} -B /opt/writer.py"
    box.run(writer, check=True)
    box.until(f"test -s {STATE}/supervisor.db-wal && journalctl -u writer | grep -q written")
    yield installed
    box.run(f"systemctl stop writer {UNITS}; rm -f {STATE}/supervisor.db* {TLS} /etc/rocm-supervisor/conf.d/web.toml")


def test_the_units_verify_and_are_hardly_exposed(web: InstalledBox) -> None:
    verified = web.box.run(f"systemd-analyze verify {UNITS}")
    assert (verified.status, verified.output) == (0, "")
    report = web.box.run("systemd-analyze security --no-pager rocm-supervisor-web.service").output
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", report)
    assert found, report
    assert float(found[1]) <= EXPOSURE_LIMIT


def test_a_request_begins_it_it_reads_a_living_record_and_ends_by_itself(web: InstalledBox) -> None:
    assert web.box.run("systemctl is-active rocm-supervisor-web.service").output.strip() == "inactive"
    looked = web.box.run(f"{PYTHON} -B -c {shlex.quote(LOOK)}", check=True).output
    journal = web.box.run("journalctl -u rocm-supervisor-web --no-pager | tail -20").output
    assert [line[:3] for line in looked.splitlines()] == ["200"] * 3, looked + journal
    assert "yolo" in looked
    web.box.until("test $(systemctl is-active rocm-supervisor-web.service) = inactive")
    assert web.box.run("systemctl is-active rocm-supervisor-web.socket").output.strip() == "active"


def test_a_port_of_a_drop_in_is_served_by_tls_within_the_sandbox(web: InstalledBox) -> None:
    asked = f"curl -sS --cacert {TLS} --resolve hooks.example:{PORT}:127.0.0.1 -o /dev/null -w '%{{http_code}}' "
    page = web.box.run(f"{asked} https://hooks.example:{PORT}/")
    assert page.output == "200", page.output + web.box.run("journalctl -u rocm-supervisor-web --no-pager").output
    assert web.box.run(f"{asked} https://hooks.example:{PORT}/api/overview").output == "401"
    assert web.box.run(f"curl -s http://127.0.0.1:{PORT}/").status != 0


def test_nobody_outside_the_group_reaches_it(web: InstalledBox) -> None:
    tried = "import socket; socket.socket(socket.AF_UNIX).connect('/run/rocm-supervisor-web/{}.sock')"
    for name in ("web", "login"):
        refused = web.box.run(f"{PYTHON} -c {shlex.quote(tried.format(name))}", user="bob")
        assert "PermissionError" in refused.output


def test_in_its_sandbox_it_can_write_nothing_of_the_daemon(web: InstalledBox) -> None:
    properties = (
        "-p DynamicUser=yes -p SupplementaryGroups=rocm-supervisor -p ProtectSystem=strict -p PrivateNetwork=yes"
    )
    shown = web.box.run("systemctl show rocm-supervisor-web.service").output.splitlines()
    for line in ("DynamicUser=yes", "ProtectSystem=strict", "PrivateNetwork=yes"):
        assert line in shown
    web.box.run(f"chmod 660 {STATE}/supervisor.db", check=True)
    tried = web.box.run(f"systemd-run --pipe --wait -q {properties} bash -c 'echo >> {STATE}/supervisor.db'")
    assert "Read-only file system" in tried.output
