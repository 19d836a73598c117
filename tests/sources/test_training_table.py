"""What the output means, held against recorded trainings and the wordings of the libraries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.findings import FaultClass as F
from supervisor.core.moments import Moment
from supervisor.sources.attempt.output import OutputReader
from supervisor.sources.attempt.progress_lines import progress
from supervisor.sources.faults.training_table import findings, training_grammar
from tests.rigs.row_examples import unproven

NOW = Moment(100.0, 1_700_000_000.0)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("RuntimeError: HIP out of memory. Tried to allocate 20.00 MiB (GPU 0; 5.98 GiB total capacity)", F.OOM_GPU),
        ("RuntimeError: CUDA out of memory. Tried to allocate 1.2 GiB", F.OOM_GPU),
        ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2 GiB. GPU 0 has", F.OOM_GPU),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has", F.OOM_GPU),
        ("[rank1]: torch.OutOfMemoryError: HIP out of memory.", F.OOM_GPU),
        ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.", F.OOM_GPU),
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
    (found,) = findings(["before", line, "after"], NOW)
    assert (found.fault, found.line, found.fatal) == (fault, line, True)
    assert found.remedy


@pytest.mark.parametrize(
    "line",
    [
        "MIOpen(HIP): Warning [SQLiteBase] Missing system database file: gfx1030_18.kdb Performance may degrade.",
        "MIOpen(HIP): Warning [BuildHip] In file included from /tmp/comgr/input/x.cpp:1:",
        "WARNING CUDA out of memory with batch=16. Reducing to batch=8 and retrying (1/3).",
        "AMP: running Automatic Mixed Precision (AMP) checks...",
        "hipBLASLt on an unsupported architecture! Overriding blas backend to hipblas",
        "    except MemoryError:",
        '    raise RuntimeError(f"Training failed: NaN persisted for {self.nan_recovery_attempts} epochs")',
        "DataLoader workers: 8, images/hard disk: 329299",
        "rocblas_status_success",
        "miopenStatusSuccess",
        "names: {0: 'out of memory lane', 1: 'person'}",
    ],
)
def test_what_a_healthy_training_prints_is_no_finding(line: str) -> None:
    assert list(findings([line], NOW)) == []


def test_every_row_fits_its_examples_and_none_is_hidden_by_another() -> None:
    assert unproven(training_grammar()) == []


def test_a_repeated_line_is_found_once_and_a_flood_of_different_ones_is_bounded() -> None:
    flood = [f"RuntimeError: HIP error: out of memory #{number}" for number in range(500)]
    assert len(list(findings(["MemoryError"] * 50, NOW))) == 1
    assert len(list(findings(flood, NOW))) == 20


def excerpts(corpus: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (corpus / "training/excerpts.jsonl").read_text().splitlines()]


def test_recorded_errors_are_the_fault_they_are_labelled_with(corpus: Path) -> None:
    wanted = {"u8.4.190-cpuoom": F.OOM_HOST, "pt-dl-segv": F.DATA_LOADER, "pt-dl-shm": F.DATA_LOADER}
    wanted |= {str(item["id"]): F.NAN for item in excerpts(corpus) if "self_recovery" in str(item["facts"])}
    for excerpt in excerpts(corpus):
        found = [finding.fault for finding in findings(str(excerpt["text"]).split("\n"), NOW)]
        assert found == ([wanted[str(excerpt["id"])]] if excerpt["id"] in wanted else []), excerpt["id"]


FAULTY = {
    "ultralytics-8.4.190.cpuoom.stderr": {F.OOM_HOST},
    "pytorch-2.13.dataloader-segv.stderr": {F.DATA_LOADER},
    "pytorch-2.13.dataloader-shm.stderr": {F.DATA_LOADER},
    "pytorch-2.13.torchrun-gloo-timeout.stderr": {F.NCCL_TIMEOUT},
    "ultralytics-8.4.190.nan.stdout": {F.NAN},
    "ultralytics-8.4.190.nanfirst.stderr": {F.NAN},
    "ultralytics-8.4.190.nanfirst.stdout": {F.NAN},
    "ultralytics-8.4.190.nanpersist.stderr": {F.NAN},
    "ultralytics-8.4.190.nanpersist.stdout": {F.NAN},
}


def test_whole_recorded_outputs_give_their_findings_and_their_last_progress(corpus: Path, tmp_path: Path) -> None:
    recordings = sorted((corpus / "training/recorded").iterdir())
    assert len(recordings) > 50
    for recording in recordings:
        attempt = tmp_path / recording.name
        (attempt / "run").mkdir(parents=True)
        raw = recording.read_bytes()
        (attempt / "run" / "output.log").write_bytes(raw)
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
            assert (bar.step, bar.step) == (bar.steps, bar.steps), recording.name
        assert bar is None or bar.shape != "ultralytics" or recording.name.startswith("ultralytics")


def test_a_bar_that_redraws_itself_folds_to_one_line_an_epoch(tmp_path: Path) -> None:
    frames = [
        "\r\x1b[K"
        + ("%11s" * 2 + "%11.4g" * 5) % (f"{epoch}/2", "0G", 1.5, 2.5, 1.25, 13, 160)
        + f": {100 * batch // 6}% \u2501\u2501\u2500\u2500 {batch}/6 2.1it/s 0.1s<2.4s"
        for epoch in (1, 2)
        for batch in range(7)
    ]
    raw = "\x1b[1mtrain: \x1b[0mbegins\r\n" + "".join(frames[:7]) + "\r\n" + "".join(frames[7:]) + "\r\nended\r\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output.log").write_text(raw, newline="")
    reader = OutputReader(tmp_path, 64 << 20)
    lines = [*reader.read(NOW).lines, *reader.finish(NOW).lines]
    epochs = [line for line in lines if progress([line])]
    assert [seen.epoch for line in epochs if (seen := progress([line]))] == [0, 1]
    assert all("6/6" in line for line in epochs)
    assert (lines[0], lines[-1]) == ("train: begins", "ended")
    assert "\x1b" not in (tmp_path / "output.txt").read_text()


def test_a_terminal_recording_folds_to_one_line_an_epoch(corpus: Path, tmp_path: Path) -> None:
    recording = corpus / "training/recorded/ultralytics-8.4.190.tty.raw"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "output.log").write_bytes(recording.read_bytes())
    reader = OutputReader(tmp_path, 64 << 20)
    lines = [*reader.read(NOW).lines, *reader.finish(NOW).lines]
    epochs = [line for line in lines if progress([line])]
    assert [seen.epoch for line in epochs if (seen := progress([line]))] == [0, 1]
    assert all("6/6" in line for line in epochs)
    assert "2 epochs completed in 0.000 hours." in lines


@given(st.lists(st.text(max_size=120), max_size=6))
def test_no_text_makes_it_raise_or_see_a_fault(lines: list[str]) -> None:
    assert list(findings(lines, NOW)) == []
