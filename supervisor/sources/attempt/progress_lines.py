"""Parses progress from the bars and lines that trainings print; each line is parsed independently.

Frameworks count differently; here epochs count from 0 and batches are those done. A bar without an epoch may be a
download or a validation as well as a training, so it is reported with the shape `bar`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from supervisor.sources.attempt.progress import Progress
from supervisor.sources.faults.table import LINE_LIMIT

Reader = Callable[[str], Progress | None]

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|inf|nan)(?:\.0)?"
_BAR = r"\d{1,3}%\s*(?:\|[^|]*\||[━─╸╺╴ ]*)\s*(?P<batch>\d{1,9})/(?P<batches>\d{1,9})(?=[\s,\]]|$)"
# A regular expression search blocks all other threads, and the line is untrusted: repetitions are bounded, so that
# the time is linear in the length of a line of digits or letters.
_DECIMAL = r"\d{1,15}(?:\.\d{1,20})?"
_RATE = re.compile(rf"(?<!\d)(?:(?P<per_s>{_DECIMAL})(?P<kilo>k?)it/s|(?P<s_per>{_DECIMAL})s/it)")
_EMOJI = "\u200d\u2600-\u27bf\ufe0f\U0001f000-\U0001faff"
_PAIR = re.compile(
    rf"(?P<name>[A-Za-z_][\w/.{_EMOJI}-]{{0,100}})\s{{0,100}}[=:]\s*(?P<value>{_NUMBER})(?=[\s,\]|)]|$)", re.I
)

_ULTRALYTICS = re.compile(
    r"^\s*(?P<epoch>\d{1,7})/(?P<epochs>\d{1,7})\s+\d+(?:\.\d+)?G\s+"
    rf"(?P<losses>(?:{_NUMBER}\s+){{1,8}}?)\d+\s+\d+:\s+{_BAR}",
    re.I,
)
"""Ultralytics 8.0.100 to 8.4.190: the same up to the last colon, then tqdm's bar or its own."""
_LIGHTNING = re.compile(rf"^Epoch (?P<epoch>\d{{1,7}}):\s+{_BAR}")
"""Lightning's bar with tqdm, 1.x to 2.6: epochs from 0."""
_LIGHTNING_RICH = re.compile(
    r"^Epoch (?P<epoch>\d{1,7})/(?P<last>\d{1,7}|-\d)\s+[━╸╺\s]+(?P<batch>\d{1,9})/(?P<batches>\d{1,9})\s"
)
"""Lightning's bar with rich: the number of the last epoch follows the slash."""
_DESCRIBED = r"[^|%]{0,60}?(?:%[^|%]{0,40}?){0,3}"
"""What comes before a bar; it may have percents of its own, as of an accuracy: `loss: 0.34 acc: 97.9%:  40%|`."""
_EPOCH_BAR = re.compile(
    r"^(?:train\w*[ :]+)?\[?epoch:?\s*\[?(?P<epoch>\d{1,7})(?:\s*(?:/|of)\s*(?P<epochs>\d{1,7}))?\]?"
    + _DESCRIBED
    + _BAR,
    re.I,
)
_PLAIN_BAR = re.compile(rf"^\s*(?:[^|%\d]{_DESCRIBED})?{_BAR}")
_SAMPLES = re.compile(r"^Train Epoch: (?P<epoch>\d{1,7}) \[(?P<done>\d{1,12})/(?P<all>\d{1,12}) ")
"""pytorch/examples mnist: samples, epochs from 1."""
_IMAGENET = re.compile(
    r"^(?:\[[\d:. -]{8,30}\]\s+)?Epoch: \[(?P<epoch>\d{1,7})(?:/(?P<epochs>\d{1,7}))?\]\s{0,4}"
    r"\[\s*(?P<batch>\d{1,9})/(?P<batches>\d{1,9})\]"
)
"""pytorch/examples imagenet, and torchvision's references, DETR, MAE and DINO: epochs and batches from 0."""
_MMENGINE = re.compile(r"Epoch\(train\)\s+\[(?P<epoch>\d{1,7})\]\[\s*(?P<batch>\d{1,9})/(?P<batches>\d{1,9})\]")
_ITERATION = re.compile(
    r"^(?:\[[^\]]{8,40}\] |\S+ )?(?:iter(?:ation)?s?|steps?|global[ _]step)[ :=#]+(?P<batch>\d{1,12})"
    r"(?:\s*/\s*(?P<batches>\d{1,12}))?[\s:,|;]",
    re.I,
)
"""nanoGPT `iter 10: loss 3.2`, OpenNMT behind its time, and the lines of many custom loops."""
_LOSS_FOLLOWS = rf"(?=.{{0,80}}?(?:loss|cost|energy)\w{{0,10}}\s{{0,4}}[=:]?\s{{0,4}}{_NUMBER}(?:[\s,|)\]]|$))"
_COUNTED_LOSS = re.compile(
    r"^\s{0,8}\[?(?:iter(?:ation)?s?|it(?=[:=])|steps?)[ :=#\[(]{1,8}(?P<batch>\d{1,12})"
    r"(?:\s?/\s?(?P<batches>\d{1,12}))?(?=[\s:,|;)\]])" + _LOSS_FOLLOWS,
    re.I,
)
"""Own loops that indent their lines or put the count in brackets: with a number of a loss, as a list of settings has
counts too."""
_LOSS_AFTER = re.compile(
    r"^\s{0,8}(?:train(?:ing)? )?(?P<name>loss|cost|energy) (?:after|at) (?:iter(?:ation)?|step) {1,8}"
    rf"(?P<batch>\d{{1,12}})\s?(?:/\s?(?P<batches>\d{{1,12}})\s?)?[:=]\s{{0,8}}(?P<value>{_NUMBER})(?=[\s,|)]|$)",
    re.I,
)
"""PennyLane's `Cost after step     5:  0.3500000`, and courses' `Cost after iteration 100: 0.64`."""
_LOSS_FIRST = re.compile(
    r"^\s{0,8}(?:INFO:tensorflow:|I\d{4} [^\]]{1,80}\] )?(?P<name>loss|cost)\s?[=:]\s{0,4}"
    rf"(?P<value>{_NUMBER}),\s{{1,4}}(?:global[ _])?(?:step|iter(?:ation)?)\s?[=:]\s{{0,4}}"
    r"(?P<batch>\d{1,12})(?=[\s,|)]|$)",
    re.I,
)
"""TensorFlow's hooks, of Estimator and of MonitoredTrainingSession: `loss = 0.631, step = 320 (0.6 sec)`."""
_BATCH_AND_EPOCH = re.compile(r"^\s{0,8}iters: (?P<batch>\d{1,9}), epoch: (?P<epoch>\d{1,7}) \| (?=loss: )")
"""Informer, and the libraries for time series that come of it: epochs from 1, batches in the epoch."""
_EPOCH_AND_BATCH = re.compile(
    r"^[^|%]{0,60}?\bep(?:och)?\b[\s:=#(\[.]{0,4}(?P<epoch>\d{1,7})(?:\s?(?:/|of)\s?(?P<epochs>\d{1,7}))?"
    r"[^\w%]{1,8}(?:batch|step|it(?:er(?:ation)?s?)?|up)\b[\s:=#(\[.]{0,9}"
    r"(?P<batch>\d{1,3}(?:,\d{3}){1,3}(?!\d)|\d{1,9})"
    r"(?:\s?(?:/|of)\s?(?P<batches>\d{1,9}))?(?!\w)",
    re.I,
)
"""Loops that name both: `epoch [3/50], step [100/600]`, `[Epoch 0/9] [Batch 5/93]`, Marian's `Ep. 1 : Up. 5`, and
BasicSR's `[epoch: 14, iter:   1,440, lr`."""
_DETECTRON = re.compile(r"^[^|%]{0,120}?\biter: (?P<batch>\d{1,12})\s{1,4}(?=total_loss: )")
"""Detectron2's lines, behind its time and the estimate of its end."""
_FAIRSEQ = re.compile(
    r"\bepoch (?P<epoch>\d{1,7}):\s{1,9}(?P<batch>\d{1,9}) / (?P<batches>\d{1,9})\s"
    r"|\"num_updates\": \"(?P<updates>\d{1,12})\""
)
"""fairseq's lines in its formats `simple` (epochs from 1) and `json`."""
_ROUND = re.compile(
    r"^\s?\[?(?P<batch>\d{1,9})(?:\]\t\S|:\tlearn: |: \d{1,9}\.\d{1,9}, \d{1,9}\.\d{1,9} avg\b)"
    r"|^\[LightGBM\] \[Info\] Iteration:(?P<other>\d{1,9}),"
)
"""Rounds of XGBoost, LightGBM and CatBoost, batches of darknet."""
_PERCENT = re.compile(r"\bProgress:\s{1,4}(?P<percent>\d{1,3}(?:\.\d{1,4})?)%(?!\w)")
"""fastText's and word2vec's part of the whole training, and Julia's bar."""
_WORD_MODEL = re.compile(
    r"^\|\s*epoch\s+(?P<epoch>\d{1,7})\s*\|\s*(?P<batch>\d{1,9})/\s*(?P<batches>\d{1,9}) batches\b", re.I
)
"""pytorch/examples word_language_model: epochs from 1."""
_KERAS = re.compile(r"^\s*(?P<batch>\d{1,9})/(?:(?P<batches>\d{1,9})|Unknown)\s+(?:\[[=>.]+\]|[━╸╺]+)\s")
"""Keras 2 and 3; the epoch is printed on a separate line before it."""
_ENDLESS_BAR = re.compile(
    r"^(?:[^|%\[]{0,60}?:\s*)?(?P<batch>\d{1,12})\s?(?:it|steps?|batch(?:es)?|iters?)\s\[\d+:\d\d(?::\d\d)?,\s", re.I
)
"""tqdm without a total."""
_DEEPSPEED = re.compile(r"\[Rank \d+\] step=(?P<batch>\d{1,12}), skipped=\d+,|^steps: (?P<other>\d{1,12}) loss: ")
"""DeepSpeed's steps_per_print lines, and those of its pipeline engine."""
_MEGATRON = re.compile(
    r"^\s*(?:\[[\d:. -]{8,30}\]\s*)?iteration\s+(?P<batch>\d{1,12})\s*/\s*(?P<batches>\d{1,12})\s*\|", re.I
)
_WORDED = re.compile(
    rf"\b(?P<name>(?:train_|val_|total_)?loss|lr|grad_norm|gnorm)\s+(?P<value>{_NUMBER})(?=[\s,|(]|$)", re.I
)
_DICT = re.compile(r"^\{(?P<body>'.*)\}\s*$")
_DICT_PAIR = re.compile(rf"'(?P<name>\w+)': '?(?P<value>{_NUMBER})'?(?=[,}}]|$)", re.I)
_HF_KEYS = frozenset({"loss", "eval_loss", "train_loss", "grad_norm", "learning_rate"})


