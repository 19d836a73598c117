"""What `doctor` says of the daemon's threads: how many there are, and the sum that they never exceed."""

from __future__ import annotations

import re
from pathlib import Path

from house import house

from supervisor.daemon.thread_kinds import count_most


def test_doctor_counts_the_threads_and_names_the_sum_of_their_kinds(tmp_path: Path, code_copies: Path) -> None:
    with house(tmp_path) as home:
        home.shares_imports, home.code_copies = True, code_copies
        home.write(home.by_hand("one") + home.by_hand("two"))
        home.start()
        home.step("one", 5)
        home.step("two", 5)
        lines = {line["name"]: line["found"] for line in home.client.get("/v1/doctor")["lines"]}
    found = re.fullmatch(r"(\d+) threads of (\d+) at most, none overdue", lines["threads"])
    assert found is not None, lines["threads"]
    assert int(found[2]) == count_most(jobs=2, receivers=0)
    assert 10 < int(found[1]) < int(found[2])
