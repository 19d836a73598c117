"""The configuration that was last in force: kept when it is taken up, found when the file has become wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.config import check
from supervisor.config.files import LARGEST_BYTES
from supervisor.core.flags import Act
from supervisor.core.rules.advisory.deadline import Deadline
from supervisor.core.rules.hang import Hang
from supervisor.core.rules.stall import Stall
from supervisor.daemon import reload


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(f"[supervisor]\nstate_dir = '{tmp_path}'\n[jobs.yolo]\ncommand = ['true']\ngrace_s = 7\n")
    return path


def found(state: Path) -> float | None:
    """Return a setting of the kept configuration, None where there is none."""
    kept = reload.find({"STATE_DIRECTORY": str(state)})
    return None if kept is None or kept[1].settings is None else kept[1].settings.jobs["yolo"].grace_s


def test_what_is_in_force_is_found_again(config: Path, tmp_path: Path) -> None:
    reload.keep(tmp_path, check(config).text)
    config.write_text("[jobs")
    assert found(tmp_path) == 7
    assert (tmp_path / reload.NAME).stat().st_mode & 0o777 == 0o600


def test_what_is_in_force_from_several_files_is_kept_as_one(config: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    config.write_text(f"[supervisor]\nstate_dir = '{state}'\n")
    (tmp_path / "conf.d").mkdir()
    more = tmp_path / "conf.d" / "yolo.toml"
    more.write_text("[jobs.yolo]\ncommand = ['true']\ngrace_s = 9\nenv = { TOKEN = 'sesame' }\n")
    reload.keep(state, check(config).text)
    more.write_text("[jobs")
    assert found(state) == 9
    assert (state / reload.NAME).stat().st_mode & 0o777 == 0o600
    reload.keep(state, check(config).text)  # what is broken does not replace it
    assert found(state) == 9


def test_what_is_in_force_from_several_files_may_be_larger_than_one_of_them(config: Path, tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    for name in "abc":
        variable = f"env = {{ LONG = '{'x' * 500_000}' }}"
        (tmp_path / "conf.d" / f"{name}.toml").write_text(f"[jobs.{name}]\ncommand = ['true']\n{variable}\n")
    text = check(config).text
    assert text is not None
    assert len(text) > LARGEST_BYTES
    reload.keep(tmp_path, text)
    config.write_text("[jobs")
    assert found(tmp_path) == 7


def test_a_configuration_of_another_state_directory_is_not_taken(config: Path, tmp_path: Path) -> None:
    reload.keep(tmp_path, check(config).text)
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / reload.NAME).rename(other / reload.NAME)
    assert found(other) is None


def test_without_a_state_directory_there_is_nothing_to_fall_back_on(config: Path, tmp_path: Path) -> None:
    reload.keep(tmp_path, check(config).text)
    assert reload.find({}) is None
    assert found(tmp_path / "none") is None


def test_a_disk_that_refuses_costs_the_copy_alone(config: Path, tmp_path: Path) -> None:
    reload.keep(tmp_path / "none", check(config).text)
    assert found(tmp_path / "none") is None


def test_a_folder_in_its_place_is_moved_aside(config: Path, tmp_path: Path) -> None:
    (tmp_path / reload.NAME / "other").mkdir(parents=True)
    reload.keep(tmp_path, check(config).text)
    assert (tmp_path / reload.NAME).is_file()
    assert (tmp_path / f"{reload.NAME}.found-1" / "other").exists()


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False), ("shadow", True), (False, "shadow")])
def test_a_rule_that_may_do_something_else_than_before_is_named(before: Act, after: Act) -> None:
    unchanged = (Hang(act=False), Deadline())
    found = reload.list_changed_acts((Stall(act=before), *unchanged), (Stall(act=after), *unchanged))
    assert found == [("stall", before, after)]
