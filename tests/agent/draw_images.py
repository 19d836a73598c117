"""Draws a small thermal-like detection data set; run as a script by a training environment's own interpreter."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path


def draw(folder: Path, count: int, size: int, validated: int) -> None:
    """Write `count` images of `size` pixels with one or two warm blobs each, their labels, and data.yaml.

    As many of them are for validation, or `validated`.
    """
    cv2, np = import_module("cv2"), import_module("numpy")  # only a training environment has them
    random = np.random.default_rng(7)
    for split, images in (("train", count), ("val", validated)):
        for kind in ("images", "labels"):
            (folder / kind / split).mkdir(parents=True, exist_ok=True)
        for index in range(images):
            image = random.normal(70, 12, (size, size))
            rows = []
            for _ in range(int(random.integers(1, 3))):
                x, y, w, h = random.uniform(0.25, 0.75), random.uniform(0.25, 0.75), 0.2, 0.3
                top, left = int((y - h / 2) * size), int((x - w / 2) * size)
                image[top : top + int(h * size), left : left + int(w * size)] += 90
                rows.append(f"0 {x:.4f} {y:.4f} {w} {h}")
            blurred = cv2.GaussianBlur(image.clip(0, 255).astype(np.uint8), (5, 5), 0)
            cv2.imwrite(str(folder / "images" / split / f"{index}.png"), cv2.merge([blurred] * 3))
            (folder / "labels" / split / f"{index}.txt").write_text("\n".join(rows) + "\n")
    lines = [f"path: {folder}", "train: images/train", "val: images/val", "names: {0: warm}"]
    (folder / "data.yaml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    number = int(sys.argv[2])
    draw(Path(sys.argv[1]).resolve(), number, int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else number)
