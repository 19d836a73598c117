"""The built wheel, installed where no checkout is: commands, migrations, units and settings are all in it."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from house import House

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.xdist_group("wheel")  # it is built once

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("supervisor", "migrations", "systemd", "config.toml", "pyproject.toml", "README.md", "LICENSE")


def run(*words: str | Path, limit_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, without what would lead it back there."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=limit_s, check=False, cwd="/", env=env
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that has the wheel, and this one's packages except ours."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy: building leaves nothing in the checkout
    source.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for name in BUILT_FROM:
        item = ROOT / name
        if item.is_dir():
            shutil.copytree(item, source / name, ignore=ignore)
        else:
            shutil.copy(item, source / name)
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    if built.returncode != 0 and "No matching distribution" in built.stderr:
        pytest.skip("no package index within reach to build with")
    assert built.returncode == 0, built.stderr
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    target = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    wheel = next(folder.glob("rocm_supervisor-*.whl"))
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    assert done.returncode == 0, done.stderr
    # addsitedir would follow the checkout's own .pth; a path alone does not.
    (Path(target) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_the_wheel_carries_migrations_units_and_settings(installed: Path) -> None:
    code = "import supervisor; from supervisor.shipped import shipped; print(supervisor.__file__)\n"
    code += "print(*(shipped(one) for one in ('migrations', 'systemd', 'config.toml')))"
    done = run(installed / "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert str(ROOT) not in done.stdout


@pytest.mark.parametrize("command", ["supervisorctl", "rocm-supervisorctl"])
def test_its_commands_are_there_and_the_shipped_settings_are_good(installed: Path, command: str) -> None:
    found = run(installed / "python", "-c", "from supervisor.shipped import shipped; print(shipped('config.toml'))")
    done = run(installed / command, "--config", found.stdout.strip(), "config", "check")
    assert done.returncode == 0, done.stderr
    assert run(installed / command, "--help").returncode == 0


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_an_installer_of_tools_finds_its_commands_its_python_and_what_it_needs(installed: Path) -> None:
    code = """if True:
        import json
        from importlib.metadata import distribution
        found = distribution("rocm-supervisor")
        commands = {each.name: each.value for each in found.entry_points if each.group == "console_scripts"}
        print(json.dumps([found.metadata["Requires-Python"], commands, found.requires]))"""
    python, commands, requirements = json.loads(run(installed / "python", "-c", code).stdout)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert python == project["requires-python"]
    assert commands == project["scripts"]
    assert {name_of(each) for each in requirements} >= {name_of(each) for each in project["dependencies"]}
    checked = run(sys.executable, "-m", "pip", "--python", installed / "python", "check")
    assert checked.stdout
    assert "rocm-supervisor" not in checked.stdout, "a package that it needs is not there, or of another version"


def test_its_daemon_runs_a_training_and_upgrades_an_empty_database(installed: Path, home: House) -> None:
    home.bin = installed
    home.state.mkdir()
    sqlite3.connect(home.state / "supervisor.db").close()
    home.write(home.by_hand("one", "--steps", "60", "--wound", "kill:40"))
    home.start()
    home.phase("one", "finished")
    assert home.incident("one")["resumed_from"]["step"] == 25
    assert home.query("SELECT version_num FROM alembic_version")
