"""A study in a notebook: the answer, a plot and the plans, escaped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit import studies
from tests.unit.reporting.sections.test_sections import study as study_fixture
from tests.unit.reporting.test_reporting import HOSTILE, hostile, parsed

from ortune.core.study import Study
from ortune.reporting.python.notebook import html

study = study_fixture


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a notebook was given to show."""
    given: list[dict[str, Any]] = []
    functions = pytest.importorskip("IPython.core.display_functions")
    monkeypatch.setattr(functions, "publish_display_data", given.append)
    return given


def test_a_study_shows_the_answer_every_plan_and_a_plot(
    study: Study, shown: list[dict[str, Any]]
) -> None:
    study._ipython_display_()
    words, plot = shown
    assert "<b>1.92x as fast as the original" in words["text/html"]
    assert ">fp16<" in words["text/html"] and "misses the budget" in words["text/html"]
    spec = plot["application/vnd.vegalite.v5+json"]
    assert "win" in {row["tone"] for row in spec["data"]["values"]}
    assert "var(--" not in json.dumps(spec), "a notebook has no style of ours"


def test_what_comes_from_outside_is_escaped(study: Study) -> None:
    tags = parsed(html(hostile(study)))
    found = {tag for tag, _ in tags.found}
    assert not found & {"img", "script", "link", "iframe"}
    assert not any("onerror" in attributes for _, attributes in tags.found)
    assert any(HOSTILE in word for word in tags.words)


def test_a_study_of_the_original_alone_is_shown_too(
    study: Study, shown: list[dict[str, Any]]
) -> None:
    studies.changed(study, trials=study.trials[:1])._ipython_display_()
    assert "run: " in shown[0]["text/html"] and len(shown) == 1
