"""Feeds every reader of foreign bytes with damaged copies of real ones: nothing may raise, no value may be invented.

python tests/bench/fuzz.py --inputs 1000000 --corpus ../shared/corpus          # hours of one core in all
python tests/bench/fuzz.py --inputs 20000 --only progress,findings             # a few seconds
python tests/bench/fuzz.py --inputs 20000 --only "agent.jsonl file"             # the same, through the real file
python tests/bench/fuzz.py --only fdinfo --seed 2 --out fed.jsonl              # one of several processes at once
python tests/bench/fuzz.py --sum fed.jsonl                                      # what they come to

Inputs are real outputs, cut, spliced, doubled and sprinkled with what sensors and people put where numbers belong. A
value is invented where it lies outside of what its field can hold, or, for findings, where its line is not in the text.
"""

# ruff: noqa: T201 - a benchmark prints

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The package of the same name that may be installed must not come first.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench")]

from fuzz_files import Fed, feeds, fuzz_file  # noqa: E402 (after the path is set)
from fuzz_reports import report_feeds  # noqa: E402

from supervisor.core.moments import Moment  # noqa: E402 (after the path is set)
from supervisor.core.readings import GpuReading  # noqa: E402
from supervisor.sources.attempt.folding import clean  # noqa: E402
from supervisor.sources.attempt.progress_lines import progress_in  # noqa: E402
from supervisor.sources.faults.explain import explained  # noqa: E402
from supervisor.sources.faults.training_table import findings  # noqa: E402
from supervisor.sources.gpu import gpu_metrics  # noqa: E402
from supervisor.sources.gpu.kfd_processes import parse_fdinfo  # noqa: E402
from supervisor.sources.gpu.smi_output import READERS, read_saved  # noqa: E402
from supervisor.sources.kernel.kmsg import parse_record  # noqa: E402
from supervisor.sources.kernel.log_lines import log_line  # noqa: E402

NOW = Moment(0.0, 1.0)
LONGEST = 3000
NUMBERS = ("N/A", "-1", "1e999", "nan", "inf", "9" * 25, "0x", "\u0661\u0662", "%", "W")
SIGNS = ("|", "{", "}", '"', ",", "\n", "\x00", "[", "]", ":", "\r", "\x1b[K")
PHRASES = ("GPU: 3", "Xid (PCI:0000:9b:00): 79", "Epoch 1/2", "100%|", "0000:0a:00.0: ")
JUNK = (*NUMBERS, *SIGNS, *PHRASES)
FDINFO = (
    "drm-driver:\tamdgpu\ndrm-pdev:\t0000:0a:00.0\ndrm-client-id:\t7\n"
    "drm-memory-vram:\t1024 KiB\ndrm-engine-gfx:\t9 ns\n"
)
RECORD = "6,339,5140900,-,caller=T1;amdgpu 0000:0a:00.0: amdgpu: GPU reset begin!\n SUBSYSTEM=pci\n"
LOG = "[ 12.3] amdgpu 0000:0a:00.0: amdgpu: ring gfx timeout, signaled seq=1, emitted seq=2\nHIP out of memory\n"
BARS = ("  1/2  0G  0.1  0.3  0.2  13  64:  33%|███▎| 2/6 [00:00<00:00, 13.45it/s]", "{'loss': 0.69, 'epoch': 0.25}")


