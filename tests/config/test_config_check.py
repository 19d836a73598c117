"""A configuration is checked whole, and what is wrong with it is said so that it can be recovered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.alerts.channels.webhook import WebhookSettings
from supervisor.children.path_looks import PathLooks
from supervisor.config import Checked, ConfigError, Level, Problem, check, check_text, load
from supervisor.config.cross import may_read
from supervisor.config.settings import Settings
from supervisor.core.remedies.budget import Budget
from supervisor.core.rules import ADVISORIES, Rule


def problems_of(text: str) -> dict[str, Problem]:
    return {problem.key: problem for problem in check_text(text, "some.toml").problems}


def only(text: str) -> Problem:
    (problem,) = check_text(text, "some.toml").problems
    return problem


def good(text: str) -> Settings:
    checked = check_text(text, "some.toml")
    assert checked.settings is not None, [str(problem) for problem in checked.problems]
    return checked.settings


def test_an_empty_file_is_every_default() -> None:
    assert good("") == Settings()


@pytest.mark.parametrize(
    "text", ["a." * 2000 + "a = 1", "[" + "a." * 2000 + "a]", "a = " + "{a = " * 40 + "1" + "}" * 40]
)
def test_tables_within_tables_without_end_are_refused(text: str) -> None:
    assert only(text).problem == "has more than 32 tables within each other"


@pytest.mark.parametrize(
    "key", ["a." * 20_000 + "a = 1", "[" + "a . " * 20_000 + "a]", "b = { 'a'." + '"a".' * 20_000 + "a = 1 }"]
)
def test_a_key_without_end_is_refused_with_its_line_before_it_is_parsed(key: str) -> None:
    """The parser takes half a minute for one of them."""
    problem = only(f"# of another program\n\n{key}\n")
    assert (problem.line, problem.problem) == (3, "has more than 32 tables within each other")


def test_dots_in_texts_and_comments_are_no_parts_of_a_key() -> None:
    dots = "a." * 100 + "a"
    good(f"# {dots}\n[jobs.night]\ncommand = ['true', '{dots}', \"{dots}\", '1.2.3']  # {dots}\n")


def test_a_file_of_something_else_is_answered_with_its_first_hundred_problems() -> None:
    """Reading and reloading it must not keep the daemon for minutes."""
    words = "".join(f"word{number} = 'x'\n" for number in range(3000))
    problems = problems_of(words + "[jobs.night]\ncommand = ['true']\n" + words)
    assert list(problems) == [f"word{number}" for number in range(100)]


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    found = problems_of(
        """
        [supervisor]
        log_level = "loud"
        [telemetry]
        interval_s = 0
        [jobs.yolo]
        command = []
        grace_s = "long"
        resume.command = ["yolo", "resume=True"]
        [alerts.phone]
        """
    )
    assert set(found) == {
        "supervisor.log_level",
        "telemetry.interval_s",
        "jobs.yolo.command",
        "jobs.yolo.grace_s",
        "alerts.phone.url",
    }


def test_a_problem_names_file_key_value_and_what_is_allowed() -> None:
    text = str(only('[supervisor]\nlog_level = "loud"'))
    assert text == (
        'some.toml:2: supervisor.log_level: is not allowed (it is "loud"); '
        'allowed: one of "debug", "error", "info", "warning"'
    )


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("[telemetry]\nintervall_s = 1", "telemetry.intervall_s", '"interval_s"'),
        ("[jobs.a]\ncommand = ['x']\nbudget.restart = 1", "jobs.a.budget.restart", '"restarts"'),
        ("[jobs.a]\ncommand = ['x']\nrules.stal.limit_s = 1", "jobs.a.rules.stal", '"stall"'),
        ("[jobs.a]\ncommand = ['x']\nrules.stall.limit = 1", "jobs.a.rules.stall.limit", '"limit_s"'),
        ("[job.a]\ncommand = ['x']", "job", '"jobs"'),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_known_one(text: str, key: str, nearest: str) -> None:
    problem = only(text)
    assert problem.key == key
    assert f"did you mean {nearest}?" in problem.allowed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("grace_s", "true"),
        ("grace_s", "-0.1"),
        ("grace_s", "nan"),
        ("grace_s", "inf"),
        ("kill_wait_s", "0"),
        ("autostart", "1"),
        ("command", "'yolo train'"),
        ("command", '["", "yolo"]'),
        ("command", '["yo\\u0000lo"]'),
        ("cwd", "'data'"),
        ("cwd", "'~no-such-user-anywhere/data'"),
        ("conv2d", "'fast'"),
        ("conv2d_scope", "'everything'"),
        ("snapshot_every_s", "-1.0"),
        ("snapshot_every_s", "'often'"),
        ("gpus", "[0]"),
        ("gpus", "['card0']"),
        ("env", "{ A = 1 }"),
        ("env", "{ 'A B' = '1' }"),
        ("env", "{ ROCM_SUPERVISOR_JOB = 'x' }"),
        ("rules.stall.limit_s", "0"),
        ("rules.stall.limit_s", "nan"),
        ("rules.stall.limit_s", "false"),
        ("rules.stall.act", "0"),
        ("rules.stall.act", "'shade'"),
        ("rules", "[]"),
        ("budget.restarts", "-1"),
        ("budget.restarts", "1.5"),
        ("budget.period_s", "0"),
        ("budget.backoff_s", "[0, -1]"),
        ("resume.command", "['', 'resume=True']"),
        ("checkpoints", "'*.pt'"),
        ("grace_s", "1979-05-27"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_under_its_key(key: str, value: str) -> None:
    job = {"command": "['true']", key: value}
    checked = check_text("[jobs.yolo]\n" + "\n".join(f"{item} = {what}" for item, what in job.items()), "some.toml")
    assert checked.settings is None
    assert all(problem.key.startswith(f"jobs.yolo.{key}") for problem in checked.problems)


@pytest.mark.parametrize("rule", ADVISORIES)
def test_a_rule_that_only_warns_refuses_the_setting_act(rule: type[Rule]) -> None:
    problem = only(f"[jobs.own]\ncommand = ['train']\nrules.{rule.name} = {{ enabled = false, act = 'shadow' }}\n")
    assert (problem.key, problem.level) == (f"jobs.own.rules.{rule.name}.act", Level.ERROR)
    assert problem.problem == f"rule {rule.name} only warns; it has no setting act"


def test_words_of_a_command_may_be_empty_and_a_resume_command_may_know_its_file_itself() -> None:
    job = good("[jobs.own]\ncommand = ['train', '--name', '']\nresume.command = ['train', '--resume', '']").jobs["own"]
    assert job.command == ["train", "--name", ""]
    assert job.resume.command == ["train", "--resume", ""]


@pytest.mark.parametrize("more", ["resume.to = 'out/ckpt.pt'", "resume.command = ['train', '--resume']"])
def test_checkpoints_that_nothing_resumes_from_are_warned_of(more: str) -> None:
    text = "[jobs.own]\ncommand = ['python', 'train.py']\ncheckpoints.paths = ['out/*.pt']\n"
    problem = only(text)
    assert (problem.key, problem.level) == ("jobs.own.checkpoints.paths", Level.WARNING)
    assert "no way to resume from them" in problem.problem
    assert "jobs.own.resume.to" in problem.allowed
    assert good(text + more).jobs["own"].checkpoints.paths == ["out/*.pt"]
    assert problems_of(text + more) == {}


def test_of_a_framework_that_the_agent_resumes_nothing_is_warned() -> None:
    assert problems_of("[jobs.own]\ncommand = ['yolo', 'train']\ncheckpoints.paths = ['runs/**/*.pt']") == {}


def test_whole_numbers_stand_for_numbers() -> None:
    job = good("[jobs.a]\ncommand = ['x']\ngrace_s = 5\nbudget.backoff_s = [1, 2]\nrules.stall.limit_s = 300").jobs["a"]
    assert (job.grace_s, job.budget.backoff_s, job.rules) == (5.0, (1.0, 2.0), {"stall": {"limit_s": 300.0}})


def test_zero_is_allowed_where_it_means_something() -> None:
    budget = good("[jobs.a]\ncommand = ['x']\nbudget = { restarts = 0, backoff_s = [0] }").jobs["a"].budget
    assert budget == Budget(restarts=0, backoff_s=(0.0,))


@pytest.mark.parametrize("missing", ["[jobs.a.checkpoints]\nkeep = false", "[supervisor]\nagent = false"])
def test_a_triage_by_itself_needs_what_it_works_with(missing: str) -> None:
    found = check_text(f'[jobs.a]\ncommand = ["x"]\ntriage = "auto"\n{missing}', "some.toml")
    assert [problem.key for problem in found.problems if problem.level is Level.ERROR] == ["jobs.a.triage"]


@pytest.mark.parametrize("rule", ["vram_leak", "host_memory_slope"])
@pytest.mark.parametrize("window_s", [599, 43201.0])
def test_a_time_of_which_there_is_never_a_slope_is_refused(rule: str, window_s: float) -> None:
    problem = only(f"[jobs.a]\ncommand = ['x']\nrules.{rule}.window_s = {window_s}")
    assert str(problem) == (
        f"some.toml:3: jobs.a.rules.{rule}.window_s: would never raise a flag (it is {window_s}); "
        "allowed: a number from 600 to 43200"
    )
    assert good(f"[jobs.a]\ncommand = ['x']\nrules.{rule}.window_s = 600").jobs["a"].rules == {
        rule: {"window_s": 600.0}
    }


def test_what_the_agent_has_to_do_needs_the_agent() -> None:
    without = "[supervisor]\nagent = false\n[jobs.a]\ncommand = ['x']\n"
    assert only(without + "standby = true").key == "jobs.a.standby"
    assert only(without + "conv2d = 'planned'").key == "jobs.a.conv2d"
    assert not good(without).jobs["a"].standby


@pytest.mark.parametrize("name", ["Yolo", "-a", "a.b", "a/b", "..", "a b", "ä", "x" * 42, ""])
def test_a_job_name_that_cannot_be_a_unit_name_is_refused(name: str) -> None:
    assert check_text(f"[jobs.'{name}']\ncommand = ['x']", "some.toml").settings is None


def test_a_missing_command_is_reported_with_what_is_needed() -> None:
    problem = only("[jobs.a]\nautostart = false")
    assert (problem.key, problem.problem) == ("jobs.a.command", "is missing")


@pytest.mark.slow
def test_a_directory_that_is_not_there_yet_is_only_warned_of(tmp_path: Path) -> None:
    checked = check_text(f"[jobs.a]\ncommand = ['x']\ncwd = '{tmp_path}/later'", "some.toml")
    assert checked.settings is not None
    assert [(warning.key, warning.level) for warning in checked.warnings] == [("jobs.a.cwd", Level.WARNING)]


@pytest.mark.slow
def test_a_pattern_of_checkpoints_that_is_a_folder_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ck").mkdir()
    text = f"[jobs.a]\ncommand = ['yolo']\ncwd = '{tmp_path}'\ncheckpoints.paths = "
    checked = check_text(f"{text}['ck', 'ck/', 'ck/*.pt', 'later', '{tmp_path}/*']", "some.toml")
    assert [str(warning.value) for warning in checked.warnings] == ['"ck"']
    assert checked.warnings[0].key == "jobs.a.checkpoints.paths"
    assert 'write "ck/*.pt"' in str(checked.warnings[0].allowed)
    monkeypatch.setenv("HOME", str(tmp_path))
    checked = check_text(f"{text}['~/ck', '~/later', '~no-such-user/ck']", "some.toml")
    assert [str(warning.value) for warning in checked.warnings] == ['"~no-such-user/ck"', '"~/ck"']


def test_the_home_of_a_user_who_is_not_known_is_warned_of() -> None:
    text = "[jobs.a]\ncommand = ['yolo']\nresume.to = '~no-such-user/ckpt.pt'"
    (warning,) = check_text(text, "some.toml").warnings
    assert (warning.key, warning.problem) == ("jobs.a.resume.to", "names a home directory that does not exist")


def test_home_is_written_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert good("[supervisor]\nstate_dir = '~/state'").supervisor.state_dir == str(tmp_path / "state")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a = ", 1, None),
        ("a = [1,,]", 1, 8),
        ("[supervisor]\nagent = yes", 2, 9),
        ("a = 1\na = 2", 2, None),
        ("[a\n", 1, 3),
    ],
)
def test_a_syntax_error_is_found_in_its_line(text: str, line: int, column: int | None) -> None:
    problem = only(text)
    assert problem.problem.startswith("is not valid TOML")
    assert problem.line == line
    assert column is None or problem.column == column


@pytest.mark.parametrize("text", ["x = " + "[" * 4000, "x = " + "9" * 5000, "x = 0x" + "f" * 9000, "[" * 100000])
def test_a_file_made_to_hurt_is_refused(text: str) -> None:
    assert check_text(text, "some.toml").settings is None


def test_files_that_are_no_configuration_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"[supervisor]\n\xff\xfe")
    (tmp_path / "huge").write_bytes(b"#" * (2 << 20))
    os.mkfifo(tmp_path / "pipe")
    output = {name: str(check(tmp_path / name).problems[0]) for name in ("absent", "binary", "huge", "pipe", ".")}
    assert "cannot be read: No such file" in output["absent"]
    assert "binary:2: is not UTF-8" in output["binary"]
    assert "is larger than" in output["huge"]
    assert "is not a regular file" in output["pipe"]
    assert "is not a regular file" in output["."]


def test_load_raises_with_every_problem(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("[telemetry]\ninterval_s = -1\nsources = ['nvsmi']\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert [problem.key for problem in caught.value.problems] == ["telemetry.interval_s", "telemetry.sources[0]"]
    assert str(path) in str(caught.value)


def test_load_accepts_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_bytes(b"\xef\xbb\xbf[telemetry]\ninterval_s = 2\n")
    assert load(path).telemetry.interval_s == 2.0


class TestAlerts:
    @pytest.mark.parametrize(
        "keys",
        [
            "",
            "url = 'https://a.example/x'\nurl_env = 'U'",
            "url = 'ftp://a.example'",
            "url = 'https://'",
            'url = "https://a.example/\\n"',
            "url = 'https://[::1/'",
            "url_env = 'https://a.example'",
            "url_env = 'U'\nkind = 'pigeon'",
            "url_env = 'U'\nkind = 1",
            "url_env = 'U'\nread_timeout_s = 1e9",
            "url_env = 'U'\nsecret_env = 'a-b'",
        ],
    )
    def test_an_address_that_cannot_work_is_refused(self, keys: str) -> None:
        assert check_text(f"[alerts.a]\n{keys}", "some.toml").settings is None

    @pytest.mark.slow
    @pytest.mark.parametrize("keys", ["url_file = '/nonexistent/file'", "url_file = '/'"])
    def test_a_file_of_a_receiver_that_is_missing_is_warned_of_and_keeps_nothing_from_being_watched(
        self, keys: str
    ) -> None:
        checked = check_text(f"[alerts.a]\n{keys}", "some.toml")
        assert checked.settings is not None
        assert [warning.key for warning in checked.warnings] == ["alerts.a.url_file"]

    @pytest.mark.slow
    def test_a_secret_that_everybody_may_read_is_warned_of(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("whsec_x")
        secret.chmod(0o644)
        (problem,) = check_text(f"[alerts.a]\nurl_env = 'U'\nsecret_file = '{secret}'", "some.toml").warnings
        assert "mode 0644" in problem.problem
        assert problem.allowed == f"chmod 600 {secret}"
        secret.chmod(0o640)
        webhook = good(f"[alerts.a]\nurl_env = 'U'\nsecret_file = '{secret}'").alerts["a"]
        assert webhook == WebhookSettings(url_env="U", secret_file=str(secret))

    @pytest.mark.slow
    def test_a_file_is_read_as_the_daemons_user_would(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("x")
        uid, gid = secret.stat().st_uid, secret.stat().st_gid
        for mode, by_owner, by_group, by_others in ((0o600, True, False, False), (0o040, False, True, False)):
            secret.chmod(mode)
            with PathLooks() as looks:
                found = looks.look(secret)
            assert may_read(found, uid, frozenset()) is by_owner
            assert may_read(found, uid + 1, frozenset({gid})) is by_group
            assert may_read(found, uid + 1, frozenset({gid + 1})) is by_others

    def test_an_address_in_a_file_for_everybody_is_warned_of(self, tmp_path: Path) -> None:
        path = tmp_path / "some.toml"
        path.write_text("[alerts.a]\nurl = 'https://hooks.example/T0/B0/sesame'")
        path.chmod(0o644)
        (warning,) = check(path).warnings
        assert warning.key == "alerts.a.url"
        path.chmod(0o640)
        assert check(path).problems == ()

    def test_a_problem_does_not_print_the_secret(self) -> None:
        checked = check_text(
            """
            supervisor.database = "sesame"
            [alerts.a]
            url = "ftp://sesame"
            [alerts.b]
            url = ["sesame"]
            [jobs.a]
            command = ["x"]
            env = { "A B" = "sesame", KEY = ["sesame"] }
            """,
            "some.toml",
        )
        assert len(checked.problems) == 5
        assert "sesame" not in "\n".join(map(str, checked.problems))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3),
    ),
    st.sampled_from(
        [
            "supervisor",
            "supervisor.state_dir",
            "telemetry.sources",
            "jobs",
            "jobs.a",
            "jobs.a.command",
            "jobs.a.rules",
            "jobs.a.rules.stall",
            "jobs.a.rules.stall.limit_s",
            "jobs.a.budget",
            "jobs.a.env",
            "alerts.b",
            "alerts.b.url",
            "alerts.b.secret_file",
        ]
    ),
)
def test_no_value_anywhere_raises(value: object, key: str) -> None:
    checked = check_text(f"{key} = {_toml(value)}", "some.toml")
    assert isinstance(checked, Checked)
    assert checked.settings is not None or checked.problems


def _toml(value: object) -> str:
    match value:
        case None:
            return "{}"
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\u{ord(item):04x}" if ord(item) < 0x10000 else "x" for item in value) + '"'
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return str(value)


@pytest.mark.parametrize("zone", ["Mars/Phobos", "../../etc/passwd"])
def test_a_time_zone_that_does_not_exist_is_a_warning_with_what_to_do(zone: str) -> None:
    found = problems_of(f'[alerts.phone]\nkind = "command"\ncommand = ["/bin/true"]\ntime_zone = "{zone}"')
    problem = found["alerts.phone.time_zone"]
    assert (problem.level, "the package tzdata holds them" in str(problem)) == (Level.WARNING, True)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["env", "PYTHONPATH=src", "python", "train.py"], "env PYTHONPATH=src"),
        (["bin/env", "OMP_NUM_THREADS=4", "PYTHONPATH=", "python3"], "env PYTHONPATH="),
        (["env", "-u", "PYTHONPATH", "python", "train.py"], "env -u PYTHONPATH"),
        (["env", "--unset=PYTHONPATH", "yolo", "train"], "env --unset=PYTHONPATH"),
        (["env", "-i", "PATH=/usr/bin", "python"], "env -i"),
        (["python", "-I", "train.py"], "python -I"),
        (["env", "A=1", "/opt/venv/bin/python3.12", "-uE", "train.py"], "python -E"),
        (["python", "-W", "ignore", "-X", "dev", "-S", "-m", "train"], "python -S"),
    ],
)
def test_a_command_that_keeps_the_agent_out_is_warned_of(words: list[str], cause: str) -> None:
    problem = only(f"[jobs.night]\ncommand = {words!r}\n")
    assert (problem.level, problem.key) == (Level.WARNING, "jobs.night.command")
    assert problem.problem.endswith(f": {cause}")
    assert "jobs.night.env" in problem.allowed


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py", "-I"],
        ["python", "-m", "train", "-S"],
        ["python", "-c", "import train", "-E"],
        ["python", "-u", "-WIgnore", "-Ximporttime", "train.py"],
        ["python", "-s", "-P", "-OO", "train.py"],
        ["env", "OMP_NUM_THREADS=4", "-u", "LD_PRELOAD", "python", "train.py", "PYTHONPATH=src"],
        ["bash", "-E", "train.sh"],
    ],
)
def test_a_command_that_leaves_the_agent_its_way_is_not_warned_of(words: list[str]) -> None:
    assert not problems_of(f"[jobs.night]\ncommand = {words!r}\n")


def test_without_the_agent_nothing_can_keep_it_out() -> None:
    assert not problems_of("supervisor.agent = false\n[jobs.night]\ncommand = ['python', '-I', 'train.py']\n")
