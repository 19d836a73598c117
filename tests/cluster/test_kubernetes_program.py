"""`rocm-supervisord --role leader --engine kubernetes` as a pod runs it: its Lease decides who leads, and the fence.

The API server is a written one (`api_server_by_hand.py`) over TLS; the account is where Kubernetes mounts it, in a
mount namespace of the leader's own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server_by_hand import ApiServer, serve
from cluster_by_hand import Cluster, gone, until

from supervisor.cluster.kubernetes import ACCOUNT
from tests.alerts.certificate_by_hand import make_certificate

pytestmark = [
    pytest.mark.waits,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"),
]

POD = f'mount -t tmpfs none /run && mkdir -p {ACCOUNT} && cp "$1"/* {ACCOUNT}/ && shift && exec "$@"'
UNAVAILABLE = 69
LEASES = "/apis/coordination.k8s.io/v1/namespaces/train/leases"


class Pods:
    """Leaders of one training that are pods of a cluster."""

    def __init__(self, cluster: Cluster, api: ApiServer, port: int, account: Path) -> None:
        self.cluster, self.api, self.account = cluster, api, account
        self.env = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}

    def start(self, name: str) -> subprocess.Popen[bytes]:
        cluster = self.cluster
        words = [sys.executable, "-m", "supervisor.daemon.main", "--role", "leader", "--engine", "kubernetes"]
        words += ["--training", "run", "--secret-file", str(cluster.secret), "--node", name, "--nodes", "2"]
        words += ["--state-dir", str(cluster.folder / "leader"), "--listen", f"127.0.0.1:{cluster.port}"]
        words += ["--port", str(cluster.rendezvous_port), "--lease-s", "60", "--evidence-s", "20", "--spares-s", "0"]
        pod = ["unshare", "--mount", "sh", "-c", POD, "sh", str(self.account), *words]
        with (cluster.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(pod, stdout=log, stderr=log, env=self.env)

    def await_holder(self, name: str) -> None:
        until(
            lambda: self.api.lease is not None and str(self.api.spec["holderIdentity"]).startswith(f"{name}_"),
            f"that {name} leads\n{self.cluster.logs()}",
        )

    def read_log(self, name: str) -> str:
        return (self.cluster.folder / f"{name}.log").read_text()


@pytest.fixture
def pods(tmp_path: Path, code_copies: Path) -> Iterator[Pods]:
    account, api = tmp_path / "account", ApiServer()
    account.mkdir()
    (account / "namespace").write_text("train\n")
    (account / "token").write_text("ticket\n")
    certificate = make_certificate(tmp_path, "IP:127.0.0.1")
    (account / "ca.crt").write_bytes(Path(f"{certificate}.crt").read_bytes())
    with serve(api, certificate) as port, Cluster(tmp_path, 2, code_copies=code_copies) as cluster:
        yield Pods(cluster, api, port, account)


def test_a_second_leader_waits_for_the_lease_goes_on_under_a_higher_fence_and_ends_with_it(pods: Pods) -> None:
    cluster, api = pods.cluster, pods.api
    first = pods.start("boss-0")
    try:
        pods.await_holder("boss-0")
        for number in range(2):
            cluster.start_node(f"n{number}")
        before = cluster.await_epoch(1)
        second = pods.start("boss-1")
        try:
            asked = len(api.asked)
            until(lambda: len(api.asked) > asked + 4, "that both ask for the Lease")
            assert second.poll() is None, pods.read_log("boss-1")
            assert set(api.asked) == {
                f"GET {LEASES}/rocm-supervisor-run Bearer ticket",
                f"POST {LEASES} Bearer ticket",
                f"PUT {LEASES}/rocm-supervisor-run Bearer ticket",
            }
            first.kill()
            first.wait()
            pods.await_holder("boss-1")
            assert api.spec["leaseTransitions"] == 1
            until(lambda: "leader.joined" in pods.read_log("boss-1"), "that nodes come to the second leader")
            assert not any(gone(pid) for pid in before.values()), "a leader that is lost costs no training"
            os.kill(before[3], signal.SIGKILL)
            after = cluster.await_epoch(2)
            assert cluster.read_rank(cluster.folder / "rank-3")[-1][0] == "run.1.2", "the Lease's transitions are in it"

            api.take_over("boss-2_0")
            assert second.wait(60) == UNAVAILABLE
            assert "is held by 'boss-2_0' now" in pods.read_log("boss-1")
            assert not any(gone(pid) for pid in after.values())
        finally:
            second.kill()
            second.wait()
    finally:
        first.kill()
        first.wait()


def test_outside_of_a_pod_the_leader_says_so_and_does_not_begin(pods: Pods) -> None:
    (pods.account / "namespace").unlink()
    leader = pods.start("boss-0")
    assert leader.wait(60) == 78
    assert "is this a pod?" in pods.read_log("boss-0")
    assert pods.api.asked == []
