"""How sure the replay guard is: bfloat16 of healthy models, and faults planted into it, each on many sets of batches.

    python tests/bench/replay_guard.py [cpu|cuda] [TRIES [STEPS ...]] [MODEL ...]

Run by an interpreter with torch, torchvision, transformers and ultralytics. Each model is tried as it begins and after
each number of STEPS of training (10, 60 and 200), healthy TRIES times in each state (2), and once with each fault; sdpa
of two decoders is tried too, once in each state. What is printed is the largest share of what rounding
explains that results and gradients of a try differ by, the guard refuses above 1, and by which share a fault has moved
results or gradients of a layer from those of the healthy try: one that moves nothing is none.
"""

# ruff: noqa: PLC0415, T201 - a benchmark prints, and each model imports only what it uses

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "supervisor" / "agent" / "path"))

from rocm_agent.knobs import Refused, autocast, proofs, replay, transformer
from slow_training import Words

Batch = dict[str, Any]
Judged = tuple[str | None, float]
WORDS, LENGTH = 2048, 64
DATA = Words(1_000_000, WORDS, LENGTH)


class Noting(proofs.Proof):
    """The guard, with its measures kept."""

    noted: ClassVar[list[tuple[str, float, float]]] = []
    arm: ClassVar[dict[int, proofs.Rows]] = {}
    known: ClassVar[tuple[Any, float, dict[str, Any]]] = (None, 0.0, {})

    def __init__(self, torch_: Any, calls: replay.Calls, params: Any, rounding: float = replay.ROUNDING) -> None:
        if Noting.known[:2] != (calls, rounding):  # what is the owner's is the same for each fault
            super().__init__(torch_, calls, params, rounding)
            Noting.known = calls, rounding, vars(self)
        vars(self).update(Noting.known[2])

    def compare(self) -> None:
        Noting.noted, Noting.arm = [], {}
        super().compare()

    def measure(self, arm: Any) -> Iterator[tuple[str, float, float]]:
        Noting.noted, Noting.arm = list(super().measure(arm)), arm
        return iter(Noting.noted)


def draw_words(chance: torch.Generator, rows: int) -> Batch:
    """Return rows of words as the slow decoder is trained on."""
    numbers = torch.randint(0, 1_000_000, (rows,), generator=chance)
    words = torch.stack([DATA[int(number)]["input_ids"] for number in numbers])
    return {"input_ids": words, "labels": words.clone()}


def draw_pictures(chance: torch.Generator, rows: int, size: int) -> torch.Tensor:
    """Return smooth pictures with some noise."""
    small = torch.randn(rows, 3, 8, 8, generator=chance)
    return nn.functional.interpolate(small, size=size, mode="bilinear") + 0.1 * torch.randn(
        rows, 3, size, size, generator=chance
    )


def build_decoder(layers: int, kind: str) -> tuple[nn.Module, Callable[[torch.Generator], Batch]]:
    """Return a decoder of many layers."""
    import transformers as hf

    given = {
        "vocab_size": WORDS,
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": True,
        "use_cache": False,
        "attn_implementation": "eager",
    }
    if kind == "qwen3":
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**given, head_dim=16))
        model.gradient_checkpointing_enable()
    else:
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**given))
    return model, lambda chance: draw_words(chance, 8 if kind == "qwen3" else 4)


def build_words(kind: str) -> tuple[nn.Module, Callable[[torch.Generator], Batch]]:
    """Return another model of words."""
    import transformers as hf

    if kind == "gpt2":
        config = hf.GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_layer=6, n_embd=64, n_head=4, use_cache=False)
        return hf.GPT2LMHeadModel(config), lambda chance: draw_words(chance, 4)
    if kind == "bert":
        config = hf.BertConfig(
            vocab_size=WORDS, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128
        )
        return hf.BertForMaskedLM(config), lambda chance: draw_words(chance, 4)
    config = hf.T5Config(
        vocab_size=WORDS,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=4,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config), lambda chance: draw_words(chance, 4)


