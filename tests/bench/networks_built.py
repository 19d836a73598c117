"""Builds other people's networks, randomly initialised, by name and source; it runs none of them and downloads nothing.

Sources: every network of torchvision (quantized ones run on no float Conv2d and are left out), some of each family of
timm, every configuration of ultralytics, models of diffusers and the vision models of transformers from configurations,
and what networks_packages.py has.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks_packages
import torch

Made = tuple[Any, Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]], tuple[int, ...]]
"""The network, what to call it with for images of so many pixels, and the sizes to try, the smallest first."""

SIZES = (64, 96, 128, 224, 256, 299)
SMALL = (
    *("test_", "atto", "femto", "pico", "nano", "xxs", "xxt", "tiny", "mini", "micro", "xs", "xt", "small"),
    *("s0", "t0", "m0", "b0", "_s", "_t", "18", "26", "050", "035"),
)
TASKS = (
    "IMAGE_CLASSIFICATION",
    "IMAGE_TO_IMAGE",
    "IMAGE_MATTING",
    "SEMANTIC_SEGMENTATION",
    "DEPTH_ESTIMATION",
    "MASKED_IMAGE_MODELING",
    "OBJECT_DETECTION",
    "UNIVERSAL_SEGMENTATION",
    "INSTANCE_SEGMENTATION",
    "KEYPOINT_DETECTION",
    "VIDEO_CLASSIFICATION",
    "BACKBONE",
)


def names(source: str, families: int = 2) -> list[str]:
    """Return the names of the source's networks; `families` of each of timm's."""
    return {
        "torchvision": _torchvision_names,
        "timm": lambda: _timm_names(families),
        "ultralytics": _ultralytics_names,
        "diffusers": _diffusers_names,
        "transformers": _transformers_names,
        "packages": networks_packages.names,
    }[source]()


def build(source: str, name: str) -> Made:
    """Return the network of that name; whatever its own package raises goes through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "torchvision": _torchvision,
            "timm": _timm,
            "ultralytics": _ultralytics,
            "diffusers": _diffusers,
            "transformers": _transformers,
            "packages": networks_packages.build,
        }[source](name)


def family(source: str, name: str) -> str:
    """Return what the table counts the network under."""
    if source in {"transformers", "packages"}:
        return name.partition(":")[0]
    return re.split(r"[-_/.\d]", name.rpartition("/")[2])[0]


