"""What an attempt is launched with once remedies are in force, and what the machine offers for them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from clocks_by_hand import START

from supervisor.config.settings import (
    EnvironmentSettings,
    JobSettings,
    ProfileSettings,
    ProfilesSettings,
    ResumeSettings,
    Settings,
)
from supervisor.core import events as ev
from supervisor.core.attempt_files import ENV_CONV2D_WORKSPACE, ENV_RESUME_STEPS, REMEDIES
from supervisor.core.checkpoints.checkpoint import Checkpoint, Fingerprint, ResumePoint, Verdict
from supervisor.core.job import Attempt, Job, Phase, RetryPlan
from supervisor.core.moments import Moment
from supervisor.core.readings import ExitStatus, GpuReading
from supervisor.core.remedies.spec import InForce
from supervisor.core.remedies.trials import Course
from supervisor.core.tuning.start_order import TunedStart
from supervisor.daemon.clock import SystemClock
from supervisor.daemon.job_state import JobState
from supervisor.daemon.launch.gpus import GpuAvailability, JobGpus
from supervisor.daemon.launch.launch_spec import LaunchBuilder, VisibleGpu, build_launch
from supervisor.daemon.launch.remedy_context import RemedyContextReader
from supervisor.daemon.telemetry import NewestReadings
from supervisor.runner.code_copy import INSTALLED
from supervisor.runner.tuned import remedied_settings

SAVED = Checkpoint(path="/runs/last.pt", fingerprint=Fingerprint(size_bytes=1, modified_ns=1, inode=1))
UNVERIFIED = ResumePoint(checkpoint=None, possible=True, reason="cannot be verified", loads_itself=True)
ONE, TWO = "0000:0a:00.0", "0000:0b:00.0"
GREEN = "0000:01:00.0"
CPU = ProfileSettings(enabled=True, image_size=320, batch=2, workers=2, env={"OMP_NUM_THREADS": "6"})


def job(*remedies: str, card: str | None = None) -> Job:
    held = tuple(InForce(remedy=remedy, cause="stall", attempt=2, step=60, gpu=card) for remedy in remedies)
    return Job(name="one", since=START, course=Course(in_force=held))


def settings(cpu: ProfileSettings = CPU, resume: list[str] | None = None) -> JobSettings:
    return JobSettings(
        command=["yolo", "train"],
        env={"A": "1"},
        resume=ResumeSettings(command=resume),
        profiles=ProfilesSettings(cpu=cpu),
    )


def builder_of(asked: JobSettings, state: Path) -> LaunchBuilder:
    """Return the builder of launches of a daemon whose jobs all have these settings."""
    return LaunchBuilder(
        clock=SystemClock(),
        state=state,
        settings=lambda _: asked,
        gfx_versions=lambda _: (),
        visible=lambda _: None,
        with_agent=lambda: True,
        code=lambda: INSTALLED,
    )


def test_without_remedies_nothing_differs() -> None:
    launch = build_launch(settings(), job(), SAVED, (), None)
    assert (launch.argv, launch.env, launch.conv2d, launch.remedies) == (["yolo", "train"], {"A": "1"}, "off", {})


def test_each_way_of_changing_a_launch_is_used() -> None:
    launch = build_launch(settings(), job("conv2d", "conv2d_workspace", "compile_off", "half_batch"), SAVED, (), None)
    assert launch.conv2d == "planned"
    assert launch.env == {"A": "1", ENV_CONV2D_WORKSPACE: "256", "TORCHDYNAMO_DISABLE": "1"}
    assert launch.remedies == {
        "batch_factor": {"value": 0.5, "remedies": ["half_batch"]},
        "compile": {"value": False, "remedies": ["compile_off"]},
    }


def test_the_cpu_profile_hides_the_gpus_and_brings_its_own_settings() -> None:
    launch = build_launch(settings(), job("cpu_profile", "no_workers"), SAVED, ("gfx1010",), None)
    assert launch.conv2d == "off", "on the CPU there is no MIOpen to keep away from"
    assert (launch.env["ROCR_VISIBLE_DEVICES"], launch.env["OMP_NUM_THREADS"]) == ("", "6")
    values = {name: item["value"] for name, item in launch.remedies.items() if isinstance(item, dict)}
    assert values == {"device": "cpu", "imgsz": 320, "batch": 2, "workers": 0}, "a remedy outranks the profile"


def test_a_profile_with_a_command_of_its_own_never_resumes_with_the_jobs() -> None:
    own = ProfileSettings(enabled=True, command=["cpu-train"])
    launch = build_launch(settings(own, ["yolo", "model={checkpoint}"]), job("cpu_profile"), SAVED, (), None)
    assert launch.argv == ["cpu-train"]
    own = ProfileSettings(enabled=True, resume_command=["cpu-train", "{checkpoint}"])
    assert build_launch(settings(own), job("cpu_profile"), SAVED, (), None).argv == ["cpu-train", "/runs/last.pt"]


def test_a_program_that_finds_its_own_file_is_resumed_by_its_resume_command_where_that_takes_none() -> None:
    waiting = RetryPlan(not_before=START, reason="crash", resume_point=UNVERIFIED)
    began = Job(name="one", since=START, attempt=Attempt(number=1, launched_at=START), retry=waiting)
    assert began.loads_itself(2)
    assert not began.loads_itself(1)
    own = settings(resume=["train", "--resume"])
    launch = build_launch(own, began, None, (), None, loads_itself=True)
    assert launch.argv == ["train", "--resume"]
    assert launch.command == ["yolo", "train"], "what starts it from the beginning stays known"
    assert build_launch(own, began, None, (), None).argv == ["yolo", "train"], "from the beginning, as asked"
    given = settings(resume=["train", "--from", "{checkpoint}"])
    assert build_launch(given, began, None, (), None, loads_itself=True).argv == ["yolo", "train"]
    on_cpu = settings(
        ProfileSettings(enabled=True, resume_command=["cpu-train", "--resume"]), ["train", "{checkpoint}"]
    )
    launch = build_launch(on_cpu, job("cpu_profile"), None, (), None, loads_itself=True)
    assert launch.argv == ["cpu-train", "--resume"]


def test_the_agent_is_informed_that_the_program_loads_by_itself_what_it_goes_on_from(tmp_path: Path) -> None:
    waiting = RetryPlan(not_before=START, reason="crash", resume_point=UNVERIFIED)
    began = Job(name="one", since=START, attempt=Attempt(number=1, launched_at=START), retry=waiting)
    launch = builder_of(settings(), tmp_path)
    assert json.loads(launch(began, 2, None).env[ENV_RESUME_STEPS])["loads_itself"] is True
    assert launch(began, 1, None).env[ENV_RESUME_STEPS] == ""


@pytest.mark.parametrize("to", ["~nobody-of-this-name/ckpt.pt", "~/ckpt.pt", "out/ckpt.pt"])
def test_the_home_of_an_unknown_user_in_the_place_of_a_checkpoint_stays_as_it_is(tmp_path: Path, to: str) -> None:
    asked = JobSettings(command=["train"], resume=ResumeSettings(to=to))
    builder = builder_of(asked, tmp_path)
    argv = builder(job(), 2, SAVED).argv
    assert argv[argv.index("--") - 1] == to.replace("~/", f"{Path.home()}/")


def test_newer_checkpoints_are_moved_before_the_chosen_one_is_put_back(tmp_path: Path) -> None:
    asked = JobSettings(command=["train"], resume=ResumeSettings(command=["train", "latest"], set_newer_aside=True))
    builder = builder_of(asked, tmp_path)
    attempt = Attempt(number=2, launched_at=START, set_aside=("/runs/b.pt",))
    launching = replace(job(), attempt=attempt)
    python = [sys.executable, "-I", "-S"]
    kept = replace(SAVED, path="/state/generations/000007/last.pt", source=SAVED.path)
    assert builder(launching, 2, kept).argv == [
        *python, str(INSTALLED.set_aside), "2", kept.path, "/runs/last.pt", "/runs/b.pt", "--",
        *python, str(INSTALLED.put), kept.path, "/runs/last.pt", "--", "train", "latest",
    ]  # fmt: skip
    assert builder(launching, 2, replace(SAVED, kind="snapshot")).argv == ["train", "latest"]
    assert builder(launching, 2, None).argv == ["train"]


def test_what_a_program_finds_in_place_of_damaged_saves_is_there_before_they_are_moved(tmp_path: Path) -> None:
    """Where the machine is lost in between, the program has to find something, or it would begin again."""
    builder = builder_of(JobSettings(command=["train"]), tmp_path)
    attempt = Attempt(number=2, launched_at=START, set_aside=("/runs/last.pt", "/runs/9.pt"))
    python = [sys.executable, "-I", "-S"]
    kept = replace(SAVED, path="/state/generations/000007/last.pt", source="/runs/last.pt")
    launching = replace(job(), attempt=replace(attempt, stand_in=kept))
    assert builder(launching, 2, kept).argv == [
        *python, str(INSTALLED.put), kept.path, "/runs/last.pt", "--",
        *python, str(INSTALLED.set_aside), "2", kept.path, "/runs/last.pt", "/runs/9.pt", "--", "train",
    ]  # fmt: skip
    part = replace(kept, path="/state/generations/000006/opt.pt", source="/runs/opt.pt")
    both = replace(attempt, set_aside=("/runs/last.pt", "/runs/opt.pt"), stand_in=kept, together=(part,))
    assert builder(replace(job(), attempt=both), 2, kept).argv == [
        *python, str(INSTALLED.put), kept.path, "/runs/last.pt", "--",
        *python, str(INSTALLED.put), part.path, "/runs/opt.pt", "--", "train",
    ]  # fmt: skip
    own = replace(SAVED, path="/runs/8.pt")
    launching = replace(job(), attempt=replace(attempt, stand_in=own, set_aside=("/runs/9.pt",)))
    assert builder(launching, 2, replace(SAVED, kind="snapshot")).argv == [
        *python, str(INSTALLED.set_aside), "2", own.path, "/runs/8.pt", "/runs/9.pt", "--", "train",
    ]  # fmt: skip
    assert builder(launching, 3, own).argv == ["train"], "not for the attempt after it"


def test_what_was_proven_damaged_of_a_place_is_given_to_who_keeps_it(tmp_path: Path) -> None:
    place = str(tmp_path / "out" / "ckpt.pt")
    damaged = replace(SAVED, path=place, verdict=Verdict.REJECTED, reason="truncated")
    captured = replace(damaged, path="/state/generations/000008/ckpt.pt", source=place)
    rows = (
        replace(damaged, fingerprint=Fingerprint(size_bytes=5, modified_ns=50, inode=1)),
        replace(captured, fingerprint=Fingerprint(size_bytes=6, modified_ns=60, inode=1)),
        replace(damaged, fingerprint=Fingerprint(size_bytes=7, modified_ns=70, inode=1), reason="another format"),
        replace(damaged, fingerprint=Fingerprint(size_bytes=8, modified_ns=80, inode=1), path=f"{place}.old"),
    )
    asked = JobSettings(command=["train"], cwd=str(tmp_path), resume=ResumeSettings(to="out/ckpt.pt"))
    builder = replace(builder_of(asked, tmp_path), known=lambda _job, _files: rows)
    words = builder(job(), 2, SAVED).argv
    assert words[words.index("out/ckpt.pt") :] == ["out/ckpt.pt", "6:60", "5:50", "--", "train"]


def test_a_program_that_is_given_a_step_finds_the_file_of_that_number_where_it_saved_it() -> None:
    """As nanochat's base_train, which has `--resume-from-step=N` and no option for a file."""
    numbered = settings(resume=["train", "--resume-from-step={number}"])
    own = replace(SAVED, path="/runs/d2/model_000050.pt")
    launch = build_launch(numbered, job(), own, (), None)
    assert launch.argv == ["train", "--resume-from-step=50"]
    assert launch.place is None, "it is the training's own file, and as it was saved"
    copy = replace(SAVED, path="/state/generations/000007/model_000050.pt", source=own.path)
    launch = build_launch(numbered, job(), copy, (), None)
    assert (launch.argv, launch.place) == (["train", "--resume-from-step=50"], own.path), "it is put back first"
    folder = replace(SAVED, path="/runs/epoch_3.part/step-0.tar.gz")
    assert build_launch(numbered, job(), folder, (), None).argv == ["train", "--resume-from-step=0"]
    with pytest.raises(ValueError, match=r"there is no number in the name /runs/last\.mp4"):
        build_launch(numbered, job(), replace(SAVED, path="/runs/last.mp4"), (), None)
    assert build_launch(numbered, job(), None, (), None, loads_itself=True).argv == ["yolo", "train"]


