"""A model's life: figures inside the noise are not told apart, tables and chart say the rest."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ortune import timeline
from ortune.analysis.costs import timeline as timing
from ortune.analysis.costs.timeline import (
    BOTH,
    EVERY_SESSION,
    GRAPH,
    NONE,
    OFFLINE,
    ORT,
    QUANTIZED,
    CostLine,
    Subject,
    Timeline,
    Variant,
    compute_crossings,
    compute_total,
    find_break_even,
    lower_envelope,
    samples_differ,
)
from ortune.backends.cpu import Cpu
from ortune.cli.main import main
from ortune.core.section import Lines
from ortune.core.trial import Interval
from ortune.reporting.python.timeline import build_timeline_blocks

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,16] x) => (float[N,8] y) {
  a = Identity(x)
  h = MatMul(a, w)
  r = Relu(h)
  y = MatMul(r, v)
}
"""
SAVED, SAVED_ORT = f"{BOTH}, {OFFLINE}", f"{BOTH}, {ORT}"


def write_model(path: Path) -> Path:
    import numpy as np

    proto = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (16, 32)), ("v", (32, 8))):
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(proto, path)
    return path


# name, once, against, ratio, loads in ms, first inference in ms
SCRIPT = (
    (NONE, 0.0, "", Interval(1, 1, 1), range(10, 15), 10),
    (GRAPH, 0.0, NONE, Interval(0.8, 0.79, 0.81), range(30, 35), 8),
    (QUANTIZED, 4.0, NONE, Interval(1.2, 1.1, 1.3), range(10, 15), 12),
    (BOTH, 5.0, GRAPH, Interval(0.5, 0.4, 0.6), range(40, 45), 4),
    (SAVED, 6.0, BOTH, Interval(0.99, 0.95, 1.03), range(20, 25), 4),
    (SAVED_ORT, 6.5, BOTH, Interval(1.01, 0.99, 1.03), range(41, 46), 4),
)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock read a script: no process is started."""

    def made(subject: Subject) -> Iterator[Variant]:
        for name, once, against, *_ in SCRIPT:
            yield Variant(name, subject.model, Cpu(), once, against)

    class Clock:
        def __init__(self, found: list[Variant], *rest: Any) -> None:
            self.variants = found

        def time_starts(self, count: int) -> tuple[dict[str, Any], list[int]]:
            found = {
                name: [(n * 10**6, first * 10**6) for n in loads]
                for name, _, _, _, loads, first in SCRIPT
            }
            return found, [90_000_000]

        def time_ratios(self, seconds: float) -> tuple[dict[str, Interval], int]:
            return {name: ratio for name, _, _, ratio, *_ in SCRIPT}, 10_000_000

    monkeypatch.setattr(timing, "make_variants", made)
    monkeypatch.setattr(timing, "Clock", Clock)


@pytest.fixture
def found(tmp_path: Path, scripted: None) -> Timeline:
    return timeline(write_model(tmp_path / "m.onnx"), inferences_per_session=100)


def test_figures_inside_the_noise_are_taken_as_equal(found: Timeline) -> None:
    inference = {row.line.name: row.line.inference_s for row in found.rows}
    assert inference[GRAPH] == pytest.approx(0.008)
    assert inference[BOTH] == pytest.approx(0.004)
    assert inference[SAVED] == inference[SAVED_ORT] == inference[BOTH]
    session = {row.line.name: row.line.session_s for row in found.rows}
    assert session[NONE] == session[QUANTIZED] == pytest.approx(0.012)
    assert session[BOTH] == session[SAVED_ORT] == pytest.approx(0.042)
    assert session[SAVED] == pytest.approx(0.022)
    alike = {row.line.name for row in found.rows if row.session_equal}
    assert alike == {QUANTIZED, SAVED_ORT}


def test_who_is_cheapest_when(found: Timeline) -> None:
    # Up to one session: 20 ms more against 2 ms an inference.
    assert [(round(segment.since, 3), segment.name) for segment in found.cheapest[:2]] == [
        (0, NONE),
        (10, GRAPH),
    ]
    # From then on, per inference: graph 8.32 ms, both 4.42 ms for 5 s, saved 4.22 ms for 6 s.
    assert found.cheapest[2].name == BOTH
    assert found.cheapest[2].since == pytest.approx(5 / 0.0039)
    assert found.cheapest[3].name == SAVED
    assert found.cheapest[3].since == pytest.approx(1 / 0.0002)
    every = found.find_line(EVERY_SESSION)
    assert (every.once_s, every.session_s) == (0.0, pytest.approx(5.042))


def test_a_break_even_carries_the_ratios_interval(found: Timeline) -> None:
    row = next(row for row in found.rows if row.line.name == BOTH)
    since = row.estimate_break_even(found.find_line(GRAPH), 100)
    # 5 s against 8 ms * (1 - ratio) less 0.1 ms of slower sessions.
    assert since.value == pytest.approx(5 / 0.0039)
    assert since.low == pytest.approx(5 / (0.008 * 0.6 - 0.0001))
    assert since.high == pytest.approx(5 / (0.008 * 0.4 - 0.0001))


def test_tables_and_chart_say_it(found: Timeline) -> None:
    text = "\n".join(str(block) for block in build_timeline_blocks(found))
    assert "Quantizing in every session costs 5.01 s a session" in text
    assert "it pays from 1,253 inferences in one session on" in text
    assert f"{SAVED}: a session takes 22 ms instead of 42 ms" in text
    assert "back after 50 sessions" in text
    assert f"{SAVED_ORT}: sessions start no quicker (within noise)" in text
    assert f"Wide intervals: {BOTH}." in text
    chart = next(block for block in build_timeline_blocks(found) if isinstance(block, Lines))
    assert chart.log_x and chart.log_y
    assert {line.name for line in chart.lines} >= {NONE, GRAPH, BOTH, EVERY_SESSION}
    assert all(x > 0 and y > 0 for line in chart.lines for x, y in line.points)
    assert next(iter(chart.marks)).label == f"10: {GRAPH}"


def test_the_command_writes_a_page_and_json(
    tmp_path: Path, scripted: None, capfd: pytest.CaptureFixture[str]
) -> None:
    model, page = write_model(tmp_path / "m.onnx"), tmp_path / "t.html"
    assert main(["cost", str(model), "--timeline", "-o", str(page), "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert [line["name"] for line in answer["lines"]][-1] == EVERY_SESSION
    assert answer["cheapest"][0]["since"] == 0 and answer["cheapest"][-1]["until"] is None
    text = page.read_text()
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # what draws names no host
    assert 'class="chart"' in own and "http" not in own.replace("http-equiv", "")
    assert main(["cost", str(model), "--timeline"]) == 0
    assert "The cheapest" in capfd.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--on", "reference"],
        ["--step", "simplify"],
        ["--step", "int8-static(nothing=1)"],
        ["--inferences-per-session", "0"],
        ["--starts", "0"],
        ["-o", "t.txt"],
        ["-o", "m.onnx"],
    ],
)
def test_bad_words_are_two_lines(
    tmp_path: Path,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "m.onnx")
    assert main(["cost", "m.onnx", "--timeline", *words]) == 2
    said = capfd.readouterr().err.splitlines()
    assert "  fix: " in said[-1] and "m.onnx" not in {p.name for p in tmp_path.glob("t.*")}


def test_ranks_by_hand() -> None:
    assert samples_differ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert samples_differ([6, 7, 8, 9, 10], [1, 2, 3, 4, 5])
    assert not samples_differ([1, 2, 3, 4, 6], [5, 7, 8, 9, 10])
    assert not samples_differ([1, 2, 3], [7, 8, 9]), "three values prove nothing at 1 %"
    assert not samples_differ([1] * 5, [1] * 5), "a tie is half a win"
    assert samples_differ([*range(8), 99], list(range(10, 19))), "one outlier of nine"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_a_sample_does_not_differ_from_itself(values: list[int]) -> None:
    assert not samples_differ(values, values)


@pytest.mark.long
def test_every_variant_is_made_and_timed(tmp_path: Path) -> None:
    found = timeline(write_model(tmp_path / "m.onnx"), starts=2, time=1, on="cpu(threads=1)")
    names = {row.line.name for row in found.rows}
    saved = {f"{name}, {kind}" for name in (GRAPH, BOTH) for kind in (OFFLINE, ORT)}
    assert names >= {NONE, GRAPH, QUANTIZED, BOTH, *saved}, found.notes
    assert all(len(row.load_ns) == 2 and row.size > 0 for row in found.rows)
    assert found.find_line(BOTH).once_s > 0 and found.quantizer


# Lines over a life: the crossings are where the order changes, and nowhere else.


seconds = st.one_of(st.just(0.0), st.floats(1e-4, 1e3))
lines = st.builds(CostLine, st.text(min_size=1, max_size=3), seconds, seconds, seconds)
sessions = st.one_of(st.floats(1, 1e6), st.just(math.inf))

NONE_BREAKEVEN = CostLine("none", 0.0, 0.1, 0.010)
QUANTIZED_BREAKEVEN = CostLine("quantized", 30.0, 0.3, 0.004)


def test_one_session_by_hand() -> None:
    # 30 s once and 0.2 s more a session against 6 ms an inference.
    assert compute_crossings(NONE_BREAKEVEN, QUANTIZED_BREAKEVEN, math.inf) == (
        pytest.approx(30.2 / 0.006),
    )
    assert find_break_even(NONE_BREAKEVEN, QUANTIZED_BREAKEVEN, math.inf) == pytest.approx(
        30.2 / 0.006
    )
    assert find_break_even(QUANTIZED_BREAKEVEN, NONE_BREAKEVEN, math.inf) == math.inf


def test_sessions_eat_the_gain_by_hand() -> None:
    # A hundred inferences a session: 6 ms minus 0.2 s / 100 = 4 ms each.
    assert find_break_even(NONE_BREAKEVEN, QUANTIZED_BREAKEVEN, 100) == pytest.approx(30 / 0.004)
    # Ten: every session loses 0.2 s and gains 0.06 s.
    assert find_break_even(NONE_BREAKEVEN, QUANTIZED_BREAKEVEN, 10) == math.inf


def test_quantizing_in_every_session_by_hand() -> None:
    every = CostLine(
        "every",
        0.0,
        QUANTIZED_BREAKEVEN.once_s + QUANTIZED_BREAKEVEN.session_s,
        QUANTIZED_BREAKEVEN.inference_s,
    )
    # 30.2 s a session against 6 ms an inference: 5,033 inferences in one session pay for it.
    assert find_break_even(NONE_BREAKEVEN, every, 5000) == math.inf
    assert math.isfinite(find_break_even(NONE_BREAKEVEN, every, 5100))


def sign(one: CostLine, two: CostLine, n: float, per_session: float) -> int:
    a, b = compute_total(one, n, per_session), compute_total(two, n, per_session)
    return 0 if math.isclose(a, b, rel_tol=1e-9) else (1 if b > a else -1)


@given(lines, lines, sessions)
def test_both_cost_the_same_at_a_crossing(
    one: CostLine, two: CostLine, per_session: float
) -> None:
    found = compute_crossings(one, two, per_session)
    assert len(found) <= 2 and list(found) == sorted(found)
    for n in found:
        a, b = (compute_total(line, n, per_session) for line in (one, two))
        assert math.isclose(a, b, rel_tol=1e-6)


@given(lines, lines, sessions, st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=6))
def test_the_order_changes_at_crossings_only(
    one: CostLine, two: CostLine, per_session: float, places: list[float]
) -> None:
    edges = [0.0, *compute_crossings(one, two, per_session), math.inf]
    for low, high in itertools.pairwise(edges):
        seen = {sign(one, two, n, per_session) for n in places if low < n < high}
        assert len(seen - {0}) <= 1


@given(lines, lines, sessions)
def test_what_pays_stays_paid(old: CostLine, new: CostLine, per_session: float) -> None:
    since = find_break_even(old, new, per_session)
    assume(math.isfinite(since))
    for factor in (1.01, 2.0, 100.0):
        assert sign(old, new, since * factor + 1e-3, per_session) <= 0


@given(st.lists(lines, min_size=1, max_size=6, unique_by=lambda line: line.name), sessions)
def test_the_reigning_line_is_the_lowest(found: list[CostLine], per_session: float) -> None:
    ruled = lower_envelope(found, per_session)
    assert ruled[0].since == 0 and math.isinf(ruled[-1].until)
    assert all(a.until == b.since and a.name != b.name for a, b in itertools.pairwise(ruled))
    for segment in ruled:
        inside = (
            (segment.since + segment.until) / 2
            if math.isfinite(segment.until)
            else 3 * segment.since + 5
        )
        best = min(compute_total(line, inside, per_session) for line in found)
        mine = next(line for line in found if line.name == segment.name)
        assert math.isclose(compute_total(mine, inside, per_session), best, rel_tol=1e-6)
