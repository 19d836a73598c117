"""Who may do what under the real units: the trainings' owner, a member of the control group, and a stranger."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from night import CTL, HOME, Night, night

from tests.rigs.installed_box import OWNER, STATE, may_boot
from tests.rigs.systemd_box import Completed

pytestmark = pytest.mark.systemd
MEMBER, STRANGER = "carol", "bob"
JOBS = f"{STATE}/jobs"
SECRET = "only-for-the-training"


@pytest.fixture(scope="module")
def machine() -> Iterator[Night]:
    reason = may_boot()
    if reason:
        pytest.skip(reason)
    with night() as made:
        made.box.run(f"useradd --create-home {MEMBER}; usermod -aG rocm-supervisor {MEMBER}", check=True)
        made.write(made.by_hand("one", table=f'env = {{ SECRET_WORD = "{SECRET}" }}'))
        made.begin()
        made.step("one", 5)
        yield made


def tried(machine: Night, command: str, user: str) -> Completed:
    return machine.box.run(command, user=user)


def by_training(machine: Night, command: str) -> Completed:
    """Run a command with the rights that a training has: its owner's, and the group of its unit."""
    groups = machine.box.run("systemctl show --value -p SupplementaryGroups rocm-run@one.service", check=True).output
    return machine.box.run(
        f"setpriv --reuid {OWNER} --regid {OWNER} --groups {','.join(groups.split())} sh -c '{command}'"
    )


@pytest.mark.parametrize("user", [MEMBER, STRANGER, OWNER])
def test_nobody_but_daemon_and_training_gets_into_the_jobs(machine: Night, user: str) -> None:
    for command in (
        f"ls {JOBS}",
        f"ls {JOBS}/one/1",
        f"cat {JOBS}/one/1/launch.json",
        f"cat {JOBS}/one/1/run/shim.json",
    ):
        done = tried(machine, command, user)
        assert done.status != 0, (command, done.output)
        assert "Permission denied" in done.output


@pytest.mark.parametrize("user", [MEMBER, STRANGER, OWNER])
def test_nobody_puts_a_folder_where_the_next_attempt_will_lie(machine: Night, user: str) -> None:
    """Whoever made it could replace launch.json after its writing, and run commands as the trainings' owner."""
    for name in (f"{JOBS}/one/2", f"{JOBS}/two", f"{JOBS}/one/standby-2"):
        assert tried(machine, f"mkdir {name}", user).status != 0


def test_a_member_talks_to_the_daemon_and_a_stranger_does_not(machine: Night) -> None:
    assert json.loads(machine.asked("--json status", MEMBER).output)["jobs"][0]["name"] == "one"
    assert machine.asked("logs one", MEMBER).status == 0
    refused = machine.asked("status", STRANGER)
    assert (refused.status, "permission denied" in refused.output) == (5, True)


def test_a_training_reads_the_code_that_it_runs_and_cannot_change_it(machine: Night) -> None:
    code = machine.box.run(f"readlink {JOBS}/one/1/code", check=True).output.strip()
    assert code.startswith(f"{STATE}/code/")
    assert by_training(machine, f"grep -rq class {code}/agent/path/rocm_agent {code}/runner/shim.py").ok
    running = machine.box.run("ps -C python,python3 -o args= -u " + OWNER, check=True).output
    assert f"{code}/runner {JOBS}/one/1" in running
    for command in (
        f"touch {code}/runner/json.py",
        f"touch {code}/agent/path/rocm_agent/__pycache__/events.pyc",
        f"echo >> {code}/agent/path/sitecustomize.py",
        f"chmod u+w {code}/runner/shim.py",
        f"mv {code} {code}-moved",
        f"rm -f {JOBS}/one/1/code",
    ):
        assert not by_training(machine, command).ok, command


