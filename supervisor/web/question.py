"""Answers one question of the record (`control.record_view.READS`) in a process of its own, which then ends.

What reading a long job takes for a second is not kept by the process that serves the page.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import msgspec

from supervisor.control.client import ControlError
from supervisor.json_bytes import encode_json
from supervisor.shipped import module_command

LIMIT_S = 15.0


def ask_record(config: Path, route: str, **query: str | int | None) -> dict[str, object]:
    """Return the answer to GET `route` from the record that a configuration names. Raises ControlError."""
    given = urlencode({name: value for name, value in query.items() if value is not None})
    command = [*module_command(__name__), str(config), route, given]
    try:
        child = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        answer = msgspec.json.decode(child.stdout, type=dict[str, object])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        raise ControlError("unreadable", f"the record was not read: {error}") from error
    if child.returncode:
        raise ControlError(str(answer["code"]), str(answer["message"]), str(answer["remedy"]))
    return answer


def main() -> None:
    """Print the answer as JSON; exit status 1 where it is a failure."""
    from supervisor.config import Settings, check  # noqa: PLC0415  # in the child alone: this is what costs memory
    from supervisor.config.derive import database_url  # noqa: PLC0415  # the same
    from supervisor.control.configured_facts import ConfiguredFacts  # noqa: PLC0415  # the same
    from supervisor.control.record_view import Parameters, RecordView, find_read  # noqa: PLC0415  # the same
    from supervisor.control.refusals import Refusal  # noqa: PLC0415  # the same
    from supervisor.store.archive import Archive  # noqa: PLC0415  # the same
    from supervisor.store.errors import ArchiveError  # noqa: PLC0415  # the same
    from supervisor.web.clock import now_unix_s  # noqa: PLC0415  # the same

    config, route, query = Path(sys.argv[1]), sys.argv[2], dict(parse_qsl(sys.argv[3]))
    settings = (check(config).settings if config.exists() else None) or Settings()
    found = find_read(route)
    assert found is not None, route
    read, path = found
    try:
        archive = Archive.at(database_url(settings.supervisor))
        archive.check()
        facts = ConfiguredFacts(settings=settings, archive=archive, now=now_unix_s)
        record = RecordView(archive, Path(settings.supervisor.state_dir), facts)
        answer: object = read.answer(record, Parameters(path, query))
    except (Refusal, ArchiveError) as error:
        failed = {"code": getattr(error, "code", "unreadable"), "remedy": getattr(error, "remedy", "")}
        sys.stdout.buffer.write(encode_json({**failed, "message": str(error)}))
        sys.exit(1)
    sys.stdout.buffer.write(encode_json(answer))


if __name__ == "__main__":
    main()
