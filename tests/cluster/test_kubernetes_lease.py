"""The Lease of a Kubernetes cluster keeps one leader, whatever clocks say and an API server answers.

The API server is a written one (`api_server_by_hand.py`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from api_server_by_hand import ApiServer, serve

from supervisor.cluster.kubernetes import (
    ANSWER_BYTES_MAX,
    ApiError,
    KubernetesEngine,
    LeaseLostError,
    Leases,
    Server,
    find_server,
)
from supervisor.core.moments import Moment

DURATION_S = 15
HOUR_S = 3600.0
LIMIT_S = 30.0


@dataclass
class Clock:
    """Of one machine."""

    monotonic_s: float = 1000.0
    unix_s: float = 1.7e9
    asleep_s: float = 0.0

    def now(self) -> Moment:
        return Moment(self.monotonic_s, self.unix_s)

    def passes(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.unix_s += seconds

    def sleeps(self, seconds: float) -> None:
        self.asleep_s += seconds
        self.unix_s += seconds

    def read_asleep_s(self) -> float:
        return self.asleep_s


@pytest.fixture
def cluster() -> ApiServer:
    return ApiServer()


@pytest.fixture
def server(cluster: ApiServer, tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "token").write_text("ticket\n")
    with serve(cluster) as port:
        yield Server(address=f"http://127.0.0.1:{port}", namespace="train", token=tmp_path / "token")


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition; fail where it does not come true in time."""
    deadline = time.perf_counter() + LIMIT_S
    while not condition():
        assert time.perf_counter() < deadline, what
        time.sleep(0.01)


def engine(server: Server, name: str, clock: Clock) -> KubernetesEngine:
    return KubernetesEngine(Leases(server, "run"), name, DURATION_S, clock.now, clock.read_asleep_s)


def leads(process: KubernetesEngine) -> bool:
    """Let it try once; return whether it holds the Lease by its own judgement."""
    process.try_to_hold()
    return process.holds


def test_the_second_leads_once_the_first_has_not_renewed_for_the_duration(cluster: ApiServer, server: Server) -> None:
    clock, other_clock = Clock(), Clock()
    first, second = engine(server, "a", clock), engine(server, "b", other_clock)
    assert leads(first)
    assert first.fence == 0
    assert not leads(second)
    other_clock.passes(DURATION_S - 1)
    assert leads(first)  # renews
    other_clock.passes(2)
    assert not leads(second)  # it has changed since
    other_clock.passes(DURATION_S - 0.1)
    assert not leads(second)
    other_clock.passes(0.1)
    assert leads(second)
    assert second.fence == 1
    assert cluster.spec["holderIdentity"] == "b"
    with pytest.raises(LeaseLostError, match="'b'"):
        first.try_to_hold()


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
def test_clocks_an_hour_apart_take_nothing_from_a_leader_that_renews(server: Server, ahead_s: float) -> None:
    clock, other_clock = Clock(), Clock(unix_s=1.7e9 + ahead_s, monotonic_s=5.0)
    first, second = engine(server, "a", clock), engine(server, "b", other_clock)
    assert leads(first)
    for _ in range(10):
        clock.passes(5)
        other_clock.passes(5)
        assert leads(first)
        assert not leads(second)


def test_of_two_that_take_it_at_once_one_leads(cluster: ApiServer, server: Server) -> None:
    first, second = engine(server, "a", Clock()), engine(server, "b", Clock())
    cluster.before_write = lambda: leads(second)
    assert not leads(first)
    assert second.holds
    assert cluster.spec["holderIdentity"] == "b"


def test_a_process_that_is_started_again_under_its_pods_name_is_another(cluster: ApiServer, server: Server) -> None:
    clock = Clock()
    before, after = engine(server, "pod-0_1", clock), engine(server, "pod-0_2", clock)
    assert leads(before)
    assert not leads(after)
    clock.passes(DURATION_S)
    assert leads(after)
    assert after.fence == 1
    assert cluster.spec["leaseTransitions"] == 1


def test_a_leader_whose_api_server_is_silent_ends_by_its_own_clock(cluster: ApiServer, server: Server) -> None:
    clock = Clock()
    first = engine(server, "a", clock)
    assert leads(first)
    cluster.answer = (500, b"")
    clock.passes(DURATION_S - 0.1)
    with pytest.raises(ApiError, match="status 500"):
        first.try_to_hold()
    first.tick()
    clock.passes(0.1)
    with pytest.raises(LeaseLostError, match=r"not renewed for 15.0 s \(its duration: 15 s\)"):
        first.tick()


def test_a_leader_whose_machine_slept_for_the_duration_leads_no_more_until_it_has_renewed(server: Server) -> None:
    clock, other_clock = Clock(), Clock()
    first, second = engine(server, "a", clock), engine(server, "b", other_clock)
    assert leads(first)
    assert not leads(second)
    clock.sleeps(DURATION_S - 1)
    first.tick()
    clock.sleeps(1)
    other_clock.sleeps(DURATION_S)
    assert leads(second), "it has not changed for the whole time, in which this one slept too"
    with pytest.raises(LeaseLostError, match=r"not renewed for 15\.0 s"):
        first.tick()