def progress(segments: Iterable[str]) -> Progress | None:
    """Return the progress of the last segment that has any; None if none has."""
    for segment in reversed(list(segments)):
        found = progress_in(segment)
        if found is not None:
            return found
    return None


def progress_in(line: str) -> Progress | None:
    """Return the progress in one line without escape sequences; None for a line without progress."""
    line = line[:LINE_LIMIT].strip("\r\n")
    # A substring test first: most lines of an output contain no progress.
    for needles, readers in _READERS:
        if any(needle in line for needle in needles):
            for reader in readers:
                found = reader(line)
                if found is not None:
                    return found
    return None


def _reader(shape: str, pattern: re.Pattern[str], *, epoch_from: int = 0, overlap_chars: int = 0) -> Reader:
    """Return a reader for lines that begin with a pattern; it searches the rest, and `overlap_chars` before it."""

    def read(line: str) -> Progress | None:
        found = pattern.match(line)
        rest = "" if found is None else line[found.end() - overlap_chars :]
        return None if found is None else _build_progress(shape, found, epoch_from=epoch_from, rest=rest)

    return read


def _parse_ultralytics(line: str) -> Progress | None:
    found = _ULTRALYTICS.match(line)
    if found is None:
        return None
    # The names are printed in the table's header only: box, cls, dfl for detection.
    losses = {f"loss_{place}": _parse_number(text) for place, text in enumerate(found["losses"].split(), start=1)}
    seen = _build_progress("ultralytics", found, epoch_from=1, rest=line[found.end() :])
    return replace(seen, losses=losses, not_finite=_list_not_finite(losses))


