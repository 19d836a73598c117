"""Manual pages and completions are generated whole: each command, option and setting has its entry."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from supervisor.cli.main import cli
from supervisor.cli.manual.__main__ import shared_files
from supervisor.cli.manual.commands import walk
from supervisor.cli.manual.settings import Remark, Setting, Table, entries, settings_page

EXAMPLE = (Path(__file__).parents[2] / "config.toml").read_text()


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The manual pages by their files: made by a test, since each process of the suite imports this file."""
    return {name: text for name, text in shared_files(1_700_000_000).items() if name.startswith("man/")}


def commands() -> Iterator[tuple[str, click.Command]]:
    assert isinstance(cli, click.Group)
    yield from ((words, command) for words, command, _ in walk(cli, click.Context(cli, info_name="supervisorctl")))


def plain(page: str) -> str:
    return re.sub(r"\\f[BIR]", "", page).replace("\\-", "-").replace("\\(aq", "'")


@pytest.mark.slow
def test_each_command_and_each_of_its_options_has_an_entry(pages: dict[str, str]) -> None:
    sections = dict(re.findall(r"(?ms)^\.SS (.+?)\n(.*?)(?=^\.S[SH])", plain(pages["man/man1/supervisorctl.1"])))
    known = dict(commands())
    assert sections.keys() == known.keys()
    assert len(known) > 30
    assert "alerts test" in known, "the commands of a group have entries of their own"
    for words, command in known.items():
        shown = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        missing = [option.opts[-1] for option in shown if option.opts[-1] not in sections[words]]
        assert not missing, words


@pytest.mark.slow
def test_each_setting_has_an_entry_with_its_default(pages: dict[str, str]) -> None:
    page = plain(pages["man/man5/rocm-supervisor.toml.5"])
    written = re.findall(r"(?m)^#?([a-z][a-z0-9_]*) = ", EXAMPLE)
    assert re.findall(r"(?m)^\.TP\n([a-z][a-z0-9_]*) = ", page) == written
    assert "interval_s = 1.0\nbetween two readings" in page
    assert [name for name in re.findall(r"(?m)^#?\[([^\]]+)\]", EXAMPLE) if f".SS [{name}]\n" not in page] == []


def test_a_comment_that_goes_on_and_a_value_of_several_lines_stay_in_one_piece() -> None:
    text = '[jobs.a] # first\n#command = [\n#    "x # y",\n#]   # words\n#   # of it\n# Remark.\nb = 1\n'
    assert list(entries(text)) == [
        Table("jobs.a", "first"),
        Setting("command", '["x # y"]', "words of it"),
        Remark(("Remark.",)),
        Setting("b", "1", ""),
    ]


def test_a_line_that_is_none_of_the_forms_is_named() -> None:
    with pytest.raises(ValueError, match="'what is this' is not a setting, table or comment"):
        list(entries("what is this\n"))


def test_text_cannot_become_a_macro() -> None:
    page = settings_page("[a]\n#key = 1 # .so /etc/passwd and \\fB\n", 0)
    assert "\n\\&.so /etc/passwd and \\efB\n" in page


@pytest.mark.slow
def test_equal_code_gives_equal_files_dated_from_outside() -> None:
    assert shared_files(86_400) == shared_files(86_400)
    assert '"1970-01-02"' in shared_files(86_400)["man/man8/rocm-supervisord.8"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_mandoc_has_nothing_to_complain_of(pages: dict[str, str]) -> None:
    assert len(pages) == 4
    for name, page in pages.items():
        done = subprocess.run(["mandoc", "-T", "lint"], input=page, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, ""), name


@pytest.mark.slow
def test_each_shell_has_a_completion_for_each_name_and_bash_accepts_its_own() -> None:
    scripts = {name: text for name, text in shared_files(0).items() if not name.startswith("man/")}
    assert len(scripts) == 6
    for name, script in scripts.items():
        program = "ROCM_SUPERVISORCTL" if "rocm-" in name else "SUPERVISORCTL"
        assert f"_{program}_COMPLETE" in script, name
    script = scripts["bash-completion/completions/supervisorctl"]
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