def image(size: int, *more: int) -> torch.Tensor:
    """Return two images, the same each time; `more` are dimensions before height and width."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(2, 3, *more, size, size, generator=generator)


def _images(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (image(size),), {}


# --- torchvision ------------------------------------------------------------------------------------------------------


def _torchvision_names() -> list[str]:
    from torchvision import models  # type: ignore[import-not-found] # noqa: PLC0415 - one source a process

    return [name for name in models.list_models() if not name.startswith("quantized_")]


def _torchvision(name: str) -> Made:
    from torchvision import models  # noqa: PLC0415

    options: dict[str, Any] = {"weights": None}
    builder = models.get_model_builder(name)
    if "weights_backbone" in __import__("inspect").signature(builder).parameters:
        options["weights_backbone"] = None
    if name in {"googlenet", "inception_v3"}:
        options["init_weights"] = True
    net = builder(**options)
    module = builder.__module__
    if ".video" in module:
        return net, lambda size: ((image(size, 16),), {}), (112, 224)
    if ".optical_flow" in module:
        return net, lambda size: ((image(size), image(size).flip(3)), {"num_flow_updates": 2}), (128,)
    if ".detection" in module:
        return net, _detected, (128, 320)
    return net, _images, SIZES


def _detected(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    boxes, both = torch.tensor([[5.0, 8.0, size * 0.6, size * 0.7]]), list(image(size))
    keypoints = torch.tensor([[[size * 0.3, size * 0.4, 1.0]] * 17])
    masks = torch.zeros(1, size, size, dtype=torch.uint8)
    masks[:, 8:20, 5:20] = 1
    target = {"boxes": boxes, "labels": torch.tensor([1]), "masks": masks, "keypoints": keypoints}
    return (both, [dict(target) for _ in both]), {}


# --- timm -------------------------------------------------------------------------------------------------------------


def _timm_names(families: int) -> list[str]:
    import timm  # type: ignore[import-not-found] # noqa: PLC0415

    found = []
    for module in timm.list_modules():
        every = timm.list_models(module=module)
        by_size = sorted(every, key=lambda name: (not any(tag in name for tag in SMALL), len(name), name))
        found += by_size[:families]
    return found


def _timm(name: str) -> Made:
    import timm  # noqa: PLC0415

    net = timm.create_model(name, pretrained=False, num_classes=10)
    fixed = net.default_cfg.get("fixed_input_size", False)
    default = net.default_cfg.get("input_size", (3, 224, 224))[-1]
    channels = net.default_cfg.get("input_size", (3, 224, 224))[0]
    sizes = (default,) if fixed else (*(size for size in SIZES if size < default), default)
    return net, lambda size: ((image(size)[:, :channels],), {}), sizes


# --- ultralytics ------------------------------------------------------------------------------------------------------


def _ultralytics_names() -> list[str]:
    import ultralytics  # noqa: PLC0415

    folder = Path(ultralytics.__file__).parent / "cfg" / "models"
    return [str(path.relative_to(folder)) for path in sorted(folder.glob("**/*.yaml"))]


def _ultralytics(name: str) -> Made:
    os.environ.setdefault("YOLO_OFFLINE", "true")
    import ultralytics  # noqa: PLC0415

    file = name.rpartition("/")[2]
    made = ultralytics.RTDETR if "rtdetr" in file else ultralytics.YOLO
    with contextlib.suppress(AttributeError):
        if "yoloe" in file:
            made = ultralytics.YOLOE
        elif "world" in file:
            made = ultralytics.YOLOWorld
    return made(file).model, _images, (64, 128, 256)


# --- diffusers --------------------------------------------------------------------------------------------------------

_BLOCKS = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
_CODER = {
    **_BLOCKS,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "latent_channels": 4,
}
_CROSS = {
    **_BLOCKS,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
}
_TOKENS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}


def _noised(size: int, channels: int = 4, frames: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(2, channels, *frames, size, size, generator=generator), torch.tensor([3, 7])


def _words(width: int = 32) -> torch.Tensor:
    return torch.randn(2, 6, width, generator=torch.Generator().manual_seed(3))


def _reported(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return _noised(size), {"encoder_hidden_states": _words()}


def _labelled(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, when = _noised(size)
    return (x,), {"timestep": when, "class_labels": torch.tensor([1, 2])}


def _controlled(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (*_noised(size), _words(), image(8 * size)), {}


def _patched(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x, when = _noised(size)
    return (x,), {"encoder_hidden_states": _words(), "timestep": when}


def _video(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (*_noised(size, frames=(4,)), _words()), {}


def _frames(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (image(size, 5),), {}


DIFFUSERS: dict[str, tuple[str, dict[str, Any], Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "unet": (
        "UNet2DModel",
        {
            **_BLOCKS,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda size: (_noised(size), {}),
    ),
    "unet-resnet-samplers": (
        "UNet2DModel",
        {
            **_BLOCKS,
            "in_channels": 4,
            "out_channels": 4,
            "down_block_types": ("ResnetDownsampleBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "ResnetUpsampleBlock2D"),
            "downsample_type": "resnet",
            "upsample_type": "resnet",
        },
        lambda size: (_noised(size), {}),
    ),
    "unet-conditioned": (
        "UNet2DConditionModel",
        {**_CROSS, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
        _reported,
    ),
    "unet-simple-cross": (
        "UNet2DConditionModel",
        {
            **_CROSS,
            "down_block_types": ("SimpleCrossAttnDownBlock2D", "ResnetDownsampleBlock2D"),
            "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
            "up_block_types": ("ResnetUpsampleBlock2D", "SimpleCrossAttnUpBlock2D"),
        },
        _reported,
    ),
    "unet-3d": (
        "UNet3DConditionModel",
        {
            **_CROSS,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        _video,
    ),
    "unet-motion": (
        "UNetMotionModel",
        {
            **{key: value for key, value in _CROSS.items() if key != "attention_head_dim"},
            "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
            "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"),
            "num_attention_heads": 2,
            "motion_num_attention_heads": 2,
        },
        _video,
    ),
    "controlnet": ("ControlNetModel", {**_CROSS, "conditioning_embedding_out_channels": (8, 16, 16, 32)}, _controlled),
    "autoencoder-kl": ("AutoencoderKL", _CODER, _images),
    "autoencoder-asymmetric": (
        "AsymmetricAutoencoderKL",
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "down_block_out_channels": (32, 64),
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "up_block_out_channels": (32, 64),
            "norm_num_groups": 8,
        },
        _images,
    ),
    "autoencoder-tiny": ("AutoencoderTiny", {}, _images),
    "autoencoder-temporal": (
        "AutoencoderKLTemporalDecoder",
        {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2},
        lambda size: ((image(size),), {"num_frames": 2}),
    ),
    "autoencoder-cogvideo": (
        "AutoencoderKLCogVideoX",
        {
            "block_out_channels": (32, 32, 64, 64),
            "layers_per_block": 1,
            "norm_num_groups": 8,
            "latent_channels": 4,
        },
        _frames,
    ),
    "autoencoder-wan": ("AutoencoderKLWan", {"base_dim": 16, "z_dim": 4, "num_res_blocks": 1}, _frames),
    "autoencoder-deep": (
        "AutoencoderDC",
        {
            "encoder_block_out_channels": (32, 64),
            "decoder_block_out_channels": (32, 64),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_block_types": "ResBlock",
            "decoder_block_types": "ResBlock",
            "encoder_qkv_multiscales": ((), ()),
            "decoder_qkv_multiscales": ((), ()),
        },
        _images,
    ),
    "vq": ("VQModel", {**_CODER, "num_vq_embeddings": 32}, _images),
    "transformer-dit": ("DiTTransformer2DModel", {**_TOKENS, "sample_size": 16, "norm_num_groups": 4}, _labelled),
    "transformer-2d": (
        "Transformer2DModel",
        {**_TOKENS, "in_channels": 4, "norm_num_groups": 4, "cross_attention_dim": 32},
        lambda size: ((_noised(size)[0],), {"encoder_hidden_states": _words()}),
    ),
    "transformer-pixart": (
        "PixArtTransformer2DModel",
        {**_TOKENS, "sample_size": 16, "cross_attention_dim": 32, "caption_channels": 32, "norm_num_groups": 4},
        lambda size: (
            (_noised(size)[0],),
            {"encoder_hidden_states": _words(), "timestep": _noised(size)[1], "added_cond_kwargs": {}},
        ),
    ),
    "transformer-sana": (
        "SanaTransformer2DModel",
        {
            **_TOKENS,
            "in_channels": 4,
            "out_channels": 4,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 16,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "sample_size": 16,
        },
        _patched,
    ),
    "transformer-sd3": (
        "SD3Transformer2DModel",
        {
            **_TOKENS,
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 32,
        },
        lambda size: (
            (_noised(size)[0], _words(), torch.ones(2, 32), _noised(size)[1]),
            {},
        ),
    ),
    "t2i-adapter": ("T2IAdapter", {"channels": [32, 64], "num_res_blocks": 1, "downscale_factor": 8}, _images),
    "kandinsky-unet": (
        "Kandinsky3UNet",
        {
            "block_out_channels": (32, 64, 64, 64),
            "layers_per_block": 1,
            "cross_attention_dim": 64,
            "encoder_hid_dim": 32,
            "groups": 8,
            "time_embedding_dim": 64,
            "attention_head_dim": 16,
        },
        lambda size: ((*_noised(size), _words(), torch.ones(2, 6)), {}),
    ),
}


def _diffusers_names() -> list[str]:
    import diffusers  # type: ignore[import-not-found] # noqa: PLC0415

    for kind, *_ in DIFFUSERS.values():
        getattr(diffusers, kind)  # which imports it here, and not in every child
    return sorted(DIFFUSERS)


def _diffusers(name: str) -> Made:
    import diffusers  # noqa: PLC0415

    kind, config, given = DIFFUSERS[name]
    return getattr(diffusers, kind)(**config), given, (16, 32, 64)


# --- transformers -----------------------------------------------------------------------------------------------------


def _transformers_names() -> list[str]:
    from transformers.models.auto import modeling_auto  # type: ignore[import-not-found] # noqa: PLC0415

    found: dict[str, None] = {}
    for task in TASKS:
        known = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {})
        for kind, classes in known.items():
            for name in classes if isinstance(classes, (tuple, list)) else (classes,):
                found[f"{kind}:{name}"] = None
    return list(found)


FEWER = {
    "num_hidden_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_queries": 12,
    "two_stage_num_proposals": 12,
    "decoder_num_hidden_layers": 1,
}


def _lightened(config: Any) -> Any:
    """Return the configuration with fewer layers, no other package's backbone, and nothing that needs a download."""
    for key, value in FEWER.items():
        if isinstance(getattr(config, key, None), int):
            with contextlib.suppress(Exception):
                setattr(config, key, value)
    if getattr(config, "use_timm_backbone", False):
        from transformers import ResNetConfig  # type: ignore[import-not-found] # noqa: PLC0415

        config.use_timm_backbone, config.use_pretrained_backbone, config.backbone = False, False, None
        config.backbone_config = ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    for part in ("backbone_config", "vision_config"):
        if getattr(config, part, None) is not None and not isinstance(getattr(config, part), dict):
            _lightened(getattr(config, part))
    return config


def _transformers(name: str) -> Made:
    import transformers  # noqa: PLC0415

    kind, _, made = name.partition(":")
    config = _lightened(transformers.CONFIG_MAPPING[kind]())
    net = getattr(transformers, made)(config)
    inner = getattr(config, "vision_config", config)
    size = getattr(inner, "image_size", None)
    size = size[-1] if isinstance(size, (tuple, list)) else size
    sizes = (size,) if isinstance(size, int) else (64, 128, 224, 512)
    channels = getattr(inner, "num_channels", 3)
    if "Video" in made or "vivit" in kind or "timesformer" in kind:
        frames = int(getattr(config, "num_frames", 0) or getattr(config, "frames_per_clip", 8) or 8)

        def videos(size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return (), {
                "pixel_values_videos" if "vjepa" in kind else "pixel_values": image(size, frames).transpose(1, 2)
            }

        return net, videos, sizes
    return net, lambda size: ((), {"pixel_values": image(size)[:, :channels]}), sizes
