"""A command is loaded once for all probes of it, and what ends one of them does not reach the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.runner.loaded_probe import REHEARSAL_S, LoadedProbe
from supervisor.runner.memory_probe import Command, Result, WhatIf

pytestmark = pytest.mark.train

CONFIGURED, MOST, NOT_FIRST = 8, 100, 95
FAILS, HANGS, IS_KILLED = 65, 66, 67
FIRST_LONG = [9.0, 0.1]
"""Seconds of a first probe, which prepares what a further one uses, and of such a one."""
ALIKE = [0.1, 0.1]
"""The same where a further one prepares as much, as for convolutions of another size."""
SCRIPT = f"""
import os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset

loaded = os.getpid()
print("loaded", flush=True)
kernels = "torch._refs.fft" in sys.modules
if ("whole" in sys.argv and not kernels) or ("lean" in sys.argv and kernels):
    raise ValueError("of torch another part was imported")
if "thread" in sys.argv:
    threading.Thread(target=time.sleep, args=(99,), daemon=True, name="logger").start()
if "gpu" in sys.argv:
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError):
        pass  # there is none here; what matters is what comes before
    print("model made by", "the loaded" if os.getpid() == loaded else "a fork", flush=True)
weights = torch.empty(1 << 20).normal_()
print("numbers repeated:", weights.unique().numel() < 1 << 19, flush=True)
network = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(network.parameters())
is_first = True
torch.set_num_threads(2)  # with threads of the process that is forked a fork would wait for ever
network(torch.ones(4096, 4)).sum().item()
rows = TensorDataset(torch.ones(400, 4))
prepared = set()
def collate(chosen):
    time.sleep(0.6 if "slow" in sys.argv and len(chosen) > {CONFIGURED} else 0)
    print("collated:", len(chosen), flush=True)
    return [torch.stack([row for (row,) in chosen])]
