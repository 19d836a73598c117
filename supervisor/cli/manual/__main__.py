"""`python -m supervisor.cli.manual SHARE`: write manual pages and completions below a folder like /usr/share.

SOURCE_DATE_EPOCH dates the pages (Unix seconds; without it the first of January 1970), so that equal code gives equal
files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from supervisor.cli.main import cli
from supervisor.cli.manual.commands import command_page, daemon_page
from supervisor.cli.manual.settings import settings_page
from supervisor.shipped import shipped

PROGRAMS = ("supervisorctl", "rocm-supervisorctl")
COMPLETIONS = {
    "bash": "bash-completion/completions/{}",
    "zsh": "zsh/site-functions/_{}",
    "fish": "fish/vendor_completions.d/{}.fish",
}


def shared_files(at_unix_s: int) -> dict[str, str]:
    """Return the files by their paths below the folder; both names of the command have the same page."""
    assert isinstance(cli, click.Group)
    page = command_page(cli, at_unix_s)
    files = {f"man/man1/{program}.1": page for program in PROGRAMS}
    files["man/man5/rocm-supervisor.toml.5"] = settings_page(shipped("config.toml").read_text(), at_unix_s)
    files["man/man8/rocm-supervisord.8"] = daemon_page(at_unix_s)
    for program in PROGRAMS:
        variable = f"_{program}_COMPLETE".replace("-", "_").upper()
        for shell, path in COMPLETIONS.items():
            kind = get_completion_class(shell)
            assert kind is not None
            files[path.format(program)] = kind(cli, {}, program, variable).source()
    return files


def main() -> None:
    """Write the files below the folder that is the only argument."""
    folder = Path(sys.argv[1])
    for name, text in shared_files(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main()
