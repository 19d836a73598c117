# mypy: ignore-errors
"""Draws the small data sets that the rows of rows.toml train on; run by the training's interpreter.

Nothing is downloaded: images are noise with a pattern for each class, text is drawn from a small vocabulary. A script
that loads a data set or a model by name finds a folder of that name in its working folder.
"""

import csv
import json
import random
import sys
from pathlib import Path

import numpy as np

WORDS = ["the", "card", "was", "hot", "and", "its", "fan", "stood", "still", "while", "we", "slept", "through", "noise"]
CLASSES = 10


def draw_image(shade, side, rng):
    """Return an image whose brightest corner tells its class."""
    image = rng.integers(0, 90, (side, side), dtype=np.uint8)
    row, column = divmod(shade % CLASSES, 4)
    patch = side // 4
    image[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] += 150
    return image


def write_idx(path, array):
    """Write an array as MNIST's files are."""
    dims = b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    path.write_bytes(bytes((0, 0, 8, array.ndim)) + dims + array.tobytes())


def mnist(folder, train=6000, test=1000):
    """MNIST's four files, as torchvision looks for them."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for name, count in (("train", train), ("t10k", test)):
        labels = rng.integers(0, CLASSES, count, dtype=np.uint8)
        write_idx(raw / (name + "-images-idx3-ubyte"), np.stack([draw_image(int(k), 28, rng) for k in labels]))
        write_idx(raw / (name + "-labels-idx1-ubyte"), labels)


def sine_waves(folder):
    """Sine waves with a phase of their own each, as an array in one file of torch."""
    import torch

    rng = np.random.default_rng(3)
    places = np.arange(40) + rng.integers(-80, 80, (8, 1))
    torch.save(np.sin(places / 20.0), folder / "traindata.pt")


def mnist_lightning(folder):
    """MNIST with as many images as a script that splits it by count expects."""
    mnist(folder, train=60000)


def mnist_table(folder):
    """MNIST as the library `datasets` reads a folder of parquet files, images as plain rows of numbers."""
    import pandas

    rng = np.random.default_rng(2)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 2000), ("test", 500)):
        labels = rng.integers(0, CLASSES, count)
        images = [draw_image(int(k), 28, rng).tolist() for k in labels]
        pandas.DataFrame({"image": images, "label": labels}).to_parquet(folder / (split + ".parquet"))


def image_folder(folder, train=320, test=64, side=64, classes=5):
    """A folder of images for each class, in train/ and val/."""
    from PIL import Image

    rng = np.random.default_rng(3)
    for split, count in (("train", train), ("val", test)):
        for index in range(count):
            place = folder / split / ("class%d" % (index % classes))
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw_image(index % classes, side, rng)).convert("RGB").save(place / ("%d.png" % index))


def yolo_data(folder, kind, train=48, test=8):
    """Images with labels as YOLO has them, and the YAML that names them."""
    from PIL import Image

    rng = np.random.default_rng(4)
    tails = {"detect": "", "pose": " 0.4 0.4 2 0.6 0.6 2", "segment": None}
    for split, count in (("train", train), ("val", test)):
        (folder / "images" / split).mkdir(parents=True, exist_ok=True)
        (folder / "labels" / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            Image.fromarray(draw_image(5, 64, rng)).convert("RGB").save(folder / "images" / split / ("%d.jpg" % index))
            box = "%d 0.5 0.5 0.4 0.4" % (index % 2 if kind != "pose" else 0)
            label = "%d 0.3 0.3 0.7 0.3 0.7 0.7 0.3 0.7" % (index % 2) if kind == "segment" else box + tails[kind]
            (folder / "labels" / split / ("%d.txt" % index)).write_text(label + "\n")
    names = "names: {0: person}\nkpt_shape: [2, 3]\n" if kind == "pose" else "nc: 2\nnames: {0: warm, 1: hot}\n"
    (folder / "data.yaml").write_text("path: %s\ntrain: images/train\nval: images/val\n%s" % (folder, names))


def yolo_detect(folder):
    """Boxes."""
    yolo_data(folder, "detect")


def yolo_segment(folder):
    """Outlines."""
    yolo_data(folder, "segment")


def yolo_pose(folder):
    """Boxes with two points each."""
    yolo_data(folder, "pose")


def mnist_gzip(folder):
    """MNIST's four files compressed, as they are downloaded."""
    import gzip

    mnist_lightning(folder)
    for path in (folder / "MNIST" / "raw").iterdir():
        (folder / (path.name + ".gz")).write_bytes(gzip.compress(path.read_bytes(), 1))


