"""The daemon's side of proving: a process of its own, with limits, and the interpreter of a job's command."""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from pathlib import Path

import pytest

from supervisor.core.checkpoints.checkpoint import Verdict
from supervisor.runner.folder_checkpoints import fingerprint_of
from supervisor.runner.proving import Prover, find_limit_s, interpreter_of


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    """A checkpoint that is proven."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path = tmp_path / "sound.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, 2))
    return path


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_sound_checkpoint_is_proven_with_its_fingerprint(sound: Path) -> None:
    checkpoint = Prover().prove(sound)
    assert checkpoint.verdict is Verdict.PROVEN
    assert checkpoint.reason is None
    assert checkpoint.path == str(sound)
    assert checkpoint.fingerprint == fingerprint_of(sound)


def test_limits_of_the_daemon_that_are_lower_than_its_own_keep_none_from_being_proven(
    sound: Path, tmp_path: Path
) -> None:
    limited = f'#!/bin/sh\nulimit -v 2000000\nulimit -t 100\nexec {sys.executable} "$@"'
    assert Prover(python=script(tmp_path / "limited", limited)).prove(sound).verdict is Verdict.PROVEN


def test_a_rejected_checkpoint_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "x.pt").touch()
    checkpoint = Prover().prove(tmp_path / "x.pt")
    assert checkpoint.verdict is Verdict.REJECTED
    assert checkpoint.reason == "empty"


def test_a_name_that_looks_like_an_option_or_is_no_text_is_a_name(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("-c", os.fsdecode(b"\xff\xfe.pt"), "a b\n.pt"):
        Path(name).write_bytes(sound.read_bytes())
        assert Prover().prove(Path(name)).verdict is Verdict.PROVEN


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Prover().prove(tmp_path / "absent.pt")


def test_an_interpreter_that_is_not_there_proves_nothing(sound: Path) -> None:
    checkpoint = Prover(Path("/nowhere/python")).prove(sound)
    assert checkpoint.verdict is Verdict.REJECTED
    assert checkpoint.reason == "could not be proved: /nowhere/python: No such file or directory"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kill -SEGV $$", "the prover was killed by SIGSEGV"),
        ('echo \'{"verdict": "maybe"}\'', "rejected without a reason"),
        ('echo \'{"verdict": "proven", "reason": "but"}\'', "but"),
        ('echo \'{"reason": "all zero", "unexamined": true}\'', "all zero"),
    ],
)
def test_anything_but_a_clear_word_proves_nothing(sound: Path, tmp_path: Path, text: str, reason: str) -> None:
    proof = Prover(script(tmp_path / "python", f"#!/bin/sh\n{text}\n")).examine(sound)
    assert proof.checkpoint.verdict is Verdict.REJECTED
    assert proof.checkpoint.reason == reason
    assert proof.is_examined


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kill -KILL $$", "the prover was killed by SIGKILL"),
        ("kill -TERM $$", "the prover was killed by SIGTERM"),
        ("echo nonsense", "could not be proved: no answer"),
        ("echo '[1]'", "could not be proved: no answer"),
        ("echo first >&2; echo 'MemoryError' >&2; exit 1", "could not be proved: MemoryError"),
        ('echo \'{"reason": "unreadable: Input/output error"}\'', "unreadable: Input/output error"),
    ],
)
@pytest.mark.parametrize("in_folder", [False, True])
def test_what_keeps_a_checkpoint_from_being_read_says_nothing_of_its_content(
    sound: Path, tmp_path: Path, text: str, reason: str, in_folder: bool
) -> None:
    """The kernel kills a prover where memory is short: each checkpoint of a training was rejected for good by that."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "weights.pkl").write_bytes(sound.read_bytes())
    prover = Prover(script(tmp_path / "python", f"#!/bin/sh\n{text}\n"))
    proof = prover.examine(tmp_path / "folder" if in_folder else sound)
    assert proof.checkpoint.verdict is Verdict.REJECTED
    assert proof.checkpoint.reason == (f"weights.pkl: {reason}" if in_folder else reason)
    assert not proof.is_examined


def test_a_proof_that_does_not_end_says_nothing_of_the_content(sound: Path, tmp_path: Path) -> None:
    proof = Prover(script(tmp_path / "python", "#!/bin/sh\nexec sleep 60\n"), limit_s=0.3).examine(sound)
    assert proof.checkpoint.reason == "could not be proved within 0 s"
    assert not proof.is_examined


