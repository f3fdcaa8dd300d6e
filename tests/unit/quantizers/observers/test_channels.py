"""Extents of channels, in memory that does not depend on the samples."""

from __future__ import annotations

import numpy as np
import pytest

from ortune.core.errors import BadData
from ortune.core.observer import Range
from ortune.quantizers.observers.channels import Channels


def test_every_channel_has_its_own_extent() -> None:
    watch = Channels().start()
    watch.update(0, np.array([[[1, -2, 0]], [[3, 5, 0]]], np.float32))
    watch.update(0, np.zeros((0, 3), np.float32))
    watch.update(0, np.array([[-7, 0, 0]], np.float32))
    assert watch.result() == Range(-7, 5, ((-7, 3), (-2, 5), (0, 0)))


def test_changing_width_is_refused() -> None:
    watch = Channels().start()
    watch.update(0, np.zeros((1, 3), np.float32))
    with pytest.raises(BadData, match="length 4 after 3"):
        watch.update(0, np.zeros((1, 4), np.float32))
