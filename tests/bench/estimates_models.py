"""The trainings that `estimates.py` estimates: thirteen networks, each a plain loop over random samples.

    python estimates_models.py NAME BATCH PRECISION STEPS

Needs torch and, by the network, torchvision, timm, transformers or ultralytics. Nothing is downloaded.
"""

import sys

import torch
from torch.nn import functional

CLASSES = 1000
SEQUENCE = 512
MOST_TARGETS, TAIL_MOST = 30, 93


def build(name):
    """Return a network, a function from a batch size to a batch, and one from network and batch to a loss.

    A name that ends in `:last` is a network's whose weights have their channels last. One that ends in `:varied` is
    that of pictures with 1 to 30 targets, each drawn by itself as a detection set gives it; of `:tailed` half have at
    most five targets and few many, up to 93, as in COCO.
    """
    package, kind, *layout = name.split(":")
    found = {"tv": of_torchvision, "timm": of_timm, "hf": of_transformers, "yolo": of_ultralytics}[package](kind)
    if layout == ["last"]:
        found[0].to(memory_format=torch.channels_last)
    if layout in (["varied"], ["tailed"]):
        torch.seed()
        data = Pictures(layout == ["tailed"])
        return found[0], lambda count: join_pictures([data[number] for number in range(count)]), found[2]
    return found


def images(side):
    return lambda count: (torch.rand(count, 3, side, side), torch.randint(0, CLASSES, (count,)))


def classify(network, batch):
    result = network(batch[0])
    return functional.cross_entropy(getattr(result, "logits", result), batch[1])


def of_torchvision(kind):
    import torchvision

    if kind.startswith("deeplab"):
        network = torchvision.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None, num_classes=21
        )
        return (
            network,
            lambda count: (torch.rand(count, 3, 320, 320), torch.randint(0, 21, (count, 320, 320))),
            lambda network, batch: functional.cross_entropy(network(batch[0])["out"], batch[1]),
        )
    return getattr(torchvision.models, kind)(weights=None), images(224), classify


def of_timm(kind):
    import timm

    return timm.create_model(kind, pretrained=False), images(224), classify


def of_transformers(kind):
    import transformers

    sizes = {"vocab_size": 50257}
    if kind == "gpt2":
        network = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    elif kind == "bert":
        network = transformers.BertForMaskedLM(transformers.BertConfig())
        sizes = {"vocab_size": 30522}
    elif kind == "t5":
        network = transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0))
        sizes = {"vocab_size": 32128}
    else:
        network = transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(
                vocab_size=151936, hidden_size=1024, intermediate_size=3072,
                num_hidden_layers=28 if kind == "qwen3_06b" else 12,
                num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
            )
        )  # fmt: skip
        sizes = {"vocab_size": 151936}

    def batch(count):
        ids = torch.randint(0, sizes["vocab_size"], (count, SEQUENCE))
        return ids, ids.clone()

    return network, batch, lambda network, batch: network(input_ids=batch[0], labels=batch[1]).loss


def of_ultralytics(kind):
    from ultralytics import YOLO
    from ultralytics.cfg import get_cfg

    network = YOLO(kind + ".yaml").model
    network.args = get_cfg()
    boxes = 8

    def batch(count):
        return {
            "img": torch.rand(count, 3, 640, 640),
            "cls": torch.zeros(count * boxes, 1),
            "bboxes": torch.full((count * boxes, 4), 0.3),
            "batch_idx": torch.arange(count).repeat_interleave(boxes).float(),
        }

    return network, batch, lambda network, batch: network(batch)[0].sum()


def draw_picture(targets):
    """Return a picture with so many targets."""
    return {
        "img": torch.rand(3, 640, 640),
        "cls": torch.zeros(targets, 1),
        "bboxes": torch.rand(targets, 4) * 0.3 + 0.2,
        "batch_idx": torch.zeros(targets),
    }


def join_pictures(drawn):
    """Return a batch; a picture's targets have its number in the batch, written where they lie, as ultralytics does."""
    for number, picture in enumerate(drawn):
        picture["batch_idx"] += number
    joined = {key: torch.cat([picture[key] for picture in drawn]) for key in ("cls", "bboxes", "batch_idx")}
    return {"img": torch.stack([picture["img"] for picture in drawn]), **joined}


NAMES = (
    "tv:resnet50", "tv:mobilenet_v3_large", "tv:convnext_tiny", "tv:deeplab", "timm:vit_base_patch16_224",
    "timm:efficientnet_b0", "timm:swin_tiny_patch4_window7_224", "hf:gpt2", "hf:bert", "hf:t5", "hf:qwen3",
    "hf:qwen3_06b",
    "yolo:yolov8n",
)  # fmt: skip


class Batches(torch.utils.data.Dataset):
    """Random samples: the collating function makes the batch."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return index


class Pictures(Batches):
    """Pictures of a detection set."""

    def __init__(self, is_tailed):
        self._is_tailed = is_tailed

    def __getitem__(self, index):
        if self._is_tailed:
            return draw_picture(min(TAIL_MOST, 1 + int(4.5 * torch.randn(()).mul(0.85).exp())))
        return draw_picture(int(torch.randint(1, MOST_TARGETS + 1, ())))


def load(name, count, batch):
    """Return the loader of a network's batches."""
    if name.endswith((":varied", ":tailed")):
        return torch.utils.data.DataLoader(
            Pictures(name.endswith(":tailed")), batch_size=count, collate_fn=join_pictures
        )
    return torch.utils.data.DataLoader(Batches(), batch_size=count, collate_fn=lambda chosen: batch(len(chosen)))


def move(drawn, device):
    if isinstance(drawn, dict):
        return {key: value.to(device) for key, value in drawn.items()}
    return [value.to(device) for value in drawn]


def train(name, count, precision, steps, each=lambda number: None):
    """Train a network for some steps as its owner would: AdamW, autocast unless in float32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network, batch, loss_of = build(name)
    for parameter in network.parameters():
        parameter.requires_grad_()
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    for number, drawn in enumerate(load(name, count, batch)):
        if number == steps:
            break
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(network, move(drawn, device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        each(number)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
