"""The alert channels by the name that `kind` in `[alerts.NAME]` has; one file each."""

from __future__ import annotations

from supervisor.alerts.channel import Channel
from supervisor.alerts.channels.webhook import Webhook

CHANNELS: dict[str, type[Channel]] = {
    "webhook": Webhook,
}
