"""`supervisorctl setup`: what it writes, what it leaves alone, and what it says when it cannot."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.cli.setup.command import barrier, perform, remaining
from supervisor.cli.setup.plan import (
    Installation,
    Owner,
    RunCommand,
    WriteFile,
    fill_template,
    system_plan,
    user_plan,
)
from supervisor.cli.setup.removal import RemoveFile, RemoveState, owner_removal, undo
from supervisor.runner import shim
from supervisor.shipped import shipped
from tests.rigs.installed_box import OWNER, PYTHON, ROOT, InstalledBox

HERE = Installation(
    bin=Path("/opt/rocm-supervisor/bin"),
    python=Path("/opt/rocm-supervisor/bin/python"),
    shim=Path(shim.__file__),
    systemd=shipped("systemd"),
    example=shipped("config.toml"),
)


ANN = Owner(name=OWNER, group=OWNER)


def lines_of(output: str) -> list[str]:
    return [line.split(maxsplit=1)[0] for line in output.partition("\n\n")[0].splitlines()]


def test_a_prefix_gets_all_files_and_no_marks_are_left(tmp_path: Path) -> None:
    report = [perform(step, prefix=tmp_path, dry_run=False) for step in system_plan(HERE, ANN, files_only=True)]
    assert all(line.startswith("wrote") for line in report)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path)) for path in files] == [
        "etc/polkit-1/rules.d/50-rocm-supervisor.rules",
        "etc/rocm-supervisor/config.toml",
        "etc/systemd/system/rocm-run@.service",
        "etc/systemd/system/rocm-run@.service.d/owner.conf",
        "etc/systemd/system/rocm-runs.slice",
        "etc/systemd/system/rocm-supervisor-fleet.service",
        "etc/systemd/system/rocm-supervisor-web.service",
        "etc/systemd/system/rocm-supervisor-web.socket",
        "etc/systemd/system/rocm-supervisor.service",
        "etc/systemd/system/rocm-supervisor.service.d/owner.conf",
        "etc/systemd/system/rocm-supervisor.socket",
        "etc/sysusers.d/rocm-supervisor.conf",
        "etc/tmpfiles.d/rocm-supervisor.conf",
    ]
    units = [path.read_text() for path in files if "systemd/system" in str(path)]
    assert not any(mark in unit for unit in units for mark in ("@BIN@", "@PYTHON@", "@SHIM@"))
    assert (tmp_path / "etc/rocm-supervisor/config.toml").stat().st_mode & 0o777 == 0o640


def test_a_package_makes_no_users(tmp_path: Path) -> None:
    assert not [step for step in system_plan(HERE, ANN, files_only=True) if isinstance(step, RunCommand)]


def test_a_second_call_changes_nothing_and_a_changed_unit_is_put_right(tmp_path: Path) -> None:
    steps = system_plan(HERE, ANN, files_only=True)
    for step in steps:
        perform(step, prefix=tmp_path, dry_run=False)
    again = [perform(step, prefix=tmp_path, dry_run=False) for step in steps]
    assert [line.split()[0] for line in again] == ["unchanged"] * (len(steps) - 1) + ["kept"]
    slice_ = tmp_path / "etc/systemd/system/rocm-runs.slice"
    slice_.write_text("[Slice]\nCPUWeight=1\n")
    third = [perform(step, prefix=tmp_path, dry_run=False) for step in steps]
    assert [line.split()[0] for line in third].count("replaced") == 1
    assert "CPUWeight=1" not in slice_.read_text()


def test_settings_that_are_there_are_never_touched(tmp_path: Path) -> None:
    config = tmp_path / "etc/rocm-supervisor/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("# mine\n")
    for step in system_plan(HERE, ANN, files_only=True):
        perform(step, prefix=tmp_path, dry_run=False)
    assert config.read_text() == "# mine\n"


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    for step in system_plan(HERE, ANN, files_only=False):
        assert perform(step, prefix=tmp_path, dry_run=True).startswith("would ")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_would_need_quoting_is_refused_before_anything_is_written() -> None:
    odd = Installation(bin=Path("/opt/my venv"), python=HERE.python, shim=HERE.shim, systemd=HERE.systemd,
                       example=HERE.example)  # fmt: skip
    with pytest.raises(ValueError, match="my venv has characters that a systemd unit cannot contain unquoted"):
        system_plan(odd, ANN, files_only=True)
    with pytest.raises(ValueError, match="cannot contain unquoted"):
        fill_template("ExecStart=@BIN@/x", odd)


def test_a_persons_settings_keep_state_in_their_home() -> None:
    config = next(step for step in user_plan(HERE, Path("/home/ann")) if step.path.name == "config.toml")
    assert '\nstate_dir = "~/.local/state/rocm-supervisor"\n' in config.text
    run = next(step for step in user_plan(HERE, Path("/home/ann")) if step.path.name == "rocm-run@.service")
    assert " %h/.local/state/rocm-supervisor/jobs/%i/current\n" in run.text


def test_the_directory_that_shuts_somebody_out_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "venv").mkdir(parents=True)
    python = home / "venv" / "python"
    python.write_text("")
    link = tmp_path / "python"
    link.symlink_to(python)
    for folder in (*tmp_path.parents, tmp_path):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    assert barrier(link, uid=60000, groups=[60000]) is None
    home.chmod(0o700)
    assert barrier(link, uid=60000, groups=[60000]) == home.resolve()
    assert barrier(link, uid=os.geteuid(), groups=[60000]) is None


@pytest.mark.systemd
def test_setup_on_a_machine_can_be_repeated(installed: InstalledBox) -> None:
    done = installed.setup(f"--owner {OWNER}")
    assert done.ok, done.output
    assert set(lines_of(done.output)) == {"unchanged", "ran", "kept"}
    assert "systemctl enable --now rocm-supervisor" in done.output
    by_another = installed.setup("", sudo_by="bob")
    assert by_another.ok, by_another.output
    assert set(lines_of(by_another.output)) == {"unchanged", "ran", "kept"}, "who repeats it takes nothing over"
    assert f"ln -s {PYTHON.parent}/supervisorctl /usr/local/bin/" in done.output, "else neither PATH nor sudo finds it"
    groups = installed.box.run(f"id -nG {OWNER}", check=True).output.split()
    assert "rocm-supervisor" in groups
    stat = installed.box.run("stat -c '%a %U %G' /var/lib/rocm-supervisor/jobs /etc/rocm-supervisor/config.toml")
    assert stat.output.splitlines() == ["2750 rocm-supervisor rocm-supervisor-jobs", "640 root rocm-supervisor"]


@pytest.mark.systemd
@pytest.mark.parametrize(
    ("words", "user", "complaint"),
    [
        ("--owner carl", None, "no such user on this system"),
        ("--owner root", None, "could then run any program as root"),
        ("--owner bob", None, f"run as {OWNER}, and the system's daemon has one owner"),
        (f"--owner {OWNER}", OWNER, "run it as root"),
        (f"--owner {OWNER} --user", OWNER, "exclude each other"),
        ("--user", None, "run it without sudo"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    installed: InstalledBox, words: str, user: str | None, complaint: str
) -> None:
    done = installed.setup(words, user=user)
    assert done.status == 1
    assert complaint in done.output
    assert "Traceback" not in done.output


@pytest.mark.systemd
def test_an_installation_that_the_owner_cannot_read_is_refused(installed: InstalledBox) -> None:
    closed = ROOT
    mode = installed.box.run(f"stat -c %a {closed}", check=True).output.strip()
    installed.box.run(f"chmod 750 {closed}", check=True)
    try:
        done = installed.setup(f"--owner {OWNER}")
        assert done.status == 1
        assert f"{closed} is not accessible (mode 0750)" in done.output
    finally:
        installed.box.run(f"chmod {mode} {closed}", check=True)


@pytest.mark.systemd
def test_the_units_of_one_person_verify(installed: InstalledBox) -> None:
    done = installed.setup("--user", user=OWNER)
    assert done.ok, done.output
    assert "loginctl enable-linger" in done.output
    assert set(lines_of(done.output)) == {"wrote"}
    assert set(lines_of(installed.setup("--user", user=OWNER).output)) == {"unchanged", "kept"}
    units = f"/home/{OWNER}/.config/systemd/user"
    verified = installed.box.run(
        f"cd {units}; systemd-analyze --user verify rocm-supervisor.service rocm-supervisor.socket rocm-run@x.service",
        user=OWNER,
        environment={"HOME": f"/home/{OWNER}", "XDG_RUNTIME_DIR": "/tmp"},
    )
    assert (verified.status, verified.output) == (0, "")


@pytest.mark.systemd
def test_removal_undoes_the_setup_and_keeps_what_is_the_persons_until_it_is_purged(installed: InstalledBox) -> None:
    box = installed.box
    settings, state = "/etc/rocm-supervisor/config.toml", "/var/lib/rocm-supervisor"
    box.run(f"touch {state}/supervisor.db; mkdir -p /etc/systemd/system/rocm-run@.service.d", check=True)
    box.run("printf '[Service]\\n' >/etc/systemd/system/rocm-run@.service.d/mine.conf", check=True)
    tried = installed.setup("--remove --dry-run")
    assert tried.ok, tried.output
    assert box.run("systemctl cat rocm-supervisor.service").ok
    done = installed.setup("--remove")
    assert done.ok, done.output
    assert not box.run("systemctl cat rocm-supervisor.service").ok
    assert not box.run("ls /etc/systemd/system/rocm-run@.service.d/owner.conf").ok
    assert "/etc/systemd/system/rocm-run@.service.d    (your own drop-ins)" in done.output
    assert f"{state}    (--purge removes it)" in done.output
    assert box.run(f"ls {settings} {state}/supervisor.db").ok
    box.run("rm -r /etc/systemd/system/rocm-run@.service.d", check=True)
    again = installed.setup("--remove")
    assert again.ok, again.output
    assert "removed" not in lines_of(again.output)
    box.run("echo https://h.example/secret >/etc/rocm-supervisor/webhook-url", check=True)
    purged = installed.setup("--remove --purge")
    assert purged.ok, purged.output
    assert "/etc/rocm-supervisor/webhook-url    (not written by setup)" in purged.output
    assert not box.run(f"ls {settings} || ls {state}").ok
    assert not box.run("id rocm-supervisor || getent group rocm-supervisor-jobs").ok
    assert "--owner NAME is required: the user who owns data" in installed.setup("").output
    again = installed.setup(f"--owner {OWNER}")
    assert again.ok, again.output
    box.run("systemctl daemon-reload", check=True)
    assert box.run("systemctl cat rocm-supervisor.service").ok


@pytest.mark.systemd
def test_removal_needs_the_rights_of_the_setup(installed: InstalledBox) -> None:
    refused = installed.setup("--remove", user=OWNER)
    assert refused.status == 1
    assert "run it as root (sudo)" in refused.output
    assert installed.setup("--purge").status == 2


def test_a_folder_that_is_no_state_directory_is_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.pt").touch()
    assert undo(RemoveState(path=tmp_path), dry_run=False).startswith("kept")
    assert (tmp_path / "thesis.pt").exists()


def test_the_folder_of_the_configuration_goes_with_its_last_file(tmp_path: Path) -> None:
    folder = tmp_path / "rocm-supervisor"
    folder.mkdir()
    (folder / "config.toml").touch()
    (folder / "webhook-url").touch()
    assert undo(RemoveFile(path=folder / "config.toml"), dry_run=False).startswith("removed")
    assert folder.exists()
    undo(RemoveFile(path=folder / "webhook-url"), dry_run=False)
    assert not folder.exists()


def test_on_a_running_system_setup_has_the_daemon_take_its_new_rights_over() -> None:
    """The package has started the daemon, so setup restarts it; elsewhere the person starts it."""
    booted = {packaged: system_plan(replace(HERE, packaged=packaged), ANN, files_only=False, booted=True)
              for packaged in (True, False)}  # fmt: skip
    ends = {packaged: [" ".join(step.argv) for step in steps if isinstance(step, RunCommand)][-2:]
            for packaged, steps in booted.items()}  # fmt: skip
    assert ends[True] == ["systemctl daemon-reload", "systemctl restart rocm-supervisor"]
    assert ends[False][-1] == "systemctl daemon-reload"
    assert remaining(for_user=False, owner=None, packaged=True, booted=True)[-2] == "systemctl reload rocm-supervisor"
    assert "systemctl daemon-reload" not in remaining(for_user=False, owner=None, booted=True)


def test_a_home_whose_group_is_the_owners_alone_is_opened_for_the_daemon_and_no_other() -> None:
    closed = replace(ANN, closed_home=Path("/home/ann"))
    for packaged in (True, False):
        steps = system_plan(replace(HERE, packaged=packaged), closed, files_only=False)
        assert RunCommand(argv=("chmod", "g+rx", "/home/ann")) in steps
    assert not [step for step in system_plan(HERE, ANN, files_only=False)
                if isinstance(step, RunCommand) and "chmod" in step.argv]  # fmt: skip


def test_a_debian_package_leaves_only_the_owner_to_setup() -> None:
    packaged = replace(HERE, packaged=True)
    usermod, *drop_ins = system_plan(packaged, ANN, files_only=False)
    assert isinstance(usermod, RunCommand)
    assert [str(step.path) for step in drop_ins if isinstance(step, WriteFile)] == [
        "/etc/systemd/system/rocm-run@.service.d/owner.conf",
        "/etc/systemd/system/rocm-supervisor.service.d/owner.conf",
    ]
    assert system_plan(packaged, None, files_only=False, booted=True) == ()
    assert remaining(for_user=False, owner=None, packaged=True)[-2] == "systemctl restart rocm-supervisor"
    assert [step.path.name for step in owner_removal() if isinstance(step, RemoveFile)] == ["owner.conf"] * 2
