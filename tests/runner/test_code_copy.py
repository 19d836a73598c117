"""Copies of the code that trainings run: whole, theirs to read, checked before use, and gone once nothing runs them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from supervisor.runner.code_copy import (
    DIGESTS,
    INSTALLED,
    PARTS,
    USES_UNTIL_READ,
    Code,
    CodeCopies,
    attempts_of,
    temporary_copy,
)

LONG_S = 120.0


LARGE = ("conv2d", "knobs", "loops", "snapshots")
"""Folders with more than half of the code, which each copy would compile."""


def install(folder: Path, *without: str) -> Path:
    """Put an installation into a folder, without some of its own."""
    for part in PARTS:
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if (INSTALLED.root / part).is_dir():
            shutil.copytree(INSTALLED.root / part, target, ignore=shutil.ignore_patterns("__pycache__", *without))
        else:
            shutil.copy(INSTALLED.root / part, target)
    return folder


@pytest.fixture
def whole_package(tmp_path: Path) -> Path:
    """All that is installed."""
    return install(tmp_path / "installed")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installation that a test may upgrade, whatever files it has."""
    return install(tmp_path / "installed", *LARGE)


def upgrade(package: Path, line: str = "NEW = True\n") -> None:
    """Put another version of everything in its place."""
    for path in package.rglob("*.py"):
        path.write_text(path.read_text() + line)


def contents(code: Code) -> dict[str, bytes]:
    return {str(path.relative_to(code.root)): path.read_bytes() for path in code.root.rglob("*.py")}


def places(state: Path) -> set[str]:
    return {path.name for path in (state / "code").iterdir()}


def test_a_copy_holds_what_is_installed_and_can_be_read_and_not_be_written(tmp_path: Path, whole_package: Path) -> None:
    umask = os.umask(0o077)
    try:
        code = CodeCopies(tmp_path / "state", installed=whole_package).current()
    finally:
        os.umask(umask)
    assert contents(code) == contents(Code(whole_package))
    assert (code.agent / "sitecustomize.py").is_file()
    for path in (code.root.parent, code.root, *code.root.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o755 if path == code.root.parent else 0o555 if path.is_dir() else 0o444), path


def test_what_a_shim_imports_is_copied_with_it_also_what_few_attempts_need() -> None:
    for part in (part for part in PARTS if part.startswith("runner/")):
        tree = ast.parse((INSTALLED.root / part).read_text())
        found = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
        names = {getattr(node, "module", None) or node.names[0].name for node in found}
        beside = {f"runner/{name}.py" for name in names if (INSTALLED.root / "runner" / f"{name}.py").exists()}
        assert beside <= set(PARTS), part


def test_a_second_daemon_of_the_same_version_finds_the_copy_and_makes_none(tmp_path: Path, package: Path) -> None:
    first = CodeCopies(tmp_path, installed=package).current()
    made = first.root.stat().st_ctime_ns
    assert CodeCopies(tmp_path, installed=package).current() == first
    assert (first.root.stat().st_ctime_ns, len(places(tmp_path))) == (made, 1)


def test_a_daemon_goes_on_with_the_version_that_it_was_started_from(tmp_path: Path, package: Path) -> None:
    before = CodeCopies(tmp_path, installed=package)
    old = contents(Code(package))
    upgrade(package)
    copied = before.current()
    assert contents(copied) == old
    assert before.current() == copied
    assert contents(CodeCopies(tmp_path, installed=package).current()) == contents(Code(package)) != old


def begin(copies: CodeCopies) -> threading.Thread:
    """Ask for the copy in a thread, as a launch does."""
    thread = threading.Thread(target=copies.current_or_installed, daemon=True)
    thread.start()
    return thread


def replace_by_pipe(path: Path) -> Path:
    """Put a FIFO in a file's place, which is a disk that hangs to whoever reads it; return the file's new place."""
    aside = path.with_name(f"{path.name}.aside")
    path.parent.chmod(0o755)
    path.rename(aside)
    os.mkfifo(path)
    return aside


