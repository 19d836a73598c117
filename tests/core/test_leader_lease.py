"""A Lease of Kubernetes: what an API server answers, and from when on its holder is taken for gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from supervisor.core.fleet.epoch import LAUNCHES_MAX
from supervisor.core.fleet.leader_lease import LeaderLease, Observed, read_lease, write_lease

AT = "2026-11-28T00:00:00Z"
SPEC = {"holderIdentity": "pod-1", "leaseDurationSeconds": 15, "leaseTransitions": 3, "renewTime": AT}
ANSWER = {"kind": "Lease", "metadata": {"resourceVersion": "7"}, "spec": SPEC}
LEASE = LeaderLease(version="7", holder="pod-1", duration_s=15, transitions=3, renewed=AT)


def test_an_answer_is_read_as_it_is_and_what_it_may_lack_is_none() -> None:
    assert read_lease(ANSWER) == LEASE
    fresh = {"metadata": {"resourceVersion": "8"}, "spec": {"leaseDurationSeconds": 15}}
    assert read_lease(fresh) == LeaderLease(version="8", holder="", duration_s=15, transitions=0, renewed="")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({**ANSWER, "kind": "Status"}, "^the answer is no Lease$"),
        ({**ANSWER, "metadata": {}}, "^the answer is no Lease$"),
        ({**ANSWER, "spec": {**SPEC, "leaseDurationSeconds": 0}}, "leaseDurationSeconds"),
        ({**ANSWER, "spec": {**SPEC, "leaseTransitions": -1}}, "leaseTransitions"),
        ({**ANSWER, "spec": {**SPEC, "leaseTransitions": LAUNCHES_MAX + 1}}, "leaseTransitions"),
        (
            {**ANSWER, "spec": {**SPEC, "holderIdentity": "x" * 254}},
            "^holderIdentity or renewTime is no text of its length$",
        ),
        ({**ANSWER, "spec": {**SPEC, "renewTime": 5}}, "holderIdentity or renewTime"),
    ],
)
def test_what_is_no_lease_is_refused(answer: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_lease(answer)


def test_a_holder_is_gone_once_its_lease_has_not_changed_for_its_duration() -> None:
    seen = Observed(lease=LEASE, since_s=100.0)
    assert not seen.updated(LEASE, 110.0).may_take("pod-2", 114.9)
    assert seen.updated(LEASE, 110.0).may_take("pod-2", 115.0)
    assert seen.may_take("pod-1", 100.0)
    renewed = read_lease({**ANSWER, "metadata": {"resourceVersion": "8"}})
    assert not seen.updated(renewed, 110.0).may_take("pod-2", 115.0)


@pytest.fixture
def away_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is five hours and a half before UTC."""
    monkeypatch.setenv("TZ", "XXX+5:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("away_from_utc")
def test_the_time_of_a_lease_is_in_utc_wherever_its_holder_is() -> None:
    """Kubernetes refuses a time without its zone, and Z is that of UTC."""
    spec = write_lease("run", None, "pod-1", 15, 1_763_600_000.25)["spec"]
    assert isinstance(spec, dict)
    assert (spec["renewTime"], spec["leaseTransitions"]) == ("2025-11-20T00:53:20.250000Z", 0)


def test_what_is_written_is_the_object_that_an_api_server_takes() -> None:
    spec = {
        "holderIdentity": "pod-2",
        "leaseDurationSeconds": 20,
        "renewTime": "1970-01-01T00:00:00.000000Z",
        "leaseTransitions": 4,
    }
    begun = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "run"}}
    assert write_lease("run", None, "pod-2", 20, 0.0) == {**begun, "spec": {**spec, "leaseTransitions": 0}}
    taken = {**begun, "metadata": {"name": "run", "resourceVersion": "7"}, "spec": spec}
    assert write_lease("run", LEASE, "pod-2", 20, 0.0) == taken


@pytest.mark.parametrize(
    ("spec", "read"),
    [
        ({"leaseDurationSeconds": 1}, LeaderLease(version="7", holder="", duration_s=1, transitions=0, renewed="")),
        (
            {**SPEC, "leaseTransitions": LAUNCHES_MAX, "holderIdentity": "x" * 253},
            replace(LEASE, transitions=LAUNCHES_MAX, holder="x" * 253),
        ),
        ({**SPEC, "holderIdentity": None, "renewTime": ""}, replace(LEASE, holder="", renewed="")),
    ],
)
def test_a_lease_at_its_limits_is_read(spec: dict[str, object], read: LeaderLease) -> None:
    assert read_lease({**ANSWER, "spec": spec}) == read


def test_another_holder_is_one_more_transition_and_a_renewal_none() -> None:
    taken, renewed = (write_lease("run", LEASE, own, 15, 0.0)["spec"] for own in ("pod-2", "pod-1"))
    assert isinstance(taken, dict)
    assert isinstance(renewed, dict)
    assert (taken["holderIdentity"], taken["leaseTransitions"], renewed["leaseTransitions"]) == ("pod-2", 4, 3)
