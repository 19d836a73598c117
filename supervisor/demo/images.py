"""Creates thermal-like images with labelled warm bodies as a YOLO data set; run by the training's own interpreter."""

import argparse
from pathlib import Path

import cv2
import numpy as np

CLASSES = ("person", "car")


def picture(random, size):
    """Return (8-bit grey image, labels): a cold noisy background, warm ellipses (persons) and boxes (cars)."""
    rows, columns = np.mgrid[0:size, 0:size].astype(np.float32) / size
    tilt = random.uniform(-1.0, 1.0, 2)
    heat = 60 + 25 * (tilt[0] * rows + tilt[1] * columns) + random.normal(0, 4, (size, size))
    labels = []
    for _ in range(random.integers(1, 4)):
        kind = int(random.integers(0, len(CLASSES)))
        width = random.uniform(0.08, 0.16) if kind == 0 else random.uniform(0.2, 0.35)
        height = width * (random.uniform(1.8, 2.6) if kind == 0 else random.uniform(0.45, 0.65))
        x, y = random.uniform(width / 2, 1 - width / 2), random.uniform(height / 2, 1 - height / 2)
        across, down = (columns - x) / (width / 2), (rows - y) / (height / 2)
        distance = across**2 + down**2 if kind == 0 else np.maximum(np.abs(across), np.abs(down)) ** 4
        heat = np.where(distance < 1, np.maximum(heat, 220 - 70 * distance), heat)
        labels.append(f"{kind} {x:.5f} {y:.5f} {width:.5f} {height:.5f}")
    return np.clip(cv2.GaussianBlur(heat.astype(np.float32), (0, 0), 1.2), 0, 255).astype(np.uint8), labels


def write(folder, train, validate, size, seed):
    """Write `train` and `validate` images of `size` pixels and data.yaml into `folder`; return data.yaml's path."""
    random = np.random.default_rng(seed)
    for split, count in (("train", train), ("val", validate)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            image, labels = picture(random, size)
            cv2.imwrite(str(folder / "images" / split / f"{number:04d}.png"), image)
            (folder / "labels" / split / f"{number:04d}.txt").write_text("\n".join(labels) + "\n")
    data = folder / "data.yaml"
    names = "\n".join(f"  {number}: {name}" for number, name in enumerate(CLASSES))
    data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n{names}\n")
    return data


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--train", type=int, default=48)
    parser.add_argument("--validate", type=int, default=8)
    parser.add_argument("--size", type=int, default=160)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    print(write(asked.folder, asked.train, asked.validate, asked.size, asked.seed))  # noqa: T201 - its whole output
