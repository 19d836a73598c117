"""Kubernetes as the engine: a Lease keeps one leader. Tried against a written API server; not run on a cluster.

More nodes are pods that join; a node that is at fault is left out among those. The API server is asked in a thread of
its own: however it hangs, a leader whose Lease is over ends, and the nodes go on until the next one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import urllib3

from supervisor.children.prompt_thread import PromptThread
from supervisor.core.fleet.leader_lease import LeaderLease, Observed, read_lease, write_lease
from supervisor.core.foreign_values import read_json_object
from supervisor.core.moments import Moment

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANSWER_BYTES_MAX = 1 << 20
CONNECT_LIMIT_S, READ_LIMIT_S = 2.0, 3.0
DURATION_S = 15
"""Of the Lease: so long a training goes on without a leader, at most, where its machine was lost."""
RENEWALS = 4
"""In the duration of a Lease: an API server that answers each fourth time keeps its leader."""
NOT_FOUND, CONFLICT, CREATED = 404, 409, 201


class LeaseLostError(OSError):
    """The process may not lead any more."""


class ApiError(OSError):
    """The API server did not do what it was asked; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the API server is, and what a pod's service account has for it."""

    address: str
    namespace: str
    token: Path
    """Read for each request: it is replaced within the hour."""
    authority: Path | None = None


def find_server(environment: Mapping[str, str], account: Path = ACCOUNT) -> Server:
    """Return the API server of the cluster in which this process is a pod. Raises ValueError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        namespace = (account / "namespace").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"--engine kubernetes: {account}/namespace: {error.strerror}; is this a pod?") from error
    if not host or not port.isdecimal():
        raise ValueError("--engine kubernetes: KUBERNETES_SERVICE_HOST and _PORT are not set; is this a pod?")
    address = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Server(address=address, namespace=namespace, token=account / "token", authority=account / "ca.crt")


def name_lease(training: str) -> str:
    """Return the name of a training's Lease, which has neither capitals nor underscores."""
    return f"rocm-supervisor-{training.lower().replace('_', '-').strip('-')}"