class UNet(nn.Module):
    """A small net of halves that are joined across, for noise in pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([self._block(3, 16), self._block(16, 32), self._block(32, 64)])
        self.up = nn.ModuleList([self._block(96, 32), self._block(48, 16)])
        self.last = nn.Conv2d(16, 3, 1)

    @staticmethod
    def _block(inside: int, outside: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(4, outside),
            nn.SiLU(),
            nn.Conv2d(outside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )

    def forward(self, pictures: Any, labels: Any) -> Any:
        kept = []
        for number, block in enumerate(self.down):
            pictures = block(nn.functional.max_pool2d(pictures, 2) if number else pictures)
            kept.append(pictures)
        for block, other in zip(self.up, kept[-2::-1], strict=True):
            pictures = block(torch.cat([nn.functional.interpolate(pictures, scale_factor=2), other], 1))
        found = self.last(pictures)
        return {"loss": nn.functional.mse_loss(found.float(), labels), "found": found}


class Kinds(nn.Module):
    """A net for pictures with its loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pictures: Any, labels: Any) -> Any:
        found = self.net(pictures)
        return {"loss": nn.functional.cross_entropy(found.float(), labels), "found": found}


def build_pictures(kind: str) -> tuple[nn.Module, Callable[[torch.Generator], Batch]]:
    """Return a net for pictures."""
    import torchvision

    def draw_kinds(chance: torch.Generator) -> Batch:
        pictures = draw_pictures(chance, 4, 48)
        return {"pictures": pictures, "labels": (pictures.mean((1, 2, 3)) * 20).long().clamp(-5, 4) + 5}

    def draw_noise(chance: torch.Generator) -> Batch:
        pictures = draw_pictures(chance, 4, 32)
        noise = torch.randn(pictures.shape, generator=chance)
        return {"pictures": pictures + noise, "labels": noise}

    if kind == "unet":
        return UNet(), draw_noise
    if kind == "resnet":
        return Kinds(torchvision.models.resnet18(num_classes=10)), draw_kinds
    return Kinds(torchvision.models.VisionTransformer(48, 8, 4, 4, 64, 128, num_classes=10)), draw_kinds


class Detector(nn.Module):
    """A YOLO that is called with its batch, as ultralytics' trainer calls it."""

    def __init__(self) -> None:
        super().__init__()
        from ultralytics.cfg import get_cfg
        from ultralytics.nn.tasks import DetectionModel

        self.net = DetectionModel("yolov8n.yaml", nc=3, verbose=False)
        self.net.args = get_cfg()

    def forward(self, batch: Any) -> Any:
        return {"loss": self.net(batch)[0].sum()}


def draw_boxes(chance: torch.Generator) -> Batch:
    """Return pictures with four boxes each."""
    boxes = torch.rand(16, 4, generator=chance) * 0.3 + 0.2
    kinds, places = torch.randint(0, 3, (16, 1), generator=chance).float(), torch.arange(4).repeat_interleave(4).float()
    return {"batch": {"img": draw_pictures(chance, 4, 64), "cls": kinds, "bboxes": boxes, "batch_idx": places}}


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[torch.Generator], Batch]]]] = {
    "qwen3": lambda: build_decoder(12, "qwen3"),
    "llama": lambda: build_decoder(8, "llama"),
    "gpt2": lambda: build_words("gpt2"),
    "bert": lambda: build_words("bert"),
    "t5": lambda: build_words("t5"),
    "vit": lambda: build_pictures("vit"),
    "resnet": lambda: build_pictures("resnet"),
    "unet": lambda: build_pictures("unet"),
    "yolo": lambda: (Detector(), draw_boxes),
}


def _scale(found: Any) -> Any:
    return 0.9 * found


def _drop_rows(found: Any) -> Any:
    """Return a result without each eighth of its rows, or of its pixels; a last layer has too few rows to lose one."""
    shape = (found.shape[0], 1, *found.shape[2:]) if found.dim() == 4 else (*found.shape[:-1], 1)
    kept = torch.ones(shape, device=found.device)
    kept.view(-1)[7::8] = 0
    return found * kept.to(found.dtype)


def _round_to_three_bits(found: Any) -> Any:
    mantissa, exponent = torch.frexp(found.float())
    rounded = torch.ldexp((mantissa * 8).round() / 8, exponent)
    return found + (rounded - found).detach()


def _shift_columns(found: Any) -> Any:
    """Return a result whose columns are those of the next ones, as of a wrong stride."""
    return found.roll(1, -1)


def _keep(found: Any) -> Any:
    return found


def _overflow(found: Any) -> Any:
    return torch.where(found.abs() > 3 * found.detach().float().std(), float("inf"), found)


