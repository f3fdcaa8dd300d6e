"""The search on servers that are scripted: their capacity is known, and their clock is ours."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.unit import studies

from ortune.bundle.engine.instances import Serving
from ortune.bundle.engine.load import load_engine
from ortune.bundle.pack import pack
from ortune.cli.main import main
from ortune.core.errors import BadSettings, OrtuneError
from ortune.core.event import Event, Progress
from ortune.serving.load_testing import goal
from ortune.serving.load_testing.descent import ServingSpace
from ortune.serving.load_testing.goal import GoalResult, Measure, Scores, Search
from ortune.serving.load_testing.levels import Level, Load, Run
from ortune.serving.load_testing.loadtest import loadtest
from ortune.serving.load_testing.requests import PercentileLimit

SPACE = ServingSpace(cpus=2, threads=2, joins=True, limit_us=20_000)
Capacity = Callable[[Serving], float]


class Machine:
    """Servers whose latency at a rate follows from their capacity, with noise.

    Attributes:
        now: Seconds.
        started: Sides and settings, in order.
        live: Servers that run.
    """

    def __init__(self, capacity: Capacity, noise: float = 0.05, seed: int = 3) -> None:
        self.capacity, self.noise = capacity, noise
        self.now, self.live = 0.0, 0
        self.rng = np.random.default_rng(seed)
        self.sides: list[tuple[str, Serving]] = []

    @contextmanager
    def start(self, how: Serving, side: str) -> Iterator[Measure]:
        self.sides.append((side, how))
        self.now += 3
        self.live += 1
        assert self.live <= 2, "a machine has room for two"
        try:
            if not (capacity := self.capacity(how)):
                raise OrtuneError("the server did not get ready", fix="look")
            yield lambda load: self.measure(capacity, load)
        finally:
            self.live -= 1

    def measure(self, capacity: float, load: Load) -> Level:
        rate = load.rate or capacity
        count = load.requests or round(load.seconds * rate)
        self.now += count / rate + 0.5
        busy = min(load.rate / capacity, 0.999)
        mean = 1e9 / capacity / (1 - busy) * self.rng.lognormal(0, self.noise)
        latency = self.rng.exponential(mean / 4, count).astype(int)
        run = Run(load, tuple(latency.tolist()), (), {}, {}, count / rate, 0.1, 0.1)
        return Level(load, (run,))

    def found(self, seconds: float, **more: float) -> GoalResult:
        scores = Scores(PercentileLimit.parse("p99<=20ms"), **more)  # type: ignore[arg-type]
        return Search(self.start, SPACE, scores, seconds, clock=lambda: self.now).run_search()


def better_with_two(one: Serving) -> float:
    return 500.0 if one.instances == 2 else 400.0


def test_the_better_settings_are_found_and_confirmed_by_fresh_pairs() -> None:
    machine = Machine(better_with_two)
    found = machine.found(2000)
    assert found.better and found.chosen.instances == 2
    assert 1.2 < found.ratio.low < found.ratio.high < 1.4, "442 requests/s over 342"
    assert found.verdict.startswith(f"{found.choice}: 1.") and "2 instances" in found.choice
    assert "requests/s with p99<=20ms" in found.before
    assert found.tried[0].settings == found.choice and found.tried[0].pairs == 2
    fresh = [how for side, how in machine.sides if side == "defaults"]
    assert len(fresh) == 1 + found.pairs == 17, "once for the search, then anew for each pair"
    assert machine.live == 0


def test_the_defaults_may_be_best() -> None:
    found = Machine(lambda one: 400.0 if one == Serving() else 330.0).found(3000)
    assert not found.better and found.chosen == Serving()
    assert found.ratio.high < 1
    assert "the defaults are best: of 5 other settings the best, " in found.verdict
    assert found.choice == found.defaults == "1 instance, 2 threads, max_batch 8, delay 0 us"


def test_noise_alone_is_no_gain() -> None:
    found = [Machine(lambda one: 400.0, noise=0.1, seed=n).found(2000) for n in range(40)]
    assert sum(one.better for one in found) <= 3, "1 of 40 is what the interval says"
    assert all(0.93 < one.ratio.value < 1.07 for one in found)


def test_the_lowest_percentile_at_a_rate() -> None:
    found = Machine(better_with_two).found(2000, rate=200.0)
    assert found.chosen.instances == 2 and found.better
    assert found.before.startswith("p99 of ") and found.before.endswith("ms at 200 requests/s")


@pytest.mark.parametrize("seconds", [90.0, 150.0, 400.0, 900.0])
def test_the_time_is_kept(seconds: float) -> None:
    machine = Machine(better_with_two)
    found = machine.found(seconds)
    assert found.seconds == machine.now < seconds * 1.35
    if not found.tried:
        assert found.verdict.startswith("the defaults stay") and found.ratio is None
    else:
        assert found.pairs >= 3


def test_a_search_that_could_only_begin_is_refused() -> None:
    with pytest.raises(BadSettings, match=r"p99 needs \d+ s for each rate") as no:
        Machine(lambda one: 4.0).found(600)
    assert no.value.fix.startswith("give --time 1") and "lower percentile" in no.value.fix


def test_settings_that_cannot_be_served_are_passed_over() -> None:
    found = Machine(lambda one: 0.0 if one.instances == 2 else 400.0).found(2000)
    assert found.tried[-1].ratio == 0 and found.chosen == Serving()
    assert any("the server did not get ready" in one for one in found.notes)


def test_defaults_that_cannot_be_served_end_it() -> None:
    with pytest.raises(OrtuneError, match="did not get ready"):
        Machine(lambda one: 0.0).found(100)


def test_a_goal_that_nothing_keeps() -> None:
    found = Machine(lambda one: 5.0).found(50_000)
    assert "no rate with p99<=20ms" in found.before and not found.better


class TestVerb:
    @pytest.fixture
    def bundle(self, tmp_path: Path) -> Path:
        return pack(studies.study(tmp_path), tmp_path / "toy.ortune")

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Machine:
        made = Machine(lambda one: 500.0 if one.max_batch == 4 else 400.0)
        monkeypatch.setattr(goal, "start_server", lambda how, side, **_: made.start(how, side))
        return made

    def test_the_choice_is_written_into_a_copy(self, bundle: Path, tmp_path: Path) -> None:
        before, out, told = bundle.read_bytes(), tmp_path / "tuned.ortune", list[Event]()
        bundle.with_name("toy.ortune.sig").write_text("{}")
        found = loadtest(str(bundle), goal="p99<=20ms", out=out, time=3000, sink=told.append)
        assert isinstance(found, GoalResult)
        assert found.out == str(out) and found.goal == "p99<=20ms"
        assert found.better and found.chosen.max_batch == 4
        assert any("the copy has none" in one for one in found.notes)
        assert bundle.read_bytes() == before
        with load_engine(out) as engine:
            x = np.array([[-5, 0, 1, 2]], np.float32)
            np.testing.assert_array_equal(engine(x=x)["y"], [[0, 2, 4, 6]])
        steps = [one for one in told if isinstance(one, Progress)]
        assert steps[0].work == "serving the defaults" and steps[-1].total == 3000
        assert "toy.ortune" in repr(found) and found.records()[0]["pairs"] == 2, "the walk's end"

    def test_what_is_refused_before_anything_is_measured(
        self, bundle: Path, tmp_path: Path, machine: Machine
    ) -> None:
        plain = studies.write_model(tmp_path / "plain.onnx", studies.MODEL)
        out = tmp_path / "tuned.ortune"
        for target, more, said in (
            (plain, {}, "plain model"),
            (bundle, {"goal": "fast"}, "cannot read the limit"),
            (bundle, {"rate": (10, 20)}, "one rate"),
            (bundle, {"out": bundle, "force": True}, "the source itself"),
            (bundle, {"out": None}, "go together"),
            ("http://localhost:8000", {}, "served here"),
        ):
            with pytest.raises(OrtuneError, match=said):
                loadtest(str(target), **{"goal": "p99<=20ms", "out": out} | more)
        assert not machine.sides and not out.exists()

    def test_the_command_says_it(
        self, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "tuned.ortune"
        words = ["loadtest", str(bundle), "--goal", "p99<=20ms", "-o", str(out), "--time", "50m"]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "the defaults, 1 instance" in said and "fresh pairs" in said
        assert "max_batch 4" in said.partition(f"wrote {out}: ")[2]
