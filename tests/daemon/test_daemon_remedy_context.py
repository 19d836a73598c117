"""What of the machine the core is told, from a simulated card's sysfs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "rigs"))

from amdgpu_tree import AmdgpuTree
from clocks_by_hand import START

from supervisor.config.settings import JobSettings, ResumeSettings, Settings
from supervisor.core import events as ev
from supervisor.core.history import History
from supervisor.core.job import Attempt, Job, Phase
from supervisor.core.memory.kept import KeptEstimate
from supervisor.core.remedies.gpu_memory import GpuMemory
from supervisor.daemon.job_state import JobState
from supervisor.daemon.launch.gpus import GpuAvailability
from supervisor.daemon.launch.remedy_context import RemedyContextReader, memory_awaited
from supervisor.daemon.telemetry import NewestReadings
from supervisor.sources.gpu.amdgpu_sysfs import AmdgpuSysfs

CARD = "0000:0a:00.0"
ESTIMATE = KeptEstimate(torch="2.12.0", card_bytes=1 << 30, configured=64, largest=12)


class Machine:
    """One simulated card, and jobs as the daemon holds them."""

    def __init__(self, folder: Path, resume: ResumeSettings | None = None, **phases: Phase) -> None:
        self.tree = AmdgpuTree.build(folder)
        self.now = START
        self.newest = NewestReadings()
        self.job_states = {
            name: JobState(job=Job(name=name, since=START, phase=phase), rules=()) for name, phase in phases.items()
        }
        resume = resume or ResumeSettings()
        settings = Settings(jobs={name: JobSettings(command=["true"], resume=resume) for name in phases})
        self.grounds = RemedyContextReader(
            lambda: settings,
            self.job_states,
            GpuAvailability(lambda: 1.0),
            tuple,
            self.newest,
            estimate={"one": ESTIMATE}.get,
        )

    def read(self) -> None:
        readings = AmdgpuSysfs(self.tree.sys_root).read(self.now)
        self.newest.take(ev.GpusRead(at=self.now, readings=readings))

    def memory(self, job: str) -> dict[str, int]:
        return {item.gpu: item.used_bytes for item in self.grounds.of(self.job_states[job], self.now).memory}


def test_what_a_dead_process_holds_is_known_as_long_as_the_gpu_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "tree", one=Phase.BACKOFF)
    assert machine.memory("one") == {}
    machine.tree.set("mem_info_vram_used", 3_900_000_000)
    machine.read()
    assert machine.memory("one") == {CARD: 3_900_000_000}
    machine.now = machine.now.plus(11)
    assert machine.memory("one") == {}


def test_a_program_finds_its_own_checkpoint_where_neither_a_command_nor_a_place_gives_it_one(tmp_path: Path) -> None:
    def loads_itself(resume: ResumeSettings) -> bool:
        machine = Machine(tmp_path / str(len(str(resume))), resume, one=Phase.RUNNING)
        return machine.grounds.of(machine.job_states["one"], machine.now).loads_itself

    assert loads_itself(ResumeSettings())
    assert loads_itself(ResumeSettings(command=["train", "--resume", "latest"])), "it is given no file"
    assert not loads_itself(ResumeSettings(to="last.pt"))
    assert not loads_itself(ResumeSettings(command=["train", "--resume", "{checkpoint}"]))


def test_the_estimate_of_a_job_is_known_once_its_attempt_is_over(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "tree", one=Phase.RUNNING, two=Phase.RUNNING)
    for over, known in ((False, None), (True, ESTIMATE)):
        attempt = Attempt(number=1, launched_at=START, host_lost="reboot" if over else None)
        for name, estimate in (("one", known), ("two", None)):
            machine.job_states[name].job = replace(machine.job_states[name].job, attempt=attempt)
            assert machine.grounds.of(machine.job_states[name], machine.now).estimate == estimate


def test_it_is_known_that_an_attempt_trained_on_the_cpu(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "tree", one=Phase.RUNNING)
    state = machine.job_states["one"]
    assert machine.grounds.of(state, machine.now).device is None
    state.history = History(now=machine.now, launched_at=START)
    state.history.device = "cpu"
    assert machine.grounds.of(state, machine.now).device == "cpu"


def test_a_gpu_that_another_job_may_be_on_reports_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "tree", one=Phase.BACKOFF, two=Phase.RUNNING)
    machine.read()
    assert machine.memory("one") == {}
    machine.job_states["two"].gpus_used = ("0000:0b:00.0",)
    assert set(machine.memory("one")) == {CARD}


def test_the_gpus_are_read_more_often_while_a_launch_may_wait_for_their_memory() -> None:
    before = (GpuMemory(gpu=CARD, used_bytes=1),)
    ended = Job(name="one", since=START, phase=Phase.BACKOFF, attempt=Attempt(number=1, launched_at=START))
    held = replace(ended, attempt=Attempt(number=1, launched_at=START, memory_before=before))
    assert memory_awaited([ended, held], START.plus(1))
    assert not memory_awaited([ended], START.plus(1))
    assert not memory_awaited([held], START.plus(6))
    assert not memory_awaited([replace(held, phase=Phase.RUNNING)], START.plus(1))


def test_no_convolution_is_replaced_in_a_training_that_has_reported_itself_without_torch(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "tree", one=Phase.RUNNING)
    state = machine.job_states["one"]
    assert machine.grounds.of(state, machine.now).conv2d_auto, "nothing is known of it"
    state.history = History(now=machine.now, launched_at=START)
    assert machine.grounds.of(state, machine.now).conv2d_auto, "it has not reported itself: it may hang in its first"
    claim = ev.AgentReported(
        at=machine.now, job="one", attempt=1, agent_event=ev.AgentEvent.CLAIMED, pid=7, rank=0, facts={"torch": None}
    )
    state.history.add(claim)
    assert not machine.grounds.of(state, machine.now).conv2d_auto
    state.job = replace(state.job, torch=True)
    assert machine.grounds.of(state, machine.now).conv2d_auto
