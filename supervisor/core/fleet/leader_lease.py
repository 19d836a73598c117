"""The Lease of a Kubernetes cluster by which one process leads a training: whose it is, and when it may be taken.

The times in a Lease are of other machines' clocks, and are compared with nothing. A holder is taken for gone once its
Lease has not changed for its duration on this machine's monotonic clock; a holder takes itself for gone earlier, by the
time at which it sent the last renewal that was accepted. `leaseTransitions` only grows, by one with each new holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from supervisor.core.fleet.epoch import LAUNCHES_MAX
from supervisor.core.foreign_values import as_dict, as_int, as_text

API_VERSION, KIND = "coordination.k8s.io/v1", "Lease"
DURATION_MAX_S = 3600
VERSION_CHARS_MAX, HOLDER_CHARS_MAX = 128, 253


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """A Lease as the API server has it."""

    version: str
    """Of the object: who writes names the one that it has read, and is refused where there is a newer."""
    holder: str
    """"" for none."""
    duration_s: int
    transitions: int
    renewed: str
    """The holder's time, as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A Lease, and since when on this machine's clock it has been as it is."""

    lease: LeaderLease
    since_s: float

    def updated(self, lease: LeaderLease, now_s: float) -> Observed:
        """Return it after another look."""
        return self if lease == self.lease else Observed(lease=lease, since_s=now_s)

    def may_take(self, own: str, now_s: float) -> bool:
        """Whether `own` may hold it from now on."""
        free = self.lease.holder in ("", own)
        return free or now_s - self.since_s >= self.lease.duration_s


def read_lease(facts: Mapping[str, object]) -> LeaderLease:
    """Return a Lease from an API server's answer. Raises ValueError with what it is not."""
    spec = as_dict(facts.get("spec"))
    version = as_text(as_dict(facts.get("metadata")).get("resourceVersion"), VERSION_CHARS_MAX)
    duration_s = as_int(spec.get("leaseDurationSeconds"), 1, DURATION_MAX_S)
    transitions = as_int(spec.get("leaseTransitions", 0), 0, LAUNCHES_MAX)
    holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
    if facts.get("kind", KIND) != KIND or version is None:
        raise ValueError("the answer is no Lease")
    if duration_s is None:
        raise ValueError(f"leaseDurationSeconds is not 1 to {DURATION_MAX_S}")
    if transitions is None:
        raise ValueError(f"leaseTransitions is not 0 to {LAUNCHES_MAX}")
    named = as_text(holder, HOLDER_CHARS_MAX)
    at = as_text(renewed, VERSION_CHARS_MAX)
    if (holder and named is None) or (renewed and at is None):
        raise ValueError("holderIdentity or renewTime is no text of its length")
    return LeaderLease(
        version=version, holder=named or "", duration_s=duration_s, transitions=transitions, renewed=at or ""
    )


def write_lease(name: str, before: LeaderLease | None, own: str, duration_s: int, unix_s: float) -> dict[str, object]:
    """Return the object that makes `own` the holder, or renews it; `unix_s` is for people."""
    at = datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    transitions = 0 if before is None else before.transitions + (before.holder != own)
    metadata: dict[str, object] = {"name": name}
    if before is not None:
        metadata["resourceVersion"] = before.version
    spec = {"holderIdentity": own, "leaseDurationSeconds": duration_s, "renewTime": at, "leaseTransitions": transitions}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