def test_a_program_that_failed_from_a_copy_is_given_its_own_file_with_what_was_proven_in_it() -> None:
    """YOLOv7 reads opt.yaml from the folder above that of its checkpoint, which is cut by now."""
    given, waits = settings(resume=["train", "--resume", "{checkpoint}"]), replace(job(), resumes_in_place=True)
    copy = replace(SAVED, path="/state/generations/000007/last.pt", source="/runs/tiny/weights/last.pt")
    launch = build_launch(given, job(), copy, (), None)
    assert (launch.argv[-1], launch.place) == (copy.path, None)
    launch = build_launch(given, waits, copy, (), None)
    assert (launch.argv[-1], launch.place) == (copy.source, copy.source)
    launch = build_launch(given, waits, replace(copy, kind="snapshot"), (), None)
    assert (launch.argv[-1], launch.place) == (copy.path, None), "what the agent saved lies nowhere else"
    elsewhere = JobSettings(command=["train"], resume=ResumeSettings(command=given.resume.command, to="newest.pt"))
    launch = build_launch(elsewhere, waits, copy, (), None)
    assert (launch.argv[-1], launch.place) == (copy.path, "newest.pt")


def test_another_gpu_is_shown_alone_as_its_framework_counts() -> None:
    newest = NewestReadings()
    readings = [GpuReading(at=START, gpu=item, source="sysfs") for item in (ONE, TWO)]
    newest.take(ev.GpusRead(at=START, readings=(*readings, GpuReading(at=START, gpu=GREEN, source="nvml"))))
    cards = JobGpus(newest)
    first = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    assert cards.visible(TWO) == VisibleGpu(env={"ROCR_VISIBLE_DEVICES": "1", **first}, device="0")
    assert cards.visible(GREEN) == VisibleGpu(
        env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}, device="0"
    )
    assert cards.visible("0000:ff:00.0") is None
    launch = build_launch(settings(), job("other_gpu", card=TWO), SAVED, (), cards.visible(TWO))
    assert launch.env["ROCR_VISIBLE_DEVICES"] == "1"
    assert launch.remedies == {"device": {"value": "0", "remedies": ["other_gpu"]}}


