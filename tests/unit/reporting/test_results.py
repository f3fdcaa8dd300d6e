"""Pages of other verbs: the answer first, then a picture, then the tables."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.analysis.costs.test_cost import NOW, TUNED, WORKED
from tests.unit.analysis.sensitivity.test_result import found
from tests.unit.reporting.test_charts import HOSTILE
from tests.unit.reporting.test_profile import ACTING
from tests.unit.reporting.test_reporting import parsed

import ortune as ot
from ortune.analysis.benchmark.interleave import NoiseVerdict
from ortune.analysis.costs.cost import tabulate_costs
from ortune.analysis.verification.verify import Comparison
from ortune.bundle.engine.instances import Serving
from ortune.cli.main import main
from ortune.cli.terminal.load_page import build_goal_page, build_load_page
from ortune.core.budget import Budget
from ortune.core.errors import OrtuneError
from ortune.core.section import Bars, Intervals, Lines, Pills, Shots, Tiles
from ortune.core.study import SampleScores
from ortune.core.trial import Interval, Score, Verdict
from ortune.measurement.machine.noise import Advice
from ortune.metrics.cosine import Cosine
from ortune.reporting.html import render_page
from ortune.reporting.precision.regions import summarize_sensitivity
from ortune.reporting.profile import summarize_profile
from ortune.reporting.results import Page, Result, build_result_parts, write_result_page
from ortune.serving.load_testing.goal import GoalResult, TriedRow
from ortune.serving.load_testing.loadtest import LoadTestResult

BUSY = Advice("other processes used 0.9 of 2 CPUs during the run", "close them")


def verified(verdict: Verdict) -> Comparison:
    score = Score("cosine", 0.99, 1.0, 0.98, math.inf, 32, verdict, 500, "bootstrap")
    kept = SampleScores("cosine", (4, 7), (1.0, 1.0), (0.9, 1.0), (12.0, 30.0))
    picture = {"x": np.random.default_rng(0).random((1, 3, 16, 16), np.float32)}
    return Comparison(
        (score,), Budget(Cosine(), 0.999), "", 32, False, answers=kept, worst={4: picture}
    )


def loaded(*advice: Advice) -> LoadTestResult:
    def level(callers: int, rate: float, ms: float) -> dict[str, Any]:
        latencies = {f"p{p}_ns": ms * p / 50 * 1e6 for p in (50, 90, 95, 99)}
        workload = f"{HOSTILE} grpc, {callers} callers"
        return {"workload": workload, "requests_per_s": rate, "failed": callers - 1, **latencies}

    return LoadTestResult(
        target="t",
        model=HOSTILE,
        protocol="grpc",
        rows=(level(1, 90.0, 10.0), level(4, 160.0, 24.0)),
        knee=0,
        most=1,
        kept=None,
        slo="p99<=5ms",
        processes=1,
        clients=1,
        clock="seen by the client",
        knee_rule="",
        checked=None,
        notes=(),
        machine={},
        versions={},
        noise={},
        judgement=NoiseVerdict(False, "", advice),
    )


def test_a_goal_has_a_page_of_its_own() -> None:
    result = GoalResult(
        bundle="m.ortune",
        goal="p99<=20ms",
        before="120 a second",
        defaults="2 instances",
        choice=f"1 instance {HOSTILE}",
        chosen=Serving(),
        better=True,
        ratio=Interval(1.4, 1.2, 1.6),
        pairs=5,
        tried=(TriedRow("1 instance", 1.5, 2), TriedRow("4 instances", 0.7, 1)),
        verdict="take 1 instance",
        seconds=60.0,
        notes=("the machine was busy",),
    )
    title, parts = build_goal_page(result)
    assert title == "m.ortune: p99<=20ms"
    pills, tiles = parts[0].blocks
    assert isinstance(pills, Pills) and isinstance(tiles, Tiles)
    assert [pill.text for pill in pills.pills] == ["better than the defaults", "1 remark"]
    assert [tile.figure for tile in tiles.tiles] == [result.choice, "1.4x", "p99<=20ms"]
    (bars,) = (block for block in parts[1].blocks if isinstance(block, Bars))
    assert [bar.label for bar in bars.bars] == ["1 instance", "4 instances"]
    assert render_page(title, parts)


def compared(folder: Path) -> list[str]:
    """Write two files of `bench`, the second slower."""
    rows = []
    for name, ms in (("a", 10), ("b", 13)):
        turns = [[[round(1e6 * ms * (1 + k % 5 / 1000)) for k in range(10)]] * 6] * 3
        row = {"model": "/m/net.onnx", "backend": "cpu", "digest": "d", "turns": turns}
        machine = {"cpu": "A", "effective cpus": "2"}
        rows.append(folder / f"{name}.json")
        rows[-1].write_text(json.dumps({"rows": [row], "machine": machine, "versions": {}}))
    return [str(path) for path in rows]


def pages(folder: Path) -> dict[str, Page]:
    made: dict[str, Result] = {
        "verify": verified(Verdict.FAILS),
        "cost": tabulate_costs([NOW, TUNED], WORKED),
        "compare": ot.compare(compared(folder)),
    }
    built = {name: build_result_parts(result) for name, result in made.items()}
    return {**built, "loadtest": build_load_page(loaded())}


def test_every_page_begins_with_its_answer_and_draws_before_its_tables(tmp_path: Path) -> None:
    pictures = {"loadtest": Lines, "cost": Bars, "compare": Intervals, "verify": Shots}
    for name, made in pages(tmp_path).items():
        _, parts = made
        assert parts[0].name == "summary"
        pills, tiles = parts[0].blocks
        assert isinstance(pills, Pills) and isinstance(tiles, Tiles)
        assert pills.pills and 3 <= len(tiles.tiles) <= 4
        kinds = [type(block) for part in parts[1:] for block in part.blocks]
        tables = [place for place, kind in enumerate(kinds) if kind.__name__ == "Table"]
        assert tables
        assert kinds.index(pictures[name]) < tables[0]
        page = write_result_page(made, tmp_path / f"{name}.html").read_text(encoding="utf-8")
        images = [tag for tag, _ in parsed(page).found if tag == "img"]
        assert len(images) == (name == "verify"), "none but of the one sample that is there"


def test_answers_are_what_the_result_says(tmp_path: Path) -> None:
    def first(page: Page) -> tuple[str, str]:
        block = page[1][0].blocks[0]
        assert isinstance(block, Pills)
        return block.pills[0].text, block.pills[0].tone

    made = pages(tmp_path)
    assert first(made["verify"]) == ("accuracy fails", "bad")
    assert first(build_result_parts(verified(Verdict.PROVED))) == ("accuracy proved", "good")
    assert first(made["loadtest"]) == ("p99<=5ms: not kept", "bad")
    assert first(made["compare"]) == ("1 of 1 row regressed", "warn")
    assert first(made["cost"])[0].endswith(": tuned")
    for advice, text in (((), "machine was quiet"), ((BUSY,), "machine: 1 disturbance")):
        pills = build_load_page(loaded(*advice))[1][0].blocks[0]
        assert isinstance(pills, Pills) and pills.pills[-1].text == text


def test_profile_and_sensitivity_begin_alike() -> None:
    for part in (summarize_profile(ACTING), summarize_sensitivity(found())):
        assert part.name == "summary" and [type(b) for b in part.blocks] == [Pills, Tiles]


def test_a_page_is_asked_for_by_an_option(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", *compared(tmp_path), "--page", str(page)]) == 1
    assert "regressed" in page.read_text(encoding="utf-8")
    made = build_result_parts(verified(Verdict.PROVED))
    with pytest.raises(OrtuneError, match=r"cannot write a page as 'page\.txt'"):
        write_result_page(made, tmp_path / "page.txt")
    assert main(["compare", *compared(tmp_path), "--page", str(page)]) == 2, "it exists"


def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["verify", "not-there.onnx", "other.onnx", "--page", "page.txt"]) == 2
    assert "cannot write a page as 'page.txt'" in capsys.readouterr().err
