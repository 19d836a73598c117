"""The link between a node and its leader: bytes in, proven messages out; a pure function of bytes and secrets.

Each side proves that it has the secret of the allocation before anything that it sends is believed. From then on every
message carries an HMAC over its number and direction, so that what is forged, replayed, left out, reordered or sent
back ends the link. Contents are not secret and are not encrypted: an allocation's network is what MPI uses in clear.

    node    -> {"protocol", "role": "node", "name", "version", "job", "nonce"}
    leader  -> the same with "role": "leader", then HMAC(secret, "leader" + both)
    node    -> HMAC(secret, "node" + both)
    both    -> HMAC(key of this direction, number + message) + message

Every frame begins with its length in four bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum

from supervisor.core.fleet.epoch import check_job
from supervisor.core.foreign_values import as_int, as_text, read_json_object

PROTOCOL = 1
NONCE_BYTES = 32
SECRET_BYTES_LEAST = 16
MAC_BYTES = hashlib.sha256().digest_size
GREETING_BYTES_MAX = 2048
"""What a peer may send in one frame before it has proven anything."""
MESSAGE_BYTES_MAX = 1 << 20
"""The evidence of 64 ranks takes a quarter of it."""
_LENGTH_BYTES = 4
_SAME_FILE = "give the leader and all nodes the same --secret-file"


class LinkError(ValueError):
    """The peer is not who it must be, or its bytes are not what it sent; the text names it."""


class Role(str, Enum):
    """Which end of the link."""

    NODE = "node"
    LEADER = "leader"

    @property
    def other(self) -> Role:
        """The peer's role."""
        return Role.LEADER if self is Role.NODE else Role.NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """Who is at an end of the link."""

    name: str
    version: str
    """Of rocm-supervisor."""
    job: str