def test_a_renewal_counts_from_when_it_was_sent_however_long_its_answer_took(
    cluster: ApiServer, server: Server
) -> None:
    clock = Clock()
    first = engine(server, "a", clock)
    cluster.before_write = lambda: clock.passes(10)
    assert leads(first)
    clock.passes(DURATION_S - 10.1)
    first.tick()
    clock.passes(0.1)
    with pytest.raises(LeaseLostError, match=r"not renewed for 15\.0 s"):
        first.tick()


def test_a_lease_that_was_deleted_is_not_made_again_by_who_held_it(cluster: ApiServer, server: Server) -> None:
    first = engine(server, "a", Clock())
    assert leads(first)
    cluster.lease = None
    with pytest.raises(LeaseLostError, match="deleted"):
        first.try_to_hold()


def test_a_leader_waits_for_the_api_server_renews_by_itself_and_ends_once_another_leads(
    cluster: ApiServer, server: Server
) -> None:
    first = KubernetesEngine(Leases(server, "run"), "a", 1, Clock().now)
    cluster.answer = (503, b"")
    leading = threading.Thread(target=first.wait_to_lead, daemon=True)
    leading.start()
    until(lambda: len(cluster.asked) >= 2, "a second question")
    assert leading.is_alive()
    cluster.answer = None
    until(lambda: cluster.version >= 3, "two renewals")
    leading.join(LIMIT_S)
    first.tick()
    cluster.before_write = lambda: cluster.take_over("b")  # while the first is about to renew it
    until(lambda: not first.holds, "the end of the first")
    with pytest.raises(LeaseLostError, match="is held by 'b' now"):
        first.tick()
    assert cluster.spec["holderIdentity"] == "b"


def test_a_lease_whose_transitions_somebody_has_changed_is_not_held_any_more(
    cluster: ApiServer, server: Server
) -> None:
    first = engine(server, "a", Clock())
    assert leads(first)
    cluster.spec["leaseTransitions"] = 5
    with pytest.raises(LeaseLostError):
        first.try_to_hold()
    assert first.fence == 0, "the launches that it has ordered have this number"


def spec(**facts: object) -> bytes:
    known = {"holderIdentity": "x", "leaseDurationSeconds": 15, "leaseTransitions": 0, "renewTime": "now"}
    return json.dumps({"kind": "Lease", "metadata": {"resourceVersion": "1"}, "spec": {**known, **facts}}).encode()


@pytest.mark.parametrize(
    ("status", "content", "what"),
    [
        (200, b"{" + b" " * (2 * ANSWER_BYTES_MAX), "no object"),
        (200, b"[]", "no object"),
        (200, b"\xff\xfe", "no object"),
        (200, b"[" * 100_000, "no object"),
        (200, b'{"kind": "Secret", "metadata": {"resourceVersion": "1"}}', "no Lease"),
        (200, b'{"kind": "Lease", "metadata": [], "spec": 1}', "no Lease"),
        (200, spec(leaseDurationSeconds=10**9), "leaseDurationSeconds"),
        (200, spec(leaseDurationSeconds=0), "leaseDurationSeconds"),
        (200, spec(leaseDurationSeconds=True), "leaseDurationSeconds"),
        (200, spec(leaseTransitions=2**31), "leaseTransitions"),
        (200, spec(leaseTransitions=-1), "leaseTransitions"),
        (200, spec(holderIdentity=["x"]), "holderIdentity"),
        (200, spec(holderIdentity="x" * 300), "holderIdentity"),
        (302, b"", "status 302"),
        (401, b"", "status 401"),
        (503, b"", "status 503"),
    ],
)
def test_what_is_no_lease_is_an_error_that_names_the_server(
    cluster: ApiServer, server: Server, status: int, content: bytes, what: str
) -> None:
    cluster.answer = (status, content)
    waiting = engine(server, "a", Clock())
    with pytest.raises(ApiError, match=what) as raised:
        waiting.try_to_hold()
    assert server.address in str(raised.value)
    assert "ticket" not in str(raised.value)
    assert not waiting.holds
    assert len(cluster.asked) == 1


def test_the_token_is_read_for_each_request(cluster: ApiServer, server: Server) -> None:
    first = engine(server, "a", Clock())
    first.try_to_hold()
    server.token.write_text("another\n")
    first.try_to_hold()
    assert cluster.asked[0].endswith("leases/run Bearer ticket")
    assert cluster.asked[-1].endswith("leases/run Bearer another")


def test_outside_of_a_pod_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is this a pod"):
        find_server({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    (tmp_path / "namespace").write_text("train\n")
    with pytest.raises(ValueError, match="KUBERNETES_SERVICE_HOST"):
        find_server({}, tmp_path)
    found = find_server({"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)
    assert (found.address, found.namespace) == ("https://[fd00::1]:443", "train")


def test_nodes_that_are_used_up_are_named_with_what_a_person_can_do(server: Server) -> None:
    with pytest.raises(ValueError, match="`kubectl cordon` n3, then recreate the JobSet"):
        engine(server, "a", Clock()).requeue(["n3"], "rank 3 ended")