for epoch in range(99):
    for (batch,) in DataLoader(
        rows, batch_size={CONFIGURED}, collate_fn=collate, num_workers=1 if "workers" in sys.argv else 0
    ):
        count = len(batch)
        print("drawn:", count, flush=True)
        if is_first:
            is_first = False
            print("steps repeat numbers:", torch.empty(1 << 20).normal_().unique().numel() < 1 << 19, flush=True)
        if "once" in sys.argv and os.getpid() != loaded:
            raise ValueError("this command is not to be forked")
        if count > {MOST} or (count == {NOT_FIRST} and not optimizer.state):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if "shapes" in sys.argv and count not in prepared:
            prepared.add(count)
            time.sleep(0.5)
        loss = network(torch.ones(4096, 4)).sum() + network(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if count == {FAILS}:
            raise ValueError("the loss is odd")
        if count == {HANGS}:
            signal.pause()
        if count == {IS_KILLED}:
            print("process", os.getpid(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def load(
    folder: Path, python: Path, *words: str, limit_s: float = 90.0, rehearsal_limit_s: float = REHEARSAL_S
) -> LoadedProbe:
    """Return probes of the script; what it takes is not counted, which torch 1.13 cannot do without a GPU."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    command = Command(argv=[str(python), str(script), *words], cwd=str(folder), env={}, limit_s=limit_s)
    return LoadedProbe(command, rehearsal_limit_s=rehearsal_limit_s)


def ask(probes: LoadedProbe, batch: int, *, fresh: bool = False, proof: bool = False, steps: int = 2) -> Result:
    what_if = WhatIf(batch=batch, configured=CONFIGURED, steps=steps, timed=True)
    return probes.probe(what_if, fresh=fresh, proof=proof)


def batch_of(result: Result) -> int | None:
    return None if result.point is None else result.point.batch


def test_several_micro_batches_are_probed_in_processes_of_a_command_that_is_loaded_once(
    train_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, train_python) as probes:
        seen = probes.probe(WhatIf(look=True, timed=True))
        assert (seen.batch, seen.configured, seen.way) == (CONFIGURED, CONFIGURED, "forked")
        same = ask(probes, CONFIGURED)
        larger = ask(probes, 50)
        proof = ask(probes, 99, fresh=True, steps=4)
    assert [batch_of(result) for result in (same, larger, proof)] == [CONFIGURED, 50, 99]
    assert [result.way for result in (same, larger, proof)] == ["further", "further", "forked"]
    assert seen.loaded_s is not None
    assert seen.loaded_s == same.loaded_s == proof.loaded_s, "all are forks of the same"
    assert proof.output.count("loaded") == 1
    assert "numbers repeated: True" in proof.output
    assert proof.output.count("steps repeat numbers: False") == 2, "in the first fork and in that of the proof"
    assert "steps repeat numbers: True" not in proof.output
    assert probes.why_alone == ""


def test_running_out_of_memory_twice_leaves_the_next_probe_as_it_would_be(train_python: Path, tmp_path: Path) -> None:
    with load(tmp_path, train_python) as probes:
        known = ask(probes, 50)
        failed = [ask(probes, 150), ask(probes, 120, fresh=True)]
        assert [(result.out_of_memory, result.way) for result in failed] == [(True, "forked")] * 2, (
            "the first followed a probe that went well: it was tried again by itself"
        )
        after = ask(probes, 99, fresh=True)
    assert (batch_of(known), batch_of(after)) == (50, 99)
    assert after.output.count("loaded") == 1
    assert probes.why_alone == ""


def test_what_runs_out_of_memory_after_other_steps_is_not_proven_and_what_runs_is_run_by_itself_too(
    quickest_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, quickest_python) as probes:
        known = ask(probes, 50)
        proof = probes.probe(WhatIf(batch=99, configured=CONFIGURED, steps=4), proof=True)
        failed = ask(probes, 150, proof=True, steps=4)
        smaller = ask(probes, 98, proof=True, steps=4)
    assert [batch_of(result) for result in (known, proof, smaller)] == [50, 99, 98]
    assert [result.way for result in (known, proof, failed, smaller)] == ["forked", "forked", "further", "forked"]
    assert failed.out_of_memory
    assert smaller.output.count("loaded") == 1
    assert smaller.output.count("drawn: 99") == 3 + 4, "of four steps the first is spared where there is a state"
    assert smaller.output.count("drawn: 98") == 4


def test_what_runs_after_smaller_steps_alone_is_not_proven(quickest_python: Path, tmp_path: Path) -> None:
    with load(tmp_path, quickest_python) as probes:
        assert batch_of(ask(probes, 50)) == 50
        assert batch_of(ask(probes, NOT_FIRST)) == NOT_FIRST, "its optimizer has its state by then"
        proof = ask(probes, NOT_FIRST, proof=True, steps=4)
    assert (proof.out_of_memory, proof.point) == (True, None)


def test_what_takes_as_long_after_other_steps_as_in_a_new_process_is_proven_there_alone(
    quickest_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, quickest_python, "shapes") as probes:
        probes.probe(WhatIf(look=True, timed=True))
        known = [ask(probes, CONFIGURED), ask(probes, 50)]
        probes._took_s, probes._began_s = ALIKE, 0.1
        failed = ask(probes, 150, proof=True, steps=4)
        proof = ask(probes, 99, proof=True, steps=4)
    assert [batch_of(result) for result in (*known, proof)] == [CONFIGURED, 50, 99]
    assert (failed.out_of_memory, failed.way, proof.way) == (True, "forked", "forked")
    assert proof.output.count("drawn: 99") == 4


def test_a_proof_has_a_batch_again_where_batches_are_alike_and_another_takes_long(
    quickest_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, quickest_python, "slow") as probes:
        first = ask(probes, CONFIGURED)
        assert (first.alike, probes._repeats) == (True, False), "of a CPU batches are counted as they are drawn"
        probes._repeats = True
        proof = ask(probes, 99, fresh=True, steps=4)
    assert (batch_of(proof), proof.alike) == (99, True)
    assert proof.output.count("drawn: 99") == 4
    assert proof.output.count("collated: 99") == 2, "they took longer than a second"


@pytest.mark.parametrize(
    ("seen", "repeats", "composes"),
    [
        ([True], True, False),
        ([False], False, True),
        ([None], False, False),
        ([False, None], False, True),
        ([True, False], False, True),
    ],
)
def test_batches_of_a_gpu_are_spared_by_whether_they_were_seen_to_be_alike(
    tmp_path: Path, seen: list[bool | None], *, repeats: bool, composes: bool
) -> None:
    on_gpu, on_cpu = (LoadedProbe(Command(argv=["true"], cwd=str(tmp_path), env={})) for _ in range(2))
    for alike in seen:
        on_gpu._learn_shapes(Result(point=None, on_gpu=True, alike=alike))
        on_cpu._learn_shapes(Result(point=None, on_gpu=False, alike=alike))
    assert (on_gpu._repeats, on_gpu._composes) == (repeats, composes)
    assert (on_cpu._repeats, on_cpu._composes) == (False, False)


@pytest.mark.whole_torch(reason="what a probe imports of it")
def test_a_command_is_loaded_with_what_it_uses_of_torch_and_one_that_fails_so_with_all_of_it(
    current_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, current_python, "lean") as probes:
        assert [ask(probes, batch).way for batch in (50, 99)] == ["forked", "further"]
        assert (probes.why_alone, ask(probes, 98).output.count("loaded")) == ("", 1)
    with load(tmp_path, current_python, "whole") as probes:
        assert [ask(probes, batch).way for batch in (50, 99, 98)] == ["alone", "forked", "further"]
        assert probes.why_alone == ""


def rehearse(probes: LoadedProbe, batch: int) -> bool | None:
    return probes.rehearse(WhatIf(batch=batch, configured=CONFIGURED, steps=4, timed=True))


def test_a_rehearsal_is_as_if_no_steps_had_been_made_before_and_spares_a_proof(
    quickest_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, quickest_python, rehearsal_limit_s=60.0) as probes:
        assert rehearse(probes, 94) is None, "it is not known to take less than a proof"
        assert batch_of(ask(probes, 50)) == 50
        probes._took_s = FIRST_LONG
        assert [rehearse(probes, batch) for batch in (94, NOT_FIRST, 93)] == [True, False, None]
        proof = ask(probes, 94, proof=True, steps=4)
    assert (batch_of(proof), proof.way) == (94, "forked")


def test_one_rehearsal_that_takes_long_is_the_last(quickest_python: Path, tmp_path: Path) -> None:
    with load(tmp_path, quickest_python, rehearsal_limit_s=0.0) as probes:
        assert batch_of(ask(probes, 50)) == 50
        probes._took_s = FIRST_LONG
        assert [rehearse(probes, batch) for batch in (70, 70)] == [True, None]
        proof = ask(probes, 70, proof=True, steps=4)
    assert (batch_of(proof), proof.way) == (70, "forked")


def test_one_that_fails_by_itself_is_tried_alone_and_its_failure_is_reported(
    quickest_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, quickest_python) as probes:
        failed = ask(probes, FAILS)
        assert (failed.point, failed.problem, failed.way) == (None, "ValueError: the loss is odd", "alone")
        assert not failed.out_of_memory
        assert batch_of(ask(probes, 50)) == 50, "its failure alone is no reason not to fork"
    assert probes.why_alone == ""


def test_one_that_is_killed_is_reported_and_the_command_stays_loaded(quickest_python: Path, tmp_path: Path) -> None:
    with load(tmp_path, quickest_python, "workers") as probes:
        assert batch_of(ask(probes, 50)) == 50
        killed = probes._ask(WhatIf(batch=IS_KILLED, configured=CONFIGURED, timed=True), fresh=True)
        assert killed.problem == "the command was killed by signal 9 before its second step"
        pid = int(killed.output.rpartition("process ")[2].split()[0])
        assert not Path(f"/proc/{pid}").exists()
        after = ask(probes, 99)
    assert (batch_of(after), after.way) == (99, "forked"), "batches that workers have drawn ahead are no new ones"
    assert after.output.count("loaded") == 1


def test_one_that_hangs_is_killed_as_a_whole_after_its_time(quickest_python: Path, tmp_path: Path) -> None:
    with load(tmp_path, quickest_python, limit_s=25.0) as probes:
        assert batch_of(ask(probes, 50)) == 50
        process = probes._process
        assert process is not None
        hung = probes._ask(WhatIf(batch=HANGS, configured=CONFIGURED, timed=True), fresh=True)
        assert hung.problem == "no second step within 25 s"
        assert not hung.out_of_memory
        assert list_group(process.pid) == []
        assert batch_of(ask(probes, 99)) == 99, "it is loaded again"
    assert probes.why_alone == ""


def list_group(leader: int) -> list[int]:
    """Return the processes of a group that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(group) == leader and state != "Z":
            found.append(int(path.parent.name))
    return found


def test_a_command_that_cannot_be_forked_is_probed_by_a_process_each_and_why_is_known(
    train_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, train_python, "thread") as probes:
        assert [batch_of(ask(probes, batch)) for batch in (50, 99)] == [50, 99]
    assert probes.why_alone == "the command had started a thread (logger)"


def test_a_command_that_fails_in_a_fork_alone_is_probed_by_a_process_each(
    quickest_python: Path, tmp_path: Path
) -> None:
    with load(tmp_path, quickest_python, "once") as probes:
        assert [batch_of(ask(probes, batch)) for batch in (50, 99)] == [50, 99]
    assert probes.why_alone == (
        "what ran alone failed in a fork of the loaded command: ValueError: this command is not to be forked"
    )


def test_a_command_is_forked_before_it_first_uses_the_gpu(train_python: Path, tmp_path: Path) -> None:
    with load(tmp_path, train_python, "gpu") as probes:
        found = [ask(probes, 50), ask(probes, 99, fresh=True)]
    assert [batch_of(result) for result in found] == [50, 99]
    assert found[-1].output.splitlines().count("loaded") == 1
    assert found[-1].output.splitlines().count("model made by a fork") == 2