def wait_until_read(pipe: Path) -> int:
    """Wait until a thread hangs at the FIFO; return the descriptor whose closing has it go on."""
    return os.open(pipe, os.O_WRONLY)


def test_a_check_that_hangs_holds_up_no_other_launch(tmp_path: Path, package: Path) -> None:
    copies = CodeCopies(tmp_path, installed=package)
    root = copies.current().root
    pipe = root / DIGESTS
    aside = replace_by_pipe(pipe)
    first = begin(copies)
    held = wait_until_read(pipe)
    pipe.unlink()
    aside.rename(pipe)
    assert copies.current().root == root
    assert first.is_alive()
    os.close(held)
    first.join(LONG_S)
    assert not first.is_alive()


def test_a_launch_makes_its_own_copy_where_another_hangs_in_making_it(tmp_path: Path, package: Path) -> None:
    copies = CodeCopies(tmp_path, installed=package, wait_s=0.2)
    first_copy = copies.current().root
    shutil.rmtree(first_copy)
    pipe = package / "runner/shim.py"
    aside = replace_by_pipe(pipe)
    first = begin(copies)
    held = wait_until_read(pipe)
    pipe.unlink()
    aside.rename(pipe)
    assert copies.current().root == first_copy
    assert first.is_alive()
    os.close(held)
    first.join(LONG_S)
    assert not first.is_alive()
    assert places(tmp_path) == {first_copy.name}


def test_launches_at_the_same_time_make_one_copy(tmp_path: Path, package: Path) -> None:
    copies = CodeCopies(tmp_path, installed=package, wait_s=LONG_S)
    for thread in [begin(copies) for _ in range(4)]:
        thread.join(LONG_S)
    assert len(places(tmp_path)) == 1


def test_a_damaged_copy_is_left_as_it_is_and_another_is_used(tmp_path: Path, package: Path) -> None:
    copies = CodeCopies(tmp_path, installed=package)
    damaged = copies.current()
    assert copies.current() == damaged, "it was read, and found intact"
    shim = damaged.root / "runner" / "shim.py"
    shim.chmod(0o644)
    shim.write_text("")
    shim.chmod(0o444)
    other = copies.current()
    assert other != damaged
    assert contents(other) == contents(Code(package))
    assert shim.read_text() == ""


def test_of_a_number_of_uses_in_a_row_one_finds_what_no_write_has_changed(tmp_path: Path, package: Path) -> None:
    copies = CodeCopies(tmp_path, installed=package)
    copies.current()
    first = copies.current()
    shim = first.root / "runner" / "shim.py"
    before = shim.stat()
    shim.chmod(0o644)
    shim.write_bytes(shim.read_bytes()[:-1] + b"#")
    shim.chmod(0o444)
    os.utime(shim, ns=(before.st_atime_ns, before.st_mtime_ns))
    used = [copies.current() for _ in range(USES_UNTIL_READ)]
    assert used == [first] * (USES_UNTIL_READ - 1) + [used[-1]], "as of a disk that returns something else"
    assert used[-1] != first
    assert contents(used[-1]) == contents(Code(package))


@pytest.mark.parametrize("harm", ["writable", "foreign file", "link", "byte code", "no digests"])
def test_what_somebody_else_could_have_changed_is_not_used(tmp_path: Path, package: Path, harm: str) -> None:
    copies = CodeCopies(tmp_path, installed=package)
    copies.current()
    root = copies.current().root
    for folder in (root, root / "runner", root / "runner" / "__pycache__"):
        folder.chmod(0o755)
    if harm == "writable":
        (root / "runner" / "shim.py").chmod(0o664)
    elif harm == "foreign file":
        (root / "runner" / "json.py").write_text("")
    elif harm == "link":
        (root / "runner" / "place_checkpoint.py").rename(root / "place_checkpoint")
        (root / "runner" / "place_checkpoint.py").symlink_to(root / "place_checkpoint")
    elif harm == "byte code":
        compiled = next((root / "runner").rglob("shim.*.pyc"))
        compiled.chmod(0o644)
        compiled.write_bytes(compiled.read_bytes()[:-1])
    else:
        (root / DIGESTS).unlink()
    assert copies.current().root != root


