"""Moments equal those of the windows that the runtime's own convolution reads."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortune.core.errors import BadData, BadSettings
from ortune.core.observer import Moments
from ortune.quantizers.observers.moments import LayerMoments

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 7, 6), {"kernel": (3, 3)}),
    ((1, 4, 7, 6), {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 2, 1)}),
    ((2, 4, 9, 9), {"kernel": (3, 3), "dilations": (2, 1), "groups": 2}),
    ((1, 6, 8, 5), {"kernel": (3, 3), "pads": (1, 1, 1, 1), "groups": 6}),
    ((1, 2, 7, 8), {"kernel": (3, 4), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 2, 7, 8), {"kernel": (4, 3), "strides": (3, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 2, 7, 8), {"kernel": (3, 3), "auto_pad": "VALID"}),
    ((3, 2, 11), {"kernel": (3,), "strides": (2,), "pads": (1, 0)}),
    ((1, 2, 5, 4, 3), {"kernel": (2, 2, 2)}),
]


def moments(settings: LayerMoments, *runs: np.ndarray) -> Moments:
    watch = settings.start()
    for values in runs:
        watch.update(0, values)
    found = watch.result().moments
    assert found is not None
    return found


def windows(values: np.ndarray, settings: LayerMoments) -> np.ndarray:
    """Let the runtime copy every window out: a convolution by unit weights, one a column."""
    groups = settings.groups
    width = values.shape[1] // groups * int(np.prod(settings.kernel))
    weight = np.concatenate([np.eye(width, dtype=np.float32)] * groups)
    weight = weight.reshape(groups * width, values.shape[1] // groups, *settings.kernel)
    names = ("strides", "pads", "dilations")
    given = {name: list(getattr(settings, name)) for name in names if getattr(settings, name)}
    if settings.auto_pad != "NOTSET":
        given["auto_pad"] = settings.auto_pad
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], group=groups, **given)
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "windows",
        [onnx.helper.make_tensor_value_info("x", kind, values.shape)],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    made = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    out = session.run(None, {"x": values})[0]
    rows = np.moveaxis(np.asarray(out), 1, -1).reshape(-1, groups, width)
    return rows.transpose(1, 0, 2)


def agrees(found: Moments, rows: np.ndarray) -> bool:
    """Rows: [groups, vectors, width]. Tolerance: float32 sums."""
    wide = rows.astype(np.float64)
    second = wide.transpose(0, 2, 1) @ wide / rows.shape[1]
    return (
        found.count == rows.shape[1]
        and np.allclose(found.mean, wide.mean(axis=1), atol=1e-5)
        and np.allclose(found.second, second, atol=1e-5)
    )


@pytest.mark.parametrize(("shape", "fields"), CASES)
def test_equals_the_windows_of_the_runtime(shape: tuple[int, ...], fields: dict[str, Any]) -> None:
    settings = LayerMoments(most=0, **fields)
    values = np.random.default_rng(0).normal(0.3, 1, shape).astype(np.float32)
    rows = windows(values, settings)
    assert agrees(moments(settings, values), rows)
    # The negative control: an observer that reads its tensor in another order is caught.
    turned = np.ascontiguousarray(values[:, ::-1])
    assert not agrees(moments(settings, turned), rows)


def test_rows_of_the_last_axis_over_ragged_runs() -> None:
    random = np.random.default_rng(1)
    runs = [random.normal(size=(2, n, 5)).astype(np.float32) for n in (3, 1, 7)]
    rows = np.concatenate([run.reshape(-1, 5) for run in runs])[None]
    assert agrees(moments(LayerMoments(), *runs), rows)
    assert not agrees(moments(LayerMoments(), *runs[:2]), rows)


def test_sizes_may_differ_from_run_to_run() -> None:
    settings = LayerMoments(kernel=(3, 3), most=0)
    random = np.random.default_rng(2)
    runs = [random.normal(size=(1, 2, h, w)).astype(np.float32) for h, w in ((5, 4), (3, 9))]
    rows = np.concatenate([windows(run, settings) for run in runs], axis=1)
    assert agrees(moments(settings, *runs), rows)


def test_a_cap_takes_as_many_the_same_every_time_and_others_every_run() -> None:
    settings = LayerMoments(kernel=(3, 3), most=50)
    values = np.random.default_rng(3).normal(size=(1, 3, 20, 20)).astype(np.float32)
    once, again = moments(settings, values), moments(settings, values)
    assert once.count == 50
    assert np.array_equal(once.second, again.second)
    many = moments(settings, *[values] * 40)
    assert many.count == 2000
    rows = windows(values, settings)[0].astype(np.float64)
    whole = rows.T @ rows / len(rows)
    assert np.abs(many.second - whole).max() < np.abs(once.second - whole).max()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats(dtype: Any) -> None:
    values = np.random.default_rng(4).normal(size=(2, 6, 4)).astype(dtype)
    rows = values.astype(np.float32).reshape(1, -1, 4)
    assert agrees(moments(LayerMoments(), values), rows)


def test_an_input_smaller_than_the_kernel_and_an_empty_one() -> None:
    settings = LayerMoments(kernel=(3, 3))
    assert moments(settings, np.ones((1, 2, 2, 9), np.float32)).count == 0
    assert moments(settings, np.ones((0, 2, 5, 9), np.float32)).count == 0
    assert moments(LayerMoments(), np.ones((0, 4), np.float32)).count == 0


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(BadSettings, match="kernel of 2 axes"):
        LayerMoments(kernel=(3, 3), pads=(1, 1))
    with pytest.raises(BadData, match="3 axes for a kernel of 2"):
        moments(LayerMoments(kernel=(3, 3)), np.ones((1, 2, 5), np.float32))
    with pytest.raises(BadData, match="a vector of 3 after vectors of 2"):
        moments(LayerMoments(), np.ones((1, 2), np.float32), np.ones((1, 3), np.float32))
    with pytest.raises(BadData, match="NaN"):
        moments(LayerMoments(), np.full((1, 2), np.nan, np.float32))


def test_without_products_the_mean_is_the_same_and_memory_is_small() -> None:
    values = np.random.default_rng(0).standard_normal((2, 4, 7, 6)).astype(np.float32)
    whole = moments(LayerMoments(kernel=(3, 3)), values)
    lean = LayerMoments(kernel=(3, 3), products=False)
    found = moments(lean, values)
    assert found.count == whole.count
    np.testing.assert_array_equal(found.mean, whole.mean)
    assert found.second.shape == (1, 0, 0)
    assert lean.state_bytes(values.shape) < LayerMoments(kernel=(3, 3)).state_bytes(values.shape)
