"""Takes defences out of a copy of the source, one by one, and looks whether the tests that hold them fail.

    python tests/attacks/taken_out.py [--only WORD]

Exit status 1 where a test did not notice, or where a defence is no longer where this table says.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Defence:
    """A defence, how it is taken out, and the tests that have to fail then."""

    name: str
    file: str
    there: str
    taken_out: str
    tests: str
    """What pytest is given: a file, and -k words after it."""


GATE = "supervisor/untrusted_files.py"
GATE_TESTS = "tests/border/test_untrusted_files.py"
DEFENCES = (
    Defence("regular files alone", GATE, "if not stat.S_ISREG(found.st_mode):", "if False:", GATE_TESTS),
    Defence("no link in the middle", GATE, "_FOLDER | os.O_NOFOLLOW, dir_fd=at", "_FOLDER, dir_fd=at", GATE_TESTS),
    Defence("opening does not wait", GATE, "os.O_NOFOLLOW | os.O_NONBLOCK |", "os.O_NOFOLLOW |", GATE_TESTS),
    Defence("one name alone is written", GATE, "if only_name and found.st_nlink != 1:", "if False:", GATE_TESTS),
    Defence("the owner is checked", GATE, "if owner is not None and found.st_uid != owner:", "if False:", GATE_TESTS),
    Defence(
        "a shim is proven", "supervisor/runner/attempt_folder.py",
        "return process if _is_shim_of(process, folder) else None", "return process",
        "tests/border/test_attempt_border.py -k signal",
    ),
    Defence(
        "a version is the daemon's word", "supervisor/runner/attempt_folder.py",
        "as_int(read_note(folder, names.LAUNCH, LAUNCH_LIMIT_BYTES)", "as_int(read_note(folder, names.EXIT)",
        "tests/daemon/test_daemon_recovery.py -k version",
    ),
    Defence(
        "a most of threads", "supervisor/children/worker_threads.py", "elif self._threads < self.at_most:", "else:",
        "tests/children/test_worker_threads.py",
    ),
    Defence(
        "a most of acts", "supervisor/daemon/threads.py", "if acts.threads >= ACTS_AT_ONCE:", "if False:",
        "tests/daemon/test_daemon_thread_kinds.py -k one_kind",
    ),
    Defence(
        "a most of hung readers", "supervisor/daemon/attempt_reader.py", "len(given_up) < GIVEN_UP_AT_MOST", "True",
        "tests/daemon/test_daemon_attempt_reader.py -k files_all_hang",
    ),
    Defence(
        "a hung part of evidence keeps one thread", "supervisor/runner/evidence.py",
        "if earlier is not None and earlier.is_alive():", "if False:", "tests/runner/test_evidence.py -k one_thread",
    ),
    Defence(
        "pages are refused: Origin", "supervisor/control/origin.py", 'name == b"origin" or ', "",
        "tests/attacks/test_forwarded_socket.py",
    ),
    Defence(
        "pages are refused: Sec-*", "supervisor/control/origin.py", ' or name.startswith(b"sec-")', "",
        "tests/attacks/test_forwarded_socket.py",
    ),
    Defence(
        "pages are refused: Host", "supervisor/control/origin.py", "if hosts != [HOST.encode()]:", "if False:",
        "tests/attacks/test_forwarded_socket.py",
    ),
    Defence(
        "connections of each user", "supervisor/control/limits.py", "CONNECTIONS_PER_USER = 24",
        "CONNECTIONS_PER_USER = 100_000", "tests/control/test_control_server.py -k half_requests",
    ),
    Defence(
        "who acts is asked of the kernel", "supervisor/control/peers.py",
        "return self.uid in (0, os.geteuid()) or socket_gid in self.groups", "return True",
        "tests/control/test_control_server.py -k may",
    ),
    Defence(
        "a mean without overflow", "supervisor/store/steps.py",
        "math.fsum(value / len(values) for value in values)", "math.fsum(values) / len(values)",
        "tests/store/test_store_steps.py -k largest",
    ),
    Defence(
        "the log never waits", "supervisor/daemon/process/logging_setup.py",
        "self._bytes + len(line) > WAITING_BYTES", "os.write(self._fd, line) < 0",
        "tests/daemon/test_daemon_logging_setup.py",
    ),
    Defence(
        "a launch is known by its shim", "supervisor/runner/direct.py",
        "        if read_shim(folder) is None:", "        if True:",
        "tests/runner/test_direct.py -k first_process",
    ),
    Defence(
        "numbers are bounded", "supervisor/core/foreign_values.py",
        "type(value) is int and minimum <= value <= maximum", "type(value) is int", "tests/core/test_foreign_values.py",
    ),
    Defence(
        "a pickle's numbers of objects", "supervisor/agent/prove/opcodes.py", "if number > passed:", "if False:",
        "tests/runner/test_prove.py -k costs_no_more",
    ),
    Defence(
        "a pickle's lengths", "supervisor/agent/prove/opcodes.py", "if length > left:", "if False:",
        "tests/runner/test_prove.py -k costs_no_more",
    ),
    Defence(
        "an archive's entries lie apart", "supervisor/agent/prove/formats.py",
        "if sum(info.file_size for info in entries.values()) > size:", "if False:",
        "tests/runner/test_prove.py -k share_their_bytes",
    ),
    Defence(
        "a flood of saves is not looked up", "supervisor/daemon/checkpoints/resume_search.py",
        "maxlen=UNRECORDED_SAVES", "maxlen=None",
        "tests/daemon/test_daemon_resume_search.py -k newest_are_looked_at",
    ),
    Defence(
        "steps behind those read", "supervisor/core/history.py",
        "self.files_read.mark(min(newest, event.at, key=lambda at: at.monotonic_s), only_where_read=True)",
        "self.files_read.mark(event.at, only_where_read=True)", "tests/core/test_stall.py -k say_nothing",
    ),
    Defence(
        "steps behind the first page", "supervisor/daemon/attempt_reader.py",
        "if rank == 0 and followed.reported_at is None:", "if False:",
        "tests/daemon/test_daemon_attempt_reader.py -k how_far",
    ),
    Defence(
        "a user's stop outlives the daemon", "supervisor/daemon/stop_requests.py",
        "draft.replace(self._folder / request.job)", "draft.unlink()", "tests/daemon/test_daemon_stop_requests.py",
    ),
    Defence(
        "a stopped training is left alone", "supervisor/core/judge.py",
        "waits = stopped.leaves_alone(history) or ", "waits = ",
        "tests/core/test_stopped_process.py -k left_alone",
    ),
    Defence(
        "a continued training has time for a step", "supervisor/core/judge.py",
        " or stopped.goes_on(history)", "",
        "tests/core/test_stopped_process.py -k acts_where_no_step_comes",
    ),
    Defence(
        "SIGCONT is tried once", "supervisor/core/decide.py",
        "if attempt.continued_at is None:", "if True:",
        "tests/core/test_stopped_process.py -k tried_once",
    ),
    Defence(
        "a stopped process can save", "supervisor/runner/shim.py", 'if process.state == "T":', "if False:",
        "tests/runner/test_shim.py -k goes_on_to_save",
    ),
    Defence(
        "a crowd at one address", "supervisor/control/metrics_server.py",
        "[LimitedListener(item, CONNECTIONS, CONNECTIONS_PER_USER, waiting) for item in self._bound]",
        "list(self._bound)",
        "tests/control/test_control_metrics_server.py -k crowd",
    ),
    Defence(
        "a client that holds all of an address' connections", "supervisor/control/limits.py",
        "crowded is None or self._end_longest_waiting(crowded)", "crowded is None",
        "tests/control/test_control_limits.py -k greedy",
    ),
)  # fmt: skip


def fails_without(defence: Defence, copy: Path) -> bool:
    """Whether the tests fail on a copy of the source without the defence."""
    file = copy / defence.file
    text = file.read_text()
    file.write_text(text.replace(defence.there, defence.taken_out))
    try:
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *defence.tests.split(maxsplit=2)]
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(words, cwd=copy, env=environment, capture_output=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:
        return True  # it hangs without the defence
    finally:
        file.write_text(text)
    return ran.returncode == 1


def main() -> int:
    """Take out, test, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD")
    given = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "source"
        ignored = shutil.ignore_patterns(".git", ".venv", "*_cache", "__pycache__", ".hypothesis")
        shutil.copytree(ROOT, copy, ignore=ignored)
        for defence in DEFENCES:
            if given.only not in defence.name:
                continue
            if defence.there not in (copy / defence.file).read_text():
                output = "NOT FOUND where it was"
            else:
                output = "its tests fail" if fails_without(defence, copy) else "NOT NOTICED"
            wrong += output.startswith("NOT")
            sys.stdout.write(f"{defence.name:<36} {defence.file:<40} {output}: {defence.tests}\n")
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
