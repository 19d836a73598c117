"""What `make tools-check` asks of the wheel: `uv tool install` and `pipx install` give commands that work.

    tool_install.py WHEEL --uv UV --pipx PIPX

Each installs into a home of its own, runs the commands and a training under the daemon, and is installed again while
that training counts: it has to be the same attempt afterwards. Manual pages and completions have to lie below the
environment's share/; pipx links the pages, uv does not. Dependencies come from the index that pip uses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 120.0
SHARED = (
    *(f"man/{page}" for page in ("man1/supervisorctl.1", "man5/rocm-supervisor.toml.5", "man8/rocm-supervisord.8")),
    "bash-completion/completions/supervisorctl",
    "zsh/site-functions/_supervisorctl",
    "fish/vendor_completions.d/supervisorctl.fish",
)
CONFIG = """[supervisor]
state_dir = "{home}/state"
launcher = "direct"
[kernel_log]
enabled = false
[jobs.count]
command = ["{python}", "{home}/count.py"]
"""
COUNT = "import time, rocm_agent\nwhile True:\n    rocm_agent.step(loss=1.0)\n    time.sleep(0.02)\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--uv", required=True)
    parser.add_argument("--pipx", required=True)
    given = parser.parse_args()
    wheel = str(given.wheel.absolute())
    python = ["--python", sys.executable]
    ways = {
        "uv": (
            [given.uv, "tool", "install", *python, wheel],
            [given.uv, "tool", "install", "--reinstall", *python, wheel],
        ),
        "pipx": ([given.pipx, "install", *python, wheel], [given.pipx, "install", "--force", *python, wheel]),
    }
    held = [check(name, install, again) for name, (install, again) in ways.items()]
    return int(not all(held))


def check(name: str, install: list[str], again: list[str]) -> bool:
    """Install, count, upgrade while it counts; return whether all held."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        places = {"UV_TOOL_DIR": "uv", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
        environment = {**os.environ, "HOME": folder, **{key: str(home / path) for key, path in places.items()}}
        environment.pop("PYTHONPATH", None)

        def run(*words: str) -> str:
            done = subprocess.run(words, env=environment, cwd=home, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (words, done.stdout, done.stderr)
            return done.stdout

        run(*install)
        write_line(f"{name}: {sorted(path.name for path in (home / 'bin').iterdir())}")
        environment_of_tool = (home / "bin/supervisorctl").resolve().parents[1]
        missing = [path for path in SHARED if not (environment_of_tool / "share" / path).is_file()]
        write_line(f"{name}: {'no ' + ', '.join(missing) if missing else 'manual pages and completions are there'}")
        commands = [str(home / "bin" / command) for command in ("supervisorctl", "rocm-supervisorctl")]
        versions = {run(command, "version") for command in commands}
        (home / "count.py").write_text(COUNT)
        (home / "config.toml").write_text(CONFIG.format(home=home, python=sys.executable))
        daemon = [str(home / "bin/rocm-supervisord"), "--config", str(home / "config.toml")]
        ask = [commands[0], "--config", str(home / "config.toml")]

        def job() -> dict[str, object]:
            done = subprocess.run([*ask, "--json", "status"], env=environment, capture_output=True, check=False)
            found: dict[str, object] = json.loads(done.stdout)["jobs"][0] if done.returncode == 0 else {}
            return found

        with (home / "log").open("wb") as log:
            first = subprocess.Popen(daemon, env=environment, stdout=log, stderr=log)
            wait_until(lambda: int(str(job().get("step") or 0)) > 100)
            first.kill()
            first.wait(LIMIT_S)
            run(*again)
            second = subprocess.Popen(daemon, env=environment, stdout=log, stderr=log)
            try:
                wait_until(lambda: int(str(job().get("step") or 0)) > 200)
                attempt = job()["attempt"]
            finally:
                run(*ask, "stop", "count")
                second.terminate()
                second.wait(LIMIT_S)
        write_line(f"{name}: {versions.pop().splitlines()[0]}; after the upgrade still attempt {attempt}")
        return attempt == 1 and not versions and not missing


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.perf_counter() + LIMIT_S
    while not holds():
        assert time.perf_counter() < end, "it did not come to that"
        time.sleep(0.2)


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
