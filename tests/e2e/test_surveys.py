"""Regions are measured one at a time: what is fragile costs most, equal layers save the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from tests.surveying import context
from tests.unit.quantizing import model_of, normal
from tests.unit.search.mixed_precision.models import HEADER

from ortune.backends.cpu import Cpu
from ortune.core.event import ignore_event
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import Quantizer, Recipe
from ortune.core.trial import Plan
from ortune.data.stream import Stream
from ortune.measurement.job import MAIN
from ortune.measurement.timing.turns import wait_until_ready
from ortune.search.experiment import measure
from ortune.search.experiment.context import Context
from ortune.search.experiment.measure import build_all
from ortune.search.experiment.surveys import survey_plan
from ortune.search.mixed_precision.choice import mix_recipe
from ortune.search.mixed_precision.survey import Survey

SIZE = 256


def chain(layers: int, fragile: int | None = None) -> ir.Model:
    """Return a chain of equal products; weights of the fragile one have a huge channel."""
    held = {f"w{at}": normal(SIZE, SIZE, seed=at, scale=SIZE**-0.5) for at in range(layers)}
    if fragile is not None:
        held[f"w{fragile}"][:, 3] *= 3000.0
        held["tame"] = np.where(np.arange(SIZE) == 3, 1 / 3000.0, 1.0).astype(np.float32)
    text = f"{HEADER}\ng (float[64,{SIZE}] h0) => (float[64,{SIZE}] h{layers}) {{"
    for at in range(layers):
        if at == fragile:
            text += f"\nm{at} = MatMul(h{at}, w{at})\n a{at} = Mul(m{at}, tame)"
        else:
            text += f"\na{at} = MatMul(h{at}, w{at})"
        text += f"\nh{at + 1} = Tanh(a{at})"
    return model_of(text + "\n}", held)


def surveyed(known: Context, recipe: str, seconds: float = 25.0) -> Survey:
    steps = (parse_plugin(Quantizer, recipe),)
    plan = Plan(Recipe(recipe, steps), Cpu(threads=1))
    with measure.start_worker(known, known.models, known.job.baseline, "baseline") as live:
        wait_until_ready(live)
        return survey_plan(known, plan, seconds, ignore_event, live=live)


def test_a_fragile_layer_costs_most_by_far(tmp_path: Path) -> None:
    samples = [{"h0": normal(64, SIZE, seed=seed)} for seed in range(8)]
    known = context(tmp_path / "run", chain(4, fragile=2), samples)
    found = surveyed(known, "int8-static(per_channel=false)")
    assert not found.error
    assert [region.error for region in found.regions] == [""] * 4
    costs = [region.accuracy_cost.value for region in found.regions]
    others = [cost for at, cost in enumerate(costs) if at != 2]
    assert costs[2] > 30 * max(others) > 0
    assert found.regions[2].accuracy_cost.low > max(others)
    assert found.whole_cost > 0.5 * costs[2]
    assert all(region.saved > SIZE * SIZE * 2 for region in found.regions)
    assert len({region.time_gained for region in found.regions}) == 1
    assert found.regions[0].time_gained.high == 0.25, "no profile: each a quarter of the time"
    assert found.seconds > 0


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    samples = [{"h0": normal(64, SIZE, seed=seed)} for seed in range(4)]
    known = context(tmp_path / "run", chain(3), samples)
    first = surveyed(known, "int8-dynamic", 20)
    path = next((known.root / "surveys").glob("*.jsonl"))
    lines = path.read_bytes()
    path.write_bytes(lines + b'{"cost": {"re')  # torn
    again = surveyed(known, "int8-dynamic", 20)
    assert again.regions == first.regions
    assert again.whole_cost == first.whole_cost
    assert path.read_bytes() == lines
    kept = lines.splitlines(keepends=True)
    path.write_bytes(b"".join(kept[:3]))
    part = surveyed(known, "int8-dynamic", 20)
    assert [r.accuracy_cost for r in part.regions] == [r.accuracy_cost for r in first.regions]
    assert path.read_bytes().startswith(b"".join(kept[:3]))


def test_a_mixture_has_both_precisions_in_one_graph(tmp_path: Path) -> None:
    samples = [{"h0": normal(64, SIZE, seed=seed)} for seed in range(4)]
    known = context(tmp_path / "run", chain(4), samples)
    found = surveyed(known, "int8-dynamic", 10)
    first, *others = (region.region for region in found.regions)
    plan = Plan(mix_recipe(found, {first}), Cpu(threads=1))
    files = build_all(known, plan, ignore_event)
    built = onnx.load(files.paths[MAIN])
    kinds = Counter(node.op_type for node in built.graph.node if "Mat" in node.op_type)
    assert kinds == {"MatMul": 1, "MatMulInteger": len(others)}
    with measure.start_worker(known, files.paths, plan.backend, "mixture") as worker:
        wait_until_ready(worker)
        worker.ask("score", indices=[0, 1], metrics=[], save=str(tmp_path / "answers"))
    with measure.start_worker(known, known.models, known.job.baseline, "float") as worker:
        wait_until_ready(worker)
        worker.ask("score", indices=[0, 1], metrics=[], save=str(tmp_path / "expected"))
    expected, mixture = (Stream(tmp_path / name)[0]["h4"] for name in ("expected", "answers"))
    assert 0 < np.abs(expected - mixture).max() < 0.05
