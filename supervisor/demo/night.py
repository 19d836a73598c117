"""One night in three minutes: a real YOLO training under a real daemon, hurt three times, told as it happens.

It uses the daemon as anybody does, through its configuration, its socket and its webhook; it looks into nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from supervisor.control.client import Client, UnreachableError
from supervisor.shipped import module_command

LARGEST_BYTES = 1 << 16
IMAGES = Path(__file__).with_name("images.py")
TRAINING = Path(__file__).with_name("training.py")
"""Run by the training's interpreter; never imported here, for they need what only that environment has."""

EPOCHS = 8
WOUNDS = (("hang", 2, 5), ("nan", 4, 4), ("kill", 6, 7))
"""Name, epoch from 0, batch from 1."""
EXPECTED = {"stall": "the batch that never returns", "non_finite_loss": "the NaN loss", "crash": "the SIGKILL"}
LIMIT_S = 600.0
STALL_LIMIT_S = 8.0

CONFIG = """\
[supervisor]
state_dir = {state}
launcher = "direct"

[kernel_log]
enabled = false

[jobs.night]
command = {command}
cwd = {folder}
conv2d = "unfold"
snapshot_every_s = 2
grace_s = 3
save_s = 5

[jobs.night.env]
YOLO_CONFIG_DIR = {settings}
YOLO_OFFLINE = "true"
CUDA_VISIBLE_DEVICES = ""

[jobs.night.rules.stall]
limit_s = {stall_limit_s}

[jobs.night.rules.start_timeout]
setup_limit_s = 240
warmup_limit_s = 60

[jobs.night.rules.disk_low]
enabled = false

[alerts.here]
url = {url}
min_severity = "info"
allow_private = true
"""


class NotShownError(RuntimeError):
    """The demonstration failed; the message says what was not observed."""


@dataclass(slots=True, kw_only=True)
class Night:
    """The demonstration's places and its narrator."""

    folder: Path
    train_python: Path
    daemon: tuple[str, ...]
    say: Callable[[str], None]
    epochs: int = EPOCHS
    wounds: tuple[tuple[str, int, int], ...] = WOUNDS
    stall_limit_s: float = STALL_LIMIT_S
    imgsz: int = 160
    began_s: float = field(default_factory=time.perf_counter)

    def run(self, breakfast: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Live through the night; return its incidents, oldest first. Raises NotShownError.

        `breakfast` is called when the training has finished and the daemon still answers.
        """
        self._print_line("creating 48 + 8 thermal-like images")
        data = self._draw_images()
        with Receiver(self._receive_alert) as here:
            (self.folder / "config.toml").write_text(self._build_config(data, here.url))
            self._print_line(
                "starting rocm-supervisord in the foreground, state directory " + str(self.folder / "state")
            )
            with (self.folder / "daemon.log").open("ab") as log:
                command = [*self.daemon, "--config", str(self.folder / "config.toml")]
                process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                incidents = self._follow_job(process, Client(self.folder / "state" / "control.sock"))
                breakfast()
                return incidents
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)

    def _draw_images(self) -> Path:
        command = [str(self.train_python), str(IMAGES), str(self.folder / "data")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_bare_environment())
        if done.returncode != 0:
            raise NotShownError(f"{self.train_python} cannot create the images: {done.stderr.strip()[-300:]}")
        return Path(done.stdout.strip().splitlines()[-1])

    def _build_config(self, data: Path, url: str) -> str:
        command = [str(self.train_python), str(TRAINING), "--data", str(data), "--epochs", str(self.epochs)]
        command += ["--imgsz", str(self.imgsz)]
        command += ["--project", str(self.folder / "runs"), "--scars", str(self.folder / "scars")]
        for name, epoch, batch in self.wounds:
            command += ["--wound", f"{name}:{epoch}:{batch}"]
        values = {
            "state": self.folder / "state",
            "folder": self.folder,
            "settings": self.folder / "yolo",
            "url": url,
        }
        quoted = {key: json.dumps(str(value)) for key, value in values.items()}
        return CONFIG.format(command=json.dumps(command), stall_limit_s=self.stall_limit_s, **quoted)

    def _follow_job(self, process: subprocess.Popen[bytes], client: Client) -> list[dict[str, Any]]:
        last = ""
        while time.perf_counter() - self.began_s < LIMIT_S:
            if process.poll() is not None:
                raise NotShownError(f"the daemon ended with {process.returncode}; see {self.folder / 'daemon.log'}")
            time.sleep(0.5)
            try:
                job = client.get("/v1/status", watched=0)["jobs"][0]
            except UnreachableError:
                continue  # still starting; a failure is detected by LIMIT_S or its exit status
            now = _describe_progress(job)
            if now != last:
                self._print_line(now)
                last = now
            if job["phase"] in ("finished", "failed"):
                return self._list_checks(job, client.get("/v1/incidents")["incidents"])
        raise NotShownError(f"not finished after {LIMIT_S:.0f} s; see {self.folder / 'daemon.log'}")

    def _list_checks(self, job: dict[str, Any], incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if job["phase"] != "finished":
            raise NotShownError(f"the job {job['phase']}: {job['reason']}")
        for rule, wound in EXPECTED.items():
            if not any(entry["rule"] == rule and entry["outcome"] == "resumed" for entry in incidents):
                raise NotShownError(f"{wound} was not detected and resumed (no incident of rule {rule})")
        return sorted(incidents, key=lambda entry: entry["at"])

    def _receive_alert(self, body: dict[str, Any]) -> None:
        data = body.get("data", {})
        self._print_line(
            f"    webhook {body.get('type')}: {data.get('message') or data.get('reason') or data.get('job')}"
        )

    def _print_line(self, text: str) -> None:
        self.say(f"{time.perf_counter() - self.began_s:6.1f} s  {text}")


def _describe_progress(job: dict[str, Any]) -> str:
    if job["phase"] == "running" and job["step"] is not None:
        loss = "" if job["loss"] is None else f", loss {job['loss']:.2f}"
        pace = "" if job["steps_per_s"] is None else f", {job['steps_per_s']:.1f} steps/s"
        # One line an epoch: the steps between are what the status is for.
        return f"training: attempt {job['attempt']}, epoch {job['epoch'] + 1} of {job['epochs'] or '?'}" + (
            "" if job["stage"] != "checkpoint" else f", step {job['step']}{loss}{pace}: checkpoint"
        )
    why = f": {job['reason']}" if job["reason"] else ""
    return f"{job['phase']}, attempt {job['attempt']}{why}"


def _bare_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ROCM_SUPERVISOR_"))}


def daemon_command() -> tuple[str, ...]:
    """Return the command that starts the daemon of this installation."""
    return module_command("supervisor.daemon.main")


class Receiver:
    """Listens on a free port of 127.0.0.1 while it is entered."""

    def __init__(self, receive: Callable[[dict[str, Any]], None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length") or 0), LARGEST_BYTES)
                try:
                    receive(json.loads(self.rfile.read(length)))
                finally:
                    self.send_response(204)
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Receiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
