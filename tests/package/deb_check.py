"""What `make deb-check` asks of the Debian package; each line it prints is one finding, its status 1 if one is bad.

    deb_check.py PACKAGE.deb [--roots FOLDER] [--release bookworm ...] [--skip-box]

Each release is installed by debootstrap once into FOLDER and used through an overlay, so that every check begins with
a bare system: install by apt, run, upgrade to a version above, remove, purge, and what is left. Then a box with a
booted systemd upgrades the package under a training that counts its steps. Needs root and the mirrors of Debian and
Ubuntu.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.rigs.systemd_box import SystemdBox

DEBIAN, UBUNTU = "Debian", "Ubuntu"
RELEASES = {"bookworm": DEBIAN, "trixie": DEBIAN, "jammy": UBUNTU, "noble": UBUNTU}
USUAL_MIRROR = ""
"""For debootstrap: the one that its script of the release names."""
SCRIPTS = Path("/usr/share/debootstrap/scripts")
SIZE_LIMIT_BYTES = 4_000_000
JOB = """
[jobs.count]
command = ["/usr/bin/python3", "/opt/count.py"]
"""
COUNT = """
import time
import rocm_agent
with open("/opt/steps", "a", buffering=1) as steps:
    for step in range({steps}):
        rocm_agent.step(loss=1.0 + 1 / (step + 1))
        print(step, file=steps)
        time.sleep(0.02)
"""


class Findings:
    """What was found; `bad` counts what does not hold."""

    def __init__(self) -> None:
        """Begin with nothing found."""
        self.bad = 0

    def say(self, where: str, what: str, *, holds: bool, detail: str = "") -> None:
        """Print one finding."""
        self.bad += not holds
        print(
            f"{where:10} {'ok ' if holds else 'BAD'} {what}{'' if holds else ': ' + detail.strip()[-1500:]}", flush=True
        )


def main() -> int:
    """Run every check and return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check the Debian package.")
    parser.add_argument("package", type=Path)
    parser.add_argument("--roots", type=Path, default=Path("/var/cache/rocm-supervisor-roots"))
    parser.add_argument("--release", action="append", choices=RELEASES)
    parser.add_argument("--skip-box", action="store_true")
    asked = parser.parse_args()
    findings = Findings()
    check_file(asked.package, findings)
    with tempfile.TemporaryDirectory() as folder:
        newer = newer_version(asked.package, Path(folder))
        for release in asked.release or RELEASES:
            root = bare_system(asked.roots, release)
            if isinstance(root, str):
                findings.say(release, "bootstrap", holds=False, detail=root)
                continue
            with overlay(root) as system:
                check_release(Chroot(system), release, asked.package, newer, findings)
        if not asked.skip_box:
            check_upgrade(asked.package, newer, findings)
    return 1 if findings.bad else 0


def check_file(package: Path, findings: Findings) -> None:
    """Check size and lintian."""
    size = package.stat().st_size
    findings.say("file", f"{size:,} bytes, at most {SIZE_LIMIT_BYTES:,}", holds=size <= SIZE_LIMIT_BYTES)
    done = subprocess.run(
        ["lintian", "--fail-on=error,warning", str(package)], capture_output=True, text=True, check=False
    )
    findings.say("file", "lintian: no error, no warning", holds=done.returncode == 0, detail=done.stdout + done.stderr)