def _parse_lightning_rich(line: str) -> Progress | None:
    found = _LIGHTNING_RICH.match(line)
    if found is None:
        return None
    last = int(found["last"])
    seen = _build_progress("lightning", found, epoch_from=0, rest=line[found.end() :])
    return replace(seen, epochs=last + 1 if last >= 0 else None)


def _parse_epoch_bar(line: str) -> Progress | None:
    found = _EPOCH_BAR.match(line)
    if found is None:
        return None
    # "Epoch 1/10" counts from 1; without a total 0 is assumed.
    return _build_progress("epoch_bar", found, epoch_from=1 if found["epochs"] else 0, rest=line[found.end() :])


def _parse_samples(line: str) -> Progress | None:
    found = _SAMPLES.match(line)
    if found is None:
        return None
    epoch, done, total = max(0, int(found["epoch"]) - 1), int(found["done"]), int(found["all"])
    losses, _ = _find_named_numbers(line)
    part = epoch + done / total if total else None
    return Progress(
        shape="samples", epoch=epoch, samples=done, part=part, losses=losses, not_finite=_list_not_finite(losses)
    )


def _parse_batches(line: str) -> Progress | None:
    found = _IMAGENET.match(line)
    if found is not None:
        return _build_progress("batches", found, epoch_from=0, rest=line[found.end() :])
    found = _MMENGINE.search(line)
    return None if found is None else _build_progress("batches", found, epoch_from=1, rest=line[found.end() :])


