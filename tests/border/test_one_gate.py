"""Modules that handle attempts' folders touch files through the gate alone; each exception has its reason here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import supervisor

ROOT = Path(supervisor.__file__).parent
NOT_OURS_TO_GUARD = ("agent", "demo")
"""They run as the training's user, or are nobody's."""
MARKS = frozenset({
    "supervisor.core.attempt_files",
    "supervisor.untrusted_files",
    "supervisor.runner.attempt_folder",
    "supervisor.runner.evidence_folder",
    "supervisor.runner.generation_store",
})  # fmt: skip
"""Who imports one of these handles what a training can write."""
METHODS = frozenset({
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "stat", "lstat", "exists", "lexists", "is_file",
    "is_dir", "is_symlink", "glob", "rglob", "iglob", "iterdir", "unlink", "rmdir", "rename", "touch", "mkdir", "chmod",
    "symlink_to", "hardlink_to", "resolve", "readlink", "listdir", "scandir", "walk", "fwalk", "rmtree", "makedirs",
    "remove", "link", "symlink", "truncate", "chown", "utime", "copy", "copyfile", "move", "cmp", "realpath", "getsize",
})  # fmt: skip
GATE = "untrusted_files"
EVIDENCE = ("supervisor.runner.evidence_folder", "target")
"""Where that is imported, `target` is an EvidenceFolder, which goes through the gate."""

OWN_FOLDERS = "the daemon's own ground: no training can write there"
CHECKPOINTS = "files of the training's user outside the state directory: found by name, opened by the prover alone"
PROC = "below /proc or /sys, where no user makes files"
SEALED = "memory without a name, found in /proc: opened without waiting, and mapped only where it cannot shrink"
PERSON = "a path that the person at the command line named"

CODE = "the program's own files"
HANDLED_BY_NAME = frozenset({
    "cli/evidence/command.py", "cli/evidence/files.py", "cli/logs.py", "cli/replay/export.py", "cli/replay/source.py",
    "cli/show.py",
    "control/checkpoint_list.py", "daemon/checkpoints/candidates.py", "daemon/checkpoints/damaged_saves.py",
    "daemon/checkpoints/resume_search.py",
    "daemon/checkpoints/past_losses.py",
    "replay/folder.py", "replay/from_record.py", "runner/clone_file.py",
    "runner/generation_store.py", "runner/tools.py", "runner/proving.py", "runner/exit_watch.py",
    "runner/process_words.py", "daemon/checkpoints/unreported_saves.py",
})  # fmt: skip
"""These handle such files, too, and import none of those."""
CALLERS_FOLDER = "a folder of the calling user, who is the training's user"

ALLOWED: dict[str, dict[str, str]] = {
    "cli/evidence/command.py": {"command": PERSON, "_write_bundle": PERSON},
    "cli/replay/source.py": {"rules_in": PERSON},
    "cli/triage.py": {"_find_state_before": CHECKPOINTS, "_as_its_user": OWN_FOLDERS},
    "cluster/end_watch.py": {"_map_word": SEALED, "_is_word": PROC},
    "cluster/rank_evidence.py": {"_read_wait": PROC},
    "control/disk_use.py": {"_file_bytes": OWN_FOLDERS},
    "control/record_view.py": {"_newest_attempt": OWN_FOLDERS},
    "daemon/checkpoints/unreported_saves.py": {"list_alike": CHECKPOINTS},
    "daemon/checkpoints/candidates.py": {
        "_find_closed_folder": CHECKPOINTS,
        "_has_changed_since_write": CHECKPOINTS,
        "list_matches": CHECKPOINTS,
        "_find_matches": CHECKPOINTS,
        "_describe_folder": CHECKPOINTS,
        "_holds_weights": CHECKPOINTS,
        "_find_suffix": CHECKPOINTS,
        "_list_links": CHECKPOINTS,
    },
    "daemon/checkpoints/damaged_saves.py": {"_scan": CHECKPOINTS},
    "daemon/launch/launch_spec.py": {"in_container": "device nodes of the kernel, in /dev"},
    "daemon/jobs/forget.py": {"_put_folder_aside": OWN_FOLDERS},
    "daemon/cleanup.py": {"_list_folders": OWN_FOLDERS},
    "replay/folder.py": {"write": PERSON, "read": PERSON, "_read_lines": PERSON, "_open_gzip": PERSON},
    "runner/memory_probe.py": {"_scratch_folder": CALLERS_FOLDER, "make_scratch_folder": CALLERS_FOLDER},
    "runner/loaded_probe.py": {"end": CALLERS_FOLDER},
    "runner/attempt_folder.py": {
        "check_disk": OWN_FOLDERS,
        "lay_out": OWN_FOLDERS,
        "_replace_link": OWN_FOLDERS,
        "make_folder": OWN_FOLDERS,
        "_set_rights": OWN_FOLDERS,
        "has_shim_command": OWN_FOLDERS,
        "_effective_user": PROC,
    },
    "runner/tuned.py": {
        "withdraw_order": OWN_FOLDERS,
        "forget": OWN_FOLDERS,
        "keep": OWN_FOLDERS,
        "undo": OWN_FOLDERS,
    },
    "runner/clone_file.py": {"_try_link": OWN_FOLDERS, "clone_file": OWN_FOLDERS},
    "runner/code_copy.py": {
        "": CODE,
        "_read_file": CODE,
        "_files_below": CODE,
        "current": OWN_FOLDERS,
        "_find_place": OWN_FOLDERS,
        "_new_draft": OWN_FOLDERS,
        "prune": OWN_FOLDERS,
        "_make_copy": OWN_FOLDERS,
        "fill": OWN_FOLDERS,
        "_write_file": OWN_FOLDERS,
        "is_intact": OWN_FOLDERS,
        "_walk": OWN_FOLDERS,
        "drop": OWN_FOLDERS,
        "used_by": OWN_FOLDERS,
        "attempts_of": OWN_FOLDERS,
    },
    "runner/core_dumps.py": {"_list_dumps": PROC, "_device_name": PROC, "_copy_dump": PROC},
    "runner/direct.py": {"_find_shims": OWN_FOLDERS, "dismiss": OWN_FOLDERS},
    "runner/evidence.py": {"_take_processes": PROC, "_read_proc": PROC},
    "runner/evidence_folder.py": {"write": "its own method, which goes through the gate"},
    "runner/found_attempts.py": {"numbers_found": OWN_FOLDERS, "found_attempt": OWN_FOLDERS},
    "runner/generation_store.py": {
        "take": OWN_FOLDERS,
        "_capture": CHECKPOINTS,
        "_capture_file": OWN_FOLDERS,
        "_capture_folder": OWN_FOLDERS,
        "_read_generation": OWN_FOLDERS,
        "drop": OWN_FOLDERS,
        "tidy": OWN_FOLDERS,
        "_list_folders": OWN_FOLDERS,
        "_next_serial": OWN_FOLDERS,
        "_write_json": OWN_FOLDERS,
        "_read_json": OWN_FOLDERS,
        "_sync_folder": OWN_FOLDERS,
        "same_content": OWN_FOLDERS,
        "_open_source": "a checkpoint, wherever its path leads; the owner is checked on the descriptor",
        "_list_sibling_files": CHECKPOINTS,
    },
    "runner/process_words.py": {"_read": PROC},
    "runner/proving.py": {
        "_read_shebang": "resolved, then read by the gate",
    },
    "runner/shared_generations.py": {"read_own": CHECKPOINTS},
    "runner/standby.py": {"stood_by_for": OWN_FOLDERS, "clear": OWN_FOLDERS},
    "runner/tools.py": {"write_gpu_tools": PROC},
    "runner/units.py": {"stand_by": OWN_FOLDERS, "_is_current": OWN_FOLDERS, "populated": PROC, "available": PROC},
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.split("/", maxsplit=1)[0] not in NOT_OURS_TO_GUARD and name != "untrusted_files.py":
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def touches(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield each call that opens, lists or changes a file: the function that it stands in, its name and its line."""
    gates = {GATE, EVIDENCE[1]} if EVIDENCE[0] in imported(tree) else {GATE}
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, place = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            place = node.name
        if isinstance(node, ast.Call):
            called = called_by(node)
            if isinstance(called, ast.Name) and called.id in ("open", "iglob"):
                yield place, called.id, node.lineno
            elif isinstance(called, ast.Attribute) and called.attr in METHODS and not asked_of(called, gates):
                yield place, called.attr, node.lineno
        stack.extend((child, place) for child in ast.iter_child_nodes(node))


