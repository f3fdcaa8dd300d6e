"""A study in a notebook: the answer, a plot and the plans, escaped."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from tests.unit import studies
from tests.unit.reporting.sections.test_sections import study as study_fixture
from tests.unit.reporting.test_reporting import HOSTILE, hostile, parsed

from ortune.core.study import Study

study = study_fixture


def test_a_study_shows_the_answer_a_plot_and_every_plan(study: Study) -> None:
    shown = study._repr_html_()
    assert "<b>1.92x as fast as the original" in shown
    drawn = shown[shown.index("<svg") : shown.index("</svg>") + len("</svg>")]
    assert ElementTree.fromstring(drawn).get("aria-hidden") == "true"
    assert 'class="estimate win"' in shown
    assert ">fp16<" in shown and "leaves the budget" in shown


def test_what_comes_from_outside_is_escaped(study: Study) -> None:
    tags = parsed(hostile(study)._repr_html_())
    found = {tag for tag, _ in tags.found}
    assert not found & {"img", "script", "link", "iframe"}
    assert not any("onerror" in attributes for _, attributes in tags.found)
    assert any(HOSTILE in word for word in tags.words)


def test_a_study_of_the_original_alone_is_shown_too(study: Study) -> None:
    bare = studies.changed(study, trials=study.trials[:1])
    assert "run: " in bare._repr_html_()
