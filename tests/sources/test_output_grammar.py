"""What the output means, held against recorded trainings and the wordings of the libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.moments import Moment
from supervisor.core.readings import FaultClass as F
from supervisor.sources.folding import clean
from supervisor.sources.output import OutputReader
from supervisor.sources.output_grammar import findings, progress

NOW = Moment(100.0, 1_700_000_000.0)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("RuntimeError: HIP out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.98 GiB total capacity)", F.OOM_GPU),
        ("RuntimeError: CUDA out of memory. Tried to allocate 1.2 GiB", F.OOM_GPU),
        ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB. GPU 0 has", F.OOM_GPU),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has", F.OOM_GPU),
        ("[rank1]: torch.OutOfMemoryError: HIP out of memory.", F.OOM_GPU),
        ("RuntimeError: HIP error: out of memory", F.OOM_GPU),
        ("RuntimeError: CUDA error: out of memory", F.OOM_GPU),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 629145600 bytes. Error code 12 (Cannot allocate memory)", F.OOM_HOST),
        ("MemoryError", F.OOM_HOST),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1.2 GiB for an array", F.OOM_HOST),
        ("terminate called after throwing an instance of 'std::bad_alloc'", F.OOM_HOST),
        ("OSError: [Errno 12] Cannot allocate memory", F.OOM_HOST),
        ("RuntimeError: miopenStatusUnknownError", F.MIOPEN),
        ("RuntimeError: miopenStatusInternalError", F.MIOPEN),
        ("MIOpen Error: /MIOpen/src/hipoc/hipoc_program.cpp:300: Code object build failed. Source: x.cl", F.MIOPEN),
        ("MIOpen(HIP): Error [BuildHip] HIPRTC status = HIPRTC_ERROR_COMPILATION (6), source file: x.cpp", F.MIOPEN),
        ("Memory access fault by GPU node-1 (Agent handle: 0x55e) on address 0x7fc1. Reason: Page not present or "
         "supervisor privilege.", F.ILLEGAL_ACCESS),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", F.ILLEGAL_ACCESS),
        ("RuntimeError: HIP error: unspecified launch failure", F.ILLEGAL_ACCESS),
        (":0:rocdevice.cpp:2614: 1 us: Device::callbackQueue aborting with error : "
         "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory", F.ILLEGAL_ACCESS),
        ('"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"', F.NO_KERNEL_IMAGE),
        ("RuntimeError: HIP error: invalid device function", F.NO_KERNEL_IMAGE),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", F.NO_KERNEL_IMAGE),
        ("aborting with error : HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION: The agent attempted", F.NO_KERNEL_IMAGE),
        ("HW Exception by GPU node-1 (Agent handle: 0x5581) reason :GPU Hang", F.GPU_HANG),
        ("RuntimeError: CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasSgemm(...)`", F.BLAS),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`", F.BLAS),
        ("rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file", F.BLAS),
        ("RuntimeError: DataLoader worker (pid 2457) is killed by signal: Killed. ", F.DATA_LOADER),
        ("RuntimeError: DataLoader worker (pid(s) 17, 18) exited unexpectedly", F.DATA_LOADER),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_2472_0>: No space left on device (28)",
         F.DATA_LOADER),
        ("OSError: [Errno 28] No space left on device: 'runs/train/weights/last.pt'", F.DISK_FULL),
        ("RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file data/0: "
         "file write failed", F.DISK_FULL),
    ],
)  # fmt: skip
def test_each_wording_is_one_fault(line: str, fault: F) -> None:
    assert list(findings(["before", line, "after"])) == [(fault, line)]


@pytest.mark.parametrize(
    "line",
    [
        "MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_18.kdb Performance may degrade.",
        "MIOpen(HIP): Warning [BuildHip] In file included from /tmp/comgr/input/x.cpp:1:",
        "WARNING CUDA out of memory with batch=16. Reducing to batch=8 and retrying (1/3).",
        "AMP: running Automatic Mixed Precision (AMP) checks...",
        "hipBLASLt on an unsupported architecture! Overriding blas backend to hipblas",
        "    except MemoryError:",
        "DataLoader workers: 8, images/hard disk: 329299",
        "rocblas_status_success",
        "miopenStatusSuccess",
        "names: {0: 'out of memory lane', 1: 'person'}",
    ],
)
def test_what_a_healthy_training_prints_is_no_finding(line: str) -> None:
    assert list(findings([line])) == []


def test_a_repeated_line_is_found_once_and_a_flood_of_different_ones_is_bounded() -> None:
    flood = [f"RuntimeError: HIP error: out of memory #{number}" for number in range(500)]
    assert len(list(findings(["MemoryError"] * 50))) == 1
    assert len(list(findings(flood))) == 20


def excerpts(corpus: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (corpus / "training/excerpts.jsonl").read_text().splitlines()]


def test_every_recorded_ultralytics_frame_is_read_exactly(corpus: Path) -> None:
    frames = 0
    for excerpt in excerpts(corpus):
        facts = excerpt["facts"]
        assert isinstance(facts, dict)
        if excerpt["framework"] != "ultralytics" or "total_steps" not in facts:
            continue
        seen = progress([clean(str(excerpt["text"]))])
        assert seen is not None, excerpt["text"]
        assert (seen.epoch, seen.epochs) == (facts["epoch"], facts["total_epochs"])
        assert (seen.batch, seen.batches, seen.is_nan) == (facts["step"], facts["total_steps"], facts["nan"])
        losses = facts["loss"].values()
        assert seen.loss == (None if None in losses else sum(losses))
        frames += 1
    assert frames > 100


def test_no_other_excerpt_is_taken_for_an_ultralytics_frame(corpus: Path) -> None:
    for excerpt in excerpts(corpus):
        if excerpt["framework"] != "ultralytics":
            assert progress(clean(line) for line in str(excerpt["text"]).split("\n")) is None


def test_recorded_errors_are_the_fault_they_are_labelled_with(corpus: Path) -> None:
    wanted = {"u8.4.190-cpuoom": F.OOM_HOST, "pt-dl-segv": F.DATA_LOADER, "pt-dl-shm": F.DATA_LOADER}
    for excerpt in excerpts(corpus):
        found = [fault for fault, _ in findings(str(excerpt["text"]).split("\n"))]
        assert found == ([wanted[str(excerpt["id"])]] if excerpt["id"] in wanted else []), excerpt["id"]


FAULTY = {
    "ultralytics-8.4.190.cpuoom.stderr": {F.OOM_HOST},
    "pytorch-2.13.dataloader-segv.stderr": {F.DATA_LOADER},
    "pytorch-2.13.dataloader-shm.stderr": {F.DATA_LOADER},
}


def test_whole_recorded_outputs_give_their_findings_and_their_last_progress(corpus: Path, tmp_path: Path) -> None:
    recordings = sorted((corpus / "training/recorded").iterdir())
    assert len(recordings) > 50
    for recording in recordings:
        attempt = tmp_path / recording.name
        attempt.mkdir()
        raw = recording.read_bytes()
        (attempt / "output.log").write_bytes(raw)
        reader = OutputReader(attempt, 64 << 20)
        pages = [reader.read(NOW), reader.finish(NOW)]
        faults = {finding.fault for page in pages for finding in page.findings}
        assert faults == FAULTY.get(recording.name, set()), recording.name
        text = (attempt / "output.txt").read_text() if raw else ""
        assert "\x1b" not in text
        assert "\r" not in text
        bar = pages[0].progress
        draws_bars = recording.name.startswith("ultralytics") and b"G " in raw and b" epochs completed" in raw
        if draws_bars and bar is not None and recording.suffix == ".raw":
            assert (bar.epoch, bar.batch) == (bar.epochs, bar.batches), recording.name
        assert bar is None or recording.name.startswith("ultralytics")


def test_a_terminal_recording_folds_to_one_line_an_epoch(corpus: Path, tmp_path: Path) -> None:
    recording = corpus / "training/recorded/ultralytics-8.4.190.tty.raw"
    (tmp_path / "output.log").write_bytes(recording.read_bytes())
    reader = OutputReader(tmp_path, 64 << 20)
    lines = [*reader.read(NOW).lines, *reader.finish(NOW).lines]
    epochs = [line for line in lines if progress([line])]
    assert [seen.epoch for line in epochs if (seen := progress([line]))] == [1, 2]
    assert all("6/6" in line for line in epochs)
    assert "2 epochs completed in 0.000 hours." in lines


def test_losses_that_are_no_numbers_are_told() -> None:
    frame = "3/100       2.1G        nan      1.234      inf         13        640:"
    frame += "  16%|█▌        | 3200/20582 [02:57<16:05, 18.00it/s]"
    seen = progress([frame])
    assert seen is not None
    assert (seen.loss, seen.is_nan, seen.batch, seen.batches) == (None, True, 3200, 20582)


@pytest.mark.parametrize("losses", ["0.7", "1.1 2.2 3.3 4.4", "1 2 3 4 5"])
def test_any_task_s_number_of_losses_is_read(losses: str) -> None:
    """Classification prints one loss, segmentation four, pose five."""
    seen = progress([f"  1/2   1.5G   {losses}   13   640: 50% ━━━━━━────── 3/6 2.1it/s 0.1s<2.4s"])
    assert seen is not None
    assert seen.loss == pytest.approx(sum(map(float, losses.split())))


@given(st.lists(st.text(max_size=120), max_size=6))
def test_no_text_makes_it_raise_or_see_progress(lines: list[str]) -> None:
    list(findings(lines))
    assert progress(lines) is None
