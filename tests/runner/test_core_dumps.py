"""Core dumps of drivers: copied whole, to a bound, the newest first."""

from __future__ import annotations

from pathlib import Path

from supervisor.runner.core_dumps import take_core_dumps
from supervisor.runner.evidence_folder import EvidenceFolder


def target(folder: Path) -> EvidenceFolder:
    return EvidenceFolder(folder.parent, folder.name)


def dump(root: Path, number: int, data: bytes, device: str = "0000:03:00.0") -> Path:
    folder = root / f"devcd{number}"
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(data)
    (folder / "failing_device").symlink_to(f"../../../pci0000:00/{device}")
    return folder


def test_each_dump_is_copied_and_named_after_its_gpu(tmp_path: Path) -> None:
    root = tmp_path / "devcoredump"
    dump(root, 1, b"**** AMDGPU Device Coredump ****")
    dump(root, 2, b"second", "0000:0a:00.0")
    assert take_core_dumps(root, target(tmp_path)) == []
    assert (tmp_path / "devcd1-0000:03:00.0.bin").read_bytes() == b"**** AMDGPU Device Coredump ****"
    assert (tmp_path / "devcd2-0000:0a:00.0.bin").read_bytes() == b"second"
    assert (root / "devcd1/data").read_bytes().startswith(b"****")


def test_all_together_are_bounded_and_the_newest_comes_first(tmp_path: Path) -> None:
    root = tmp_path / "devcoredump"
    for number in (9, 10, 11):
        dump(root, number, b"x" * 60)
    missing = take_core_dumps(root, target(tmp_path), limit_bytes=100)
    assert [len(path.read_bytes()) for path in sorted(tmp_path.glob("*.bin"))] == [40, 60]
    assert missing == ["core dump devcd10: size limit reached; this and earlier core dumps are truncated"]


def test_a_dump_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    root = tmp_path / "devcoredump"
    dump(root, 1, b"x")
    (dump(root, 2, b"y") / "data").unlink()
    assert take_core_dumps(root, target(tmp_path)) == ["core dump devcd2: No such file or directory"]
    assert (tmp_path / "devcd1-0000:03:00.0.bin").exists()


def test_a_kernel_that_never_left_one_is_no_loss(tmp_path: Path) -> None:
    assert take_core_dumps(tmp_path / "absent", target(tmp_path)) == []