FAULTS: dict[str, Callable[[Any], Any]] = {
    "a tenth less": _scale,
    "rows dropped": _drop_rows,
    "three bits": _round_to_three_bits,
    "wrong stride": _shift_columns,
    "weaker gradients": _keep,
    "overflow": _overflow,
}


def casts() -> bool:
    """Whether a call is made under autocast."""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


@contextlib.contextmanager
def planted(fault: Callable[[Any], Any], only: Any = None) -> Iterator[None]:
    """Have matrix products and convolutions under autocast be wrong meanwhile; `only`: those with this weight."""
    kept = nn.functional.linear, nn.Conv2d._conv_forward

    def linear(rows: Any, weight: Any, bias: Any = None) -> Any:
        found = kept[0](rows, weigh(weight), bias)
        return fault(found) if is_wrong(weight) else found

    def convolve(module: Any, rows: Any, weight: Any, bias: Any) -> Any:
        found = kept[1](module, rows, weigh(weight), bias)
        return fault(found) if is_wrong(weight) else found

    def is_wrong(weight: Any) -> bool:
        return casts() and (only is None or weight is only)

    def weigh(weight: Any) -> Any:
        """Return a weight whose gradient is a fifth too small, where that is the fault."""
        if fault is not _keep or not is_wrong(weight):
            return weight
        return 0.8 * weight + 0.2 * weight.detach()

    nn.functional.linear, nn.Conv2d._conv_forward = linear, convolve
    try:
        yield
    finally:
        nn.functional.linear, nn.Conv2d._conv_forward = kept


@contextlib.contextmanager
def softmax_without(what: str) -> Iterator[None]:
    """Have eager attention lose its mask, or its scale, under autocast."""
    kept = nn.functional.softmax

    def softmax(scores: Any, *args: Any, **kwargs: Any) -> Any:
        if casts() and scores.dim() == 4:
            scores = torch.where(scores < -1e4, 0.0, scores) if what == "mask" else 4 * scores
        return kept(scores, *args, **kwargs)

    nn.functional.softmax = softmax
    try:
        yield
    finally:
        nn.functional.softmax = kept