def test_the_command_that_started_it_is_known_whatever_it_goes_on_from() -> None:
    given = JobSettings(
        command=["python", "train.py"],
        resume=ResumeSettings(command=["python", "train.py", "--from", "{checkpoint}"]),
        environments={"other": EnvironmentSettings(python="/opt/python"), "box": EnvironmentSettings(image="torch:2")},
    )
    assert build_launch(given, Job(name="one", since=START), SAVED, (), None).command == ["python", "train.py"]

    def command_in(environment: str) -> list[str]:
        start = TunedStart(knobs=(), environment=environment, command=("python", "train.py"))
        return list(build_launch(given, Job(name="one", since=START), SAVED, (), None, start).command)

    assert command_in("other") == ["/opt/python", "train.py"]
    assert command_in("box") == ["torch:2", "python3", "train.py"]


LARGER = TunedStart(knobs=(), factors=(("batch_factor", 2.0), ("lr_factor", 2.0)), command=("yolo", "train"))


def test_what_a_tune_sets_of_the_agent_is_of_no_remedy(tmp_path: Path) -> None:
    launch = build_launch(settings(), job("no_workers"), SAVED, (), None, LARGER)
    assert launch.remedies == {
        "batch_factor": {"value": 2.0, "remedies": []},
        "lr_factor": {"value": 2.0, "remedies": []},
        "workers": {"value": 0, "remedies": ["no_workers"]},
    }
    (tmp_path / REMEDIES).write_text(json.dumps({"version": 1, "settings": launch.remedies}))
    assert remedied_settings(tmp_path) == ("workers",)


