"""Several at once on a device: instances by its name."""

from __future__ import annotations

import numpy as np
import pytest
from tests.gpu.devices import MODEL, digits, skip_without

import ortune as ot
from ortune.backends.cuda import Cuda
from ortune.core.errors import OrtuneError
from ortune.core.hardware import gpu

pytestmark = skip_without(Cuda())


def test_instances_are_on_the_device_that_is_named() -> None:
    sample = digits(4)
    with (
        ot.load(MODEL, on="cuda") as alone,
        ot.load(MODEL, on="cuda", instances="2@gpu0") as engine,
    ):
        wanted, found = alone(**sample), engine.batch([sample] * 4)
        for one in found:
            for name, value in wanted.items():
                np.testing.assert_allclose(one[name], value, rtol=1e-3, atol=1e-4)
        assert engine.placement().get("CUDAExecutionProvider", 0) > 0


def test_every_device_holds_its_group() -> None:
    if len(gpu.list_gpus()) < 2:
        pytest.skip("one GPU: two are needed")
    with ot.load(MODEL, on="cuda", instances="1@gpu0,1@gpu1") as engine:
        assert len(engine.batch([digits(1)] * 8)) == 8


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OrtuneError):
        ot.load(MODEL, on="cuda", instances=f"1@gpu{len(gpu.list_gpus()) + 7}")