def newer_version(package: Path, folder: Path) -> Path:
    """Return the package again under a version above its own, with one module changed."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9."))
    module = tree / "usr/lib/rocm-supervisor/supervisor/__init__.py"
    module.write_text(module.read_text().replace('__version__ = "', '__version__ = "9.'))
    newer = folder / "newer.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", tree, newer], check=True, stdout=subprocess.DEVNULL)
    return newer


def bare_system(roots: Path, release: str) -> Path | str:
    """Return the folder of a release, installing it first where it is not there; or why there is none."""
    root = roots / release
    if (root / "usr/bin/apt-get").exists():
        return root
    roots.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", "--include=python3-minimal", release, str(root), USUAL_MIRROR]
    if RELEASES[release] == UBUNTU:  # whose keys Debian does not have; inside, apt checks them
        command[1:1] = ["--no-check-gpg", "--components=main,universe"]
        command.append(str(SCRIPTS / "gutsy"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "debootstrap is not installed"
    return root if done.returncode == 0 else done.stdout[-500:]


@contextmanager
def overlay(root: Path) -> Iterator[Path]:
    """Yield the system with what is written to it thrown away afterwards."""
    place = Path(tempfile.mkdtemp(prefix="deb-check.", dir="/var/tmp"))
    mounts: list[Path] = []

    def mount(*words: str, at: Path) -> None:
        at.mkdir(exist_ok=True)
        subprocess.run(["mount", *words, str(at)], check=True)
        mounts.append(at)

    try:
        mount("-t", "tmpfs", "tmpfs", at=place / "rw")
        for name in ("up", "work"):
            (place / "rw" / name).mkdir()
        layers = f"lowerdir={root},upperdir={place}/rw/up,workdir={place}/rw/work"
        mount("-t", "overlay", "overlay", "-o", layers, at=place / "root")
        mount("-t", "proc", "proc", at=place / "root/proc")
        mount("--bind", "/dev", at=place / "root/dev")
        shutil.copy("/etc/resolv.conf", place / "root/etc/resolv.conf")
        (place / "root/usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (place / "root/usr/sbin/policy-rc.d").chmod(0o755)
        yield place / "root"
    finally:
        for at in reversed(mounts):
            subprocess.run(["umount", "--lazy", str(at)], check=True)
        shutil.rmtree(place)


class Chroot:
    """Commands inside a system that runs no init."""

    def __init__(self, root: Path) -> None:
        """`root` is the system's folder."""
        self.root = root

    def run(self, command: str) -> tuple[bool, str]:
        """Return whether a shell command ended with status 0, and what it printed."""
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C.UTF-8",
        }
        done = subprocess.run(
            ["chroot", str(self.root), "sh", "-c", command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode == 0, done.stdout + done.stderr

    def files(self) -> set[str]:
        """Return the paths below the folders that packages write to, without apt's and dpkg's own lists."""
        found = self.run("find /etc /usr /opt /var /run -xdev ! -path '/var/lib/dpkg/*' ! -path '/var/cache/*' "
                         "! -path '/var/lib/apt/*' ! -path '/var/log/*'")[1]  # fmt: skip
        return set(found.splitlines())


def check_release(system: Chroot, release: str, package: Path, newer: Path, findings: Findings) -> None:
    """Install, run, upgrade, remove and purge."""

    def ask(what: str, command: str, wanted: Callable[[str], bool] = lambda _: True) -> None:
        ok, output = system.run(command)
        findings.say(release, what, holds=ok and wanted(output), detail=f"{command}\n{output}")

    for name, path in (("first", package), ("newer", newer)):
        shutil.copy(path, system.root / f"opt/{name}.deb")
    (system.root / "opt/count.py").write_text(COUNT.format(steps=100))
    ask("apt update", "apt-get update -qq")
    ask("dependencies", "apt-get install -y -qq --no-install-recommends python3 systemd polkitd")
    before = system.files()
    ask("install", "apt-get install -y -qq --no-install-recommends /opt/first.deb", lambda output: "rror" not in output)
    ask("version, with this release's Python", "python3 --version; supervisorctl version; rocm-supervisord --version")
    ask("settings are valid", "supervisorctl config check")
    ask("settings belong to the group", "stat -c '%a %G' /etc/rocm-supervisor/config.toml",
        lambda output: output == "640 rocm-supervisor\n")  # fmt: skip
    ask("compiled at installation", "find /usr/lib/rocm-supervisor -name 'main.*.pyc' | grep -q daemon")
    ask(
        "a child of its own finds the code",
        f"python3 -IS -c '{CHILD}'",
        lambda output: output.startswith("rocm-supervisor"),
    )
    ask(
        "setup names what is missing",
        "supervisorctl setup --owner nobody-here || true",
        lambda output: "no such user" in output,
    )
    ask("a training of 100 steps under it", RUN_ONCE, lambda output: '"step": 100' in output)
    ask("settings changed by hand", f"cat >>/etc/rocm-supervisor/config.toml <<'X'\n{JOB}\nX")
    ask("upgrade asks nothing", "apt-get install -y -qq --no-install-recommends /opt/newer.deb </dev/null",
        lambda output: "conffile" not in output and "onfiguration file" not in output)  # fmt: skip
    ask("the new version runs", "supervisorctl version", lambda output: output.startswith("rocm-supervisor 9."))
    ask("settings are kept", "grep -q jobs.count /etc/rocm-supervisor/config.toml")
    ask("a saved state", "cd /var/lib/rocm-supervisor; mkdir -p jobs/count/snapshots jobs/count/3; "
        "touch jobs/count/snapshots/a.pt supervisor.db")  # fmt: skip
    ask("remove", "apt-get remove -y -qq rocm-supervisor")
    ask("the record is kept", "ls /var/lib/rocm-supervisor/supervisor.db /etc/rocm-supervisor/config.toml")
    ask("purge names what it keeps", "apt-get purge -y -qq rocm-supervisor 2>&1",
        lambda output: "saved states of trainings are kept" in output)  # fmt: skip
    ask("purge removes the record", "! ls /var/lib/rocm-supervisor/supervisor.db /etc/rocm-supervisor 2>/dev/null")
    kept = {path for path in system.files() - before if not path.startswith("/var/lib/rocm-supervisor")}
    kept -= {path for path in kept if "__pycache__" in path or path.startswith(("/var/lib/systemd", "/var/lib/ucf"))}
    saved = {path for path in system.files() if path.startswith("/var/lib/rocm-supervisor/")}
    expected = {
        f"/var/lib/rocm-supervisor/jobs{end}" for end in ("", "/count", "/count/snapshots", "/count/snapshots/a.pt")
    }
    findings.say(
        release, "nothing else is left", holds=not kept and saved == expected, detail=f"{sorted(kept)} {sorted(saved)}"
    )


CHILD = """
import subprocess, sys
sys.path.insert(0, "/usr/lib/rocm-supervisor")
from supervisor.shipped import module_command
sys.exit(subprocess.run([*module_command("supervisor.cli.main"), "version"]).returncode)
"""
RUN_ONCE = """
mkdir -p /opt/run; cd /opt/run
cat >config.toml <<X
[supervisor]
state_dir = "/opt/run/state"
[kernel_log]
enabled = false
[jobs.count]
command = ["/usr/bin/python3", "/opt/count.py"]
X
rocm-supervisord --config config.toml >daemon.log 2>&1 & daemon=$!
for i in $(seq 300); do
  sleep 0.2; supervisorctl --config config.toml --json status >status.json 2>&1
  grep -q '"finished"' status.json && break
done
cat status.json daemon.log; kill $daemon; wait $daemon; rm -rf /opt/run /opt/steps
"""


def check_upgrade(package: Path, newer: Path, findings: Findings) -> None:
    """Upgrade under a booted systemd while a training counts; every step it made has to be in the record."""
    with SystemdBox(keep={package.parent: "/opt/first", newer.parent: "/opt/newer"}) as box:

        def ask(what: str, command: str, wanted: Callable[[str], bool] = lambda _: True) -> str:
            done = box.run(command)
            findings.say("box", what, holds=done.ok and wanted(done.output), detail=f"{command}\n{done.output}")
            return done.output

        box.run("useradd --create-home ann; rm -f /usr/sbin/policy-rc.d; mkdir -p /opt; chmod 777 /opt", check=True)
        box.write("/opt/count.py", COUNT.format(steps=100_000))
        ask("install", f"dpkg -i /opt/first/{package.name}")
        ask("the daemon was started", "systemctl is-active rocm-supervisor")
        box.run(f"cat >>/etc/rocm-supervisor/config.toml <<'X'\n[kernel_log]\nenabled = false\n{JOB}\nX", check=True)
        ask("setup leaves the units to the package", "supervisorctl setup --owner ann && systemctl daemon-reload && "
            "systemctl restart rocm-supervisor && ! ls /etc/systemd/system/rocm-supervisor.service")  # fmt: skip
        box.until("[ $(wc -l </opt/steps) -gt 50 ]")
        run = "systemctl show -P MainPID rocm-run@count"
        before = ask("the training runs as its owner", f"{run}; ps -o user= -C python3", lambda output: "ann" in output)
        before = before.split()[0]
        daemon = box.run("systemctl show -P MainPID rocm-supervisor").output
        at = int(box.run("wc -l </opt/steps").output)
        ask("upgrade", f"dpkg -i /opt/newer/{newer.name}")
        box.until(f"[ $(wc -l </opt/steps) -gt {at + 100} ]")
        ask(
            "the daemon is another process",
            "systemctl show -P MainPID rocm-supervisor",
            lambda output: output not in (daemon, "0\n"),
        )
        ask("the daemon is the new version", "supervisorctl --json status", lambda output: '"9.' in output)
        ask(
            "the training is the same process",
            "systemctl show -P MainPID rocm-run@count",
            lambda output: output.strip() == before,
        )
        box.until("supervisorctl --json status | grep -q '\"attempt\": 1'")
        check_steps(box, findings)
        ask("removal saves and ends the training", "dpkg -r rocm-supervisor && ! systemctl is-active rocm-run@count")


def check_steps(box: SystemdBox, findings: Findings) -> None:
    """Compare the steps that the training wrote down with those that the record has."""
    lines = box.run("cat /opt/steps").output.split()
    in_order = [int(line) for line in lines] == list(range(len(lines)))
    findings.say("box", f"{len(lines)} steps made, none twice, none left out", holds=in_order, detail=str(lines[-5:]))
    box.until(f"said=$({RECORDED}); echo $said; [ $(echo $said | cut -d' ' -f4) -ge {len(lines)} ]")
    recorded = box.run(RECORDED).output
    findings.say(
        "box",
        f"the record has all: {recorded.strip()}",
        holds="attempts 1 " in recorded and "complete 1" in recorded,
        detail=recorded,
    )


RECORDED = """python3 -c '
import sqlite3
record = sqlite3.connect("file:/var/lib/rocm-supervisor/supervisor.db?mode=ro", uri=True)
columns = "COUNT(DISTINCT attempt), SUM(steps), MIN(step_first), MAX(step_last)"
row = record.execute(f"SELECT {columns} FROM step_metrics").fetchone()
print("attempts", row[0], "steps", row[1], "complete", int(row[3] - row[2] + 1 == row[1]))
'"""


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("deb_check.py mounts, changes roots and boots a systemd: run it as root")
    sys.exit(main())