def test_a_training_writes_into_its_own_part_alone(machine: Night) -> None:
    assert by_training(machine, f"touch {JOBS}/one/1/run/theirs {JOBS}/one/snapshots/theirs").ok
    for name in (
        "one/2",
        "one/1/output.txt",
        "one/1/launch.json",
        "one/1/evidence",
        "one/current",
        "one/lock",
        "one/generations/000001",
        "two",
    ):
        for command in (f"touch {JOBS}/{name}", f"ln -sfn / {JOBS}/{name}", f"rm -f {JOBS}/{name}"):
            by_training(machine, command)
    status = json.loads(machine.asked("--json status", MEMBER).output)["jobs"][0]
    assert (status["phase"], status["attempt"]) == ("running", 1)
    listed = machine.box.run(f"ls -A {JOBS} {JOBS}/one {JOBS}/one/1", check=True).output
    assert "two" not in listed.split()
    assert "2" not in listed.split()
    assert machine.box.run(f"readlink {JOBS}/one/current", check=True).output.strip() == "1"
    assert machine.box.run(f"stat -c %U {JOBS}/one/1/launch.json", check=True).output.strip() == "rocm-supervisor"


def test_what_a_training_puts_in_place_of_its_files_leads_nowhere(machine: Night) -> None:
    config = "/etc/rocm-supervisor/config.toml"
    before = machine.box.run(f"sha256sum {config}", check=True).output
    by_training(machine, f"mv {JOBS}/one/1/run/output.log {HOME}/away; ln -s {config} {JOBS}/one/1/run/output.log")
    by_training(machine, f"rm -f {JOBS}/one/1/run/agent.jsonl; mkfifo {JOBS}/one/1/run/agent.jsonl")
    by_training(machine, f"mkfifo {JOBS}/one/1/run/recorder.rank1.bin {JOBS}/one/1/run/exit.json")
    machine.made_beyond("one", machine.steps_made("one")[-1] + 10)
    answered = machine.asked("logs -n 1000 one", MEMBER)
    assert answered.status == 0
    assert "state_dir" not in answered.output
    assert machine.box.run(f"sha256sum {config}", check=True).output == before
    assert machine.job("one")["phase"] == "running"


def died_once(machine: Night) -> None:
    """Have the training die, unless another test had."""
    if machine.job("one")["attempt"] == 1:
        machine.box.run("pkill -KILL -u ann -f training_by_hand", check=True)
    machine.until(lambda: machine.job("one")["attempt"] == 2, 30, "the next attempt")


def test_a_member_gets_the_evidence_and_root_is_not_needed(machine: Night) -> None:
    evidence = f"{JOBS}/one/1/evidence/one-1"
    machine.box.run(f"runuser -u rocm-supervisor -- mkdir -p {evidence}", check=True)
    machine.box.run(f"runuser -u rocm-supervisor -- sh -c 'echo timeout >{evidence}/kernel.txt'", check=True)
    died_once(machine)
    for words in ("evidence one-1", f"export one {HOME}/taken"):
        refused = machine.asked(words)
        assert refused.status == 5, refused.output
        assert f"sudo -u rocm-supervisor supervisorctl {words}" in refused.output
    refused = machine.asked("triage one-1")
    assert refused.status == 5, refused.output
    assert f"sudo -u {OWNER} -g rocm-supervisor-jobs supervisorctl triage one-1 --folder DIR" in refused.output
    reported = machine.asked("evidence one-1", MEMBER)
    assert reported.status == 0, reported.output
    assert f"{evidence}/kernel.txt" in reported.output
    assert machine.asked("evidence one-1 --tar /tmp/one.tar.gz", MEMBER).status == 0
    assert "one-1/kernel.txt" in machine.box.run("tar tzf /tmp/one.tar.gz", check=True).output
    assert machine.asked(f"export one /home/{MEMBER}/taken", MEMBER).status == 0


def test_a_triage_by_hand_runs_as_the_training_s_user(machine: Night) -> None:
    """With the command that root is told: no right that the training did not have, and nothing written as root."""
    died_once(machine)
    machine.asked("stop one --wait", MEMBER)
    for user in (MEMBER, OWNER):
        refused = machine.asked("triage one-1 --step 3", user)
        assert "-g rocm-supervisor-jobs supervisorctl triage one-1" in refused.output, refused.output
    control = machine.box.run("getent group rocm-supervisor | cut -d: -f3", check=True).output.strip()
    done = machine.box.run(
        f"setpriv --reuid {OWNER} --regid rocm-supervisor-jobs --groups {control} env HOME={HOME} "
        f"{CTL} triage one-1 --step 3 --limit-s 20 --folder {HOME}/replayed",
    )
    assert "device" in done.output, done.output
    assert machine.box.run(f"stat -c %U {HOME}/replayed/report.txt", check=True).output.strip() == OWNER
