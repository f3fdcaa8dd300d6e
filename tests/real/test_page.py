"""The pages in a browser, at two widths and in both colour schemes: nothing is cut or loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortune.analysis.profiling import files
from ortune.backends.cpu import Cpu
from ortune.bundle.engine.load import load_engine
from ortune.core.event import TimeLeft, TrialStarted, ignore_event
from ortune.core.section import Heading
from ortune.core.step import Recipe
from ortune.core.study import Study
from ortune.core.trial import Block, Burst, Interval, Pair, Plan
from ortune.reporting.blocks import Part
from ortune.reporting.graph.blocks import draw_graphs
from ortune.reporting.graph.sides import Counterpart, Side, Sides
from ortune.reporting.html import render_page, report
from ortune.reporting.live import Watched
from ortune.reporting.python import profile as profile_page
from ortune.reporting.python.sensitivity import write_picture
from ortune.search.experiment.ledger import keep_now, lock_run, write_ending
from ortune.search.experiment.surveys import RegionJournal
from ortune.search.mixed_precision.survey import Survey
from tests.unit import studies, surveys
from tests.unit.analysis.sensitivity.test_result import found
from tests.unit.reporting.test_live import served, store
from tests.unit.reporting.test_profile import ACTING, profile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
CUT = """() => [...document.querySelectorAll('main *')]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .filter(e => !e.closest('.box') || innerWidth < 600)
    .map(e => e.outerHTML.slice(0, 200))"""
"""What reaches beyond the window; on a wide one a wide table scrolls in its box."""
LABELS = """() => [...document.querySelectorAll('.chart text')].filter(e => e.checkVisibility())
    .filter(e => {const t = e.getBoundingClientRect();
                  const s = e.ownerSVGElement.getBoundingClientRect();
                  return t.right > s.right + 1 || t.left < s.left - 1})
    .map(e => e.textContent)"""

DRAWN = """() => [...document.querySelectorAll('.chart')].filter(e => e.clientWidth)
    .every(e => e.dataset.drawn && e.querySelector('svg'))"""


def run(folder: Path) -> Study:
    """A run with many plans, long names, hundreds of runs and profiles of both models."""
    made = studies.study(folder)
    ns = tuple(1_000_000 + 3_000 * (n % 89) for n in range(300))
    waited = (0.0,) * len(ns)
    turn = Block(Burst(ns, waited), Burst(tuple(n // 2 for n in ns), waited))
    best = made.trials[-1]
    assert best.measurement is not None
    measured = replace(best.measurement, pairs=(Pair((turn,)),) * 5)
    spelled = "int8-static(observer=percentile(p=99.{}), per_channel=true) + clean"
    names = [spelled.format(n) for n in range(50)]
    more = [
        studies.trial(f"{n:016d}", Plan(Recipe(name), Cpu(threads=n + 1)), 0.6 + n / 30)
        for n, name in enumerate(names)
    ]
    lone = replace(more[0], key="f" * 16, ratio=Interval(0.6, 0.0, float("inf")), effort="screen")
    cut = replace(more[1], key="e" * 16, stopped="stopped after its first burst")
    trials = (*made.trials[:-1], *more, lone, cut, replace(best, measurement=measured))
    files.write_profile(replace(profile(), model=made.models[""]), Path(made.root) / "before")
    built = Path(made.root) / str(best.artefact) / "toy.onnx"
    files.write_profile(replace(ACTING, model=str(built)), Path(made.root) / "after")
    RegionJournal(Path(made.root)).add(surveyed())
    return studies.changed(replace(made, trials=trials), advice=("pin the clock",))


def surveyed() -> Survey:
    """Sixty regions with long names, three of a pattern, one that could not be measured."""
    names = [f"/model/encoder/layer.{n}/attention/output/dense/MatMul" for n in range(60)]
    rows = [
        surveys.cost(name, (n % 7 + 1) * 1e-3, (n % 5 - 1) * 0.01, f"p{n // 3}", nodes=(f"r{n}",))
        for n, name in enumerate(names)
    ]
    return replace(surveys.SURVEY, regions=(*rows, *surveys.REGIONS, surveys.FAILED))


def large() -> tuple[Part, ...]:
    """Graphs of 2,000 steps in 24 layers; every fourth was fused, every tenth reads far back."""
    precisions = ("float32", "int8")
    steps = []
    for n in range(2000):
        reads = (n - 1, n - 60) if n % 10 == 0 and n > 60 else (n - 1,) if n else ()
        sides = [
            Side((f"/layer.{n // 84}/node_{n}",), ("Conv",), precision, 0.01 * (n % 7), reads)
            for precision in precisions
        ]
        kind = "matched" if n % 4 else "fused"
        steps.append(Counterpart(kind, "layer.*", f"layer.{n // 84}", *sides))
    return (Part("graph", (Heading("The graph"), draw_graphs(Sides(tuple(steps))))),)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {
        "report": report(run(folder), folder / "report.html"),
        "graph": write(folder / "graph.html", render_page("large", large())),
        "profile": profile_page.write_page(ACTING, folder / "profile.html"),
        "sensitivity": write_picture(
            found(regions=surveyed().regions), folder / "sensitivity.html"
        ),
    }


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("name", ["report", "graph", "profile", "sensitivity"])
def test_a_page_in_a_browser(
    pages: dict[str, Path], browser: Any, name: str, width: int, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    view = {"width": width, "height": 900}
    context = browser.new_context(viewport=view, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(pages[name].as_uri())
    shut = page.evaluate("document.documentElement.scrollHeight")
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    page.wait_for_function(DRAWN)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CUT) == [] and page.evaluate(LABELS) == []
    if name == "report":
        assert page.evaluate("document.documentElement.scrollHeight") > 1.5 * shut, "tables fold"
        assert page.locator("#plans .mark-rule path, #plans .mark-rule line").count() >= 24
        assert page.locator("#precision-1 .mark-symbol path").count() > 60
        assert page.locator("#summary .tile").count() == 4
    violations = axe.run(page).response["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert serious == [] and said == [] and asked == [pages[name].as_uri()]
    context.close()


def test_original_and_winner_are_stacked_on_a_phone(pages: dict[str, Path], browser: Any) -> None:
    places = {}
    for width in (1440, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto(pages["report"].as_uri())
        cells = page.locator("#comparison tbody tr").first.locator("td")
        places[width] = [cells.nth(k).bounding_box() for k in (1, 2)]
        page.close()
    (a, b), (above, below) = places[1440], places[390]
    assert a["y"] == b["y"] and a["x"] < b["x"]
    assert above["x"] == below["x"] and above["y"] < below["y"]


def test_a_graph_of_two_thousand_steps_is_opened_and_searched_at_once(
    pages: dict[str, Path], browser: Any
) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(pages["graph"].as_uri())
    assert page.locator("#graph .rows > details").count() == 1, "24 layers are one region"
    timed = """async (change) => {
        const began = performance.now(); eval(change);
        await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
        return performance.now() - began; }"""
    opened = page.evaluate(
        timed, "document.querySelectorAll('#graph details').forEach(d => d.open = true)"
    )
    page.wait_for_function("document.querySelectorAll('#graph .members > details').length == 24")
    everything = page.evaluate(
        timed, "document.querySelectorAll('#graph .members > details').forEach(d => d.open = true)"
    )
    page.wait_for_function("document.querySelectorAll('#graph .steps > .step').length == 2000")
    assert page.locator("#graph .arcs .edge").count() == 48
    search = page.get_by_label("find nodes")
    search.fill("node_1999")
    assert page.locator("#graph .found").inner_text() == "1 found"
    assert page.locator("#graph .steps > .step").count() == 1
    search.fill("fused conv")
    assert page.locator("#graph .found").inner_text() == "500 found, the first 200 shown"
    searched = page.evaluate(
        timed, "document.querySelector('#graph input').dispatchEvent(new Event('input'))"
    )
    search.fill("")
    assert page.locator("#graph .steps").count() == 0
    assert max(opened, everything, searched) < 3000, "ms, where ten others want the CPU"
    page.close()


@pytest.mark.parametrize("width", [1440, 390])
def test_a_live_page_follows_a_search_and_packs_a_plan(
    tmp_path: Path, browser: Any, width: int
) -> None:
    made = studies.study(tmp_path)
    root = Path(made.root)
    sink = keep_now(root, ignore_event)
    context = browser.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    with served(Watched([root])) as asked:
        with lock_run(root):
            sink(TimeLeft(60, may_restart=True))
            sink(TrialStarted(made.baseline.plan, "baseline"))
            ledger = store(made, made.trials[:1])
            sink(TrialStarted(made.trials[1].plan, "search"))
            page.goto(f"http://{asked.host}{asked.home}run/0/")
            page.locator(".now strong", has_text="search: optimized graph").wait_for()
            assert page.locator("#plans").count() == 0
            for trial in made.trials[1:]:
                ledger.append(trial)
            page.locator("#plans .chart[data-drawn] svg").wait_for()
            page.locator("details").nth(1).evaluate("one => one.open = true")
        write_ending(root, made.ending)
        page.get_by_role("button", name=f"pack {made.label(made.best.plan)}").click()
        answer = page.locator(".packs code", has_text=f"{made.best.key[:8]}.ortune")
        answer.wait_for(timeout=60_000)
        assert page.locator(".now").is_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator("footer p", has_text="Not up to date").wait_for()
    assert [text for text in said if "Failed to load resource" not in text] == []
    context.close()
    with load_engine(root / f"{made.best.key[:8]}.ortune") as engine:
        assert engine(x=np.ones((1, 4), np.float32))["y"].tolist() == [[2, 3, 4, 5]]