def main() -> int:
    """Print what was fed and what was wrong; end with 1 where anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="for each parser")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=ROOT.parent / "shared" / "corpus")
    parser.add_argument("--only", default="", help="names of parsers, with commas")
    parser.add_argument("--out", type=Path, help="add a line of JSON for each parser to this file")
    parser.add_argument("--sum", type=Path, help="feed nothing, print what the lines of such a file come to")
    asked = parser.parse_args()
    if asked.sum:
        return summed(asked.sum)
    bad = False
    for fed in feed_all(asked):
        print(fed.row(), flush=True)
        bad = bad or fed.bad
        if asked.out:
            with asked.out.open("a") as lines:
                lines.write(f"{json.dumps({**asdict(fed), 'seed': asked.seed})}\n")
    return 1 if bad else 0


def feed_all(asked: argparse.Namespace) -> Iterator[Fed]:
    """Feed each parser that was asked for."""
    chosen = [name for name in asked.only.split(",") if name]
    for name, feed in parsers(asked.corpus).items():
        if not chosen or name in chosen:
            yield fuzz(name, feed, asked.inputs, random.Random(asked.seed))
    # In memory, where there is a place for it: what is measured is the reading.
    with tempfile.TemporaryDirectory(dir=next(filter(os.path.isdir, ("/dev/shm", "/tmp")))) as place:
        for name, file in {**feeds(Path(place)), **report_feeds(Path(place))}.items():
            if not chosen or name in chosen:
                yield fuzz_file(name, file, asked.inputs, random.Random(asked.seed))


def summed(file: Path) -> int:
    """Print what all processes together did with each parser; return 1 where anything was wrong."""
    total: dict[str, Fed] = {}
    for line in file.read_text().splitlines():
        fields = json.loads(line)
        del fields["seed"]
        fed = Fed(**fields)
        total[fed.name] = total[fed.name].with_another(fed) if fed.name in total else fed
    for fed in total.values():
        print(fed.row())
    print(f"{len(total)} parsers, {sum(fed.bad for fed in total.values())} of them wrong or grown")
    return 1 if any(fed.bad for fed in total.values()) else 0


Feed = tuple[Sequence[str], Callable[[str], None]]


def parsers(corpus: Path) -> dict[str, Feed]:
    """Return each parser with the texts that its inputs are made of and the check of what it returns."""
    outputs = texts(corpus, "smi/*.*") or ["GPU: 0\n    USAGE:\n        GFX_ACTIVITY: 9 %\n"]
    kernel = [*lines_of(corpus, "kernel/excerpts.jsonl", "lines"), LOG]
    training = [*lines_of(corpus, "training/excerpts.jsonl", "text"), *BARS, LOG]
    table = {name: (outputs, _reads(reader)) for name, _, reader in READERS}
    return {
        **table,
        "saved output": (outputs, _reads(read_saved)),
        "gpu_metrics": (tables(corpus), _metrics),
        "fdinfo": ([FDINFO], lambda text: _fits(parse_fdinfo(text) is None or "pdev" in text, "fdinfo")),
        "kmsg record": ([RECORD], _record),
        "log prefix": (kernel, lambda text: _fits(len(log_line(text).message) <= len(text) + 6, "message")),
        "kernel and training log": ([*kernel, *training], _explained),
        "findings": (training, _findings),
        "progress": (training, _progress),
    }


def fuzz(name: str, feed: Feed, inputs: int, chance: random.Random) -> Fed:
    """Feed one parser; return how many inputs went wrong, the first of them printed."""
    seeds, check = feed
    began, wrong = time.perf_counter(), 0
    for _ in range(inputs):
        text = damaged(chance.choice(seeds), chance)
        try:
            check(text)
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            wrong += 1
            if wrong == 1:
                print(f"{name}: {type(error).__name__}: {error}\n  {text[:500]!r}", file=sys.stderr)
    return Fed(name, inputs, wrong, time.perf_counter() - began)


def damaged(text: str, chance: random.Random) -> str:
    """Return a cut, spliced, doubled or sprinkled copy of a text."""
    if len(text) > LONGEST:
        start = chance.randrange(len(text) - LONGEST)
        text = chance.choice((text[:LONGEST], text[start : start + LONGEST]))
    for _ in range(chance.randint(1, 5)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((0, 1, 3, 20, 300)))
        put = chance.choice((chance.choice(JUNK), chr(chance.randrange(1, 0xD000)), "", text[start:end] * 2))
        text = text[:start] + put + text[end:]
    return text


def texts(corpus: Path, pattern: str) -> list[str]:
    """Return the files of the corpus, none where it is absent."""
    found = (path for path in sorted(corpus.glob(pattern)) if path.name != "manifest.json")
    return [match.read_text(errors="replace") for match in found]


def tables(corpus: Path) -> list[str]:
    """Return binary tables as text, a character a byte, so that one way of damaging serves all."""
    found = [path.read_bytes()[:264] for path in corpus.glob("sysfs/*/card*/device/gpu_metrics")]
    made = [bytes([120, 0, *version]) + bytes(116) for version in gpu_metrics.LAYOUTS]
    return [item.decode("latin-1") for item in (*found, *made)]


def lines_of(corpus: Path, name: str, key: str) -> Iterator[str]:
    """Return the excerpts of a file of the corpus as texts."""
    path = corpus / name
    for line in path.read_text().splitlines() if path.exists() else ():
        value = json.loads(line)[key]
        yield value if isinstance(value, str) else "\n".join(value)


def _fits(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _reads(reader: Callable[[str, Moment], Sequence[GpuReading]]) -> Callable[[str], None]:
    def check(text: str) -> None:
        for item in reader(text, NOW):
            _possible(item)

    return check


def _possible(reading: GpuReading) -> None:
    for share in (reading.gpu_busy_percent, reading.memory_busy_percent, reading.vram_used_percent):
        _fits(share is None or 0 <= share <= 100, "percent")
    for heat in (reading.edge_c, reading.junction_c, reading.memory_c):
        _fits(heat is None or -40 <= heat <= 200, "celsius")
    counts = (
        reading.vram_used_bytes,
        reading.vram_total_bytes,
        reading.sclk_hz,
        reading.mclk_hz,
        reading.fan_rpm,
        reading.pcie_replays,
    )
    for count in (*counts, reading.ecc_correctable, reading.ecc_uncorrectable):
        _fits(count is None or (type(count) is int and 0 <= count < 2**63), "count")
    _fits(reading.power_w is None or 0 <= reading.power_w <= 5000, "watts")


def _metrics(text: str) -> None:
    found = gpu_metrics.parse(text.encode("latin-1", "replace"))
    if found is not None:
        gpu_metrics.throttled_by(found)
        _fits(found.edge_c is None or -40 <= found.edge_c <= 200, "celsius")
        _fits(found.gpu_busy_percent is None or 0 <= found.gpu_busy_percent <= 100, "percent")


def _record(text: str) -> None:
    found = parse_record(text.encode("utf-8", "replace"))
    _fits(found is None or found.sequence >= 0, "sequence")


def _explained(text: str) -> None:
    lines = text.count("\n") + 1
    for item in explained(text):
        _fits(1 <= item.line_number <= lines and item.lines >= 1, "line number")
        _fits(bool(item.remedy and item.source), "remedy")
        _fits(item.pid is None or item.pid >= 0, "pid")


def _findings(text: str) -> None:
    for finding in findings([clean(text)], NOW):
        _fits(finding.line in clean(text), "line")


def _progress(text: str) -> None:
    for line in text.split("\n"):
        seen = progress_in(clean(line))
        if seen is not None:
            numbers = [value for value in (*seen.losses.values(), seen.grad_norm, seen.lr) if value is not None]
            _fits(all(value - value == 0 for value in numbers), "not finite")
            _fits(seen.batch is None or str(seen.batch) in line or line[:1] == "\u0660" or not line.isascii(), "batch")
            _fits(seen.epoch is None or seen.epoch >= 0, "epoch")


if __name__ == "__main__":
    sys.exit(main())
