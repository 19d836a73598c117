"""What viewers of the page cost the daemon, and what the page's process takes.

    python tests/bench/viewers.py --viewers 5 --nginx /usr/sbin/nginx

A training under a daemon makes 20 steps a second; each viewer asks what the page asks, as often, with `--nginx`
through a proxy of its own that uses TLS. Processor time and memory are those of the daemon's process; the delay is what
it reports as `loop_lag_seconds`, asked once a second in every phase. Phases with and without viewers take turns, for
what a daemon takes alone drifts by as much as they cost.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "web"), str(ROOT)]

from served_page import ServedPage, serving_page  # noqa: E402  # found on the path above

HERTZ = os.sysconf("SC_CLK_TCK")
BIN = Path(sys.executable).parent
SETTLED_S = 3.0
POLL_S, SERIES_EVERY = 2.0, 5
"""The page asks for what changes every 2 s, for the charts every 10 s."""
SERIES = ("/api/trainings/yolo/steps?points=600", "/api/trainings/yolo/samples?points=600")
LAG = "rocm_supervisor_loop_lag_seconds"
CONFIG = """[supervisor]
state_dir = "{state}"
launcher = "direct"
[kernel_log]
enabled = false
[jobs.yolo]
command = ["{python}", "{state}/count.py"]
"""
TRAINING = "import time, rocm_agent\nwhile True:\n    rocm_agent.step(loss=1.0)\n    time.sleep(0.05)\n"
NGINX = """daemon off; pid {folder}/pid; error_log {folder}/log; user root; events {{}}
http {{ access_log off;
client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
server {{ listen 127.0.0.1:{port} ssl; ssl_certificate {folder}/cert; ssl_certificate_key {folder}/key;
location / {{ proxy_pass http://127.0.0.1:{page}; proxy_set_header Host 127.0.0.1:{page}; }} }} }}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--rounds", type=int, default=4, help="of a phase with viewers after one without")
    parser.add_argument("--nginx", type=Path, help="a proxy to put before the page")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_daemon(Path(folder)) as daemon:
        state = Path(folder)
        time.sleep(20.0)
        shares: dict[bool, list[float]] = {False: [], True: []}
        with serving_page(state, socket=state / "control.sock") as page, proxied(given.nginx, state, page) as port:
            page.sign_in()
            for _ in range(given.rounds):
                shares[False].append(print_phase("no viewer", daemon, state, given.seconds))
                with viewing(given.viewers, page, port) as statuses:
                    time.sleep(SETTLED_S)
                    shares[True].append(print_phase(f"{given.viewers} viewers", daemon, state, given.seconds))
                    bad = sum(status != 200 for status in statuses)
                    answers = f"{len(statuses)} answers, {bad} not 200"
                    write_line(f"the page's process: {read_pss_mb(page.pid):.1f} MB; {answers}")
            shares[False].append(print_phase("no viewer", daemon, state, given.seconds))
    cost = statistics.mean(shares[True]) - statistics.mean(shares[False])
    write_line(f"{given.viewers} viewers cost {cost:+.2%} of a core, mean of {given.rounds} phases against the others")


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def running_daemon(state: Path) -> Iterator[int]:
    """Run a daemon with a training that counts; return its pid."""
    (state / "count.py").write_text(TRAINING)
    config = state / "config.toml"
    config.write_text(CONFIG.format(state=state, python=sys.executable))
    ask = [str(BIN / "supervisorctl"), "--config", str(config)]
    with (state / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([str(BIN / "rocm-supervisord"), "--config", str(config)], stdout=log, stderr=log)
        try:
            for _ in range(300):
                if b'"running"' in subprocess.run([*ask, "--json", "status"], capture_output=True, check=False).stdout:
                    break
                time.sleep(0.2)
            yield daemon.pid
        finally:
            subprocess.run([*ask, "stop", "yolo"], capture_output=True, check=False, timeout=120)
            daemon.terminate()
            daemon.wait(120)


def print_phase(name: str, pid: int, state: Path, seconds: float) -> float:
    """Print what the daemon took in so many seconds; return its share of a core."""
    began, used_s, lags_ms = time.perf_counter(), read_cpu_s(pid), []
    while time.perf_counter() - began < seconds:
        lags_ms.append(read_lag_ms(state / "control.sock"))
        time.sleep(1.0)
    share = (read_cpu_s(pid) - used_s) / (time.perf_counter() - began)
    lag = f"delay median {statistics.median(lags_ms):.2f}, at most {max(lags_ms):.1f} ms"
    write_line(f"{name}: {share:.2%} of a core, {read_pss_mb(pid):.1f} MB, {lag} (load {os.getloadavg()[0]:.1f})")
    return share


@contextlib.contextmanager
def proxied(nginx: Path | None, state: Path, page: ServedPage) -> Iterator[int | None]:
    """Run nginx with a certificate of its own before the page and return its port; None without nginx."""
    if nginx is None:
        yield None
        return
    folder = state / "nginx"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    files = ["-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run([*request, *files], check=True, capture_output=True)
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port, page=page.port))
    with subprocess.Popen([str(nginx), "-c", str(folder / "conf")]) as proxy:
        time.sleep(2.0)
        try:
            yield port
        finally:
            proxy.terminate()


@contextlib.contextmanager
def viewing(count: int, page: ServedPage, port: int | None) -> Iterator[list[int]]:
    """Have viewers look at the page until the end, half at the overview; return the status of each answer."""
    stop, statuses = threading.Event(), list[int]()

    def view(number: int) -> None:
        turn = number
        while not stop.is_set():
            turn += 1
            charts = SERIES if turn % SERIES_EVERY == 0 else ()
            for path in ("/api/overview",) if number % 2 else ("/api/trainings/yolo", *charts):
                statuses.append(ask_page(page, port, path))
            stop.wait(POLL_S)

    threads = [threading.Thread(target=view, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def ask_page(page: ServedPage, port: int | None, path: str) -> int:
    """Return the status of the answer; `port` is that of the proxy."""
    if port is None:
        return page.get(path).status
    untrusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    untrusted.check_hostname, untrusted.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60.0, context=untrusted)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=page.secrets)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def read_lag_ms(control: Path) -> float:
    """Return how long the daemon's deciding thread took to begin its answer."""
    with contextlib.closing(http.client.HTTPConnection("daemon")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(control))
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    return next(float(line.split()[-1]) * 1000 for line in text.splitlines() if line.startswith(LAG))


def read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / HERTZ


def read_pss_mb(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))) / 1024


if __name__ == "__main__":
    main()
