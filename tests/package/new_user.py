"""A new user on a bare system: the commands of the README's section, until the training is seen to be watched.

    new_user.py PACKAGE.deb [--roots FOLDER] [--release bookworm noble] [--homes FOLDER]

Each release is installed bare by debootstrap (as deb_check.py does), gets a systemd, a bus, sudo and the user ann with
a data set of generated images, and is booted in a box. The commands are run in one session of hers, as they stand in
the README; what each took is printed, and the sum without apt and pip, which download. FOLDER/RELEASE is her home and
is kept, so that a second run downloads no training environment. Needs root, the mirrors and PyPI.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from deb_check import Findings, bare_system

from tests.rigs.systemd_box import SystemdBox

README = Path(__file__).resolve().parents[2] / "README.md"
HEADING = "### From nothing to a watched YOLO training"
COMMANDS_LIMIT, TIME_LIMIT_S = 6, 300.0
DOWNLOADING = re.compile(r"sudo apt|.*pip install")
MACHINE_FILES = ("etc/resolv.conf", "etc/ssl/certs/ca-certificates.crt")
"""How this machine reaches the mirrors."""
IMAGES = """
import pathlib, random
from PIL import Image
root = pathlib.Path.home() / "thermal"
for part, count in (("train", 32), ("val", 8)):
    for kind in ("images", "labels"):
        (root / kind / part).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image, x, y = Image.new("L", (160, 160), 40), random.randint(20, 100), random.randint(20, 100)
        image.paste(220, (x, y, x + 40, y + 40))
        image.convert("RGB").save(root / "images" / part / f"{number}.png")
        box = f"0 {(x + 20) / 160} {(y + 20) / 160} 0.25 0.25"
        (root / "labels" / part / f"{number}.txt").write_text(box)
(root / "data.yaml").write_text(f"path: {root}\\ntrain: images/train\\nval: images/val\\nnames: {{0: warm}}\\n")
"""
PREPARE = """
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd-sysv dbus sudo adduser >/dev/null
adduser --disabled-password --gecos '' ann >/dev/null; echo 'ann ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ann
"""


def main() -> int:
    """Run the section on each release; return 1 where a figure is missed or a command failed."""
    parser = argparse.ArgumentParser(description="Type what the README says on bare systems.")
    parser.add_argument("package", type=Path)
    parser.add_argument("--roots", type=Path, default=Path("/var/cache/rocm-supervisor-roots"))
    parser.add_argument("--homes", type=Path, default=Path("/var/tmp/rocm-supervisor-homes"))
    parser.add_argument("--release", nargs="+", choices=("bookworm", "noble"), default=["bookworm", "noble"])
    asked = parser.parse_args()
    findings, commands = Findings(), read_commands(README.read_text())
    findings.say("README", f"{len(commands)} commands, at most {COMMANDS_LIMIT}", holds=len(commands) <= COMMANDS_LIMIT)
    for release in asked.release:
        root = bare_system(asked.roots, release)
        assert not isinstance(root, str), root
        type_commands(with_login(root), asked.homes / release, asked.package, commands, findings)
    return 1 if findings.bad else 0


def read_commands(readme: str) -> list[str]:
    """Return the commands of the section's first block; a here-document belongs to its command."""
    block = readme.partition(HEADING)[2].partition("```\n")[2].partition("```")[0]
    return [found[0].rstrip() for found in re.finditer(r"(?ms)^[^\n]*<<EOF\n.*?^EOF$|^[^\n]+$", block)]


def with_login(root: Path) -> Path:
    """Return a copy of a bare root that boots, and that ann can log in to."""
    login = root.with_name(f"{root.name}-login")
    if (login / "etc/sudoers.d/ann").exists():
        return login
    shutil.rmtree(login, ignore_errors=True)
    subprocess.run(["cp", "-a", root, login], check=True)
    for name in MACHINE_FILES:
        (login / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(f"/{name}", login / name)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", login / "etc/machine.crt")
    (login / "etc/pip.conf").write_text("[global]\ncert = /etc/machine.crt\n")
    (login / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (login / "usr/sbin/policy-rc.d").chmod(0o755)
    inside = f'mount -t proc proc {login}/proc; mount --bind /dev {login}/dev; exec chroot {login} sh -ec "$0"'
    command = ["unshare", "-m", "sh", "-ec", inside, PREPARE]
    subprocess.run(command, check=True)
    (login / "usr/sbin/policy-rc.d").unlink()
    return login


def type_commands(root: Path, home: Path, package: Path, commands: list[str], findings: Findings) -> None:
    """Boot a release and run the commands in one session of ann's."""
    release = home.name
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(package, home)
    (home / "images.py").write_text(IMAGES)
    with SystemdBox(root=root, keep={home: "/home/ann"}) as box:
        box.run("cp -rn /etc/skel/. /home/ann; chown -R ann: /home/ann; chmod 0700 /home/ann", check=True)
        steps = [f'echo "@ {number} $(date +%s.%N)" >&3\n{command}' for number, command in enumerate(commands)]
        script = "\n".join(["set -e; cd; exec 3>times", *with_images(steps), 'echo "@ end $(date +%s.%N)" >&3'])
        session = box.run(
            script,
            user="ann",
            timeout_s=3000.0,
            environment={"HOME": "/home/ann", "USER": "ann", "DEBIAN_FRONTEND": "noninteractive", "TERM": "dumb"},
        )
        findings.say(release, "every command succeeded", holds=session.ok, detail=session.output)
        spent = report_times((home / "times").read_text(), commands)
        watched = box.run(WATCHED, timeout_s=300.0)
        findings.say(release, "the training is watched: steps are seen", holds=watched.ok, detail=watched.output)
        print(box.run("supervisorctl status").output)  # noqa: T201 - what it found is what it prints
        spent += float(watched.output.split()[-1]) if watched.ok else 0.0
        held = spent <= TIME_LIMIT_S
        findings.say(release, f"{spent:.0f} s without apt and pip, at most {TIME_LIMIT_S:.0f}", holds=held)
        box.run("supervisorctl stop yolo", timeout_s=120.0)


def with_images(steps: list[str]) -> list[str]:
    """Return the steps with the data set made once there is a Python that can: it is the user's, as the README says."""
    after = next(number for number, step in enumerate(steps) if "pip install" in step)
    return [*steps[: after + 1], "train/bin/python images.py", *steps[after + 1 :]]


WATCHED = """
began=$(date +%s.%N)
for turn in $(seq 600); do
  if supervisorctl --json status | grep -Eq '"step": [1-9]'; then
    echo "$(date +%s.%N) - $began" | awk '{print $1 - $3}'; exit 0
  fi
  sleep 0.4
done
supervisorctl status; tail -n 30 /var/lib/rocm-supervisor/jobs/yolo/*/output.log; exit 1
"""


def report_times(text: str, commands: list[str]) -> float:
    """Print what each command took; return the sum of those that download nothing."""
    times = [float(line.split()[-1]) for line in text.splitlines()]
    spent = 0.0
    for command, began, ended in zip(commands, times, times[1:], strict=False):
        downloads = DOWNLOADING.match(command) is not None
        spent += 0.0 if downloads else ended - began
        line = f"{ended - began:8.1f} s {'(downloads) ' if downloads else ''}{command.splitlines()[0]}"
        print(line, flush=True)  # noqa: T201 - what it found is what it prints
    return spent


if __name__ == "__main__":
    raise SystemExit(main())