def train(model: nn.Module, draw: Callable[[torch.Generator], Batch], steps: tuple[int, int], decoder: bool) -> None:
    """Train from one step to another; a narrow decoder's matrices move by as large a share of them as a wide one's."""
    chance = torch.Generator().manual_seed(1 + steps[0])
    wide = [param for name, param in model.named_parameters() if param.dim() == 2 and "embed" not in name]
    others = [param for param in model.parameters() if all(param is not other for other in wide)]
    groups = [{"params": wide, "lr": 1.6e-3 if decoder else 1e-3}, {"params": others, "lr": 1e-4 if decoder else 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0)
    for _ in range(*steps):
        optimizer.zero_grad()
        model(**draw(chance))["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def keep_calls(model: nn.Module, batches: list[Batch]) -> replay.Calls:
    """Return the calls of a model with some batches."""
    calls = replay.Calls(torch)
    calls.keep()
    for batch in batches:
        model(**batch)
    return calls


def judge(model: nn.Module, calls: replay.Calls, kind: Any = autocast.Autocast, value: Any = "bfloat16") -> Judged:
    """Return why a setting is refused, and the largest share of what is explained that was differed by."""
    knob = kind(torch, torch.optim.SGD(model.parameters(), lr=0.0), calls)
    Noting.noted, why = [], None
    try:
        knob.apply(value)
    except Refused as error:
        why = str(error)
    knob.revert()
    shares = [differs / explained for _, differs, explained in Noting.noted]
    return why, max((math.inf if math.isnan(share) else share for share in shares), default=math.inf)


def measure_effect(healthy: dict[int, proofs.Rows]) -> float:
    """Return by which share a try's results, or gradients of a weight, are off those of a healthy one at most."""
    pairs = [
        (item, other)
        for number, rows in healthy.items()
        for kind in (0, 1)
        for item, other in zip(rows[kind], Noting.arm[number][kind], strict=True)
    ]
    found = [proofs.difference([item], [other]) for item, other in pairs]
    return max(math.inf if math.isnan(share) else share for share in found)


def list_faults(name: str, model: nn.Module) -> dict[str, Callable[[], contextlib.AbstractContextManager[None]]]:
    """Return the faults that a model can have, by name."""
    found = {kind: (lambda fault=fault: planted(fault)) for kind, fault in FAULTS.items()}
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    middle = layers[len(layers) // 2].weight
    found["one layer's gradient weaker"] = lambda: planted(_keep, middle)
    if name in {"qwen3", "llama"}:
        found["no mask"] = lambda: softmax_without("mask")
        found["no scale"] = lambda: softmax_without("scale")
    return found


class Tally:
    """The shares of tries, and how many of them were judged wrongly."""

    def __init__(self) -> None:
        self.healthy: list[float] = []
        self.sdpa: list[float] = []
        self.faulty: list[float] = []
        self.refused, self.adopted, self.without_effect = 0, 0, 0


def try_state(name: str, model: nn.Module, draw: Callable[[torch.Generator], Batch], state: int, tries: int) -> Tally:
    """Judge healthy and faulty tries of a model as it is."""
    found, chance = Tally(), torch.Generator().manual_seed(100 + state)
    faults = list(list_faults(name, model).items())
    for number in range(tries):
        calls = keep_calls(model, [draw(chance) for _ in range(replay.CALLS)])
        if name in {"qwen3", "llama"} and number == 0:
            why, share = judge(model, calls, transformer.Attention, "sdpa")
            found.sdpa.append(share)
            found.refused += why is not None
            print(f"{name} after {state} steps, sdpa: {share:.2f} {why or 'taken'}", flush=True)
        why, share = judge(model, calls)
        found.healthy.append(share)
        found.refused += why is not None
        healthy = Noting.arm
        print(f"{name} after {state} steps, {number}: {share:.2f} {why or 'taken'}", flush=True)
        for fault, plant in faults[number::tries]:
            with plant():
                why, share = judge(model, calls)
            effect = measure_effect(healthy)
            found.faulty.append(share)
            found.adopted += why is None
            found.without_effect += effect < replay.ROUNDING
            print(f"{name} after {state} steps, {fault}: {share:.2f} of {effect:.2g} {why or 'TAKEN'}", flush=True)
        calls.stop()
    return found


def try_model(name: str, tries: int, steps: tuple[int, ...], device: str) -> list[Tally]:
    """Return what became of a model's tries in each state."""
    torch.manual_seed(0)
    model, draw = MODELS[name]()
    model.to(device).train()

    def draw_there(chance: torch.Generator) -> Batch:
        return _move(draw(chance), device)

    found = []
    for before, state in itertools.pairwise((0, 0, *steps)):
        train(model, draw_there, (before, state), name in {"qwen3", "llama"})
        found.append(try_state(name, model, draw_there, state, tries))
    return found


def _move(value: Any, device: str) -> Any:
    return {key: _move(item, device) for key, item in value.items()} if isinstance(value, dict) else value.to(device)


def print_row(name: str, tallies: list[Tally]) -> None:
    """Print what became of all tries of a model."""
    healthy = [share for tally in tallies for share in tally.healthy]
    sdpa = [share for tally in tallies for share in tally.sdpa]
    faulty = [share for tally in tallies for share in tally.faulty]
    print(
        f"{name:8} {len(healthy):9} {statistics.median(healthy):7.2f} {max(healthy):6.2f}"
        f" {len(sdpa):7} {max(sdpa, default=math.nan):6.2f} {sum(tally.refused for tally in tallies):8}"
        f" {len(faulty):7} {sum(tally.adopted for tally in tallies):8} {min(faulty):6.2f}"
        f" {sum(tally.without_effect for tally in tallies):10}",
        flush=True,
    )


def main() -> None:
    """Print each try, and a row for each model."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    words = [word for word in sys.argv[1:] if not word.isdigit()]
    names = [word for word in words if word in MODELS] or list(MODELS)
    tries, steps = (numbers or [2])[0], tuple(numbers[1:]) or (10, 60, 200)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    proofs.Proof = Noting  # type: ignore[misc, unused-ignore] # its measures are what is looked at
    device = "cuda" if "cuda" in words else "cpu"
    print("model     bfloat16  median   most    sdpa   most  refused  faults  adopted  least  no effect")
    every = []
    for name in names:
        tallies = try_model(name, tries, steps, device)
        every += tallies
        print_row(name, tallies)
    print_row("all", every)


if __name__ == "__main__":
    main()