def test_what_anybody_could_write_in_the_installation_is_refused(tmp_path: Path, package: Path) -> None:
    (package / "agent" / "path" / "rocm_agent" / "events.py").chmod(0o666)
    with pytest.raises(ValueError, match=r"events\.py: world-writable.*chmod o-w"):
        CodeCopies(tmp_path, installed=package).current()


def test_where_the_state_directory_takes_nothing_the_error_says_what_could_not_be_copied(
    tmp_path: Path, package: Path
) -> None:
    (tmp_path / "code").write_text("a file in its way")
    with pytest.raises(OSError, match=r"/code/[0-9a-f]{16}: the code that trainings run could not be copied"):
        CodeCopies(tmp_path, installed=package).current()


def test_a_lost_copy_of_a_version_that_is_no_longer_installed_asks_for_a_restart(tmp_path: Path, package: Path) -> None:
    copies = CodeCopies(tmp_path, installed=package)
    root = copies.current().root
    copies.prune(lambda _: False)
    upgrade(package)
    (root / "runner").chmod(0o755)
    (root / "runner" / "shim.py").unlink()
    with pytest.raises(ValueError, match=r"was upgraded.*restart the daemon"):
        copies.current()


def test_importing_from_a_copy_leaves_nothing_in_it(tmp_path: Path, whole_package: Path) -> None:
    code = CodeCopies(tmp_path, installed=whole_package).current()
    before = sorted(code.root.rglob("*"))
    env = {**os.environ, "PYTHONPATH": str(code.agent), "ROCM_SUPERVISOR_ATTEMPT_DIR": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    program = "import rocm_agent.process as it, rocm_agent.standby; print(it.__file__, it.__cached__)"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    file, cached = done.stdout.split()
    assert Path(file).is_relative_to(code.root)
    assert Path(cached).is_file()
    assert sorted(code.root.rglob("*")) == before


def test_a_copy_has_its_byte_code_where_all_other_byte_code_lies_elsewhere(tmp_path: Path, whole_package: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    program = (
        "from pathlib import Path; from supervisor.runner.code_copy import CodeCopies; "
        f"print(CodeCopies(Path({str(tmp_path / 'state')!r}), installed=Path({str(whole_package)!r})).current().root)"
    )
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(elsewhere)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    root = Path(done.stdout.strip())
    assert {path.stem.split(".")[0] for path in root.rglob("*.pyc")} == {path.stem for path in root.rglob("*.py")}


def test_old_copies_go_once_nothing_runs_them_and_the_current_one_stays(tmp_path: Path, package: Path) -> None:
    old = CodeCopies(tmp_path, installed=package).current().root
    attempt = tmp_path / "jobs" / "yolo" / "3"
    attempt.mkdir(parents=True)
    (attempt / "code").symlink_to(old)
    upgrade(package)
    copies = CodeCopies(tmp_path, installed=package)
    new = copies.current().root
    (tmp_path / "code" / ".new-cut-short" / "agent").mkdir(parents=True)
    assert list(attempts_of(old, tmp_path / "jobs")) == [("yolo", attempt)]
    assert list(attempts_of(new, tmp_path / "jobs")) == []
    assert copies.prune(lambda place: place == old) == 1
    assert places(tmp_path) == {old.name, new.name}
    assert copies.prune(lambda _: False) == 1
    assert places(tmp_path) == {new.name}


def test_a_temporary_copy_is_gone_afterwards() -> None:
    with temporary_copy() as code:
        assert (code.agent / "rocm_agent").is_dir()
    assert not code.root.exists()
