"""Progress is read from what frameworks really print, and from nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.sources.attempt.folding import clean
from supervisor.sources.attempt.progress import Progress
from supervisor.sources.attempt.progress_lines import progress, progress_in


def excerpts(corpus: Path, framework: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in (corpus / "training/excerpts.jsonl").read_text().splitlines():
        excerpt = json.loads(line)
        if excerpt["framework"] == framework:
            yield clean(str(excerpt["text"])), excerpt["facts"]


def read(line: str) -> Progress:
    seen = progress_in(line)
    assert seen is not None, line
    return seen


def test_every_recorded_ultralytics_frame_is_read_exactly(corpus: Path) -> None:
    frames = 0
    for line, facts in excerpts(corpus, "ultralytics"):
        if "total_steps" not in facts:
            assert progress(line.split("\n")) is None
            continue
        seen = read(line)
        assert (seen.epoch, seen.epochs) == (facts["epoch"] - 1, facts["total_epochs"])
        assert (seen.batch, seen.batches, seen.is_nan) == (facts["step"], facts["total_steps"], facts["nan"])
        assert list(seen.losses.values()) == list(facts["loss"].values())
        assert seen.rate_per_s == (None if facts["it_per_s"] is None else pytest.approx(facts["it_per_s"], rel=0.01))
        frames += 1
    assert frames > 100


def test_every_recorded_lightning_frame_is_read_exactly(corpus: Path) -> None:
    frames = 0
    for line, facts in excerpts(corpus, "lightning"):
        seen = read(line)
        assert (seen.shape, seen.epoch, seen.batch) == ("lightning", facts["epoch"], facts["step"])
        assert (seen.batches, seen.rate_per_s, seen.is_nan) == (facts["total_steps"], facts["it_per_s"], facts["nan"])
        assert dict(seen.losses) == facts["loss"]
        frames += 1
    assert frames > 5


def test_every_recorded_dictionary_of_the_trainer_is_read_exactly(corpus: Path) -> None:
    logs = 0
    for line, facts in excerpts(corpus, "hf-trainer"):
        seen = read(line)
        assert (seen.part, list(seen.not_finite)) == (facts["epoch"], facts["nan_keys"])
        assert (seen.grad_norm, seen.lr) == (facts.get("grad_norm"), facts.get("learning_rate"))
        assert dict(seen.losses) == {name: value for name, value in facts.items() if name.endswith("loss")}
        logs += 1
    assert logs > 10


def test_samples_are_no_steps() -> None:
    """As the MNIST example of PyTorch prints them."""
    seen = read("Train Epoch: 3 [640/60000 (1%)]\tLoss: 0.518")
    assert (seen.epoch, seen.samples, seen.step, seen.loss) == (2, 640, None, 0.518)


def test_samples_of_an_own_loop_are_not_taken_for_steps(corpus: Path) -> None:
    lines = [(line, facts) for line, facts in excerpts(corpus, "pytorch") if "samples" in facts]
    assert lines
    for line, facts in lines:
        seen = read(line)
        assert (seen.epoch, seen.samples, seen.step) == (facts["epoch"] - 1, facts["samples"], None)
        assert seen.loss == facts["loss"]


@pytest.mark.parametrize(
    ("line", "epoch", "batch", "batches", "step", "loss"),
    [
        ("Epoch 0/1  ━━━━━━━━━━━ 20/20 0:00:00 • 0:00:00 840.69it/s v_num: 0 train_loss: 0.25", 0, 20, 20, 20, 0.25),
        ("Epoch 3/10:  45%|████▌     | 9/20 [00:01<00:01, 8.1it/s, loss=0.5]", 2, 9, 20, 49, 0.5),
        ("Train epoch [2/5]: 50%|█████     | 5/10 [00:01<00:01, 1.50s/it]", 1, 5, 10, 15, None),
        ("iter 340: loss 2.4123, time 61.20ms, mfu 12.00%", None, 340, None, 340, 2.4123),
        ("step 120/4000 | loss=1.5 | lr: 0.001", None, 120, 4000, 120, 1.5),
        ("Epoch: [4][ 10/100]\tTime  0.07 (  0.10)\tLoss 6.9e+00 (7.0e+00)", 4, 10, 100, 410, 6.9),
        ("11/21 10:00:00 - mmengine - INFO - Epoch(train)  [2][ 50/100]  lr: 1.0e-02  loss: 0.3",
         1, 50, 100, 150, 0.3),
        ("Epoch: [4]  [10/20]  eta: 0:00:20  lr: 0.000100  loss: 1.2345 (1.3)  time: 1.0", 4, 10, 20, 90, 1.2345),
        ("Epoch: [3/100]  [ 10/20]  eta: 0:00:20  loss: 10.97 (10.99)  time: 1.0", 3, 10, 20, 70, 10.97),
        ("[11:53:50.411085] Epoch: [8]  [5/6]  eta: 0:00:01  loss: 1.2630 (1.2630)", 8, 5, 6, 53, 1.263),
        ("[11/29 11:50:00 d2.utils.events]:  eta: 0:01:00  iter: 1939  total_loss: 1.73  lr: 0.01",
         None, 1939, None, 1939, 1.73),
        ("2026-11-29 11:52:22,583 INFO: [tiny..][epoch: 14, iter:     440, lr:(1.1e-04,)] [eta: 0:01:36]",
         14, 440, None, None, None),
        ("2026-11-29 11:52:22,583 INFO: [tiny..][epoch:104, iter:  12,440, lr:(1.1e-04,)] [eta: 0:01:36]",
         104, 12440, None, None, None),
        (" 12%|█▎        | 4/32 [00:00<00:00, 139.22it/s]", None, 4, 32, None, None),
        ("loss: 0.34 test_accuracy: 97.9%:  40%|████      | 28/70 [00:01<00:02, 14.1it/s]", None, 28, 70, None, None),
        ("Epoch 3/10 acc 97.9% val 95%:  45%|████▌     | 9/20 [00:01<00:01, 8.1it/s, loss=0.5]", 2, 9, 20, 49, 0.5),
        ("{'loss': '0.6928', 'grad_norm': '0.55', 'learning_rate': '4.5e-05', 'epoch': '0.25'}",
         0, None, None, None, 0.6928),
    ],
)  # fmt: skip
def test_other_frameworks_and_own_loops_are_read(  # noqa: PLR0917 - a row of a table
    line: str, epoch: int | None, batch: int | None, batches: int | None, step: int | None, loss: float | None
) -> None:
    seen = read(line)
    assert (seen.epoch, seen.batch, seen.batches, seen.step, seen.loss) == (epoch, batch, batches, step, loss)


@pytest.mark.parametrize(
    "line",
    [
        "Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size",
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%",
        "train: Scanning /data/labels.cache... 329299 images, 12 backgrounds, 0 corrupt: 100% 329299/329299",
        "stepping into the model, iterations are counted later",
        "{'name': 'person', 'id': 0}",
        "GPU 0 has a total capacity of 5.98 GiB",
        "Epochs are done",
    ],
)
def test_what_only_looks_like_it_is_no_training(line: str) -> None:
    seen = progress_in(line)
    assert seen is None or (seen.shape == "bar" and seen.step is None)


def test_nan_is_reported_by_name_and_never_as_a_number() -> None:
    seen = read("Epoch 1:  75%|███████▌  | 15/20 [00:00<00:00, 9.7it/s, train_loss=nan.0, val_loss=0.3]")
    assert (seen.not_finite, seen.loss, seen.losses["val_loss"]) == (("train_loss",), None, 0.3)
    frame = "3/100       2.1G        nan      1.234      inf         13        640:"
    seen = read(frame + "  16%|█▌        | 3200/20582 [02:57<16:05, 18.00it/s]")
    assert (seen.loss, len(seen.not_finite), seen.batch, seen.batches) == (None, 2, 3200, 20582)


@pytest.mark.parametrize("losses", ["0.7", "1.1 2.2 3.3 4.4", "1 2 3 4 5"])
def test_any_task_s_number_of_losses_is_read(losses: str) -> None:
    """Classification prints one loss, segmentation four, pose five."""
    seen = read(f"  1/2   1.5G   {losses}   13   640: 50% ━━━━━━────── 3/6 2.1it/s 0.1s<2.4s")
    assert seen.loss == pytest.approx(sum(map(float, losses.split())))


def test_the_newest_line_that_reports_it_counts() -> None:
    lines = ["iter 1: loss 3", "iter 2: loss 2", "saving checkpoint"]
    seen = progress(lines)
    assert seen is not None
    assert seen.step == 2


WORDS = st.sampled_from(
    [
        "Epoch ",
        "epoch: [",
        "1/2",
        "0G",
        "nan",
        "100%|",
        "━━",
        "6/6",
        "it/s",
        "{'loss': ",
        "'epoch': 1}",
        "iter 9: ",
        "\t",
        "%",
    ]
)


@given(st.lists(st.lists(WORDS | st.text(max_size=12), max_size=14).map("".join), max_size=4))
def test_no_text_makes_it_raise_or_see_a_number_that_is_none(lines: list[str]) -> None:
    seen = progress(lines)
    if seen is not None:
        assert all(value is None or value == value for value in seen.losses.values())  # noqa: PLR0124 - NaN differs
        assert seen.batch is None or seen.batch >= 0


@pytest.mark.parametrize(
    ("line", "batch", "batches", "epoch"),
    [
        ("| epoch   2 |   100/  166 batches | lr 20.00 | ms/batch 12.34 | loss  7.63 | ppl  2059.26", 100, 166, 1),
        ("4/6 ━━━━━━━━━━━━━━━━━━━━ 0s 22ms/step - loss: 1.6789", 4, 6, None),
        (" 12/313 [=>............................] - ETA: 3s - loss: 1.2", 12, 313, None),
        ("    17/Unknown 3s 22ms/step - loss: 1.6789".replace("3s", "━━━━ 3s"), 17, None, None),
        ("123it [00:10, 12.30it/s]", 123, None, None),
        ("train: 40 batches [01:02:10,  1.30s/batches, loss=2.1]", 40, None, None),
        ("[2024-04-24 11:01:02,345] [INFO] [log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05]", 10, None, None),
        ("steps: 30 loss: 2.3012 iter time (s): 0.512 samples/sec: 15.6", 30, None, None),
        (" iteration       20/     500 | consumed samples:          160 | lm loss: 1.08E+01 |", 20, 500, None),
        (" [2024-05-01 10:11:12] iteration       20/     500 | lm loss: 1.0E+01 |", 20, 500, None),
        ("Steps: 100/1000 loss: 0.1", 100, 1000, None),
        ("[2024-05-01 10:00:00,000 INFO] Step 50/100000; acc: 2.1; ppl: 3000.0; 3000/3000 tok/s", 50, 100000, None),
        ("[2024-05-01 10:00:00] Ep. 1 : Up. 1000 : Sen. 64,000 : Cost 5.20000000 * 1,000", 1000, None, 1),
        ("[Epoch 3/200] [Batch 5/938] [D loss: 0.500000] [G loss: 1.200000]", 5, 938, 2),
        ("epoch [3/50], step [100/600], loss: 0.2345", 100, 600, 2),
        ("[RANK0] Epoch 1 | Iter 100 | Train Loss 3.20000", 100, None, 1),
        ("(epoch: 3, iters: 100, time: 0.100, data: 0.100) G_GAN: 0.5 D_real: 0.3", 100, None, 3),
        ("| epoch 001:    100 / 3000 loss=12.1, nll_loss=11.9, wps=3000, num_updates=100", 100, 3000, 0),
        ('2024-05-01 | INFO | train_inner | {"epoch": 1, "loss": "12.1", "num_updates": "100"}', 100, None, None),
        ("[12]\ttrain-logloss:0.43\teval-logloss:0.5", 12, None, None),
        ("[10]\ttraining's l2: 0.2\tvalid_0's l2: 0.21", 10, None, None),
        ("[LightGBM] [Info] Iteration:7, training binary_logloss : 0.66", 7, None, None),
        ("0:\tlearn: 0.68\ttest: 0.69\tbest: 0.69 (0)\ttotal: 52ms\tremaining: 52s", 0, None, None),
        ("7: 2.302585, 2.302585 avg, 0.100000 rate, 0.5 seconds, 448 images", 7, None, None),
    ],
)  # fmt: skip
def test_lines_of_other_frameworks_are_read(line: str, batch: int, batches: int | None, epoch: int | None) -> None:
    seen = read(line)
    assert (seen.batch, seen.batches, seen.epoch) == (batch, batches, epoch)
    assert seen.place == (batch if epoch is None else epoch * (batches or 0) + batch)


@pytest.mark.parametrize(
    ("line", "batch", "batches", "epoch", "loss"),
    [
        ("Iter:    11 | Cost: 0.5800000", 11, None, None, 0.58),
        ("Iter:     1 | Cost: 1.4490948 | Acc train: 0.5000000", 1, None, None, 1.4490948),
        ("   Iter: 11 | Cost: 0.58", 11, None, None, 0.58),
        ("Cost after step     5: -0.9999999", 5, None, None, -0.9999999),
        ("Cost after iteration 100: 0.6931", 100, None, None, 0.6931),
        ("loss at step 20/400 = 3.1", 20, 400, None, 3.1),
        ("INFO:tensorflow:loss = 0.063111134, step = 321 (0.625 sec)", 321, None, None, 0.063111134),
        ("I0101 12:00:00.1 140 session_run_hooks.py:260] loss = 1.2, step = 100", 100, None, None, 1.2),
        ("loss: 0.5, iteration: 10", 10, None, None, 0.5),
        ("It: 4 | loss: 3.5", 4, None, None, 3.5),
        ("it: 300, Loss: 1.2e-03", 300, None, None, 0.0012),
        ("[Iter 11] cost = 0.5", 11, None, None, 0.5),
        ("Iter: [11/200] loss: 0.3", 11, 200, None, 0.3),
        ("Iter[11/200], loss: 0.3", 11, 200, None, 0.3),
        ("    step 12/90, train_loss=0.25", 12, 90, None, 0.25),
        ("\titers: 100, epoch: 2 | loss: 0.3412345", 100, None, 1, 0.3412345),
    ],
)  # fmt: skip
def test_a_count_with_a_cost_or_a_loss_is_read(
    line: str, batch: int, batches: int | None, epoch: int | None, loss: float
) -> None:
    """PennyLane's tutorials, loops of courses, TensorFlow's hooks, and libraries for time series."""
    seen = read(line)
    assert (seen.batch, seen.batches, seen.epoch, seen.loss, seen.place) == (batch, batches, epoch, loss, batch)


def test_a_cost_that_is_no_number_is_named() -> None:
    assert read("Iter: 11 | Cost: nan").not_finite == ("Cost",)
    assert read("Cost after step 5: nan").not_finite == ("cost",)
    assert read("INFO:tensorflow:loss = nan, step = 5 (0.6 sec)").not_finite == ("loss",)


@pytest.mark.parametrize(
    "line",
    [
        "Progress:  12.5% words/sec/thread:  123456 lr:  0.044012 avg.loss:  1.234567 ETA:   0h 0m 3s",
        "Alpha: 0.024  Progress: 12.5%  Words/thread/sec: 100.20k",
        "Progress:  12.5%|█████                  |  ETA: 0:00:10",
    ],
)
def test_a_printed_part_of_the_whole_is_a_place(line: str) -> None:
    assert read(line).place == 125_000


@pytest.mark.parametrize(
    "line",
    [
        "| epoch | batches |",
        "[Rank 0] rank=0 time (ms) | fwd_microstep: 10.0",
        "downloading 12/313 files [fast]",
        "12 items [00:10, done]",
        "epoch 3: the best so far, patience 10",
        "saved epoch 3 to step_100.pt",
        "Epoch 3, itself 4",
        "[12] pages",
        "12: 2.8902, 3.1",
        "Progress: 12 of 40",
        "  steps: 1000, lr: 0.1",
        "    iters: 100 | loss: mse",
        "  steps: 10, loss: l1_loss",
        "[step 3] downloading weights",
        "It: 4 pages are left",
        "it 4: loss 3",
        "it: 12 files, 3 of them lost",
        "Cost after tax: 5",
        "loss at step: 3",
        "Loss after epoch 5: 0.3",
        "INFO:tensorflow:Saving dict for global step 300: average_loss = 0.1, global_step = 300, loss = 0.2",
        "loss = mse, step = 100",
        "Energy: -1.13",
        "  iters: 100, epochs: 10 each",
    ],
)
def test_lines_that_look_alike_are_no_progress(line: str) -> None:
    assert progress_in(line) is None


def test_a_loss_may_have_an_emoji_in_its_name() -> None:
    """In front of the name it is left out; a NaN is seen wherever it is."""
    bar = "Epoch 3: 100%|██████| 10/10 [00:01<00:00,  9.50it/s, "
    seen = read(f"{bar}🔥loss=0.500, box_loss❤️=0.25, 💥=7]")
    assert dict(seen.losses) == {"loss": 0.5, "box_loss❤️": 0.25}
    assert read(f"{bar}🔥loss=0.500, loss👩‍🔬=nan]").not_finite == ("loss👩‍🔬",)
    assert read("10/100 ━━━━━━━━ 0s 2ms/step - loss🔥: nan").not_finite == ("loss🔥",)


@pytest.mark.alone(reason="compares processor time with a limit")
@pytest.mark.parametrize("piece", ["1", "x", "a_", "a🔥"])
def test_a_line_of_one_kind_takes_no_longer_than_another(piece: str) -> None:
    """A search holds every other thread of the daemon up: one such line took as long as hundreds of lines."""
    line = "50%|#####     | 5/10 [00:01<00:01, " + piece * (3900 // len(piece))
    began_s = time.process_time()
    for _ in range(5):
        assert progress([line]) is not None
    assert time.process_time() - began_s < 0.15
