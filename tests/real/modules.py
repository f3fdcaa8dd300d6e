"""Factories of real modules for `ortune export`: weights are given beside them."""

from __future__ import annotations

import runpy
from typing import Any

from ortune.core.sample import locate_installed_file


def efficientnet_lite0() -> Any:
    """Return the classifier without weights."""
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")


def digit_cnn() -> Any:
    """Return the network of digit-recognizer-py, whose package imports torchvision, without it."""
    path = locate_installed_file("digit-recognizer-py", "digit_recognizer/model.py")
    return runpy.run_path(str(path))["CNN"]()
