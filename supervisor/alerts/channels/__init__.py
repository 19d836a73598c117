"""The alert channels by the name that `kind` in `[alerts.NAME]` has; one file each."""

from __future__ import annotations

from supervisor.alerts.channel import Channel
from supervisor.alerts.channels.alertmanager import Alertmanager
from supervisor.alerts.channels.apprise import Apprise
from supervisor.alerts.channels.command import Command
from supervisor.alerts.channels.discord import Discord
from supervisor.alerts.channels.email import Email
from supervisor.alerts.channels.healthchecks import Healthchecks
from supervisor.alerts.channels.ntfy import Ntfy
from supervisor.alerts.channels.slack import Slack
from supervisor.alerts.channels.telegram import Telegram
from supervisor.alerts.channels.webhook import Webhook

CHANNELS: dict[str, type[Channel]] = {
    "webhook": Webhook,
    "ntfy": Ntfy,
    "discord": Discord,
    "slack": Slack,
    "telegram": Telegram,
    "email": Email,
    "alertmanager": Alertmanager,
    "healthchecks": Healthchecks,
    "apprise": Apprise,
    "command": Command,
}
