"""calibrate as a function: branches that no sample took, and builds from what was found."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.unit.quantizing import normal

from ortune.analysis.calibration_quality import calibrate as stability
from ortune.analysis.calibration_quality.calibrate import (
    STEPS,
    TOLERANCE,
    calibrate,
    compute_disagreement,
    count_independent_samples,
    judge_stability,
    make_sample_subsets,
    split_into_quarters,
)
from ortune.core.observer import Range
from ortune.core.step import Recipe
from ortune.data.feeds import Feeds
from ortune.quantizers.calibration import ranges_file
from ortune.quantizers.int8_static import Int8Static
from ortune.search.recipe.build import build

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,32] x, bool up) => (float[1,32] y) {
    a = MatMul(x, w)
    r = Relu(a)
    y = If (up) <
        then_branch = yes () => (float[1,32] one) { p = Relu(r)  one = MatMul(p, v) },
        else_branch = no () => (float[1,32] two) { q = Neg(r)  two = MatMul(q, v) }
    >
}"""


def _model(folder: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    for name, seed in (("w", 0), ("v", 1)):
        array = normal(32, 32, seed=seed)
        if name == "w":
            array[:, 5] = 0
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def _data(folder: Path, count: int) -> Path:
    (folder / "data").mkdir()
    for k in range(count):
        np.savez(folder / "data" / f"{k:02}.npz", x=normal(1, 32, seed=k + 2), up=np.array(True))
    return folder / "data"


def test_a_branch_that_no_sample_took_is_named_and_not_asked_for_again(tmp_path: Path) -> None:
    model = _model(tmp_path)
    found = calibrate(model, data=_data(tmp_path, 8))
    assert "q" in found.unanswered
    assert {tensor.name for tensor in found.tensors} >= {"x", "p"}
    unseen = {one.tensor: one.op for one in found.idle if not one.seen}
    assert unseen == {"q": "Neg"}
    known, _ = ranges_file.load_ranges(found.save(tmp_path / "ranges.json"), model)
    out = tmp_path / "out.onnx"
    assert build(model, Recipe("r", (Int8Static(),)), out, ranges=known).changed


def test_inactive_channels_are_counted(tmp_path: Path) -> None:
    found = calibrate(_model(tmp_path), data=_data(tmp_path, 8))
    zero = {one.tensor: one.channels for one in found.idle if one.channels}
    assert 5 in zero["p"]
    assert found.stability.enough is not None
    assert all(len(tensor.halves) == 2 for tensor in found.tensors)


def test_few_samples_have_ranges_and_no_verdict(tmp_path: Path) -> None:
    found = calibrate(_model(tmp_path), data=_data(tmp_path, 8), samples=4)
    assert found.samples == 4
    assert found.stability.enough is None
    assert all(tensor.apart is None for tensor in found.tensors)
    assert "too few" in found.stability.why


# The rule that says whether calibration data is enough.


def _feeds(count: int, groups: list[str] | None = None) -> Feeds:
    digests = tuple(f"d{k}" for k in range(count))
    return Feeds(Path("none"), count, digests, groups=tuple(groups) if groups else None)


def _extents(values: np.ndarray, parts: list[tuple[int, ...]]) -> list[dict[str, Range]]:
    """Ranges by min-max of every column over some rows."""
    return [
        {
            f"t{k}": Range(float(values[list(part), k].min()), float(values[list(part), k].max()))
            for k in range(values.shape[1])
        }
        for part in parts
    ]


def _judged(values: np.ndarray) -> stability.Stability:
    count = len(values)
    every = tuple(range(count))
    found = make_sample_subsets(split_into_quarters(_feeds(count), every), count)
    whole, *others = _extents(values, [every, *found])
    return judge_stability(whole, others, count, count)


def test_disagreement_is_counted_in_steps_of_the_whole_ranges_grid() -> None:
    assert compute_disagreement(Range(0, 255), Range(0, 255), Range(3, 245)) == pytest.approx(10)
    assert compute_disagreement(Range(-2.55, 0), Range(-2.55, 0), Range(-2.0, 0)) == pytest.approx(
        55
    )
    # The grid covers zero even where the values do not.
    assert compute_disagreement(Range(1, 2.55), Range(1, 2.55), Range(1, 2.45)) == pytest.approx(
        10
    )


def test_what_one_half_never_saw_tells_nothing() -> None:
    assert math.isnan(compute_disagreement(Range(0, 1), None, Range(0, 1)))
    assert math.isnan(compute_disagreement(Range(0, 0), Range(0, 0), Range(0, 0)))


def test_a_group_is_never_parted() -> None:
    names = [f"photo{k // 10}" for k in range(80)]
    fed = _feeds(80, names)
    parts = split_into_quarters(fed, range(80))
    assert sorted(index for part in parts for index in part) == list(range(80))
    assert all(len({p for p, part in enumerate(parts) if i in part}) == 1 for i in range(80))
    for k in range(8):
        owners = {p for p, part in enumerate(parts) for i in part if names[i] == f"photo{k}"}
        assert len(owners) == 1
    assert [len(part) for part in parts] == [20, 20, 20, 20]
    assert count_independent_samples(fed, range(80)) == 8


def test_parts_depend_on_contents_not_on_order() -> None:
    one = split_into_quarters(_feeds(40), range(40))
    assert one == split_into_quarters(_feeds(40), list(reversed(range(40))))


@pytest.mark.parametrize(("count", "expected"), [(7, 0), (8, 2), (15, 2), (16, 6)])
def test_few_samples_make_fewer_sets(count: int, expected: int) -> None:
    assert (
        len(make_sample_subsets(split_into_quarters(_feeds(count), range(count)), count))
        == expected
    )


def test_too_few_samples_say_nothing() -> None:
    found = judge_stability({"x": Range(0, 1)}, [], 5, 5)
    assert found.enough is None
    assert found.add is None
    assert "5 independent samples: too few" in found.why


def test_bounded_values_are_enough() -> None:
    rng = np.random.default_rng(0)
    found = _judged(rng.uniform(-1, 1, (200, 20)))
    assert found.enough is True
    assert found.add == 0
    assert found.stable >= 0.9


def _averaged(rng: np.random.Generator, count: int) -> stability.Stability:
    """60 ranges that are averages over the samples, which is what a moving average settles to."""
    values = 1 + 0.5 * rng.standard_normal((count, 60))
    every = tuple(range(count))
    parts = [every, *make_sample_subsets(split_into_quarters(_feeds(count), every), count)]
    whole, *others = (
        {f"t{k}": Range(-1.0, float(values[list(part), k].mean())) for k in range(60)}
        for part in parts
    )
    return judge_stability(whole, others, count, count)


def test_the_number_asked_for_is_about_right() -> None:
    """With what is asked for three times over it is enough, with a tenth of it it is not."""
    rng = np.random.default_rng(1)
    asked = [_averaged(rng, 20).add for _ in range(30)]
    assert asked.count(None) <= 3
    usual = int(np.median([add for add in asked if add is not None]))
    assert 20 <= usual <= 100, "sqrt(n) falls from 47 to 26 steps at 65 samples"
    after = [_averaged(rng, 20 + 3 * usual) for _ in range(20)]
    assert sum(found.enough is True for found in after) >= 18
    slightly = [_averaged(rng, 20 + usual // 10) for _ in range(20)]
    assert sum(found.enough is True for found in slightly) <= 2


def test_heavy_tails_get_no_number() -> None:
    rng = np.random.default_rng(2)
    found = _judged(rng.standard_cauchy((64, 40)))
    assert found.enough is False
    assert found.add is None
    assert "more than 10 times" in found.why


def test_one_tensor_of_ten_may_be_unstable() -> None:
    steady = {f"t{k}": Range(0.0, float(STEPS)) for k in range(9)}
    odd = TOLERANCE + 1
    whole = steady | {"odd": Range(0.0, float(STEPS))}
    halves = [whole, steady | {"odd": Range(0.0, STEPS - odd)}]
    assert judge_stability(whole, halves, 10, 10).enough is True
    two = {**halves[1], "t0": Range(0.0, STEPS - odd)}
    found = judge_stability(whole, [whole, two], 10, 10)
    assert found.enough is False
    assert found.stable == pytest.approx(0.8)
    limit = f"{TOLERANCE / STEPS:.0%}".replace("%", " %")
    assert f"more than {limit} for 20% of the tensors" in found.why
    # Halves alone do not say how fast it falls: as 1 / sqrt(n).
    assert found.exponent is None
    assert found.add == 1
