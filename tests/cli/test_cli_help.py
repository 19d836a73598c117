"""`supervisorctl help TOPIC`: each longer text is found by its name, and names what exists."""

from __future__ import annotations

import re
from pathlib import Path

from click.shell_completion import ShellComplete
from click.testing import CliRunner

from supervisor.cli.help import list_topics, read_topic
from supervisor.cli.main import COMMANDS, cli
from supervisor.core.rules import RULES
from supervisor.sources.faults.kernel_table import kernel_grammar

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMAND_WORD = re.compile(r"(?m)(?:^|`)(?:sudo )?supervisorctl (?:--[a-z]+ )?([a-z][a-z-]+)")
"""Within a code span or as a line of a code block."""


def texts() -> dict[str, str]:
    return {name: text for name in list_topics() if (text := read_topic(name)) is not None}


def test_each_topic_is_printed_as_it_is_written() -> None:
    assert len(texts()) > 5
    for name, text in texts().items():
        result = CliRunner().invoke(cli, ["help", name])
        assert (result.exit_code, result.output) == (0, text)


def test_no_topic_has_the_name_of_a_command() -> None:
    assert set(list_topics()).isdisjoint(COMMANDS)


def test_the_overview_lists_each_topic_and_each_command() -> None:
    output = CliRunner().invoke(cli, ["help"]).output
    listed = re.findall(r"(?m)^  ([a-z-]+)(?: |$)", output)
    assert {*list_topics(), *COMMANDS} <= set(listed)


def test_a_name_that_is_neither_is_refused() -> None:
    result = CliRunner().invoke(cli, ["help", "resumingg"])
    assert result.exit_code == 2
    assert "no command or topic 'resumingg'" in result.output
    assert "did you mean 'resuming'?" in result.output


def test_a_topic_is_completed() -> None:
    completion = ShellComplete(cli, {}, "supervisorctl", "_SUPERVISORCTL_COMPLETE")
    assert [item.value for item in completion.get_completions(["help"], "sever")] == [
        "several-gpus",
        "several-machines",
    ]


def test_each_rule_is_in_the_topic_of_rules() -> None:
    text = texts()["rules"]
    assert [rule.name for rule in RULES if f"`{rule.name}`" not in text] == []


def test_the_size_of_the_tables_in_texts_is_their_size() -> None:
    text = " ".join(texts()["rules"].split())
    rows = kernel_grammar().rows
    shapes, numbers = sum(row.tentative for row in rows), {number for row in rows for number in row.codes}
    assert f"a table of {len(rows) - shapes} wordings and {len(numbers)} Xid numbers" in text
    assert f"is matched by {shapes} shapes" in text
    assert f"- {len(RULES)} rules: " in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_links_each_topic_and_only_files_and_headings_that_are_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", README)
    linked = {path for path, _ in links}
    assert {f"supervisor/cli/topics/{name}.md" for name in texts()} - linked == {"supervisor/cli/topics/exit-codes.md"}
    for path, heading in links:
        assert (ROOT / path).is_file(), path
        if heading:
            headings = re.findall(r"(?m)^#+ (.+)$", (ROOT / path).read_text())
            assert heading in {re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in headings}, path


def test_each_command_that_readme_and_topics_name_is_one() -> None:
    for name, text in {"README": README, **texts()}.items():
        assert set(COMMAND_WORD.findall(text)) <= set(COMMANDS), name
    assert len(COMMAND_WORD.findall(README)) > 20