def photographs(folder, count=40, side=96):
    """Pictures to train and test with, in a folder each."""
    from PIL import Image

    rng = np.random.default_rng(5)
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            image = np.stack([draw_image(index, side, rng)] * 3, axis=-1)
            Image.fromarray(image).save(folder / split / ("%03d.jpg" % index))


def masked_images(folder, count=60, side=64):
    """Pictures with a mask for each, black and white: imgs and masks."""
    from PIL import Image

    rng = np.random.default_rng(4)
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        image = np.stack([draw_image(index, side, rng)] * 3, axis=-1)
        Image.fromarray(image).save(folder / "imgs" / ("%03d.png" % index))
        Image.fromarray(((image[..., 0] > 120) * 255).astype(np.uint8)).save(folder / "masks" / ("%03d.png" % index))


def two_looks(folder, count=8, side=32):
    """Pictures of two looks that are translated into each other, in A and B of train and test each."""
    from PIL import Image

    rng = np.random.default_rng(5)
    for split, pictures in (("train", count), ("test", 5)):
        for shade, look in enumerate("AB"):
            place = folder / split / look
            place.mkdir(parents=True, exist_ok=True)
            for index in range(pictures):
                image = np.stack([draw_image(shade + channel, side, rng) for channel in range(3)], axis=-1)
                Image.fromarray(image).save(place / ("%03d.png" % index))


def font(path):
    """A font where a script would download one."""
    import shutil

    from matplotlib import font_manager

    shutil.copy(font_manager.findfont("DejaVu Sans"), path)


def draw_text(words, rng):
    """Return lines of random words."""
    lines, line = [], []
    for _ in range(words):
        line.append(rng.choice(WORDS))
        if len(line) == 12:
            lines.append(" ".join(line))
            line = []
    return "\n".join(lines) + "\n"


def text(folder, words=60000):
    """train.txt, valid.txt, test.txt; and all of it as the text file that Lightning's demonstration reads."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(5)
    for name, share in (("train", 1.0), ("valid", 0.1), ("test", 0.1)):
        (folder / (name + ".txt")).write_text(draw_text(int(words * share), rng))


def long_text(folder):
    """More words than Lightning's example holds back to validate and test with."""
    text(folder, words=250000)
    (folder / "train.txt").rename(folder / "wikitext-2.txt")


