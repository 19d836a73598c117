"""Tokens and sessions: a token lets in once, and both secrets of a session are needed."""

from __future__ import annotations

from pathlib import Path

from supervisor.web.sessions import SESSION_LIFE_S, TOKEN_LIFE_S, Sessions


class Clock:
    now = 1_763_600_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_opens_one_session_and_no_second() -> None:
    sessions = Sessions(Clock())
    token = sessions.make_token()
    opened = sessions.open(token)
    assert opened is not None
    assert sessions.is_open(opened.cookie, opened.key)
    assert sessions.open(token) is None


def test_a_token_is_good_for_ten_minutes() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.make_token()
    clock.now += TOKEN_LIFE_S + 1
    assert not sessions.awaits_token
    assert sessions.open(token) is None


def test_a_cookie_without_its_key_is_no_session() -> None:
    sessions = Sessions(Clock())
    first, second = sessions.open(sessions.make_token()), sessions.open(sessions.make_token())
    assert first is not None
    assert second is not None
    assert not sessions.is_open(first.cookie, "")
    assert not sessions.is_open(first.cookie, second.key)
    assert not sessions.is_open("", first.key)


def test_after_five_wrong_tokens_a_right_one_waits_a_minute() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    for _ in range(5):
        assert sessions.open("guess") is None
    assert sessions.open(sessions.make_token()) is None
    clock.now += 61
    assert sessions.open(sessions.make_token()) is not None


def test_a_session_outlives_the_process_and_ends_thirty_days_after_its_last_use(tmp_path: Path) -> None:
    clock = Clock()
    file = tmp_path / "sessions.json"
    before = Sessions(clock, file)
    opened = before.open(before.make_token())
    assert opened is not None
    assert opened.cookie not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    clock.now += SESSION_LIFE_S - 10
    assert Sessions(clock, file).is_open(opened.cookie, opened.key)
    clock.now += SESSION_LIFE_S - 10
    assert Sessions(clock, file).is_open(opened.cookie, opened.key)
    clock.now += SESSION_LIFE_S + 10
    assert not Sessions(clock, file).is_open(opened.cookie, opened.key)


def test_revoked_sessions_are_closed_and_stay_closed(tmp_path: Path) -> None:
    file = tmp_path / "sessions.json"
    sessions = Sessions(Clock(), file)
    opened = sessions.open(sessions.make_token())
    assert opened is not None
    assert sessions.revoke_all() == 1
    assert not sessions.is_open(opened.cookie, opened.key)
    assert not Sessions(Clock(), file).is_open(opened.cookie, opened.key)


def test_a_damaged_file_of_sessions_is_none(tmp_path: Path) -> None:
    file = tmp_path / "sessions.json"
    file.write_text('["neither"')
    sessions = Sessions(Clock(), file)
    assert sessions.open(sessions.make_token()) is not None