class Leases:
    """One Lease of the namespace."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self.name = server, name
        authority = None if server.authority is None else str(server.authority)
        limit = urllib3.Timeout(connect=CONNECT_LIMIT_S, read=READ_LIMIT_S)
        self._pool = urllib3.PoolManager(num_pools=1, timeout=limit, retries=False, ca_certs=authority)

    def read(self) -> LeaderLease | None:
        """Return it; None where there is none. Raises ApiError."""
        return self._ask("GET", f"/{self.name}", None, NOT_FOUND)

    def write(self, body: Mapping[str, object], *, new: bool) -> LeaderLease | None:
        """Write it; return None where another process was quicker. Raises ApiError."""
        return self._ask("POST" if new else "PUT", "" if new else f"/{self.name}", body, CONFLICT)

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None, none: int) -> LeaderLease | None:
        server = self._server
        url = f"{server.address}/apis/coordination.k8s.io/v1/namespaces/{server.namespace}/leases{path}"
        where = f"API server {server.address}, lease {server.namespace}/{self.name}"
        try:
            token = server.token.read_text(encoding="ascii").strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            answer = self._pool.request(
                method, url, body=data, headers=headers, preload_content=False, redirect=False, decode_content=False
            )
            try:
                content = answer.read(ANSWER_BYTES_MAX + 1)
            finally:
                answer.close()  # an answer that goes on is not read to its end
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            raise ApiError(f"{where}: {type(error).__name__}: {error}"[:500]) from error
        if answer.status == none:
            return None
        if answer.status not in (200, CREATED):
            raise ApiError(f"{where}: answered {method} with status {answer.status}")
        facts = read_json_object(content) if len(content) <= ANSWER_BYTES_MAX else None
        if facts is None:
            raise ApiError(f"{where}: answered {method} with {len(content)} bytes that are no object of JSON")
        try:
            return read_lease(facts)
        except ValueError as error:
            raise ApiError(f"{where}: {error}") from error


class KubernetesEngine:
    """Implements `cluster.leader.Engine`."""

    def __init__(
        self,
        leases: Leases,
        own: str,
        duration_s: int,
        now: Callable[[], Moment],
        read_asleep_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`own` names this process, and no other that was or will be.

        `read_asleep_s` returns for how long this machine has slept since its start: the Lease goes on meanwhile.
        """
        self._leases, self._own, self._duration_s, self._now = leases, own, duration_s, now
        self._read_asleep_s = read_asleep_s
        self._seen: Observed | None = None
        self._over = threading.Event()
        self._lost: str | None = None
        self._renewed_s: float | None = None
        """When the last renewal was sent that was accepted."""
        self.fence = 0
        """Of the Lease's transitions, since this process holds it."""

    def _clock(self) -> float:
        return self._now().monotonic_s + self._read_asleep_s()

    @property
    def holds(self) -> bool:
        """Whether this process has held the Lease and not lost it, as far as it knows."""
        return self._renewed_s is not None and self._lost is None

    def wait_to_lead(self) -> None:
        """Return once this process holds the Lease, which is renewed from then on."""
        problem = ""
        while self._renewed_s is None:
            try:
                self.try_to_hold()
                problem = ""
            except ApiError as error:
                if str(error) != problem:
                    log.warning("kubernetes.no_answer", extra={"fields": {"why": str(error)}})
                problem = str(error)
            if self._renewed_s is None:
                self._over.wait(self._duration_s / RENEWALS)
        log.info("kubernetes.leads", extra={"fields": {"lease": self._leases.name, "transitions": self.fence}})
        PromptThread(self._renew, "kubernetes-lease").start()

    def try_to_hold(self) -> None:
        """Take the Lease, or renew it. Raises ApiError; LeaseLostError where another has it that this process had."""
        sent_s, unix_s = self._clock(), self._now().unix_s
        lease = self._leases.read()
        if lease is not None:
            now_s = self._clock()
            seen = self._seen or Observed(lease=lease, since_s=now_s)
            self._seen = seen.updated(lease, now_s)
            if self._renewed_s is not None and (lease.holder != self._own or lease.transitions != self.fence):
                raise LeaseLostError(f"lease {self._leases.name}: is held by {lease.holder!r} now")
            if not self._seen.may_take(self._own, now_s):
                return
        elif self._renewed_s is not None:
            raise LeaseLostError(f"lease {self._leases.name}: was deleted")
        body = write_lease(self._leases.name, lease, self._own, self._duration_s, unix_s)
        written = self._leases.write(body, new=lease is None)
        if written is not None and written.holder == self._own:
            self._renewed_s, self.fence = sent_s, written.transitions

    def _renew(self) -> None:
        while not self._over.wait(self._duration_s / RENEWALS):
            try:
                self.try_to_hold()
            except LeaseLostError as error:
                self._lost = str(error)
                return
            except ApiError as error:
                log.warning("kubernetes.not_renewed", extra={"fields": {"why": str(error)}})

    def tick(self) -> None:
        """Raise LeaseLostError where this process may not lead any more."""
        assert self._renewed_s is not None
        silent_s = self._clock() - self._renewed_s
        if self._lost is None and silent_s >= self._duration_s:
            self._lost = (
                f"lease {self._leases.name}: not renewed for {silent_s:.1f} s (its duration: {self._duration_s} s)"
            )
        if self._lost is not None:
            self._over.set()
            raise LeaseLostError(self._lost)

    def requeue(self, excluded: Sequence[str], reason: str) -> None:
        """Refuse: a JobSet places its pods by itself."""
        nodes = ", ".join(excluded)
        raise ValueError(f"no pod left for the training; `kubectl cordon` {nodes}, then recreate the JobSet: {reason}")
