"""Networks of smaller packages for networks.py, randomly initialised; it runs none of them and downloads nothing.

Packages: segmentation_models_pytorch, kornia, monai, open_clip_torch, efficientnet_pytorch, pytorchcv. A network is
called as its package is named, with how to build it after the colon.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

Sizes = tuple[int, ...]
SEGMENTED = (
    "Unet",
    "UnetPlusPlus",
    "FPN",
    "Linknet",
    "PSPNet",
    "PAN",
    "MAnet",
    "DeepLabV3Plus",
    "UPerNet",
    "Segformer",
)
PYTORCHCV = (
    *("shufflenetv2_wd2", "mobilenetv3_small_w7d20", "resnext14_16x4d", "sepreresnet10", "igcv3_wd4", "peleenet"),
    *(
        "diracnet18v2",
        "octresnet10_ad2",
        "menet108_8x1_g3",
        "fdmobilenet_wd4",
        "condensenet74_c4_g4",
        "squeezeresnet_v1_1",
    ),
    *(
        "darknet_tiny",
        "hardnet39ds",
        "ghostnet",
        "dla34",
        "hrnet_w18_small_v1",
        "resnesta18",
        "icnet_resnetd50b_cityscapes",
    ),
)
KORNIA = {"HardNet": (1, (32,)), "HyNet": (1, (32,)), "SOSNet": (1, (32,)), "TFeat": (1, (32,))}
"""Channels and sizes of images."""
MONAI: dict[str, dict[str, Any]] = {
    "UNet": {"in_channels": 3, "out_channels": 2, "channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 2},
    "AttentionUnet": {"in_channels": 3, "out_channels": 2, "channels": (8, 16, 32), "strides": (2, 2)},
    "BasicUNet": {"in_channels": 3, "out_channels": 2, "features": (8, 8, 16, 32, 32, 8)},
    "SegResNet": {"in_channels": 3, "out_channels": 2, "init_filters": 8},
    "VNet": {"in_channels": 1, "out_channels": 2},
    "HighResNet": {"in_channels": 3, "out_channels": 2},
    "DenseNet121": {"in_channels": 3, "out_channels": 4, "init_features": 16, "growth_rate": 8},
    "DynUNet": {
        "in_channels": 3,
        "out_channels": 2,
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [8, 16, 32],
    },
}
"""Built in two dimensions and in three."""


def names() -> list[str]:
    """Return the networks' names; raise ImportError where a package is missing."""
    for package in ("segmentation_models_pytorch", "kornia", "monai", "open_clip", "efficientnet_pytorch", "pytorchcv"):
        importlib.import_module(package)
    return [
        *(f"smp:{name}" for name in SEGMENTED),
        *(f"kornia:{name}" for name in KORNIA),
        *(f"monai:{name}-{dimensions}d" for name in MONAI for dimensions in (2, 3)),
        "open_clip:ModifiedResNet",
        *(f"efficientnet_pytorch:efficientnet-{scale}" for scale in ("b0", "b1")),
        *(f"pytorchcv:{name}" for name in PYTORCHCV),
    ]


def build(name: str) -> tuple[torch.nn.Module, Callable[[int], Any], Sizes]:
    """Return the network, what to call it with for images of so many pixels, and the sizes to try."""
    package, _, made = name.partition(":")
    return {
        "smp": _segmenting,
        "kornia": _kornia,
        "monai": _monai,
        "open_clip": _open_clip,
        "efficientnet_pytorch": _efficientnet,
        "pytorchcv": _pytorchcv,
    }[package](made)


def _images(*channels_and_dimensions: int) -> Callable[[int], Any]:
    channels, dimensions = channels_and_dimensions

    def given(size: int) -> Any:
        generator = torch.Generator().manual_seed(1)
        return (torch.rand(2, channels, *(size,) * dimensions, generator=generator),), {}

    return given


def _segmenting(made: str) -> tuple[Any, Callable[[int], Any], Sizes]:
    package = importlib.import_module("segmentation_models_pytorch")
    encoder = "mobilenet_v2" if made in {"DeepLabV3Plus", "MAnet"} else "resnet18"
    return getattr(package, made)(encoder, encoder_weights=None, classes=3), _images(3, 2), (64, 128, 224)


def _kornia(made: str) -> tuple[Any, Callable[[int], Any], Sizes]:
    channels, sizes = KORNIA[made]
    net = getattr(importlib.import_module("kornia.feature"), made)(pretrained=False)
    return net, _images(channels, 2), sizes


def _monai(made: str) -> tuple[Any, Callable[[int], Any], Sizes]:
    kind, _, dimensions = made.partition("-")
    count = int(dimensions[0])
    net = getattr(importlib.import_module("monai.networks.nets"), kind)(spatial_dims=count, **MONAI[kind])
    return net, _images(MONAI[kind]["in_channels"], count), (32, 64)


def _open_clip(made: str) -> tuple[Any, Callable[[int], Any], Sizes]:
    kind = getattr(importlib.import_module("open_clip.modified_resnet"), made)
    return kind(layers=(1, 1, 1, 1), output_dim=64, heads=4, image_size=64, width=16), _images(3, 2), (64,)


def _efficientnet(made: str) -> tuple[Any, Callable[[int], Any], Sizes]:
    net = importlib.import_module("efficientnet_pytorch").EfficientNet.from_name(made, num_classes=10)
    return net, _images(3, 2), (64, 224)


def _pytorchcv(made: str) -> tuple[Any, Callable[[int], Any], Sizes]:
    net = importlib.import_module("pytorchcv.model_provider").get_model(made, pretrained=False)
    return net, _images(3, 2), (64, 224, 480)
