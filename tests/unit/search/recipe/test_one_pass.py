"""All observers of a search read one pass over the samples."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.models import write_classifier

from ortune.core.observer import Probe
from ortune.core.step import AS_IS, Quantizer, Recipe, Step
from ortune.data import feeds
from ortune.graph.analysis import facts as model_facts
from ortune.graph.io import file
from ortune.measurement.process import Worker
from ortune.quantizers.adaptive_rounding import AdaptiveRounding
from ortune.quantizers.calibration import calibrate as calibrating
from ortune.quantizers.int8_dynamic import Int8Dynamic
from ortune.quantizers.int8_static import Int8Static
from ortune.quantizers.observers.percentile import Percentile
from ortune.search.recipe.build import Material, build_in
from ortune.search.recipe.editing import list_following
from ortune.transforms.simplify import Simplify

PLAIN = Recipe("plain", (Int8Static(min_side=1),))
CLIPPED = Recipe("clipped", (Int8Static(min_side=1, observer=Percentile()),))
ROUNDED = Recipe("rounded", (AdaptiveRounding(), Int8Static(min_side=1)))


@pytest.fixture
def material(tmp_path: Path) -> tuple[Path, Material]:
    model, data = write_classifier(tmp_path, samples=16)
    inputs = model_facts.read_facts(file.load(model)).inputs
    fed = feeds.load_feeds(data, inputs, tmp_path / "feeds")
    return model, Material(fed, tuple(range(fed.count)), planned=(PLAIN, CLIPPED, ROUNDED))


def passes(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Probe]]:
    """Note what every run of a calibration's worker is asked."""
    found: list[Sequence[Probe]] = []

    class Noting(Worker):
        def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
            if do == "observe":
                found.append(arguments["probes"])
            return super().ask(do, **arguments)

    monkeypatch.setattr(calibrating, "Worker", Noting)
    return found


def test_a_second_observer_is_answered_by_the_first_ones_pass(
    material: tuple[Path, Material], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = material
    runs = passes(monkeypatch)
    together = [build_in(tmp_path / "a", model, one, given) for one in (PLAIN, CLIPPED)]
    assert len(runs) == 1
    assert {probe.observer.name() for probe in runs[0]} == {"min-max", "percentile"}
    alone = Material(given.feeds, given.calibration)
    apart = [build_in(tmp_path / str(i), model, r, alone) for i, r in enumerate((PLAIN, CLIPPED))]
    assert len(runs) == 3
    for one, two in zip(together, apart, strict=True):
        assert one.path.read_bytes() == two.path.read_bytes()


def test_what_keeps_much_waits_until_it_is_asked_for(
    material: tuple[Path, Material], tmp_path: Path
) -> None:
    model, given = material
    build_in(tmp_path / "a", model, PLAIN, given)
    (ranges,) = (tmp_path / "a").glob("ranges/*/ranges.json")
    asked = json.dumps(json.loads(ranges.read_text()))
    assert "percentile" in asked and "moments(" not in asked


def test_quantizers_follow_the_same_steps() -> None:
    steps: tuple[Step, ...] = (Simplify(),)
    behind: tuple[Quantizer, ...] = (Int8Static(), Int8Dynamic())
    recipes = [AS_IS, PLAIN, *(Recipe("", (*steps, one)) for one in (*behind, *behind))]
    assert list_following(recipes, steps) == behind
    assert list_following(recipes, ()) == PLAIN.steps
    assert list_following((), steps) == ()