def characters(folder):
    """Numbers of characters, as nanoGPT reads them."""
    import pickle

    folder.mkdir(parents=True, exist_ok=True)
    content = draw_text(40000, random.Random(6))
    letters = sorted(set(content))
    numbers = {letter: index for index, letter in enumerate(letters)}
    coded = np.array([numbers[letter] for letter in content], dtype=np.uint16)
    coded[: len(coded) * 9 // 10].tofile(folder / "train.bin")
    coded[len(coded) * 9 // 10 :].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": numbers}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def tiny_bert(folder):
    """A BERT of two layers with the tokenizer of our few words, as a name that a script loads."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    numbers = {word: index for index, word in enumerate(special + sorted(set(WORDS)))}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=128,
    )  # fmt: skip
    fast.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(numbers), hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256,
        max_position_embeddings=128, num_labels=2,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)


def tiny_gpt(folder):
    """A GPT-2 of two layers with the tokenizer of our few words."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    tiny_bert(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, eos_token="[SEP]", bos_token="[CLS]")
    tokenizer.save_pretrained(folder)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=64, n_layer=2, n_head=2, n_positions=128, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)


def tiny_llama(folder):
    """A Llama of two layers with the tokenizer of our few words."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tiny_gpt(folder)
    config = LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(folder)), hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def tiny_vit(folder):
    """A vision transformer of two layers with its image processor."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, image_size=64, patch_size=16,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained(folder)


def tiny_unet(folder):
    """The configuration of a UNet of diffusers for images of 16 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "_class_name": "UNet2DModel", "sample_size": 16, "in_channels": 3, "out_channels": 3, "layers_per_block": 1,
        "block_out_channels": [16, 32], "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"], "norm_num_groups": 8, "attention_head_dim": 8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def sentences(folder, count=2000):
    """Lines of text, as the library `datasets` reads a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(8)
    lines = [json.dumps({"text": " ".join(rng.choice(WORDS) for _ in range(30))}) for _ in range(count)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")


def wikitext(folder, count=4000):
    """Lines of text, as the library `datasets` reads them by the name of the folder and of the settings."""
    sentences(folder, count)
    named = json.dumps([{"config_name": "wikitext-2-v1", "data_files": "train.jsonl"}])
    (folder / "README.md").write_text("---\nconfigs: %s\n---\n" % named)


def instructions(folder, count=2000):
    """Instructions with their answers, as the library `datasets` reads a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(9)
    draw = lambda: " ".join(rng.choice(WORDS) for _ in range(8))  # noqa: E731
    lines = [json.dumps({"instruction": draw(), "output": draw()}) for _ in range(count)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")


def questions(folder, train=60000, test=300):
    """Questions of a few kinds, as the library `datasets` reads them by the name of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(10)
    for split, count in (("train", train), ("test", test)):
        with (folder / (split + ".jsonl")).open("w") as file:
            for index in range(count):
                kind = index % 6
                text = " ".join([WORDS[kind], *(rng.choice(WORDS) for _ in range(8))])
                file.write(json.dumps({"text": text, "coarse_label": kind // 2, "fine_label": kind}) + "\n")


def sentence_pairs(folder, train=4000, test=200):
    """Pairs of sentences with a label, as the library `datasets` reads them by the name of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    for split, count in (("train", train), ("validation", test)):
        with (folder / (split + ".csv")).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["sentence1", "sentence2", "label", "idx"])
            for index in range(count):
                first = [rng.choice(WORDS) for _ in range(10)]
                label = index % 2
                second = list(first) if label else [rng.choice(WORDS) for _ in range(10)]
                table.writerow([" ".join(first), " ".join(second), label, index])
    files = {"train": "train.csv", "validation": "validation.csv"}
    named = [{"split": split, "path": path} for split, path in files.items()]
    configs = json.dumps([{"config_name": "mrpc", "data_files": named}])
    (folder / "README.md").write_text("---\nconfigs: %s\n---\n" % configs)


def preferences(folder, train=2000, test=100):
    """Beginnings with a better and a worse end each, as a data set of TRL."""
    rng = random.Random(14)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("test", test)):
        rows = [[draw_text(length, rng) for length in (6, 8, 8)] for _ in range(count)]
        lines = [json.dumps({"prompt": text, "chosen": better, "rejected": worse}) for text, better, worse in rows]
        (folder / (split + ".jsonl")).write_text("\n".join(lines) + "\n")


def molecules(folder, count=188):
    """Rings of nodes as MUTAG is unpacked, whose class is how far apart the joined ones are."""
    rng = np.random.default_rng(15)
    raw = folder / "MUTAG" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rows = {name: [] for name in ("A", "graph_indicator", "graph_labels", "node_labels", "edge_labels")}
    first = 1
    for graph in range(1, count + 1):
        kind, size = int(rng.integers(0, 2)), int(rng.integers(10, 25))
        for node in range(size):
            other = first + (node + 1 + kind) % size
            rows["A"] += ["%d, %d" % (first + node, other), "%d, %d" % (other, first + node)]
            rows["edge_labels"] += [int(rng.integers(0, 4))] * 2
            rows["node_labels"].append((node + kind) % 7)
        rows["graph_indicator"] += [graph] * size
        rows["graph_labels"].append(2 * kind - 1)
        first += size
    for name, lines in rows.items():
        (raw / ("MUTAG_%s.txt" % name)).write_text("\n".join(map(str, lines)) + "\n")


def accuracy_metric(folder):
    """A metric `glue` for the library `evaluate`, which looks for a folder of that name first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (folder.name + ".py")).write_text(
        "import datasets\n"
        "import evaluate\n"
        "class Accuracy(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        features = {name: datasets.Value('int64') for name in ('predictions', 'references')}\n"
        "        return evaluate.MetricInfo(description='share of right answers', citation='',\n"
        "                                   features=datasets.Features(features))\n"
        "    def _compute(self, predictions, references):\n"
        "        right = sum(int(a == b) for a, b in zip(predictions, references))\n"
        "        return {'accuracy': right / max(1, len(references))}\n"
    )


KINDS = {
    kind.__name__: kind
    for kind in (
        mnist, mnist_lightning, mnist_table, image_folder, yolo_detect, yolo_segment, yolo_pose, font, text, long_text,
        characters, tiny_bert, tiny_gpt, tiny_llama, tiny_vit, tiny_unet, sentences, instructions, questions,
        sentence_pairs, accuracy_metric, sine_waves, masked_images, wikitext,
        photographs, mnist_gzip, preferences, molecules, two_looks,
    )
}  # fmt: skip

if __name__ == "__main__":
    KINDS[sys.argv[1]](Path(sys.argv[2]))
