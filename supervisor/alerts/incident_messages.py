"""Which message of a receiver reports an open incident: what is learned of the incident is written into it; pure.

A message that is edited rings no phone. So what a person has to act on is always a message of its own, and so is what
opens an incident; its triage and its good end, after which nothing is to be done, are written into that message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from supervisor.alerts.channel import KeptNotice

OPENS = "incident.opened"
ENDS = "incident.resumed"
CONTINUES = frozenset({"incident.triaged", ENDS})
CLOSES = frozenset({ENDS, "job.gave_up"})
"""After these nothing more is told of the incident."""
KEPT_AT_MOST = 20
"""Messages of open incidents for each receiver."""

OpenMessages: TypeAlias = Mapping[str, Mapping[str, str]]
"""By the name of the receiver and the incident: the message at the service, as its channel names it."""


def thread_of(notice: KeptNotice) -> str | None:
    """Return the incident whose message a notice begins or is written into; None for a message of its own."""
    incident = notice.data.get("incident")
    return incident if isinstance(incident, str) and notice.type in (OPENS, *CONTINUES) else None


def find_message(kept: OpenMessages, receiver: str, notice: KeptNotice) -> str | None:
    """Return the message that a notice is written into; None where it is sent as a new one."""
    incident = thread_of(notice) if notice.type in CONTINUES else None
    return None if incident is None else kept.get(receiver, {}).get(incident)


def keep_message(kept: OpenMessages, receiver: str, notice: KeptNotice, message: str | None) -> OpenMessages:
    """Return what is kept after a notice was delivered as `message`, None where the service named none."""
    incident = notice.data.get("incident")
    messages = {key: value for key, value in kept.get(receiver, {}).items() if key != incident}
    if message is not None and isinstance(incident, str) and notice.type not in CLOSES and thread_of(notice):
        messages[incident] = message
    newest = dict(list(messages.items())[-KEPT_AT_MOST:])
    others = {name: value for name, value in kept.items() if name != receiver}
    return {**others, receiver: newest} if newest else others
