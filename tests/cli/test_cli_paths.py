"""Configuration and socket are found where they lie, and never those of another daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.cli.paths import SYSTEM_CONFIG, find_config, find_socket, other_supervisor


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / ".config/rocm-supervisor").mkdir(parents=True)
    return {"HOME": str(tmp_path)}


def own_config(home: dict[str, str], text: str = "") -> Path:
    path = Path(home["HOME"]) / ".config/rocm-supervisor/config.toml"
    path.write_text(text)
    return path


def test_the_option_outranks_the_variable_and_that_the_files(home: dict[str, str]) -> None:
    own = own_config(home)
    named = {**home, "ROCM_SUPERVISOR_CONFIG": "/named.toml"}
    assert find_config(Path("/given.toml"), named) == Path("/given.toml")
    assert find_config(None, named) == Path("/named.toml")
    assert find_config(None, home) == own


def test_without_an_own_configuration_the_systems_counts(home: dict[str, str]) -> None:
    assert find_config(None, home) == SYSTEM_CONFIG
    assert find_config(None, {}) == SYSTEM_CONFIG


def test_the_socket_is_the_one_that_the_configuration_names(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f"[supervisor]\nstate_dir = '{tmp_path}/state'")
    assert find_socket(config, {}) == tmp_path / "state/control.sock"
    config.write_text("[supervisor]\nsocket = '/else/where.sock'")
    assert find_socket(config, {}) == Path("/else/where.sock")
    assert find_socket(config, {"ROCM_SUPERVISOR_SOCKET": "/v.sock"}) == Path("/v.sock")


def test_the_users_daemon_is_looked_for_in_their_runtime_directory(home: dict[str, str], tmp_path: Path) -> None:
    own = own_config(home, f"[supervisor]\nstate_dir = '{tmp_path}/state'")
    environment = {**home, "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    runtime = tmp_path / "run/rocm-supervisor/control.sock"
    assert find_socket(own, environment) == runtime
    (tmp_path / "state").mkdir()
    (tmp_path / "state/control.sock").touch()
    assert find_socket(own, environment) == tmp_path / "state/control.sock"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    assert find_socket(own, environment) == runtime


def test_another_configuration_never_leads_to_a_standing_daemon(home: dict[str, str], tmp_path: Path) -> None:
    runtime = tmp_path / "run/rocm-supervisor/control.sock"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    config = tmp_path / "trial.toml"
    config.write_text(f"[supervisor]\nstate_dir = '{tmp_path}/trial'")
    found = find_socket(config, {**home, "XDG_RUNTIME_DIR": str(tmp_path / "run")})
    assert found == tmp_path / "trial/control.sock"


@pytest.mark.parametrize("text", ["[supervisor", "supervisor = 3", "[supervisor]\nsocket = 7\nstate_dir = []", "\xff"])
def test_a_broken_configuration_still_leads_somewhere(tmp_path: Path, text: str) -> None:
    config = tmp_path / "c.toml"
    config.write_bytes(text.encode("latin-1"))
    assert find_socket(config, {}) == Path("/var/lib/rocm-supervisor/control.sock")


def test_the_other_supervisor_is_found_by_its_distribution(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    (packages / "rocm_supervisor-0.1.0.dist-info").mkdir(parents=True)
    search = ["", str(tmp_path), "/nonexistent/dist-packages", str(packages)]
    assert other_supervisor(search) is None
    (packages / "supervisor-4.3.0.dist-info").mkdir()
    assert other_supervisor(search) == packages / "supervisor-4.3.0.dist-info"
