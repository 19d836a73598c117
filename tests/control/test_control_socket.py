"""The control socket that systemd passed is served again where its file was cleared away, or what makes it is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from view_by_hand import FakeView

from supervisor.control.client import Client
from supervisor.control.control_socket import RESTART_BOTH, ControlSocket
from supervisor.control.listen import bind
from supervisor.core.moments import Moment
from tests.rigs.no_threads import no_threads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "control.sock"


@pytest.fixture
def control(path: Path) -> Iterator[ControlSocket]:
    """A daemon's that was started again after the file of the socket that systemd holds was removed."""
    passed = bind(path)
    path.unlink()
    item = ControlSocket(FakeView(folder=path.parent), path, passed, tuning=None, now=lambda: Moment(1.0, 2.0))
    item.start()
    yield item
    item.stop()


def test_a_daemon_starts_with_a_socket_that_was_cleared_away_and_binds_another(
    control: ControlSocket, path: Path
) -> None:
    control.keep_served()
    assert control.problem is None
    assert Client(path).get("/v1/status")["daemon"]


def test_where_it_may_not_bind_one_the_problem_names_the_command_once(
    control: ControlSocket, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.rmdir()
    control.keep_served()
    control.keep_served()
    assert control.problem == (
        f"the control socket {path} was removed: `{RESTART_BOTH}` makes it again, and trainings go on"
    )
    assert caplog.messages == ["control.not_bound_again"]
    path.parent.mkdir()
    control.keep_served()
    assert control.problem is None


def test_where_there_is_no_room_for_its_thread_it_is_bound_once_there_is(control: ControlSocket, path: Path) -> None:
    with no_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
        control.keep_served()
    control.keep_served()
    assert Client(path).get("/v1/status")["daemon"]