@pytest.mark.parametrize("remedy", ["half_batch", "lower_lr", "allocator", "cpu_profile"])
def test_a_remedy_of_the_batch_or_the_rate_leaves_nothing_of_what_a_tune_set_of_them(remedy: str) -> None:
    plain = build_launch(settings(), job(remedy), SAVED, (), None)
    assert build_launch(settings(), job(remedy), SAVED, (), None, LARGER).remedies == plain.remedies


# --- cards that answer ----------------------------------------------------------------------------------------------


def received(cards: GpuAvailability, gpu: str, *at: Moment) -> None:
    for item in at:
        reading = GpuReading(at=item, gpu=gpu, source="sysfs", gpu_busy_percent=7.0)
        cards.take(ev.GpusRead(at=item, readings=(reading,)))


def test_a_gap_begins_the_answering_again() -> None:
    cards = GpuAvailability(lambda: 1.0)
    received(cards, ONE, START, START.plus(3), START.plus(6))
    assert cards.answering_s(START.plus(8)) == ((ONE, 8.0),)
    assert cards.answering_s(START.plus(11)) == ()
    received(cards, ONE, START.plus(20), START.plus(21))
    assert cards.answering_s(START.plus(21)) == ((ONE, 1.0),)


def test_a_gpu_of_which_only_the_name_is_known_does_not_answer() -> None:
    cards = GpuAvailability(lambda: 1.0)
    received(cards, ONE, START)
    dead = GpuReading(at=START.plus(5), gpu=ONE, source="sysfs", name="Radeon RX 5600 XT", vram_total_bytes=6_000_000)
    cards.take(ev.GpusRead(at=START.plus(5), readings=(dead,)))
    assert cards.answering_s(START.plus(5)) == ()


def test_a_gpu_is_free_that_answers_and_that_no_job_has() -> None:
    cards = GpuAvailability(lambda: 1.0)
    for gpu in (ONE, TWO):
        received(cards, gpu, START)
    status = ExitStatus(at=START, code=1)
    ended = Job(name="one", since=START, phase=Phase.RUNNING, attempt=Attempt(number=1, launched_at=START, exit=status))
    job_states = {"one": JobState(job=ended, rules=())}
    both = {"one": settings(), "two": settings()}
    grounds = RemedyContextReader(lambda: Settings(jobs=both), job_states, cards, tuple, NewestReadings())
    found = grounds.of(job_states["one"], START)
    assert (found.free_gpus, found.cpu_profile) == ((TWO,), True), "a job that names no card has the first"
    running = Job(name="two", since=START, phase=Phase.RUNNING, attempt=Attempt(number=1, launched_at=START))
    job_states["two"] = JobState(job=running, rules=(), gpus_used=(TWO,))
    assert grounds.of(job_states["one"], START).free_gpus == ()
