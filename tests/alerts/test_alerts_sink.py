"""A receiver is read from the configuration, its address and secret from where they are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from receiver_by_hand import SECRET

from supervisor.alerts.sink import Sink, SinkError
from supervisor.config.settings import AlertSettings
from supervisor.core.flags import Severity


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str | None = None
    url_file: str | None = None
    url_env: str | None = None
    secret_file: str | None = None
    secret_env: str | None = None
    min_severity: str = "warning"
    connect_timeout_s: float = 4.0
    read_timeout_s: float = 15.0
    allow_private: bool = False


def test_the_configurations_own_settings_make_a_sink(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://hooks.example/services/T0/s3cret\n")
    sink = Sink.from_settings("owner", AlertSettings(url_file=str(tmp_path / "url"), min_severity="critical"))
    assert (sink.host, sink.port, sink.target) == ("hooks.example", 443, "/services/T0/s3cret")
    assert sink.floor is Severity.CRITICAL
    assert "s3cret" not in repr(sink)


def test_address_and_secret_come_from_files_or_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\nwhsec_{'QUJD' * 8}\n")
    monkeypatch.setenv("HOOK", "http://[fd12::1]:8080/a?b=c")
    settings = Settings(url_env="HOOK", secret_file=str(tmp_path / "secret"))
    sink = Sink.from_settings("owner", settings)
    assert (sink.host, sink.port, sink.authority, sink.target) == ("fd12::1", 8080, "[fd12::1]:8080", "/a?b=c")
    assert len(sink.secrets) == 2
    monkeypatch.setenv("SECRET", SECRET)
    assert len(Sink.from_settings("owner", Settings(url="https://h.example", secret_env="SECRET")).secrets) == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (Settings(), "set one of url, url_file, url_env"),
        (Settings(url="ftp://hooks.example/s3cret"), "no https"),
        (Settings(url="hooks.example/s3cret"), "no https"),
        (Settings(url="https://me:s3cret@hooks.example/"), "user:password"),
        (Settings(url="https://[s3cret"), "no URL"),
        (Settings(url_env="NO_SUCH_VARIABLE_HERE"), "NO_SUCH_VARIABLE_HERE is not set"),
        (Settings(url_file="/no/such/file"), "cannot be read: No such file"),
        (Settings(url="https://h.example", secret_file=__file__), "base64"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_key_and_never_shown(settings: Settings, told: str) -> None:
    with pytest.raises(SinkError, match=told) as caught:
        Sink.from_settings("owner", settings)
    assert "alerts.owner" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
