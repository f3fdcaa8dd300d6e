"""Several at once on a device: instances by its name, processes beside one with instances."""

from __future__ import annotations

from pathlib import Path

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
    if len(gpu.gpus()) < 2:
        pytest.skip("one GPU: two are needed")
    with ot.load(MODEL, on="cuda", instances="1@gpu0,1@gpu1") as engine:
        assert len(engine.batch([digits(1)] * 8)) == 8


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OrtuneError):
        ot.load(MODEL, on="cuda", instances=f"1@gpu{len(gpu.gpus()) + 7}")


def test_processes_beside_instances(tmp_path: Path) -> None:
    found = ot.bench(MODEL, on="cuda", processes=2, batch=8, seconds=2, sets=1)
    assert [(one.processes, one.instances) for one in found.side_by_side] == [
        (1, 2),
        (2, 1),
        (1, 1),
    ]
    assert all(one.per_second and one.run_p50_ns for one in found.side_by_side)