def _parse_deepspeed(line: str) -> Progress | None:
    found = _DEEPSPEED.search(line)
    if found is None:
        return None
    batch = int(found["batch"] or found["other"])
    losses, others = _find_named_numbers(line)
    not_finite = _list_not_finite({**losses, **others})
    return Progress(shape="iterations", batch=batch, losses=losses, lr=others.get("lr"), not_finite=not_finite)


def _parse_fairseq(line: str) -> Progress | None:
    found = _FAIRSEQ.search(line)
    if found is None:
        return None
    if found["updates"]:
        return Progress(shape="iterations", batch=int(found["updates"]))
    return _build_progress("batches", found, epoch_from=1, rest=line[found.end() :])


def _parse_epoch_and_batch(line: str) -> Progress | None:
    found = _EPOCH_AND_BATCH.match(line)
    if found is None:
        return None
    return _build_progress("batches", found, epoch_from=1 if found["epochs"] else 0, rest=line[found.end() :])


def _parse_loss_and_count(line: str) -> Progress | None:
    found = _LOSS_AFTER.match(line) or _LOSS_FIRST.match(line)
    if found is None:
        return None
    losses = {found["name"].lower(): _parse_number(found["value"])}
    seen = _build_progress("iterations", found, epoch_from=0, rest=line[found.end() :])
    return replace(seen, losses=losses, not_finite=_list_not_finite(losses))


def _parse_round(line: str) -> Progress | None:
    found = _ROUND.match(line)
    return None if found is None else Progress(shape="iterations", batch=int(found["batch"] or found["other"]))


def _parse_percent(line: str) -> Progress | None:
    found = _PERCENT.search(line)
    return None if found is None else Progress(shape="percent", part=float(found["percent"]) / 100)


def _parse_huggingface(line: str) -> Progress | None:
    """Parse the Trainer's log dictionaries: numbers in 4.x, quoted numbers in 5.x."""
    found = _DICT.match(line)
    if found is None:
        return None
    values = {item["name"]: _parse_number(item["value"]) for item in _DICT_PAIR.finditer(found["body"])}
    if not _HF_KEYS & values.keys():
        return None
    part = values.get("epoch")
    part = None if part is None or part < 0 else part
    return Progress(
        shape="huggingface",
        epoch=None if part is None else int(part),
        part=part,
        losses={name: value for name, value in values.items() if name.endswith("loss")},
        grad_norm=values.get("grad_norm"),
        lr=values.get("learning_rate"),
        rate_per_s=values.get("train_steps_per_second"),
        not_finite=tuple(name for name, value in values.items() if value is None),
    )