def called_by(node: ast.Call) -> ast.expr:
    """Return what a call calls: `apart` calls its first argument, in another process."""
    by_name = isinstance(node.func, ast.Name) and node.func.id == "apart" and node.args
    return node.args[0] if by_name else node.func


def asked_of(called: ast.Attribute, names: set[str]) -> bool:
    return isinstance(called.value, ast.Name) and called.value.id in names


@pytest.fixture(scope="module")
def handling() -> dict[str, ast.Module]:
    """The modules under the rule."""
    return {name: tree for name, tree in modules() if imported(tree) & MARKS or name in HANDLED_BY_NAME}


def test_the_rooms_that_read_attempts_are_under_the_rule(handling: dict[str, ast.Module]) -> None:
    names = set(handling)
    assert names >= {
        "runner/attempt_folder.py", "runner/evidence.py", "runner/stacks.py", "runner/standby.py", "runner/triage.py",
        "sources/attempt/recorder.py", "sources/attempt/agent_log.py", "sources/attempt/output.py",
        "sources/attempt/output_files.py",
        "daemon/attempt_reader.py", "daemon/cleanup.py", "daemon/triage.py", "daemon/checkpoints/collector.py",
        "control/tail.py",
        "control/evidence.py", "control/record_view.py", "cli/triage.py", "replay/from_record.py",
    }  # fmt: skip


def test_files_are_touched_through_the_gate(handling: dict[str, ast.Module]) -> None:
    wrong: list[str] = []
    for name, tree in handling.items():
        allowed = ALLOWED.get(name, {})
        found = {(place, call): line for place, call, line in touches(tree)}
        wrong += [
            f"{name}:{line}: {call}() in {place or 'the module'}: use untrusted_files, or give a reason in ALLOWED"
            for (place, call), line in found.items()
            if place not in allowed
        ]
        gone = set(allowed) - {place for place, _ in found}
        wrong += [f"{name}: a reason in ALLOWED for {place}, which is not there any more" for place in sorted(gone)]
    assert not wrong, "\n".join(wrong)
    assert set(ALLOWED) <= set(handling), "reasons for modules that are not under the rule"


def test_the_rule_sees_what_it_forbids() -> None:
    bad = "from pathlib import Path\ndef f(folder):\n    (folder / 'run/shim.json').read_text(); open(folder)\n"
    assert {call for _, call, _ in touches(ast.parse(bad))} == {"read_text", "open"}
    assert [call for _, call, _ in touches(ast.parse("apart(os.stat, path)"))] == ["stat"]
    assert list(touches(ast.parse("untrusted_files.open_file(a, b)\nuntrusted_files.exists(a, b)"))) == []
