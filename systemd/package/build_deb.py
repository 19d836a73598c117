"""Builds the Debian package: one for Debian 12 and 13, Ubuntu 22.04 and 24.04, from the checkout and wheels.lock.

    python3 systemd/package/build_deb.py OUTPUT [--wheels FOLDER] [--work FOLDER]

The dependencies lie in /usr/lib/rocm-supervisor, apart from the distribution's Python packages, and the system's own
python3 runs them. All wheels serve every Python but those of msgspec and MarkupSafe, whose compiled modules carry the
Python's version in their file names (`_core.cpython-311-x86_64-linux-gnu.so`): the builds for 3.10 to 3.13 lie side by
side, and each interpreter imports its own. So one package serves four releases and an upgrade from one to the next,
where a package for each release would be four builds to make and to test; the price is 0.7 MB. SQLAlchemy is its build
in plain Python, for the same reason.

Needs debhelper and dpkg-dev; no root. Two builds of the same checkout are equal: times are those of debian/changelog.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "any")
PRIVATE = "usr/lib/rocm-supervisor"
# The other name of the command may be another project's.
MARKS = {"@BIN@/supervisorctl": "/usr/bin/rocm-supervisorctl", "@BIN@": "/usr/bin", "@PYTHON@": "/usr/bin/python3"}
UNIT_KINDS = (".service", ".socket", ".slice", ".timer", ".path")


def main() -> None:
    """Build the package into OUTPUT and print its path."""
    parser = argparse.ArgumentParser(description="Build the Debian package.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--wheels", type=Path, help="keep what is downloaded here, for the next build")
    parser.add_argument("--work", type=Path, help="build in here; the default is a temporary folder")
    asked = parser.parse_args()
    check_version()
    with tempfile.TemporaryDirectory() as temporary:
        work = asked.work or Path(temporary)
        wheels = asked.wheels or work / "wheels"
        download(wheels)
        tree = work / "rocm-supervisor"
        shutil.rmtree(tree, ignore_errors=True)
        assemble(tree, wheels)
        subprocess.run(["/usr/bin/dpkg-buildpackage", "--build=binary", "--no-sign"], cwd=tree, check=True)
        asked.output.mkdir(parents=True, exist_ok=True)
        for package in sorted(work.glob("*.deb")):
            print(shutil.move(package, asked.output / package.name))  # noqa: T201 - what was asked for


def check_version() -> None:
    """Raise SystemExit unless debian/changelog begins with the version of the package."""
    code = (ROOT / "supervisor/__init__.py").read_text()
    version = re.search(r'__version__ = "(.+)"', code)
    first = (HERE / "debian/changelog").read_text().split("\n", 1)[0]
    if version is None or f"({version[1]})" not in first:
        sys.exit(f"debian/changelog begins with {first!r}, the version in supervisor/__init__.py is another")


def download(folder: Path) -> None:
    """Fetch the wheels of wheels.lock for every Python; one whose hash differs is refused by pip."""
    folder.mkdir(parents=True, exist_ok=True)
    for python in PYTHONS:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--find-links"]
        command += [str(folder), "--only-binary=:all:", "--python-version", python, "--dest", str(folder)]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        subprocess.run([*command, "--requirement", str(HERE / "wheels.lock")], check=True)


def assemble(tree: Path, wheels: Path) -> None:
    """Lay out the source tree of the package: debian/, and what it installs below files/."""
    shutil.copytree(HERE / "debian", tree / "debian")
    private = tree / "files" / PRIVATE
    for wheel in sorted(wheels.glob("*.whl")):
        unpack(wheel, private)
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "supervisor", private / "supervisor", ignore=ignore)
    shipped = private / "supervisor" / "_shipped"
    shutil.copytree(ROOT / "migrations", shipped / "migrations", ignore=ignore)
    shutil.copytree(ROOT / "systemd", shipped / "systemd", ignore=shutil.ignore_patterns("package", "__pycache__"))
    shutil.copy(ROOT / "config.toml", shipped)
    for name in ("CHANGELOG.md", "README.md", "SECURITY.md", "config.toml"):
        shutil.copy(ROOT / name, tree / name)
    place_units(tree)


def unpack(wheel: Path, private: Path) -> None:
    """Unpack a wheel; raise SystemExit where another one holds a file of the same name with other content."""
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            top = item.filename.split("/", 1)[0]
            if item.is_dir() or top.endswith(".data") or item.filename.endswith((".c", ".h", ".pyx", ".pxd")):
                continue
            target, content = private / item.filename, archive.read(item)
            about = top.endswith(".dist-info") and item.filename.endswith(("/RECORD", "/WHEEL"))
            if target.exists() and target.read_bytes() != content and not about:
                sys.exit(
                    f"{item.filename} of {wheel.name} differs from that of another build: they cannot share a folder"
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def place_units(tree: Path) -> None:
    """Put the units with the package's paths; sysusers, tmpfiles and polkit rules where debhelper finds them."""
    source = ROOT / "systemd"
    units = tree / "files/usr/lib/systemd/system"
    units.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix in UNIT_KINDS:
            text = path.read_text()
            for mark, value in MARKS.items():
                text = text.replace(mark, value)
            (units / path.name).write_text(text)
    shutil.copy(source / "rocm-supervisor.sysusers.conf", tree / "debian/rocm-supervisor.sysusers")
    shutil.copy(source / "rocm-supervisor.tmpfiles.conf", tree / "debian/rocm-supervisor.tmpfiles")
    rules = tree / "files/usr/share/polkit-1/rules.d"
    rules.mkdir(parents=True)
    shutil.copy(source / "50-rocm-supervisor.rules", rules)


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    main()