_READERS: tuple[tuple[Sequence[str], tuple[Reader, ...]], ...] = (
    (("G ",), (_parse_ultralytics,)),
    (("Train Epoch: ",), (_parse_samples,)),
    (("Epoch: [", "Epoch:[", "Epoch(train)"), (_parse_batches,)),
    ((" batches",), (_reader("batches", _WORD_MODEL, epoch_from=1),)),
    (("[Rank ", "steps: "), (_parse_deepspeed,)),
    (("iteration",), (_reader("iterations", _MEGATRON, overlap_chars=1),)),
    (("━", "[=", "[>"), (_reader("bar", _KERAS),)),
    (
        ("%", "━"),
        (_reader("lightning", _LIGHTNING), _parse_lightning_rich, _parse_epoch_bar, _reader("bar", _PLAIN_BAR)),
    ),
    (("{'",), (_parse_huggingface,)),
    ((" [",), (_reader("bar", _ENDLESS_BAR),)),
    (("total_loss: ",), (_reader("iterations", _DETECTRON),)),
    (("iters: ",), (_reader("batches", _BATCH_AND_EPOCH, epoch_from=1),)),
    (
        ("iter", "Iter", "ITER", "step", "Step", "STEP", "It:", "it:", "It=", "it="),
        (
            _reader("iterations", _ITERATION, overlap_chars=1),
            _reader("iterations", _COUNTED_LOSS),
            _parse_loss_and_count,
        ),
    ),
    (("epoch ", '"num_updates"'), (_parse_fairseq,)),
    (("epoch", "Epoch", "Ep", "ep "), (_parse_epoch_and_batch,)),
    (("]\t", ":\tlearn: ", " avg", "Iteration:"), (_parse_round,)),
    (("Progress:",), (_parse_percent,)),
)


def _build_progress(shape: str, found: re.Match[str], *, epoch_from: int, rest: str) -> Progress:
    groups = found.groupdict()
    losses, others = _find_named_numbers(rest)
    epoch, epochs = _parse_int(groups.get("epoch")), _parse_int(groups.get("epochs"))
    return Progress(
        shape=shape,
        epoch=None if epoch is None else max(0, epoch - epoch_from),
        epochs=epochs,
        batch=_parse_int(groups.get("batch")),
        batches=_parse_int(groups.get("batches")),
        rate_per_s=_find_rate(rest),
        losses=losses,
        grad_norm=others.get("grad_norm"),
        lr=others.get("lr"),
        not_finite=_list_not_finite({**losses, **others}),
    )


def _find_named_numbers(text: str) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return the losses in a line by name, and its learning rate and gradient norm as `lr` and `grad_norm`."""
    losses: dict[str, float | None] = {}
    others: dict[str, float | None] = {}
    for pattern in (_PAIR, _WORDED):
        for found in pattern.finditer(text):
            name, value = found["name"], _parse_number(found["value"])
            if "loss" in name.lower() or name.lower() == "cost":
                losses.setdefault(name, value)
            elif name.lower() in ("lr", "learning_rate"):
                others.setdefault("lr", value)
            elif name.lower() in ("grad_norm", "gnorm"):
                others.setdefault("grad_norm", value)
    return losses, others


def _list_not_finite(values: Mapping[str, float | None]) -> tuple[str, ...]:
    return tuple(name for name, value in values.items() if value is None)


def _parse_number(text: str) -> float | None:
    """Return a printed number, None if it is not finite; Lightning's bar prints NaN as `nan.0`."""
    try:
        value = float(text.lower().removesuffix(".0") if text[:1] in "nNiI+-" else text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _find_rate(text: str) -> float | None:
    found = _RATE.search(text)
    if found is None:
        return None
    if found["per_s"]:
        return float(found["per_s"]) * (1000 if found["kilo"] else 1)
    slow = float(found["s_per"])
    return 1 / slow if slow else None


def _parse_int(text: str | None) -> int | None:
    return None if text is None else int(text.replace(",", ""))
