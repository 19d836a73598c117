"""The resource limits that a container is started with."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from supervisor.daemon.launch.container_limits import list_limits

ALL, ALL_BUT_RESOURCE = "000001ffffffffff", "000001fffeffffff"


@pytest.fixture
def status(tmp_path: Path) -> Path:
    return tmp_path / "status"


def test_a_root_that_may_not_raise_limits_names_its_own(status: Path) -> None:
    status.write_text(f"Name:\tpython\nCapEff:\t{ALL_BUT_RESOURCE}\n")
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = list_limits(status, uid=0)
    assert limits.get("nofile") == (files if files >= 0 else None)
    assert limits["nproc"] <= 32_768


@pytest.mark.parametrize(("text", "uid"), [(f"CapEff:\t{ALL}\n", 0), ("", 0), (f"CapEff:\t{ALL_BUT_RESOURCE}\n", 1000)])
def test_podman_is_left_to_what_it_can_set_itself(status: Path, text: str, uid: int) -> None:
    status.write_text(text)
    assert list_limits(status, uid=uid) == {}
    assert list_limits(status.with_name("none"), uid=uid) == {}
