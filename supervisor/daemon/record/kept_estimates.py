"""The newest estimate of each job's memory, among the notes of the record; read and written in the deciding thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.core.foreign_values import read_json_object
from supervisor.core.memory.kept import KeptEstimate, digest_command, read_kept_estimate
from supervisor.daemon.record.persistence import LEARNED
from supervisor.json_bytes import encode_json
from supervisor.store.store import Store


class KeptEstimates:
    """Each with the command that it is of."""

    def __init__(self, store: Store, command: Callable[[str], Sequence[str] | None]) -> None:
        """`command` returns that of a job as it is configured now."""
        self._store = store
        self._command = command

    def keep(self, job: str, command_digest: str, estimate: KeptEstimate) -> bool:
        """Keep an estimate, where it is of the job's command; return whether it is."""
        if not self._is_current(job, command_digest):
            return False
        facts = {
            "command": command_digest,
            "torch": estimate.torch,
            "card_bytes": estimate.card_bytes,
            "configured": estimate.configured,
            "largest": estimate.largest,
            "ran": estimate.ran,
        }
        self._store.set_note(_note_of(job), encode_json(facts).decode())
        return True

    def find(self, job: str) -> KeptEstimate | None:
        """Return the newest estimate of the job's command, None without any."""
        facts = read_json_object(self._store.note(_note_of(job)) or "")
        if facts is None or not self._is_current(job, facts.get("command")):
            return None
        return read_kept_estimate(facts)

    def _is_current(self, job: str, command_digest: object) -> bool:
        command = self._command(job)
        return command is not None and digest_command(command) == command_digest


def _note_of(job: str) -> str:
    """Return the name of a note that is deleted with the job."""
    return f"{LEARNED} {job}: estimate of the GPU's memory"