def test_a_large_checkpoint_has_the_time_to_be_read() -> None:
    """Weights and optimizer of seven billion parameters take 84 GB; a disk of 100 MB/s reads them in 14 minutes."""
    assert find_limit_s(6_000_000) == pytest.approx(120.6)
    assert find_limit_s(84_000_000_000) == pytest.approx(120 + 8400)
    assert find_limit_s(84_000_000_000, 0.0) == pytest.approx(8400)
    assert find_limit_s(1 << 62) == 4 * 3600
    assert find_limit_s(1 << 62, 20_000.0) == 20_000


def test_a_file_that_is_written_meanwhile_is_rejected(sound: Path, tmp_path: Path) -> None:
    writing = script(tmp_path / "python", f'#!/bin/sh\necho x >> {sound}\necho \'{{"verdict": "proven"}}\'\n')
    checkpoint = Prover(writing).prove(sound)
    assert checkpoint.reason == "changed while it was read"


def test_the_daemons_environment_is_kept_from_it(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET", "hunter2")
    program = script(tmp_path / "python", f"#!/bin/sh\nenv > {tmp_path}/seen\nnice >> {tmp_path}/seen\necho '{{}}'\n")
    Prover(program).prove(sound)
    seen = (tmp_path / "seen").read_text()
    assert "hunter2" not in seen
    assert "LC_ALL=C.UTF-8" in seen


def test_the_interpreter_is_found_behind_every_kind_of_command(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python3.10"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    path = f"{python.parent}:/usr/bin:/bin"
    script(python.parent / "yolo", f"#!{python}\n# console script\n")
    script(python.parent / "accelerate", f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n")
    script(tmp_path / "train.py", "#!/usr/bin/env -S python3.10 -u\n")
    script(python.parent / "wrapped", f"#!{python.parent}/yolo\n")
    for command in (
        [str(python), "train.py"],
        ["python3.10", "-u", "train.py"],
        ["yolo", "detect", "train"],
        ["./train.py"],
        ["accelerate", "launch", "train.py"],
        ["wrapped"],
        ["env", "OMP_NUM_THREADS=2", "-u", "HOME", "yolo", "train"],
        ["/usr/bin/env", "-i", "python3.10"],
    ):
        assert interpreter_of(command, str(tmp_path), path) == python, command


@pytest.mark.parametrize("command", [[], ["env"], ["bash", "train.sh"], ["no-such-command"], ["/bin/true"], ["./loop"]])
def test_where_no_interpreter_can_be_found_there_is_none(tmp_path: Path, command: list[str]) -> None:
    script(tmp_path / "loop", f"#!{tmp_path}/loop\n")
    assert interpreter_of(command, str(tmp_path), "/usr/bin:/bin") is None


def test_a_prover_that_was_taken_over_fills_no_memory(sound: Path, tmp_path: Path) -> None:
    talking = script(tmp_path / "python", "#!/bin/sh\nexec tr '\\0' x < /dev/zero\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checkpoint = Prover(talking, limit_s=20.0).prove(sound)
    assert checkpoint.reason == "the output of the prover exceeds 16 MiB"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_an_answer_is_bounded_whatever_the_prover_says(sound: Path, tmp_path: Path) -> None:
    output = {
        "reason": "r" * 100_000,
        "epoch": 10**400,
        "step": 2**63,
        "fitness": 1e308 * 10,
        "profile": {"tensors": 3},
    }
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(output))
    checkpoint = Prover(script(tmp_path / "python", f"#!/bin/sh\ncat {answer}\n")).prove(sound)
    assert (checkpoint.epoch, checkpoint.step, checkpoint.fitness) == (None, None, None)
    assert len(checkpoint.reason or "") == 1000


def test_a_place_in_the_memo_that_would_take_gigabytes_is_refused_before_python_makes_it(tmp_path: Path) -> None:
    """Found by feeding damaged files: two bytes that changed in the first pickle of the old format."""
    path = tmp_path / "x.pt"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8Ptr(\x03\xf9 j\xa8Ptr\x03.")
    checkpoint = Prover(limit_s=20.0).prove(path)
    assert checkpoint.verdict is Verdict.REJECTED
    assert "its pickle numbers an object 553190184 after 3 opcodes" in (checkpoint.reason or "")