class Link:
    """One end of one connection."""

    def __init__(self, role: Role, greeting: Greeting, secret: bytes, nonce: bytes, address: str) -> None:
        """`nonce`: NONCE_BYTES that no link had before; `address` names the peer in errors."""
        if len(secret) < SECRET_BYTES_LEAST:
            raise ValueError(
                f"the secret of the training has {len(secret)} bytes, at least {SECRET_BYTES_LEAST} needed"
            )
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        self._role, self._secret, self.address = role, secret, address
        self._own = encode_greeting(role, greeting, nonce)
        self._job = greeting.job
        self._received = bytearray()
        self._their_greeting: bytes | None = None
        self._keys: dict[Role, bytes] = {}
        self._sent_count = self._received_count = 0
        self.peer: Greeting | None = None
        """Who is at the other end; None until it has proven that."""
        self._claimed: Greeting | None = None
        self.outgoing = bytearray()
        """Bytes to be sent; whoever sends them takes them out."""
        if role is Role.NODE:
            self._put_frame(self._own)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes of the peer and yield the messages that they complete. Raises LinkError; then the link is over."""
        self._received += data
        while (frame := self._take_frame()) is not None:
            if self.peer is not None:
                yield self._open(frame)
            else:
                self._greet(frame)

    def send(self, message: bytes) -> None:
        """Have a message sent. Raises LinkError while the peer has not proven who it is, or for one too long."""
        if self.peer is None:
            raise LinkError(f"{self.address} has not proven who it is")
        if len(message) > MESSAGE_BYTES_MAX:
            raise LinkError(f"a message of {len(message)} bytes, at most {MESSAGE_BYTES_MAX} can be sent")
        self._put_frame(self._mac(self._role, self._sent_count, message) + message)
        self._sent_count += 1

    def closed(self) -> LinkError:
        """Return the error for a peer that has closed the connection."""
        if self._role is Role.LEADER and self.peer is None and self._claimed is not None:
            why = f"did not accept this leader's proof that it has the secret of training {self._job}; {_SAME_FILE}"
            return LinkError(f"{self.peer_text}: {why}")
        return LinkError(f"{self.peer_text}: closed the connection")

    @property
    def peer_text(self) -> str:
        """The peer as errors name it: what it claims counts only once it is proven."""
        if self.peer is not None:
            return f"{self._role.other.value} {self.peer.name} ({self.address})"
        claimed = "" if self._claimed is None else f", which calls itself {self._claimed.name}"
        return f"{self.address}{claimed}"

    # --- who is there ---------------------------------------------------------------------------------------------

    def _greet(self, frame: bytes) -> None:
        if self._their_greeting is None:
            if self._role is Role.LEADER:  # also to a node of another version or training, which finds the same
                self._put_frame(self._own)
            self._claimed = self._read_greeting(frame)
            self._their_greeting = frame
            if self._role is Role.LEADER:
                self._put_frame(self._prove(Role.LEADER))
            return
        if not hmac.compare_digest(frame, self._prove(self._role.other)):
            raise LinkError(f"{self.peer_text}: does not have the secret of training {self._job}; {_SAME_FILE}")
        if self._role is Role.NODE:
            self._put_frame(self._prove(Role.NODE))
        self._keys = {role: self._derive(f"{role.value} sends") for role in Role}
        self.peer = self._claimed

    def _read_greeting(self, frame: bytes) -> Greeting:
        facts = read_json_object(frame)
        protocol = as_int(facts.get("protocol")) if facts is not None else None
        if facts is None or protocol is None:
            raise LinkError(f"{self.address}: does not speak this protocol; another program has the port")
        name, version, job = (as_text(facts.get(key)) for key in ("name", "version", "job"))
        if protocol != PROTOCOL:
            text = f"uses protocol {protocol} (rocm-supervisor {version}), this is {PROTOCOL}: install one version"
            raise LinkError(f"{self.address} ({name}): {text}")
        nonce = as_text(facts.get("nonce"))
        if facts.get("role") != self._role.other.value or not (name and version and job and nonce):
            raise LinkError(f"{self.address}: is no {self._role.other.value}: {frame[:80]!r}")
        if job != self._job:
            raise LinkError(f"{self.address} ({name}): belongs to training {job}, this is {self._job}")
        return Greeting(name=name, version=version, job=job)

    def _prove(self, role: Role) -> bytes:
        return self._derive(role.value)

    def _derive(self, purpose: str) -> bytes:
        own, theirs = self._own, self._their_greeting or b""
        node, leader = (own, theirs) if self._role is Role.NODE else (theirs, own)
        parts = (purpose.encode(), node, leader)
        return hmac.digest(self._secret, b"".join(len(part).to_bytes(8, "big") + part for part in parts), "sha256")

    # --- frames ---------------------------------------------------------------------------------------------------

    def _open(self, frame: bytes) -> bytes:
        mac, message = frame[:MAC_BYTES], frame[MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(self._role.other, self._received_count, message)):
            text = f"message {self._received_count} is forged, repeated or out of order"
            raise LinkError(f"{self.peer_text}: {text}")
        self._received_count += 1
        return message

    def _mac(self, role: Role, number: int, message: bytes) -> bytes:
        return hmac.digest(self._keys[role], number.to_bytes(8, "big") + message, "sha256")

    def _put_frame(self, content: bytes) -> None:
        self.outgoing += len(content).to_bytes(_LENGTH_BYTES, "big") + content

    def _take_frame(self) -> bytes | None:
        if len(self._received) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._received[:_LENGTH_BYTES], "big")
        longest = GREETING_BYTES_MAX if self.peer is None else MESSAGE_BYTES_MAX + MAC_BYTES
        if length > longest:
            foreign = "; another program has the port" if self.peer is None else ""
            raise LinkError(f"{self.peer_text}: a message of {length} bytes, at most {longest} is taken{foreign}")
        if len(self._received) < _LENGTH_BYTES + length:
            return None
        frame = bytes(self._received[_LENGTH_BYTES : _LENGTH_BYTES + length])
        del self._received[: _LENGTH_BYTES + length]
        return frame


def encode_greeting(role: Role, greeting: Greeting, nonce: bytes) -> bytes:
    """Return a greeting as it is sent. Raises ValueError for the name of a training that cannot be one."""
    check_job(greeting.job)
    facts = {"protocol": PROTOCOL, "role": role.value, **asdict(greeting), "nonce": nonce.hex()}
    return json.dumps(facts).encode()
