"""A receiver is read from the configuration, its address and secret from where they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from receiver_by_hand import SECRET

from supervisor.alerts.channels.webhook import Webhook, WebhookSettings
from supervisor.alerts.settings import ReceiverError


def test_the_configurations_own_settings_make_a_sink(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://hooks.example/services/T0/s3cret\n")
    channel = Webhook.from_settings("owner", WebhookSettings(url_file=str(tmp_path / "url")))
    endpoint = channel.endpoint
    assert (endpoint.host, endpoint.port, endpoint.target) == ("hooks.example", 443, "/services/T0/s3cret")
    assert channel.destination == "hooks.example"
    assert "s3cret" not in repr(channel)


def test_address_and_secret_come_from_files_or_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\nwhsec_{'QUJD' * 8}\n")
    monkeypatch.setenv("HOOK", "http://[fd12::1]:8080/a?b=c")
    settings = WebhookSettings(url_env="HOOK", secret_file=str(tmp_path / "secret"))
    channel = Webhook.from_settings("owner", settings)
    endpoint = channel.endpoint
    assert (endpoint.host, endpoint.port, endpoint.target) == ("fd12::1", 8080, "/a?b=c")
    assert channel.destination == "[fd12::1]:8080"
    assert len(channel.secrets) == 2
    monkeypatch.setenv("SECRET", SECRET)
    plain = WebhookSettings(url="https://h.example", secret_env="SECRET")
    assert len(Webhook.from_settings("owner", plain).secrets) == 1


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (WebhookSettings(), "set one of url, url_file, url_env"),
        (WebhookSettings(url="ftp://hooks.example/s3cret"), "does not begin with https"),
        (WebhookSettings(url="hooks.example/s3cret"), "does not begin with https"),
        (WebhookSettings(url="https://me:s3cret@hooks.example/"), "user:password"),
        (WebhookSettings(url="https://[s3cret"), "not a URL"),
        (WebhookSettings(url_env="NO_SUCH_VARIABLE_HERE"), "NO_SUCH_VARIABLE_HERE is not set"),
        (WebhookSettings(url_file="/no/such/file"), "cannot be read: No such file"),
        (WebhookSettings(url="https://h.example", secret_file=__file__), "base64"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_key_and_never_shown(settings: WebhookSettings, reported: str) -> None:
    with pytest.raises(ReceiverError, match=reported) as caught:
        Webhook.from_settings("owner", settings)
    assert "alerts.owner" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
