"""Leader and nodes begin while what they need hangs: they say what does not answer, and begin once it does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cluster_by_hand import Cluster, until

from tests.rigs.hanging_fs import HangingFs
from tests.rigs.laid_code import lay_code

pytestmark = [pytest.mark.mounts, pytest.mark.waits]

ENDS_IN_S = 60


@pytest.mark.parametrize("beyond_sigkill", [False, True])
def test_a_state_directory_that_does_not_answer_is_waited_for(
    tmp_path: Path, far: HangingFs, code_copies: Path, *, beyond_sigkill: bool
) -> None:
    (tmp_path / "home").mkdir()
    with Cluster(tmp_path / "home", 1) as cluster:
        for name in ("leader", "n0", "n1"):
            (far.at / name).mkdir()
            (cluster.folder / name).symlink_to(far.at / name)
        lay_code(code_copies, far.real / "n0")
        # That file system serves no sockets.
        cluster.settings = cluster.folder / "run.toml"
        cluster.settings.write_text(f'[supervisor]\nsocket = "{cluster.folder}/node.sock"\n')
        far.hang(beyond_sigkill=beyond_sigkill)
        cluster.start_leader()
        cluster.start_node("n0")
        cluster.start_node("n1")
        for name in ("boss", "n0", "n1"):
            log = cluster.folder / f"{name}.log"
            until(lambda log=log: "state.silent" in log.read_text(), f"{name} to say what hangs")  # type: ignore[misc]
            assert f"{far.at} does not answer" in log.read_text()
        stopped = cluster.daemons.pop("n1")
        stopped.send_signal(signal.SIGTERM)
        assert stopped.wait(ENDS_IN_S) == -signal.SIGTERM
        far.go_on()
        cluster.await_epoch(1)
        (cluster.folder / "finish").touch()
        assert cluster.leader is not None
        assert cluster.leader.wait(ENDS_IN_S) == 0
        far.end()


def test_a_configuration_or_a_secret_that_does_not_answer_ends_the_start(tmp_path: Path, far: HangingFs) -> None:
    (tmp_path / "home").mkdir()
    with Cluster(tmp_path / "home", 1) as cluster:
        (far.at / "run.toml").write_text('[jobs.run]\ncommand = ["true"]\n')
        (far.at / "secret").write_bytes(cluster.secret.read_bytes())
        far.hang()
        cluster.settings = far.at / "run.toml"
        cluster.start_node("n0")
        assert cluster.daemons.pop("n0").wait(ENDS_IN_S) == 69
        cluster.settings, cluster.secret = None, far.at / "secret"
        cluster.start_node("n0")
        assert cluster.daemons.pop("n0").wait(ENDS_IN_S) == 69
        cluster.start_leader()
        assert cluster.leader is not None
        assert cluster.leader.wait(ENDS_IN_S) == 69
        assert (cluster.folder / "boss.log").read_text().count(f"{far.at} does not answer") == 1
        assert (cluster.folder / "n0.log").read_text().count(f"{far.at} does not answer") == 2
        far.end()
