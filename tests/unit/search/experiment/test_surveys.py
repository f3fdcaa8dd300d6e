"""Surveys under a scripted clock: workers in this process, time passes as a script says."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.surveying import context
from tests.unit.quantizing import model_of, normal
from tests.unit.search.mixed_precision.models import HEADER, transformer

from ortune.backends.cpu import Cpu
from ortune.core.errors import BadData
from ortune.core.event import ignore_event
from ortune.core.plugins import codec
from ortune.core.plugins.spelling import parse_plugin
from ortune.core.step import AS_IS, Quantizer, Recipe
from ortune.core.trial import Block, Burst, Interval, Pair, Plan, Status, Trial
from ortune.measurement.job import Failure, WorkerJob
from ortune.measurement.process import WorkerFailed
from ortune.measurement.timing.pairs import BaselineFailed
from ortune.measurement.worker.tasks import TASKS
from ortune.measurement.worker.workbench import Workbench
from ortune.search.experiment import measure, surveys
from ortune.search.experiment.context import Context
from ortune.search.experiment.ledger import Ledger
from ortune.search.experiment.surveys import SurveyProgress, survey_plan
from ortune.search.mixed_precision.survey import Survey, SurveyRequest

SECONDS = {"load": 1.0, "score": 0.5, "first": 0.1}


@dataclass
class Script:
    """Time, what was asked, and when the run is killed.

    Attributes:
        kill: Ends the survey with this many requests.
    """

    now: float = 0.0
    asked: list[str] = field(default_factory=list)
    pairs: int = 0
    kill: int = 10**9

    def __call__(self) -> float:
        return self.now

    def passes(self, what: str) -> None:
        self.asked.append(what)
        self.now += SECONDS.get(what, 0.0)
        if len(self.asked) > self.kill:
            raise KeyboardInterrupt


class Inside:
    """A worker that answers in this process."""

    def __init__(self, script: Script, job: WorkerJob, **_: Any) -> None:
        self._script, self._stack, self.job = script, ExitStack(), job
        self._bench = Workbench(job, self._stack)
        self.alive = True

    def __enter__(self) -> "Inside":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take_turns_with(self, other: Any) -> None:
        """What is loaded here is small."""

    def unload(self) -> None:
        """Likewise."""

    def ask(self, do: str, *, timeout_s: float | None = None, **given: Any) -> dict[str, Any]:
        self._script.passes(do)
        if do == "first":
            return {"first_ns": 1, "peak_rss": 1}
        answer = TASKS[do](self._bench, **json.loads(json.dumps(codec.encode(given))))
        found: dict[str, Any] = json.loads(json.dumps(codec.encode(answer)))
        return found

    @property
    def layers(self) -> int:
        """How many integer layers the model has."""
        model = onnx.load(next(iter(self.job.models.values())))
        return sum(node.op_type == "MatMulInteger" for node in model.graph.node)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    made = Script()

    def start(known: Context, models: Mapping[str, Path], backend: Any, label: str) -> Inside:
        folder = known.root / "workers" / label
        return Inside(made, known.worker_job(models, backend, folder))

    def time_pair(baseline: Any, candidate: Any, effort: Any) -> Pair:
        made.pairs += 1
        made.now += effort.seconds
        base, other = (int(1e6 * 0.9**one.layers) for one in (baseline, candidate))
        block = Block(Burst((base,) * 20, (0.0,) * 20), Burst((other,) * 20, (0.0,) * 20))
        return Pair((block,) * 5)

    monkeypatch.setattr(surveys, "Worker", lambda job, **more: Inside(made, job, **more))
    monkeypatch.setattr(measure, "start_worker", start)
    monkeypatch.setattr(surveys, "time_pair", time_pair)
    yield made


def surveyed(known: Context, script: Script, seconds: float = 100.0, *quantizers: str) -> Survey:
    steps = [parse_plugin(Quantizer, one) for one in quantizers or ("int8-dynamic(min_side=8)",)]
    plan = Plan(Recipe("int8", tuple(steps)), Cpu(threads=1))
    job = known.worker_job(known.models, known.job.baseline, known.root / "live")
    with Inside(script, job) as live:
        return survey_plan(
            known, SurveyRequest(plan), seconds, ignore_event, live=live, clock=script
        )  # type: ignore[arg-type]


def toy(root: Path, blocks: int) -> Context:
    samples = [{"h0": normal(1, 8, 32, seed=seed)} for seed in range(6)]
    return context(root, transformer(blocks), samples, by_operator={"MatMul": 0.9, "Gemm": 0.0})


def test_every_region_has_a_cost_and_a_gain(tmp_path: Path, script: Script) -> None:
    found = surveyed(toy(tmp_path / "run", 2), script)
    assert not found.error
    assert len(found.regions) == 8
    assert all(not region.error for region in found.regions)
    assert all(region.accuracy_cost.value > 0 for region in found.regions)
    assert found.regions[0].time_gained == found.regions[4].time_gained
    # Twelve layers of 0.9 each: the plan saves that share of each layer's part of the profile.
    gains = [region.time_gained for region in found.regions]
    assert all(gain.value == pytest.approx((1 - 0.9**12) * gain.high) for gain in gains)
    assert 0.5 < sum(gain.high for gain in gains) < 0.9
    assert script.pairs == 1
    assert found.whole_cost == pytest.approx(
        sum(region.accuracy_cost.value for region in found.regions), rel=0.5
    )
    assert found.seconds == script.now


def test_what_two_neighbours_lose_of_the_same_rounding_is_counted_once(
    tmp_path: Path, script: Script
) -> None:
    made = model_of(
        f"""{HEADER}\ng (float[1,8,8,8] x) => (float[1,8,6,6] y) {{
        p = Conv<pads=[1,1,1,1]>(x, a) q = Conv<pads=[1,1,1,1]>(p, b) y = Conv(q, c) }}""",
        {name: normal(8, 8, 3, 3, seed=at) for at, name in enumerate("abc")},
    )
    samples = [{"x": normal(1, 8, 8, 8, seed=seed)} for seed in range(6)]
    known = context(tmp_path / "run", made, samples, by_operator={"Conv": 0.9})
    found = surveyed(known, script, 100.0, "int8-static")
    assert not found.error
    costs = {one.region: one.accuracy_cost.value for one in found.regions}
    first, middle, last = costs
    shared = {(one.one, one.two): one.cost for one in found.shared}
    assert set(shared) == {(first, middle), (middle, last)}
    assert all(0 < cost <= min(costs[n] for n in pair) for pair, cost in shared.items())
    summed = sum(costs.values())
    assert abs(summed - sum(shared.values()) - found.whole_cost) < summed - found.whole_cost


def coarse(root: Path) -> Context:
    """Two products whose largest weights, of an input that is hardly there, make grids coarse."""
    held = {name: normal(32, 32, seed=at) for at, name in enumerate("ab")}
    for weight in held.values():
        weight[0] = 25.0
    made = model_of(
        f"""{HEADER}\ng (float[8,32] x) => (float[8,32] y) {{
        p = Gemm(x, a, c) y = Gemm(p, b, c) }}""",
        held | {"c": normal(32, seed=7)},
    )
    samples = [{"x": normal(8, 32, seed=9 + seed)} for seed in range(40)]
    for sample in samples:
        sample["x"][:, 0] *= 0.01
    return context(root, made, samples, by_operator={"Gemm": 0.9})


ROUNDED = ("adaptive-rounding(before=int8-static(min_side=8))", "int8-static(min_side=8)")


def test_a_region_costs_what_rounding_its_weights_loses_too(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = surveyed(coarse(tmp_path / "run"), script, 100.0, *ROUNDED)
    monkeypatch.setattr(surveys, "before_rounding", lambda steps: steps)
    rounded = surveyed(coarse(tmp_path / "rounded"), script, 100.0, *ROUNDED)
    assert not found.error
    assert not rounded.error
    assert found.whole_cost > 1.2 * rounded.whole_cost
    for ours, old in zip(found.regions, rounded.regions, strict=True):
        assert ours.accuracy_cost.value > 1.2 * old.accuracy_cost.value
        assert ours.time_gained == old.time_gained


def test_biases_that_were_corrected_are_a_region_s_own(tmp_path: Path, script: Script) -> None:
    steps = ("bias-correction(before=int8-static(min_side=8))", "int8-static(min_side=8)")
    found = surveyed(coarse(tmp_path / "run"), script, 100.0, *steps)
    assert not found.error
    assert min(region.accuracy_cost.value for region in found.regions) > 0


def test_a_plan_that_was_tried_is_not_timed_again(tmp_path: Path, script: Script) -> None:
    known = toy(tmp_path / "run", 1)
    plan = Plan(Recipe("", (parse_plugin(Quantizer, "int8-dynamic(min_side=8)"),)), Cpu(threads=1))
    ratio = Interval(0.25, 0.2, 0.3)
    Ledger(known.root).append(Trial("key", plan, "search", Status.FAILS, ratio))
    found = surveyed(known, script)
    assert not found.error
    assert script.pairs == 0
    first = found.regions[0].time_gained
    assert first.value == pytest.approx(0.75 * first.high)


def test_more_time_takes_more_samples_evenly(tmp_path: Path, script: Script) -> None:
    taken = []
    for seconds in (20.0, 90.0):
        script.now = 0.0
        known = coarse(tmp_path / f"run{seconds:.0f}")
        found = surveyed(known, script, seconds, "int8-static(min_side=8)")
        begun = SurveyProgress(known.root, found.key).begun
        taken.append(begun.samples)
    few, many = taken
    assert 4 <= len(few) < len(many) <= 32
    assert max(many) > 30, "of forty"


def test_it_is_the_same_twice(tmp_path: Path, script: Script) -> None:
    first = surveyed(toy(tmp_path / "one", 2), script)
    script.now = 0.0
    assert surveyed(toy(tmp_path / "two", 2), script).regions == first.regions


@pytest.mark.parametrize("kill", [1, 4, 9, 14, 20])
def test_killed_and_resumed_it_says_the_same(tmp_path: Path, script: Script, kill: int) -> None:
    whole = surveyed(toy(tmp_path / "whole", 2), script)
    path = next((tmp_path / "whole" / "surveys").iterdir())
    known = toy(tmp_path / "killed", 2)
    script.kill = len(script.asked) + kill
    with pytest.raises(KeyboardInterrupt):
        surveyed(known, script)
    assert not list(known.root.glob("survey-*"))
    for torn in (known.root / "surveys").glob("*.jsonl"):
        torn.write_bytes(torn.read_bytes() + b'{"cost":')
    script.kill = 10**9
    again = surveyed(known, script)
    assert again.regions == whole.regions
    assert again.whole_cost == whole.whole_cost
    own = next((known.root / "surveys").iterdir())

    def parts(one: Path) -> list[dict[str, Any]]:
        lines = map(json.loads, one.read_text().splitlines())
        return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]

    assert parts(own) == parts(path)


def test_what_the_time_does_not_suffice_for_says_so(tmp_path: Path, script: Script) -> None:
    found = surveyed(toy(tmp_path / "run", 4), script, 12.0)
    late = [region for region in found.regions if "no time" in region.error]
    assert late
    for region in late:
        measured = (region.accuracy_cost, region.time_gained)
        assert any(math.isnan(one.value) for one in measured)
    assert script.now < 30


def test_a_plan_that_decides_nothing_is_no_survey(tmp_path: Path, script: Script) -> None:
    known = toy(tmp_path / "run", 1)
    job = known.worker_job(known.models, known.job.baseline, known.root / "live")
    with Inside(script, job) as live:
        found = survey_plan(known, Plan(AS_IS, Cpu()), 10, ignore_event, live=live, clock=script)  # type: ignore[arg-type]
    assert "sets a precision" in found.error
    assert found.regions == ()


def test_a_dead_original_ends_the_search_and_a_dead_plan_only_its_survey(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(baseline: Any, candidate: Any, effort: Any) -> Pair:
        failed = Failure("died with signal 9", "")
        if original:
            raise BaselineFailed(failed, baseline)
        raise WorkerFailed(failed, candidate)

    monkeypatch.setattr(surveys, "time_pair", dies)
    original = True
    with pytest.raises(BaselineFailed):
        surveyed(toy(tmp_path / "one", 1), script)
    original = False
    assert surveyed(toy(tmp_path / "two", 1), script).error == "died with signal 9"


def test_progress_that_cannot_be_read_says_where(tmp_path: Path) -> None:
    folder = tmp_path / "surveys"
    folder.mkdir()
    drawn = '{"drawn":{"places":[0,2],"weights":[1.0,0.5]},"whole":{"value":1,"low":0,"high":2}}'
    for line in ('{"other":{},"seconds":1}', f'{{"begun":{drawn},"seconds":1}}'):
        (folder / "k.jsonl").write_text(f"{line}\n")  # the latter by an older version
        with pytest.raises(BadData, match="cannot be read") as caught:
            SurveyProgress(tmp_path, "k")
        assert "k.jsonl" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 2
