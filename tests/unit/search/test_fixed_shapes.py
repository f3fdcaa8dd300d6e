"""The step that fixes sizes: found in the samples, part of every recipe on request, told else."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.unit import studies

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.core.capabilities import Capabilities
from ortune.core.errors import BadSettings
from ortune.core.facts import Facts, TensorSpec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe, Transform
from ortune.core.trial import Interval, Plan, Trial
from ortune.data.feeds import Feeds
from ortune.data.stream import Stream, write_stream
from ortune.measurement.workloads.latency import Latency
from ortune.search import fixed_shapes
from ortune.search.experiment.context import Context
from ortune.search.experiment.evaluate import Attempts
from ortune.search.experiment.ledger import Ledger
from ortune.search.fixed_shapes import UnfixableSizes, make_fix_dims
from ortune.search.optimize import explore_space, run
from ortune.search.recipe.build import Material
from ortune.search.recipe.space import SearchTarget, Space
from ortune.search.request import Optimize

IDS = TensorSpec("ids", "int64", ("batch", "length"))
MASK = TensorSpec("mask", "int64", ("batch", None))
ENCODER = Facts(
    {"MatMul": 8, "Softmax": 2, "LayerNormalization": 2}, 12, 1, 1, {}, 17, 8, (IDS, MASK), ()
)
STEP = parse_plugin(Transform, "fix-dims(dims=[batch:1, length:16, mask.1:16])")


def context(
    folder: Path, shapes: list[tuple[int, int]], own: tuple[int, int] = (1, 16), **job: Any
) -> Context:
    """Return a context of samples of these shapes, and of one to calibrate on."""
    for name, some in (("data", shapes), ("calibration", [own])):
        samples = [{"ids": np.zeros(s, np.int64), "mask": np.ones(s, np.int64)} for s in some]
        write_stream(folder / name, samples)
    fed = Feeds(folder / "calibration", 1, (), None, None)
    source = studies.write_model(folder / "toy.onnx", studies.MODEL)
    return Context(
        *(folder, replace(studies.job(source), **job), ENCODER, {"": source}),
        *({"": folder / "data"}, {"": Material(fed)}, {}, ""),
        timeout_s=1.0,
    )


def test_shapes_of_a_stream_are_known_without_its_data(tmp_path: Path) -> None:
    write_stream(tmp_path / "s", [{"x": np.zeros((n, 2))} for n in (1, 3, 1)])
    assert Stream(tmp_path / "s").shapes == {"x": {(1, 2), (3, 2)}}


def test_every_dynamic_dimension_gets_the_samples_size(tmp_path: Path) -> None:
    assert make_fix_dims(context(tmp_path, [(1, 16), (1, 16)])) == STEP


@pytest.mark.parametrize(
    ("shapes", "own", "job", "why"),
    [
        ([(1, 16), (1, 8)], (1, 16), {}, "'ids' has 2 shapes"),
        ([(1, 16)], (1, 12), {}, "'ids' has 2 shapes"),
        ([(1, 16)], (1, 16), {"workload": Latency(batch=8)}, "several samples are timed"),
    ],
)
def test_what_varies_is_not_fixed(
    shapes: list[tuple[int, int]],
    own: tuple[int, int],
    job: dict[str, Any],
    why: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(UnfixableSizes, match=why):
        make_fix_dims(context(tmp_path, shapes, own, **job))


def test_models_of_fixed_sizes_and_several_models_have_nothing_to_fix(tmp_path: Path) -> None:
    given = context(tmp_path, [(1, 16)])
    fixed = replace(ENCODER, inputs=(TensorSpec("ids", "int64", (1, 16)),))
    with pytest.raises(UnfixableSizes, match="no dynamic dimension"):
        make_fix_dims(replace(given, facts=fixed))
    with pytest.raises(UnfixableSizes, match="several models"):
        make_fix_dims(replace(given, models={"a": tmp_path, "b": tmp_path}))


@pytest.mark.parametrize("fixed", [False, True])
def test_on_request_all_recipes_but_the_original_begin_with_it(
    tmp_path: Path, fixed: bool
) -> None:
    told: list[str] = []
    targets = [SearchTarget(Cpu(), Capabilities())]
    given = replace(context(tmp_path, [(1, 16)]), parts={"search": cast(Any, _PART)})
    space = explore_space(given, targets, True, told.append, fixed=fixed)
    assert space.fixing == STEP
    first, *others = space.list_recipes(targets[0], Cpu())
    assert first == AS_IS and others
    assert all((recipe.steps[0] == STEP) == fixed for recipe in others)
    assert told == [f"--fixed-shapes: the result takes one shape only, by {STEP}"] * fixed


_PART = SimpleNamespace(indices=(0,))


def test_sizes_that_are_fixed_are_not_cut() -> None:
    buckets = Bucketed(inner=Cpu(), mask="mask", lengths=(8, 16))
    space = Space(ENCODER, (), Latency(), Cpu(), buckets=buckets, fixing=STEP, fixed=True)
    assert space.without_padding(Plan(AS_IS, Cpu())) is not None
    assert space.without_padding(Plan(Recipe("fixed", (STEP,)), Cpu())) is None


def test_a_run_of_fixed_sizes_goes_on_only_with_the_flag(tmp_path: Path) -> None:
    given = context(tmp_path, [(1, 16)])
    root = tmp_path / "run"
    (root / "workers").mkdir(parents=True)
    plan = Plan(Recipe("fixed shapes", (STEP,)), Cpu())
    Ledger(root).append(replace(studies.baseline(), plan=plan))
    asked = Optimize((given.models[""],), on="cpu", out=root)
    with pytest.raises(BadSettings, match="--fixed-shapes"):
        run(asked)


class Timed:
    """Attempts that know one ratio."""

    pair_seconds = 1.0

    def __init__(self, ratio: Interval | None, emulated: str = "") -> None:
        self.ratio, self.notes = ratio, list[str]()
        self.asked: list[tuple[Plan, Plan]] = []
        self.context = SimpleNamespace(job=SimpleNamespace(emulated=emulated))

    def add_note(self, text: str) -> None:
        self.notes.append(text)

    def time_against(self, plan: Plan, other: Plan) -> Interval | None:
        self.asked.append((plan, other))
        return self.ratio


def told(space: Space, winner: Trial | None, left: float, ratio: Interval | None = None) -> Timed:
    timed = Timed(ratio)
    fixed_shapes.note_fixed_shapes(cast(Attempts, timed), space, winner, left)
    return timed


INT8 = Plan(Recipe("int8", (parse_plugin(Quantizer, "int8-dynamic"),)), Cpu(threads=1))
WINNER = replace(studies.baseline(), plan=INT8, seconds=5.0)
SPACE = Space(ENCODER, (), Latency(), Cpu(), fixing=STEP)


def test_what_the_winner_would_gain_is_measured() -> None:
    timed = told(SPACE, WINNER, 60.0, Interval(0.93, 0.91, 0.95))
    assert timed.asked[0][1] == INT8
    assert timed.asked[0][0].recipe.steps == (STEP, *INT8.recipe.steps)
    assert timed.asked[0][0].backend == INT8.backend
    (note,) = timed.notes
    assert note.startswith("all samples have one shape: --fixed-shapes makes a model")
    assert note.endswith("; the winner then needs 0.930 [0.910, 0.950] of its time")


def test_the_original_is_folded_too() -> None:
    timed = told(SPACE, None, 60.0, Interval(1.0, 0.98, 1.02))
    assert [step.name() for step in timed.asked[0][0].recipe.steps] == ["fix-dims", "simplify"]
    assert "no gain on the original" in timed.notes[0]


def test_on_an_emulated_cpu_nothing_is_timed() -> None:
    timed = Timed(Interval(0.93, 0.91, 0.95), emulated="qemu-aarch64")
    fixed_shapes.note_fixed_shapes(cast(Attempts, timed), SPACE, WINNER, 60.0)
    assert not timed.asked and "cannot be measured (the CPU is emulated)" in timed.notes[0]


def test_without_time_nothing_is_claimed() -> None:
    timed = told(SPACE, replace(WINNER, seconds=20.0), 9.0)
    assert not timed.asked and "was not measured" in timed.notes[0]
    assert "does not run so" in told(SPACE, WINNER, 60.0).notes[0]
    assert not told(replace(SPACE, fixed=True), WINNER, 60.0).notes
    assert not told(replace(SPACE, fixing=None), WINNER, 60.0).notes
